// Program, arenas and executor of a sampler.
#include "worker/runtime/sampler.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/op_call.h"
#include "kernels/status.h"
#include "worker/program/job_programs.h"
#include "worker/runtime/arena_memory.h"
#include "worker/runtime/batch_source.h"
#include "worker/runtime/executor.h"
#include "worker/runtime/model_state.h"

namespace ebb {
namespace {

// Contexts are padded to a multiple of so many tokens.
constexpr int64_t kContextMultiple = 16;

// The state arena of training, of which a sampler touches the parameters alone:
// pages that nobody touches take no memory.
class UntouchedMemory {
 public:
  static absl::StatusOr<std::unique_ptr<UntouchedMemory>> Map(int64_t bytes) {
    void* const data =
        mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("memory cannot be mapped: need ", bytes,
                       " bytes: ", strerror(errno)));
    }
    return std::unique_ptr<UntouchedMemory>(new UntouchedMemory(data, bytes));
  }
  ~UntouchedMemory() { munmap(data_, static_cast<size_t>(bytes_)); }
  UntouchedMemory(const UntouchedMemory&) = delete;
  UntouchedMemory& operator=(const UntouchedMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  int64_t bytes() const { return bytes_; }

 private:
  UntouchedMemory(void* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  void* const data_;
  const int64_t bytes_;
};

// The end of a context, and padding behind it, which no earlier token sees.
class ContextSource final : public BatchSource {
 public:
  void Set(std::span<const int32_t> tokens) { tokens_ = tokens; }

  absl::Status Fill(int64_t, std::span<int32_t> tokens,
                    std::span<int32_t> targets) override {
    std::fill(targets.begin(), targets.end(), -1);
    const auto end = std::copy(tokens_.begin(), tokens_.end(), tokens.begin());
    std::fill(end, tokens.end(), 0);
    return absl::OkStatus();
  }

 private:
  std::span<const int32_t> tokens_;
};

// That reading the weights touches.
int64_t ParameterBytes(const Program& program) {
  int64_t bytes = 0;
  for (const ParameterLayout& layout : program.parameters) {
    bytes += layout.parameter_bytes(Arena::kState);
    // Weights are read as masters and rounded.
    if (layout.has_master()) {
      bytes +=
          AlignUp(layout.fp32_type().bytes()) * std::max(1, layout.num_layers);
    }
  }
  return bytes;
}

}  // namespace

// Members are in the order in which they need each other.
struct Sampler::State {
  std::unique_ptr<Device> device;
  SamplePrograms sample;
  std::unique_ptr<UntouchedMemory> state_arena;
  ArenaMemory step_arena;
  std::unique_ptr<Executor> executor;
  ContextSource source;
  std::vector<std::byte> stored;  // logits as the program left them
  std::vector<float> logits;
};

Sampler::Sampler(std::unique_ptr<State> state) : state_(std::move(state)) {}
Sampler::~Sampler() = default;

absl::StatusOr<std::unique_ptr<Sampler>> Sampler::Create(
    const JobSpec& spec, std::unique_ptr<Device> device,
    const CheckpointReader& checkpoint, int64_t num_tokens) {
  if (device->backend().kind != "cpu") {
    return absl::UnimplementedError(absl::StrCat(
        "sampling on ", device->backend().kind, " is not built: only cpu is"));
  }
  auto state = std::make_unique<State>();
  state->device = std::move(device);
  const Backend& backend = state->device->backend();
  const int64_t padded =
      (num_tokens + kContextMultiple - 1) / kContextMultiple * kContextMultiple;
  EBB_ASSIGN_OR_RETURN(
      state->sample,
      LowerSample(spec, std::min(padded, spec.model.seq_len), backend));
  const Program& program = state->sample.program;
  const int64_t need =
      ParameterBytes(program) + program.step_bytes + backend.runtime_bytes;
  if (const int64_t have = state->device->AvailableBytes(); need > have) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the model does not fit into memory: need ", need,
                     " bytes (parameters ", ParameterBytes(program),
                     ", activations ", program.step_bytes, ", runtime ",
                     backend.runtime_bytes, "), have ", have));
  }
  EBB_ASSIGN_OR_RETURN(state->state_arena,
                       UntouchedMemory::Map(program.state_bytes));
  EBB_ASSIGN_OR_RETURN(
      state->step_arena,
      ArenaMemory::Allocate(*state->device, program.step_bytes));
  const ArenaView arenas = {
      state->state_arena->data(), state->state_arena->bytes(),
      state->step_arena.data(), state->step_arena.bytes()};
  EBB_RETURN_IF_ERROR(
      ModelState(state->sample.graph, program, arenas).ReadWeights(checkpoint));
  EBB_ASSIGN_OR_RETURN(
      state->executor,
      Executor::Create(program, *state->device, arenas,
                       {.precision = spec.precision, .poison = false}));
  state->stored.resize(static_cast<size_t>(program.logits_type.bytes()));
  state->logits.resize(static_cast<size_t>(program.logits_type.num_elements()));
  return std::unique_ptr<Sampler>(new Sampler(std::move(state)));
}

absl::StatusOr<std::span<const float>> Sampler::Logits(
    std::span<const int32_t> context) {
  const Program& program = state_->sample.program;
  EBB_CHECK(!context.empty());
  const size_t count =
      std::min(context.size(), static_cast<size_t>(program.seq_len));
  state_->source.Set(context.last(count));
  state_->executor->set_row(static_cast<int64_t>(count) - 1);
  EBB_RETURN_IF_ERROR(
      state_->executor->RunStep(StepScalars(), state_->source, 0).status());
  state_->device->CopyToHost(
      state_->stored.data(), state_->step_arena.data() + program.logits.base,
      static_cast<int64_t>(state_->stored.size()), nullptr);
  EBB_RETURN_IF_ERROR(state_->device->Synchronize());
  const DType dtype = program.logits_type.dtype;
  EBB_CHECK(dtype == DType::kF32 || dtype == DType::kBf16);
  if (dtype == DType::kF32) {
    memcpy(state_->logits.data(), state_->stored.data(), state_->stored.size());
  } else {
    for (size_t i = 0; i < state_->logits.size(); ++i) {
      uint16_t high = 0;  // a bf16 is the upper half of a float
      memcpy(&high, state_->stored.data() + i * sizeof(high), sizeof(high));
      state_->logits[i] = std::bit_cast<float>(uint32_t{high} << 16);
    }
  }
  return std::span<const float>(state_->logits);
}

}  // namespace ebb
