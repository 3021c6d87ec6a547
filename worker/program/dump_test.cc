// Programs as text against golden files; --update_golden writes them anew.
#include "worker/program/dump.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "worker/model/testing/llama_like.h"
#include "worker/model/transformer.h"
#include "worker/program/lower.h"
#include "worker/program/policy.h"

namespace ebb {
namespace {

bool update_golden = false;

struct Case {
  const char* name;
  AttentionKind attention;
  Policy policy;
  int group;
  bool llama = false;
  Offload offload = Offload::kNone;
  DType precision = DType::kF32;
  Offload offload_optimizer = Offload::kNone;
  Offload offload_parameters = Offload::kNone;
  EncodeSpec encode = {};
};

class Golden : public testing::TestWithParam<Case> {};

std::string GoldenPath(const char* name) {
  return absl::StrCat(EBB_SOURCE_DIR, "/worker/program/golden/", name, ".txt");
}

void ExpectGolden(const char* name, const std::string& text) {
  const std::string path = GoldenPath(name);
  if (update_golden) std::ofstream(path) << text;
  std::ifstream file(path);
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(text, golden.str())
      << path << " differs: review, then run with --update_golden";
}

ModelSpec Model(AttentionKind attention) {
  ModelSpec model;
  model.layers = 5;
  model.hidden = 64;
  model.heads = model.kv_heads = 4;
  model.ffn = 256;
  model.vocab = 257;
  model.seq_len = 32;
  model.attention = attention;
  model.dropout = 0.1;
  return model;
}

TEST_P(Golden, TrainingProgram) {
  const Case& c = GetParam();
  ModelSpec model = Model(c.attention);
  if (c.llama) model = LlamaLike(model, 2);
  auto graph = BuildTransformer(model, 2, 32, 8 * 32, true, c.precision);
  ASSERT_TRUE(graph.ok()) << graph.status();
  MemorySpec memory;
  memory.policy = c.policy;
  memory.group = c.group;
  memory.offload = c.offload;
  memory.offload_optimizer = c.offload_optimizer;
  memory.offload_parameters = c.offload_parameters;
  memory.encode = c.encode;
  auto plan = MakePolicyPlan(*graph, memory);
  ASSERT_TRUE(plan.ok()) << plan.status();
  auto program =
      LowerTraining(*graph, *plan, OptimizerSpec(), 4, BuiltInCpuBackend());
  ASSERT_TRUE(program.ok()) << program.status();
  ExpectGolden(c.name, Dump(*program));
}

INSTANTIATE_TEST_SUITE_P(
    Policies, Golden,
    testing::Values(
        Case{"fused_none", AttentionKind::kFused, Policy::kNone, 1},
        Case{"fused_cheap", AttentionKind::kFused, Policy::kCheap, 1},
        Case{"fused_full_2", AttentionKind::kFused, Policy::kFull, 2},
        Case{"unfused_selective", AttentionKind::kUnfused, Policy::kSelective,
             1},
        Case{"llama_cheap", AttentionKind::kFused, Policy::kCheap, 1, true},
        Case{"fused_none_offload", AttentionKind::kFused, Policy::kNone, 1,
             false, Offload::kHost},
        Case{"llama_full_offload", AttentionKind::kFused, Policy::kFull, 1,
             true, Offload::kHost},
        Case{"optimizer_offload", AttentionKind::kFused, Policy::kNone, 1,
             false, Offload::kNone, DType::kBf16, Offload::kHost},
        Case{"parameters_offload", AttentionKind::kFused, Policy::kCheap, 1,
             false, Offload::kNone, DType::kF32, Offload::kNone,
             Offload::kHost},
        Case{"fused_selective_encode", AttentionKind::kFused,
             Policy::kSelective, 1, false, Offload::kNone, DType::kF32,
             Offload::kNone, Offload::kNone,
             EncodeSpec{{"L*"}, DType::kF8E4M3}},
        Case{"llama_full_encode_offload", AttentionKind::kFused, Policy::kFull,
             1, true, Offload::kHost, DType::kF32, Offload::kNone,
             Offload::kNone, EncodeSpec{{"L*"}, DType::kBf16}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(GoldenEvaluation, Program) {
  const ModelSpec model = Model(AttentionKind::kFused);
  auto graph = BuildTransformer(model, 2, 32, 8 * 32, true);
  ASSERT_TRUE(graph.ok());
  auto plan = MakePolicyPlan(*graph, MemorySpec());
  ASSERT_TRUE(plan.ok());
  auto training =
      LowerTraining(*graph, *plan, OptimizerSpec(), 4, BuiltInCpuBackend());
  ASSERT_TRUE(training.ok());
  // 3 sequences of 17 tokens: the head has a shorter last chunk.
  auto evaluation_graph = BuildTransformer(model, 3, 17, 51, false);
  ASSERT_TRUE(evaluation_graph.ok());
  auto evaluation =
      LowerEvaluation(*evaluation_graph, *training, 2, BuiltInCpuBackend());
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  ExpectGolden("evaluation", Dump(*evaluation));
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    ebb::update_golden |= std::strcmp(argv[i], "--update_golden") == 0;
  }
  return RUN_ALL_TESTS();
}
