// Rates of matrix products and of attention, fused and unfused, forward and
// backward, in fp32 and bf16, in GFLOP/s of the full square. Run with
// --benchmark_filter. EBB_THREADS sets the team (default: all processors).
#include <benchmark/benchmark.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/device.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/attention_context.h"
#include "kernels/ops/attention_scores.h"
#include "kernels/ops/causal_softmax.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/op_def.h"
#include "kernels/status.h"

namespace ebb {
namespace {

Device& TheDevice() {
  static const std::unique_ptr<Device> device = [] {
    const char* threads = std::getenv("EBB_THREADS");
    auto made =
        MakeCpuDevice(DescribeCpu(threads == nullptr ? 0 : std::atoi(threads)));
    EBB_CHECK(made.ok());
    return *std::move(made);
  }();
  return *device;
}

// One op with storage of its own for every slot and gradient.
class OpRunner {
 public:
  OpRunner(Op op, const OpAttrs& attrs, std::vector<TensorType> types,
           uint32_t bound)
      : op_(GetOpDef(op)),
        row_(*FindKernels(TheDevice().kernels(), op, types[0].dtype)),
        attrs_(attrs),
        types_(std::move(types)),
        bound_(bound) {
    types_.resize(op_.num_slots());
    EBB_CHECK(op_.infer(attrs_, types_).ok());
    for (int slot = 0; slot < op_.num_slots(); ++slot) {
      slots_.push_back(Make(types_[slot]));
      const bool has_gradient =
          op_.slots[slot].role == Role::kOutput || (bound_ >> slot & 1) != 0;
      grads_.push_back(
          has_gradient ? Make(GradientType(op_.slots[slot].role, types_[slot]))
                       : Tensor());
    }
    int64_t bytes = 0;
    for (const uint32_t gradients : {0u, bound_}) {
      if (op_.workspace_bytes == nullptr) continue;
      bytes = std::max(bytes, op_.workspace_bytes(attrs_, types_, gradients,
                                                  TheDevice().backend()));
    }
    call_ = {.attrs = &attrs_,
             .slots = slots_.data(),
             .grads = grads_.data(),
             .workspace = *TheDevice().Allocate(bytes),
             .workspace_bytes = bytes,
             .scalars = &scalars_};
  }

  void Forward() {
    EBB_CHECK(TheDevice().Launch(row_.forward, call_, nullptr).ok());
  }
  void Backward() {
    EBB_CHECK(TheDevice().Launch(row_.backward, call_, nullptr).ok());
  }
  double forward_flops() const {
    return static_cast<double>(op_.forward_flops(attrs_, types_));
  }
  double backward_flops() const {
    return static_cast<double>(op_.backward_flops(attrs_, types_, bound_));
  }

 private:
  // Values in [-1, 1); memory lives until the process ends.
  static Tensor Make(const TensorType& type) {
    Tensor tensor = {*TheDevice().Allocate(type.bytes()), type,
                     type.row_elements()};
    for (int64_t i = 0; i < type.num_elements(); ++i) {
      const float value = static_cast<float>(i * 7919 % 2003) / 1001 - 1;
      if (type.dtype == DType::kF32) tensor.as<float>()[i] = value;
      if (type.dtype == DType::kBf16) {
        tensor.as<Bf16>()[i] = RoundToBf16(value);
      }
    }
    return tensor;
  }

