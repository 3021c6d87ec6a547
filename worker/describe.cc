// Prints backend and kernel table.
#include "worker/describe.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "kernels/ops/op_def.h"

namespace ebb {

std::string DescribeJson(const Backend& backend, const KernelTable& kernels) {
  using Json = nlohmann::ordered_json;
  Json rows = Json::array();
  for (int op = 0; op < kNumOps; ++op) {
    for (const KernelRow& row : kernels.rows[op]) {
      rows.push_back({{"op", GetOpDef(static_cast<Op>(op)).name},
                      {"dtype", DTypeName(row.dtype)},
                      {"forward", row.forward != nullptr},
                      {"backward", row.backward != nullptr}});
    }
  }
  Json description = {
      {"backend",
       {{"kind", backend.kind},
        {"device_model", backend.device_model},
        {"instruction_set", backend.instruction_set},
        {"bf16_products", HasBf16Products(backend.instruction_set)},
        {"threads", backend.threads},
        {"libraries", backend.libraries},
        {"runtime_bytes", absl::StrCat(backend.runtime_bytes)}}},
      {"kernels", std::move(rows)}};
  // A device may name itself in bytes that are not UTF-8.
  return description.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ebb
