// Numbers through the whole training program: gradients against finite
// differences, accumulation, decay, gradients too large for their norm.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "worker/runtime/testing/test_job.h"
#include "worker/runtime/testing/weights.h"

namespace ebb {
namespace {

// First-step gradients of all parameters: with clipping off and moments at
// zero, the first moment after one step is (1 - beta1) times the gradient.
TensorMap Gradients(JobSpec spec, const std::string& directory) {
  spec.steps = 1;
  spec.optimizer.clip = 0;
  spec.checkpoint.every = 1;
  const JobRun run = RunJob(spec, {.checkpoint_directory = directory});
  EXPECT_TRUE(run.finish.status.ok()) << run.finish.status;
  TensorMap gradients =
      ReadTensors(directory + "/step-1", CheckpointRole::kFirstMoment);
  for (auto& [name, values] : gradients) {
    for (float& value : values) {
      value /= 1 - static_cast<float>(spec.optimizer.beta1);
    }
  }
  return gradients;
}

// Loss of the first step with one weight moved by `delta`.
double MovedLoss(const JobSpec& spec, const std::string& name, size_t element,
                 float delta) {
  const TestDirectory directory;
  JobSpec moved = spec;
  moved.steps = 1;
  moved.checkpoint.init_from = CraftWeights(
      spec, directory.path(), [&](const std::string& tensor, auto& values) {
        if (tensor == name) values[element] += delta;
      });
  const JobRun run = RunJob(moved);
  EXPECT_TRUE(run.finish.status.ok()) << run.finish.status;
  return run.steps.empty() ? 0 : run.steps[0].loss;
}

struct Shape {
  const char* name;
  bool llama;
  AttentionKind attention;
};

class Gradient : public ::testing::TestWithParam<Shape> {};

// cases.md A4.
TEST_P(Gradient, AgreesWithFiniteDifferences) {
  const bool llama = GetParam().llama;
  JobSpec spec = llama ? SmallLlamaJob() : SmallJob();
  spec.model.attention = GetParam().attention;
  spec.memory.policy = Policy::kFull;
  const TestDirectory directory;
  const TensorMap gradients = Gradients(spec, directory.path());
  // The largest gradient of each of five tensors, so that the loss moves well
  // above the rounding of fp32 sums.
  for (const char* name : {"head.weight", "L3.mlp.fc.weight",
                           llama ? "L0.mlp.out.weight" : "L0.mlp.out.bias",
                           "final_norm.gain", "L1.qkv.weight"}) {
    SCOPED_TRACE(name);
    ASSERT_EQ(gradients.count(name), 1u);
    const std::vector<float>& values = gradients.at(name);
    const size_t element = std::max_element(values.begin(), values.end(),
                                            [](float a, float b) {
                                              return std::abs(a) < std::abs(b);
                                            }) -
                           values.begin();
    // Five-point stencil: error of fourth order in the step.
    constexpr float kStep = 0.03f;
    const auto loss = [&](float delta) {
      return MovedLoss(spec, name, element, delta);
    };
    const double numeric = (8 * (loss(kStep) - loss(-kStep)) -
                            (loss(2 * kStep) - loss(-2 * kStep))) /
                           (12 * double{kStep});
    EXPECT_NEAR(values[element] / numeric, 1, 1e-3)
        << "analytic " << values[element] << " numeric " << numeric;
  }
}

constexpr Shape kShapes[] = {
    {"Fused", false, AttentionKind::kFused},
    {"Unfused", false, AttentionKind::kUnfused},
    {"LlamaFused", true, AttentionKind::kFused},
    {"LlamaUnfused", true, AttentionKind::kUnfused},
};
INSTANTIATE_TEST_SUITE_P(Shapes, Gradient, ::testing::ValuesIn(kShapes),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

// Of GPT-2-like models (false) and Llama-like ones (true).
class Numerics : public ::testing::TestWithParam<bool> {
 protected:
  static JobSpec Job() { return GetParam() ? SmallLlamaJob() : SmallJob(); }
};
INSTANTIATE_TEST_SUITE_P(Families, Numerics, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Llama" : "Gpt2";
                         });

TEST_P(Numerics, AccumulationOverMicrobatchesIsClose) {
  JobSpec spec = Job();
  spec.model.dropout = 0.1;  // masks do not depend on the microbatch
  spec.micro_batch = 8;
  const JobRun base = RunJob(spec);
  ASSERT_TRUE(base.finish.status.ok()) << base.finish.status;
  for (const int micro : {1, 2, 4}) {
    SCOPED_TRACE(micro);
    spec.micro_batch = micro;
    const JobRun run = RunJob(spec);
    ASSERT_EQ(run.steps.size(), base.steps.size()) << run.finish.status;
    for (size_t n = 0; n < run.steps.size(); ++n) {
      EXPECT_NEAR(run.steps[n].loss / base.steps[n].loss, 1, 1e-5);
      EXPECT_NEAR(run.steps[n].gradient_norm / base.steps[n].gradient_norm, 1,
                  1e-4);
    }
  }
}

// cases.md E2.
TEST_P(Numerics, DecayMovesMatricesAlone) {
  JobSpec spec = Job();
  spec.steps = 1;
  spec.optimizer.clip = 0;
  spec.checkpoint.every = 1;
  const auto weights_after = [&](double decay, const std::string& directory) {
    spec.optimizer.weight_decay = decay;
    const JobRun run =
        RunJob(spec, {.checkpoint_directory = directory,
                      .orders = {{0, TrainerOrder::kCheckpoint}}});
    EXPECT_TRUE(run.finish.status.ok()) << run.finish.status;
    return ReadTensors(directory + "/step-1", CheckpointRole::kParameter);
  };
  const TestDirectory without_directory;
  const TestDirectory with_directory;
  const TensorMap without = weights_after(0, without_directory.path());
  const TensorMap with = weights_after(0.5, with_directory.path());
  const TensorMap first = ReadTensors(without_directory.path() + "/step-0",
                                      CheckpointRole::kParameter);
  int num_matrices = 0;
  for (const auto& [name, values] : without) {
    SCOPED_TRACE(name);
    const bool is_matrix = name.find(".weight") != std::string::npos;
    num_matrices += is_matrix;
    for (size_t n = 0; n < values.size(); ++n) {
      if (!is_matrix) {
        ASSERT_EQ(values[n], with.at(name)[n]);
        continue;
      }
      // lr * decay * weight, in the rounding of weights below 1/4.
      const double term = 1e-3 * 0.5 * first.at(name)[n];
      ASSERT_NEAR(double{values[n]} - double{with.at(name)[n]}, term, 3e-8);
    }
  }
  // Token embedding and head, four a layer; learned positions.
  EXPECT_EQ(num_matrices, 2 + 4 * 4 + (GetParam() ? 0 : 1));
}

// cases.md D3: loss ln 257, gradients of the head about 1e20, whose squares
// overflow fp32.
TEST_P(Numerics, ClipsHugeFiniteGradients) {
  const TestDirectory directory;
  JobSpec spec = Job();
  spec.steps = 1;
  spec.optimizer.clip = 1;
  spec.checkpoint.every = 1;
  spec.checkpoint.init_from = CraftWeights(
      spec, directory.path(), [](const std::string& name, auto& values) {
        if (name == "head.weight") std::fill(values.begin(), values.end(), 0);
        if (name == "final_norm.gain") {
          std::fill(values.begin(), values.end(), 1e22f);
        }
      });
  const TestDirectory saved;
  const JobRun run = RunJob(spec, {.checkpoint_directory = saved.path()});
  ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
  const StepReport& step = run.steps[0];
  EXPECT_NEAR(step.loss, std::log(257.0), 1e-6);
  ASSERT_FALSE(step.skipped);
  EXPECT_TRUE(std::isfinite(step.gradient_norm));
  EXPECT_GT(step.gradient_norm, 1e18);
  // A true clip: the gradients that were applied have norm 1.
  double sum = 0;
  for (const auto& [name, values] :
       ReadTensors(saved.path() + "/step-1", CheckpointRole::kFirstMoment)) {
    for (const float value : values) {
      const double gradient = value / (1 - spec.optimizer.beta1);
      sum += gradient * gradient;
    }
  }
  EXPECT_NEAR(std::sqrt(sum), 1, 1e-4);
  for (const auto& [name, values] :
       ReadTensors(saved.path() + "/step-1", CheckpointRole::kParameter)) {
    for (const float value : values) ASSERT_FALSE(std::isnan(value)) << name;
  }
}

}  // namespace
}  // namespace ebb