  const OpDef& op_;
  const KernelRow& row_;
  const OpAttrs attrs_;
  const StepScalars scalars_ = {.seed = 1, .step = 1};
  std::vector<TensorType> types_;
  const uint32_t bound_;
  std::vector<Tensor> slots_, grads_;
  OpCall call_;
};

template <typename Body>
void Measure(benchmark::State& state, double flops, const Body& body) {
  body();
  for (auto _ : state) body();
  state.counters["GFLOP/s"] = benchmark::Counter(
      flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

// rows, inputs, outputs; what: forward, dx, dweight.
void Linear(benchmark::State& state, const std::string& what, DType dtype) {
  const int64_t rows = state.range(0), inputs = state.range(1),
                outputs = state.range(2);
  const uint32_t bound =
      what == "dx" ? Reads(linear::kX) : Reads(linear::kWeight);
  OpRunner runner(
      Op::kLinear, {},
      {{dtype, rows, inputs}, {dtype, outputs, inputs}, {dtype, outputs}},
      bound);
  Measure(state,
          what == "forward" ? runner.forward_flops() : runner.backward_flops(),
          [&] { what == "forward" ? runner.Forward() : runner.Backward(); });
}

// sequences, tokens, heads, width, dropout in percent.
void FusedAttention(benchmark::State& state, bool backward, DType dtype) {
  const int64_t rows = state.range(0) * state.range(1);
  const int64_t width = state.range(2) * state.range(3);
  OpAttrs attrs;
  attrs.num_heads = attrs.num_kv_heads = static_cast<int>(state.range(2));
  attrs.seq_len = static_cast<int>(state.range(1));
  attrs.dropout = static_cast<float>(state.range(4)) / 100;
  const TensorType type = {dtype, rows, width};
  OpRunner runner(Op::kAttention, attrs, {type, type, type},
                  Reads(attention::kQ, attention::kK, attention::kV));
  runner.Forward();
  Measure(state, backward ? runner.backward_flops() : runner.forward_flops(),
          [&] { backward ? runner.Backward() : runner.Forward(); });
}

void UnfusedAttention(benchmark::State& state, bool backward, DType dtype) {
  const int64_t rows = state.range(0) * state.range(1);
  const int64_t width = state.range(2) * state.range(3);
  OpAttrs attrs;
  attrs.num_heads = attrs.num_kv_heads = static_cast<int>(state.range(2));
  attrs.seq_len = static_cast<int>(state.range(1));
  attrs.dropout = static_cast<float>(state.range(4)) / 100;
  const TensorType type = {dtype, rows, width};
  const TensorType square = {dtype, state.range(0), state.range(2),
                             state.range(1), state.range(1)};
  OpRunner scores(Op::kAttentionScores, attrs, {type, type},
                  Reads(attention_scores::kQ, attention_scores::kK));
  OpRunner softmax(Op::kCausalSoftmax, attrs, {square},
                   Reads(causal_softmax::kX));
  OpRunner dropout(Op::kDropout, attrs, {square}, Reads(dropout::kX));
  OpRunner context(Op::kAttentionContext, attrs, {square, type},
                   Reads(attention_context::kProbs, attention_context::kV));
  const auto forward_all = [&] {
    scores.Forward();
    softmax.Forward();
    if (state.range(4) > 0) dropout.Forward();
    context.Forward();
  };
  const auto backward_all = [&] {
    context.Backward();
    if (state.range(4) > 0) dropout.Backward();
    softmax.Backward();
    scores.Backward();
  };
  forward_all();
  Measure(state,
          backward ? scores.backward_flops() + softmax.backward_flops() +
                         context.backward_flops()
                   : scores.forward_flops() + softmax.forward_flops() +
                         context.forward_flops(),
          [&] { backward ? backward_all() : forward_all(); });
}

void LinearShapes(benchmark::internal::Benchmark* benchmark) {
  for (auto [rows, inputs, outputs] :
       std::vector<std::array<int64_t, 3>>{{1024, 768, 768},
                                           {1024, 768, 3072},
                                           {1024, 3072, 768},
                                           {2048, 512, 1536},
                                           {2048, 512, 2048},
                                           {2048, 2048, 512},
                                           {4096, 128, 384},
                                           {512, 512, 257}}) {
    benchmark->Args({rows, inputs, outputs});
  }
  benchmark->Unit(benchmark::kMillisecond)->UseRealTime();
}

void AttentionShapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({4, 512, 8, 64, 0})
      ->Args({4, 512, 8, 64, 10})
      ->Args({8, 128, 4, 32, 10})
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
}

BENCHMARK_CAPTURE(Linear, forward_fp32, std::string("forward"), DType::kF32)
    ->Apply(LinearShapes);
BENCHMARK_CAPTURE(Linear, dx_fp32, std::string("dx"), DType::kF32)
    ->Apply(LinearShapes);
BENCHMARK_CAPTURE(Linear, dweight_fp32, std::string("dweight"), DType::kF32)
    ->Apply(LinearShapes);
BENCHMARK_CAPTURE(FusedAttention, forward_fp32, false, DType::kF32)
    ->Apply(AttentionShapes);
BENCHMARK_CAPTURE(FusedAttention, backward_fp32, true, DType::kF32)
    ->Apply(AttentionShapes);
BENCHMARK_CAPTURE(UnfusedAttention, forward_fp32, false, DType::kF32)
    ->Apply(AttentionShapes);
BENCHMARK_CAPTURE(UnfusedAttention, backward_fp32, true, DType::kF32)
    ->Apply(AttentionShapes);
BENCHMARK_CAPTURE(Linear, forward_bf16, std::string("forward"), DType::kBf16)
    ->Apply(LinearShapes);
BENCHMARK_CAPTURE(Linear, dx_bf16, std::string("dx"), DType::kBf16)
    ->Apply(LinearShapes);
BENCHMARK_CAPTURE(Linear, dweight_bf16, std::string("dweight"), DType::kBf16)
    ->Apply(LinearShapes);
BENCHMARK_CAPTURE(FusedAttention, forward_bf16, false, DType::kBf16)
    ->Apply(AttentionShapes);
BENCHMARK_CAPTURE(FusedAttention, backward_bf16, true, DType::kBf16)
    ->Apply(AttentionShapes);
BENCHMARK_CAPTURE(UnfusedAttention, forward_bf16, false, DType::kBf16)
    ->Apply(AttentionShapes);
BENCHMARK_CAPTURE(UnfusedAttention, backward_bf16, true, DType::kBf16)
    ->Apply(AttentionShapes);

}  // namespace
}  // namespace ebb

BENCHMARK_MAIN();
