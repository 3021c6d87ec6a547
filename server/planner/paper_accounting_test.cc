// Published formulas and figures, against what is derived from the graph. The
// formulas stand here and nowhere else.
#include "server/planner/paper_accounting.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "kernels/philox.h"
#include "worker/model/testing/llama_like.h"
#include "worker/model/transformer.h"

namespace ebb {
namespace {

constexpr double kMiB = 1 << 20;
constexpr size_t kNone = 0, kSelective = 1, kFull = 2;  // of kPaperPolicies

// A GPT of Korthikanti et al. 2022: unfused attention, dropout.
JobSpec Gpt(int64_t a, int64_t h, int layers, int64_t s, int64_t v, int micro,
            int global) {
  JobSpec spec;
  spec.model.layers = layers;
  spec.model.hidden = h;
  spec.model.heads = spec.model.kv_heads = static_cast<int>(a);
  spec.model.ffn = 4 * h;
  spec.model.vocab = v;
  spec.model.seq_len = s;
  spec.model.attention = AttentionKind::kUnfused;
  spec.model.dropout = 0.1;
  spec.micro_batch = micro;
  spec.global_batch = global;
  spec.steps = 1;
  return spec;
}

// Table 3 of the paper; 5as/h and the figures as the formulas give them.
struct Model {
  const char* name;
  int64_t a, h;
  int layers, global, micro;
  double per_layer_mib, full_mib;  // equations of table 2, b = micro
  double model_flops;              // equation 7
  double printed_over_model;       // equation 8 over equation 7
  double seconds, mfu, hfu_printed, hfu_corrected;  // table 5, at 312 TFLOP/s
  int gpus;
};
constexpr Model kModels[] = {
    {"22B", 64, 6144, 48, 4, 4, 6752, 96, 1.14356e15, 1.05192, 1.10, 41.65,
     43.81, 42.37, 8},
    {"175B", 96, 12288, 96, 64, 1, 2736, 48, 1.41092e17, 1.02693, 13.75, 51.39,
     52.77, 51.85, 64},
    {"530B", 128, 20480, 105, 280, 1, 3920, 80, 1.85223e18, 1.01636, 37.83,
     56.05, 56.96, 56.35, 280},
    {"1T", 160, 25600, 128, 512, 1, 4900, 100, 6.42588e18, 1.01314, 71.49,
     56.27, 57.01, 56.51, 512},
};
constexpr int64_t kSeqLen = 2048;
constexpr int64_t kVocab = 51200;

JobSpec Gpt(const Model& model) {
  return Gpt(model.a, model.h, model.layers, kSeqLen, kVocab, model.micro,
             model.global);
}

PaperAccounting Accounted(const JobSpec& spec) {
  auto accounting = AccountAsPaper(spec, BuiltInCpuBackend());
  EXPECT_TRUE(accounting.ok()) << accounting.status();
  return *std::move(accounting);
}

uint64_t Draw(uint64_t& state) { return state = philox::Mix(state); }

// Every tensor of the paper's list (its section 4.1): bytes = sbh x first +
// as^2b x second.
TEST(PaperAccounting, KeepsThePapersTensorsForRandomShapes) {
  const std::map<std::string, std::pair<int64_t, int64_t>> list = {
      {"L*.input", {2, 0}},
      {"L*.attention_norm.y", {2, 0}},
      {"L*.q", {2, 0}},
      {"L*.k", {2, 0}},
      {"L*.v", {2, 0}},
      {"L*.attention_softmax.y", {0, 2}},
      {"L*.attention_dropout.mask", {0, 1}},
      {"L*.attention_dropout.y", {0, 2}},
      {"L*.attention_context.y", {2, 0}},
      {"L*.attention_out_dropout.mask", {1, 0}},
      {"L*.attention_add.y", {2, 0}},
      {"L*.mlp_norm.y", {2, 0}},
      {"L*.mlp.fc.y", {8, 0}},
      {"L*.mlp.act.y", {8, 0}},
      {"L*.mlp.out_dropout.mask", {1, 0}},
  };
  uint64_t state = 4;
  for (int round = 0; round < 20; ++round) {
    const int64_t a = 1 + static_cast<int64_t>(Draw(state) % 12);
    const int64_t h = a * 2 * (1 + static_cast<int64_t>(Draw(state) % 40));
    const int64_t s = 1 + static_cast<int64_t>(Draw(state) % 300);
    const int b = 1 + static_cast<int>(Draw(state) % 5);
    const int layers = 1 + static_cast<int>(Draw(state) % 9);
    SCOPED_TRACE(absl::StrCat("a ", a, " h ", h, " s ", s, " b ", b));
    JobSpec spec = Gpt(a, h, layers, s, 100, b, 2 * b);
    if (round % 2 == 1) spec.precision = DType::kF32;
    const PaperAccounting paper = Accounted(spec);
    const int64_t sbh = s * b * h;
    const int64_t asb = a * s * s * b;
    size_t num_listed = 0;
    for (const AccountedTensor& tensor : paper.tensors) {
      const auto it = list.find(tensor.value);
      const int64_t bytes =
          it == list.end() ? 0
                           : it->second.first * sbh + it->second.second * asb;
      if (it != list.end()) ++num_listed;
      EXPECT_EQ(tensor.paper_bytes[kNone], bytes) << tensor.value;
      // Selective drops tensors 5, 6 and 7; full keeps the layer's input.
      const bool is_core = it != list.end() && it->second.second > 0;
      EXPECT_EQ(tensor.paper_bytes[kSelective], is_core ? 0 : bytes)
          << tensor.value;
      EXPECT_EQ(tensor.paper_bytes[kFull],
                tensor.value == "L*.input" ? bytes : 0)
          << tensor.value;
    }
    EXPECT_EQ(num_listed, list.size());
    EXPECT_EQ(paper.policies[kNone].paper.layer_bytes, 34 * sbh + 5 * asb);
    EXPECT_EQ(paper.policies[kSelective].paper.layer_bytes, 34 * sbh);
    EXPECT_EQ(paper.policies[kFull].paper.layer_bytes, 2 * sbh);
    // The "extra terms", one pipeline stage: a mask of the embedding, the final
    // norm's and the head's input, fp32 logits.
    for (const AccountedPolicy& policy : paper.policies) {
      EXPECT_EQ(policy.paper.outside_bytes,
                sbh + 2 * sbh + 2 * sbh + 4 * s * b * 100);
      EXPECT_EQ(policy.paper.layers_bytes, layers * policy.paper.layer_bytes);
    }
  }
}

// Ebb's own: no masks, statistics of norms, elements as the precision says, and
// to the byte what the plan predicts.
TEST(PaperAccounting, EbbsOwnIsWhatTheProgramKeeps) {
  for (const DType precision : {DType::kBf16, DType::kF32}) {
    JobSpec spec = Gpt(4, 64, 5, 32, 100, 2, 4);
    spec.precision = precision;
    const int64_t element = DTypeBytes(precision);
    const PaperAccounting accounting = Accounted(spec);
    const int64_t sbh = 32 * 2 * 64;
    const int64_t asb = 4 * 32 * 32 * 2;
    const int64_t statistics = 4 * 4 * 32 * 2;  // mean and rstd of two norms
    EXPECT_EQ(accounting.policies[kNone].ebb.layer_bytes,
              element * (16 * sbh + 2 * asb) + statistics);
    EXPECT_EQ(accounting.policies[kSelective].ebb.layer_bytes,
              element * 16 * sbh + statistics);
    EXPECT_EQ(accounting.policies[kFull].ebb.layer_bytes, element * sbh);
    int64_t sum = 0;
    for (const AccountedTensor& tensor : accounting.tensors) {
      sum += tensor.ebb_bytes[kNone];
    }
    EXPECT_EQ(sum, accounting.policies[kNone].ebb.layer_bytes);
  }
}

TEST(PaperAccounting, LayersOfTheFourModels) {
  for (const Model& model : kModels) {
    const PaperAccounting paper = Accounted(Gpt(model));
    EXPECT_NEAR(paper.policies[kNone].paper.layer_bytes / kMiB,
                model.per_layer_mib, 0.01)
        << model.name;
    EXPECT_NEAR(paper.policies[kFull].paper.layer_bytes / kMiB, model.full_mib,
                0.01)
        << model.name;
    // No 32-bit count anywhere: the closed form, in 64 bits.
    const int64_t sbh = kSeqLen * model.micro * model.h;
    EXPECT_EQ(paper.policies[kNone].paper.layers_bytes,
              model.layers *
                  (34 * sbh + 5 * model.a * kSeqLen * kSeqLen * model.micro));
  }
}

// B sequences a step, as the paper's equations write it.
struct Equations {
  double seven, eight_printed, eight_corrected, full;
};
Equations EquationsOf(double b, double layers, double s, double h, double v) {
  const double base = 72 * b * layers * s * h * h;
  const double head = v / (12 * h * layers);
  return {base * (1 + s / (6 * h) + head), base * (1 + s / (3 * h) + head),
          base * (1 + 2 * s / (9 * h) + head),
          base * (4.0 / 3 * (1 + s / (6 * h)) + head)};
}

TEST(PaperAccounting, FlopsAreEquationSevenAndTheCorrectedEight) {
  for (const Model& model : kModels) {
    SCOPED_TRACE(model.name);
    const PaperAccounting paper = Accounted(Gpt(model));
    const Equations equations =
        EquationsOf(model.global, model.layers, kSeqLen,
                    static_cast<double>(model.h), kVocab);
    const auto hardware = [&](size_t policy) {
      return paper.model_flops + paper.policies[policy].paper_recompute_flops;
    };
    EXPECT_NEAR(paper.model_flops / equations.seven, 1, 1e-12);
    EXPECT_NEAR(hardware(kNone) / equations.seven, 1, 1e-12);
    EXPECT_NEAR(hardware(kSelective) / equations.eight_corrected, 1, 1e-12);
    EXPECT_NEAR(hardware(kFull) / equations.full, 1, 1e-12);
    // The paper's own figures; its equation 8 counts the core three times.
    EXPECT_NEAR(paper.model_flops / model.model_flops, 1, 5e-6);
    EXPECT_NEAR(equations.eight_printed / paper.model_flops,
                model.printed_over_model, 5e-6);
    EXPECT_NEAR((equations.eight_printed - paper.model_flops) /
                    (hardware(kSelective) - paper.model_flops),
                3, 1e-9);
    const double peak = 312e12 * model.gpus * model.seconds / 100;
    EXPECT_NEAR(paper.model_flops / peak, model.mfu, 0.2);
    EXPECT_NEAR(equations.eight_printed / peak, model.hfu_printed, 0.2);
    EXPECT_NEAR(hardware(kSelective) / peak, model.hfu_corrected, 0.2);
  }
}

// What selective adds to the layers' model FLOPs, x = s/6h: x/(3(1+x)) where
// the context product runs again, half of that where its result is kept.
TEST(PaperAccounting, SelectiveOverheadCurve) {
  struct Ratio {
    int64_t s, h;
    double percent;  // of the published curve
  };
  constexpr Ratio kRatios[] = {
      {64, 640, 0.55},
      {64, 384, 0.90},
      {64, 128, 2.56},
      {64, 64, 4.76},
      {128, 64, 8.33},
      {256, 64, 13.33},
      {384, 64, 16.67},
      {768, 64, 22.22},
      {2048, 64, 28.07},
      {8192, 64, 31.84},
      {int64_t{1} << 24, 64, 33.33},
  };
  for (const Ratio& ratio : kRatios) {
    SCOPED_TRACE(absl::StrCat("s ", ratio.s, " h ", ratio.h));
    const PaperAccounting accounting =
        Accounted(Gpt(1, ratio.h, 2, ratio.s, 16, 1, 2));
    const double x =
        static_cast<double>(ratio.s) / (6 * static_cast<double>(ratio.h));
    const AccountedPolicy& selective = accounting.policies[kSelective];
    const double paper =
        selective.paper_recompute_flops / accounting.layers_model_flops;
    const double ebb =
        selective.ebb_recompute_flops / accounting.layers_model_flops;
    EXPECT_NEAR(paper, x / (3 * (1 + x)), 1e-12);
    EXPECT_NEAR(ebb, x / (6 * (1 + x)), 1e-12);
    EXPECT_NEAR(100 * paper, ratio.percent, 0.005 + 0.001);
    // Never more than a full recompute.
    EXPECT_LT(paper, accounting.policies[kFull].paper_recompute_flops /
                         accounting.layers_model_flops);
  }
}

struct Llama {
  const char* name;
  int layers;
  int64_t h;
  int a, k;
  int64_t f, v;
  double sbh, per_layer_mib;
};
// Touvron et al. 2023; Grattafiori et al. 2024, table 3. Bytes per sbh and
// per layer at 8192 tokens, statistics included in the latter.
constexpr Llama kLlamas[] = {
    {"Llama-2-7B", 32, 4096, 32, 32, 11008, 32000, 32.125, 1029.1},
    {"Llama-3-8B", 32, 4096, 32, 8, 14336, 128256, 34.000, 1089.1},
    {"Llama-3-70B", 80, 8192, 64, 8, 28672, 128256, 33.500, 2146.1},
    {"Llama-3.1-405B", 126, 16384, 128, 8, 53248, 128256, 31.750, 4068.1},
};

JobSpec LlamaJob(const Llama& llama) {
  JobSpec spec = Gpt(llama.a, llama.h, llama.layers, 8192, llama.v, 1, 2);
  spec.model.attention = AttentionKind::kFused;
  spec.model.dropout = 0;
  spec.model.ffn = llama.f;
  spec.model = LlamaLike(spec.model, llama.k);
  return spec;
}

TEST(PaperAccounting, LayersOfLlama) {
  for (const Llama& llama : kLlamas) {
    SCOPED_TRACE(llama.name);
    const PaperAccounting accounting = Accounted(LlamaJob(llama));
    const int64_t sb = 8192;
    const int64_t sbh = sb * llama.h;
    const int64_t list =
        12 * sbh + 4 * sbh * llama.k / llama.a + 6 * sb * llama.f;
    EXPECT_EQ(accounting.policies[kNone].paper.layer_bytes, list);
    EXPECT_NEAR(static_cast<double>(list) / static_cast<double>(sbh), llama.sbh,
                1e-12);
    EXPECT_EQ(accounting.policies[kNone].ebb.layer_bytes,
              list + 4 * sb * (llama.a + 2));
    EXPECT_NEAR(accounting.policies[kNone].ebb.layer_bytes / kMiB,
                llama.per_layer_mib, 0.06);
    EXPECT_EQ(accounting.policies[kFull].ebb.layer_bytes, 2 * sbh);
    // Fused attention leaves selective nothing to drop.
    EXPECT_EQ(accounting.policies[kSelective].paper.layer_bytes, list);
    EXPECT_EQ(accounting.policies[kSelective].paper_recompute_flops, 0);
  }
}

FlopConvention Convention(const std::string& name) {
  for (const FlopConvention convention : kFlopConventions) {
    if (name == FlopConventionName(convention)) return convention;
  }
  ADD_FAILURE() << name;
  return FlopConvention::kCausal;
}

double TokenFlops(const Llama& llama, const std::string& convention) {
  auto graph = BuildTransformer(LlamaJob(llama).model, 1, 8192, 8192, true);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return FlopsPerToken(*graph, Convention(convention));
}

TEST(FlopsPerToken, ReproducesPublishedUtilisation) {
  EXPECT_NEAR(TokenFlops(kLlamas[1], "causal"), 51.47e9, 0.005e9);
  EXPECT_NEAR(TokenFlops(kLlamas[1], "full_square"), 57.91e9, 0.005e9);
  EXPECT_NEAR(TokenFlops(kLlamas[1], "all_parameters"), 61.07e9, 0.005e9);
  EXPECT_NEAR(TokenFlops(kLlamas[1], "parameters_only"), 48.18e9, 0.005e9);
  // Tokens a second and GPU, and the published figure: TFLOP/s of H100s, then
  // percent of 989.4 TFLOP/s (H100) and of 312 (A100).
  struct Published {
    const Llama& llama;
    const char* convention;
    double tokens_per_second, scale, figure, tolerance;
  };
  const Published published[] = {
      {kLlamas[1], "causal", 14451, 1e12, 744, 0.5},
      {kLlamas[1], "causal", 14079, 1e12, 725, 0.5},
      {kLlamas[2], "causal", 1602, 1e12, 719, 1.0},  // published cut off
      {kLlamas[3], "causal", 292, 1e12, 737, 0.5},
      {kLlamas[1], "all_parameters", 2904, 3.12e12, 56.8, 0.05},
      {kLlamas[2], "all_parameters", 331, 3.12e12, 51.7, 0.05},
      {kLlamas[1], "full_square", 6667, 9.894e12, 39.0, 0.05},
      {kLlamas[1], "full_square", 5762, 9.894e12, 33.7, 0.05},
  };
  for (const Published& row : published) {
    EXPECT_NEAR(row.tokens_per_second * TokenFlops(row.llama, row.convention) /
                    row.scale,
                row.figure, row.tolerance)
        << row.llama.name << " " << row.convention;
  }
}

// A table that is the head's weight, too, enters a product.
TEST(FlopsPerToken, TiedEmbeddingsAreNoInputEmbeddingsAlone) {
  JobSpec spec = Gpt(4, 64, 3, 32, 100, 2, 4);
  const auto count = [&](FlopConvention convention) {
    auto graph = BuildTransformer(spec.model, 2, 32, 128, true);
    EXPECT_TRUE(graph.ok());
    return FlopsPerToken(*graph, convention);
  };
  const auto left_out = [&] {
    return (count(FlopConvention::kAllParameters) -
            count(FlopConvention::kFullSquare)) /
           6;
  };
  EXPECT_EQ(left_out(), 32 * 64);  // positions
  spec.model.tied_embeddings = false;
  EXPECT_EQ(left_out(), 32 * 64 + 100 * 64);
  EXPECT_EQ(count(FlopConvention::kFullSquare) - count(FlopConvention::kCausal),
            6 * 3 * 32 * 64);
}

}  // namespace
}  // namespace ebb
