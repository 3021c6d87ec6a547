#include "worker/profiling.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/device.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/convert.h"
#include "proto/spec.pb.h"
#include "proto/spec_reader.h"
#include "worker/program/cost_profile.h"
#include "worker/program/job_programs.h"
#include "worker/program/policy.h"
#include "worker/runtime/arena_memory.h"
#include "worker/runtime/copy_times.h"
#include "worker/runtime/executor.h"
#include "worker/runtime/model_state.h"
#include "worker/runtime/op_times.h"
#include "worker/runtime/random_tokens.h"
#include "worker/runtime/timing_device.h"

namespace ebb {
namespace {

// So many layers are more than caches hold, so that each finds its weights
// where it would in a deep model.
constexpr int kMostLayers = 4;
constexpr int kMostMicrobatches = 2;
constexpr int kTimedSteps = 3;

// The job with few layers and microbatches: with as many layers as fit.
absl::StatusOr<JobPrograms> LowerSmallJob(JobSpec& spec, const Device& device) {
  // What single layers encode stands for all of them, which are fewer here.
  // Else nothing computed again and nothing copied.
  EncodeSpec encode = std::move(spec.memory.encode);
  for (std::string& name : encode.values) {
    const size_t end = name.find_first_not_of("0123456789", 1);
    if (name[0] == 'L' && end > 1 && end < name.size()) {
      name.replace(0, end, "L*");
    }
  }
  spec.memory = MemorySpec();
  spec.memory.encode = std::move(encode);
  spec.eval.every = 0;
  spec.global_batch =
      spec.micro_batch * std::min(kMostMicrobatches, spec.num_microbatches());
  int64_t need = 0;
  const int64_t have = device.AvailableBytes();
  for (int layers = std::min(kMostLayers, spec.model.layers); layers > 0;
       --layers) {
    spec.model.layers = layers;
    EBB_ASSIGN_OR_RETURN(const Graph graph, BuildTrainingGraph(spec));
    EBB_ASSIGN_OR_RETURN(const Plan plan, MakePolicyPlan(graph, spec.memory));
    EBB_ASSIGN_OR_RETURN(JobPrograms programs,
                         LowerJob(spec, plan, device.backend(), 1));
    need = programs.training.state_bytes + programs.step_bytes;
    if (need <= have) return programs;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("one layer of the job does not fit this machine to be "
                   "measured: need ",
                   need, " B, have ", have, " B"));
}

}  // namespace

absl::StatusOr<std::map<std::string, double>> ProfileJob(
    const JobSpec& spec, const std::string& offload_directory,
    const std::function<bool()>& cancelled) {
  EBB_ASSIGN_OR_RETURN(std::unique_ptr<Device> cpu,
                       MakeCpuDevice(DescribeCpu(spec.threads)));
  TimingDevice device(std::move(cpu));
  JobSpec small = spec;
  EBB_ASSIGN_OR_RETURN(const JobPrograms programs,
                       LowerSmallJob(small, device));
  const Program& program = programs.training;
  EBB_ASSIGN_OR_RETURN(const ArenaMemory state,
                       ArenaMemory::Allocate(device, program.state_bytes));
  EBB_ASSIGN_OR_RETURN(const ArenaMemory step,
                       ArenaMemory::Allocate(device, program.step_bytes));
  const ArenaView arenas = {state.data(), state.bytes(), step.data(),
                            step.bytes()};
  EBB_RETURN_IF_ERROR(
      ModelState(programs.graph, program, arenas).Initialize(small.seed));
  EBB_ASSIGN_OR_RETURN(const std::unique_ptr<Executor> executor,
                       Executor::Create(program, device, arenas,
                                        {.precision = small.precision}));
  RandomTokens tokens(small.model.vocab);
  int64_t num_steps = 0;
  std::vector<EncodeError> encode_errors;
  const auto run_step = [&]() -> absl::Status {
    if (cancelled()) return absl::CancelledError("the call was given up");
    const StepScalars scalars = {
        .seed = small.seed, .step = ++num_steps, .learning_rate = 1e-4f};
    EBB_ASSIGN_OR_RETURN(StepReport report,
                         executor->RunStep(scalars, tokens, 0));
    encode_errors = std::move(report.encode_errors);
    return absl::OkStatus();
  };
  OpTimes times;
  for (int n = 0; n <= kTimedSteps; ++n) {
    // The first step warms up.
    if (n > 0) device.StartTiming(OpTimes::NumLaunches(program));
    EBB_RETURN_IF_ERROR(run_step());
    if (n > 0) {
      EBB_RETURN_IF_ERROR(
          times.Add(program, device.backend(), device.StopTiming()));
    }
  }
  std::map<std::string, double> means = times.Means();
  const std::string& named = spec.memory.offload_dir;
  EBB_ASSIGN_OR_RETURN(
      auto copies,
      MeasureCopies(device, named.empty() ? offload_directory : named,
                    DiskPlace(named), run_step));
  means.merge(copies);
  AddEncodeErrors(program.encode_errors, encode_errors, /*is_of_a_job=*/false,
                  means);
  return means;
}

absl::StatusOr<std::string> ProfileJobText(
    const std::string& spec_json, const std::string& offload_directory,
    const std::function<bool()>& cancelled) {
  EBB_ASSIGN_OR_RETURN(const v1::JobSpec message,
                       ReadSpec(spec_json, "standard input", {}));
  EBB_ASSIGN_OR_RETURN(const JobSpec spec, JobSpecFromMessage(message));
  EBB_ASSIGN_OR_RETURN(const auto seconds,
                       ProfileJob(spec, offload_directory, cancelled));
  return nlohmann::json(seconds).dump();
}

}  // namespace ebb
