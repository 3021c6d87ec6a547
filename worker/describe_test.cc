// The description is JSON that says what the tables say.
#include "worker/describe.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "kernels/ops/op_def.h"

namespace ebb {
namespace {

using ::nlohmann::json;

void NoKernel(const OpCall&, Stream) {}

TEST(Describe, BackendHasAllThatAPlanNeeds) {
  Backend backend = BuiltInCpuBackend();
  backend.runtime_bytes = int64_t{1} << 60;
  backend.device_model = "a \"chip\" \xff";
  json description = json::parse(DescribeJson(backend, {}));
  EXPECT_EQ(description["backend"],
            (json{{"kind", "cpu"},
                  {"device_model", "a \"chip\" \xef\xbf\xbd"},
                  {"instruction_set", "avx512_core"},
                  {"bf16_products", false},
                  {"threads", 2},
                  {"libraries", backend.libraries},
                  {"runtime_bytes", "1152921504606846976"}}));
  EXPECT_EQ(description["kernels"], json::array());
  backend.instruction_set = "avx512_core_bf16";
  description = json::parse(DescribeJson(backend, {}));
  EXPECT_EQ(description["backend"]["bf16_products"], true);
}

TEST(Describe, KernelRowsSayWhatIsThere) {
  const KernelRow rows[] = {{DType::kF32, NoKernel, NoKernel},
                            {DType::kNone, NoKernel, nullptr}};
  KernelTable table;
  table.rows[static_cast<int>(Op::kGelu)] = rows;
  std::string text = DescribeJson(BuiltInCpuBackend(), table);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  json kernels = json::parse(text)["kernels"];
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0], (json{{"op", GetOpDef(Op::kGelu).name},
                              {"dtype", DTypeName(DType::kF32)},
                              {"forward", true},
                              {"backward", true}}));
  EXPECT_EQ(kernels[1]["forward"], true);
  EXPECT_EQ(kernels[1]["backward"], false);
}

}  // namespace
}  // namespace ebb
