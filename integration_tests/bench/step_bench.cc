// Steps by the real programs, executor and kernels, without the service.
#include "integration_tests/bench/step_bench.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/device.h"
#include "kernels/op_call.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/op_def.h"
#include "kernels/status.h"
#include "server/planner/plan_job.h"
#include "worker/program/cost_profile.h"
#include "worker/program/job_programs.h"
#include "worker/runtime/arena_memory.h"
#include "worker/runtime/disk_file.h"
#include "worker/runtime/executor.h"
#include "worker/runtime/model_state.h"
#include "worker/runtime/op_times.h"
#include "worker/runtime/random_tokens.h"
#include "worker/runtime/timing_device.h"

namespace ebb::bench {
namespace {

double ProductFlops(const Instruction& instruction) {
  const OpDef& def = GetOpDef(instruction.op);
  if (def.product_flops == nullptr) return 0;
  const InstructionTypes call(instruction);
  return static_cast<double>(
      def.product_flops(instruction.attrs, call.types, call.bound));
}

// Adds the products of one linear.
void CountProducts(const Instruction& instruction,
                   std::map<ProductShape, int64_t>& counts) {
  using Kind = ProductShape::Kind;
  const InstructionTypes call(instruction);
  const auto count = [&](Kind kind, int64_t rows, int64_t inputs,
                         int64_t outputs) {
    ++counts[{
        .kind = kind, .rows = rows, .inputs = inputs, .outputs = outputs}];
  };
  const auto& x = call.types[linear::kX].dims;
  const auto& weight = call.types[linear::kWeight].dims;
  const auto& y = call.types[linear::kY].dims;
  if (!instruction.backward_kernel) {
    count(Kind::kForward, x[0], weight[1], weight[0]);
  }
  if (HasSlot(call.bound, linear::kX)) {
    count(Kind::kInputGradient, y[0], weight[1], weight[0]);
  }
  if (HasSlot(call.bound, linear::kWeight)) {
    count(Kind::kWeightGradient, y[0], weight[1], weight[0]);
  }
}

// What the program says, without running it.
void DescribeWork(const Program& program, StepMeasurement& to) {
  std::map<ProductShape, int64_t> counts;
  ForEachCompute(program, [&](const Block&, const Instruction& instruction) {
    const double flops = ProductFlops(instruction);
    if (instruction.phase == Phase::kRecompute) {
      to.recompute_product_flops += flops;
      return;
    }
    if (instruction.phase == Phase::kUpdate) return;
    to.model_product_flops += flops;
    if (instruction.op == Op::kLinear) CountProducts(instruction, counts);
  });
  for (const auto& [shape, count] : counts)
    to.products.push_back({shape, count});
}

// "add", or "add+layer_norm" for a row loop or a product with its tail.
std::string OpsOfLaunch(const Block& block, const Instruction& first) {
  std::string ops = GetOpDef(first.op).name;
  for (size_t n = &first - block.instructions.data() + 1;
       n < block.instructions.size() && block.instructions[n].continues; ++n) {
    absl::StrAppend(&ops, "+", GetOpDef(block.instructions[n].op).name);
  }
  return ops;
}

// Sums the timed launches by ops and phase.
absl::Status Attribute(const Program& program,
                       const std::vector<double>& seconds,
                       StepMeasurement& to) {
  std::map<std::string, ProfileEntry> entries;  // by op and phase
  size_t next = 0;
  ForEachCompute(
      program, [&](const Block& block, const Instruction& instruction) {
        if (instruction.continues || next >= seconds.size()) return;
        const double spent = seconds[next++];
        const std::string op = OpsOfLaunch(block, instruction);
        ProfileEntry& entry =
            entries[absl::StrCat(PhaseName(instruction.phase), " ", op)];
        entry.op = op;
        entry.phase = PhaseName(instruction.phase);
        entry.seconds += spent;
        entry.product_flops += ProductFlops(instruction);
        ++entry.calls;
        if (block.period > 0 && instruction.phase != Phase::kUpdate) {
          to.layers_seconds += spent;
        }
      });
  if (next != seconds.size()) {
    return absl::InternalError("launches differ from the program's");
  }
  for (auto& [key, entry] : entries) to.profile.push_back(std::move(entry));
  std::sort(to.profile.begin(), to.profile.end(),
            [](const ProfileEntry& a, const ProfileEntry& b) {
              return a.seconds > b.seconds;
            });
  return absl::OkStatus();
}

class JobBench final : public StepBench {
 public:
  JobBench(const JobSpec& spec, std::unique_ptr<Device> cpu)
      : spec_(spec), device_(std::move(cpu)), tokens_(spec.model.vocab) {}

  absl::Status Prepare(const CostProfile& profile) {
    EBB_ASSIGN_OR_RETURN(const Plan plan,
                         PlanJob(spec_, device_.backend(), profile));
    EBB_ASSIGN_OR_RETURN(programs_,
                         LowerJob(spec_, plan, device_.backend(), 1));
    const Program& program = programs_.training;
    EBB_ASSIGN_OR_RETURN(state_,
                         ArenaMemory::Allocate(device_, program.state_bytes));
    EBB_ASSIGN_OR_RETURN(step_,
                         ArenaMemory::Allocate(device_, program.step_bytes));
    EBB_ASSIGN_OR_RETURN(host_,
                         ArenaMemory::Allocate(device_, program.host_bytes));
    if (program.disk_bytes > 0) {
      EBB_ASSIGN_OR_RETURN(
          disk_, DiskFile::Create(DiskDirectory(spec_), program.disk_bytes));
    }
    const ArenaView arenas = {state_.data(), state_.bytes(),    step_.data(),
                              step_.bytes(), host_.data(),      host_.bytes(),
                              disk_.get(),   program.disk_bytes};
    EBB_RETURN_IF_ERROR(
        ModelState(programs_.graph, program, arenas).Initialize(spec_.seed));
    EBB_ASSIGN_OR_RETURN(executor_,
                         Executor::Create(program, device_, arenas,
                                          {.precision = spec_.precision}));
    DescribeWork(program, measured_);
    const RankPlan rank = PredictRank(programs_, device_.backend());
    measured_.peak_bytes = rank.peak_bytes;
    measured_.host_bytes = rank.host_bytes;
    measured_.disk_bytes = rank.disk_bytes;
    return absl::OkStatus();
  }

  absl::Status WarmUp() override { return Run().status(); }
  absl::Status Step() override {
    const double before = CpuSeconds();
    EBB_ASSIGN_OR_RETURN(const double seconds, Run());
    measured_.cpu_seconds.push_back(CpuSeconds() - before);
    measured_.step_seconds.push_back(seconds);
    return absl::OkStatus();
  }
  absl::Status Profile() override {
    device_.StartTiming(OpTimes::NumLaunches(programs_.training));
    EBB_RETURN_IF_ERROR(Run().status());
    return Attribute(programs_.training, device_.StopTiming(), measured_);
  }
  double Predict(const CostProfile& profile) const override {
    return SecondsOf(programs_.training, profile).total;
  }
  const StepMeasurement& measured() const override { return measured_; }

 private:
  // Of this process so far, without the kernel's work for it.
  static double CpuSeconds() {
    rusage usage;
    EBB_CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return static_cast<double>(usage.ru_utime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec);
  }

  // Seconds of one step.
  absl::StatusOr<double> Run() {
    const StepScalars scalars = {
        .seed = spec_.seed, .step = ++steps_, .learning_rate = 1e-4f};
    EBB_ASSIGN_OR_RETURN(const StepReport report,
                         executor_->RunStep(scalars, tokens_, 0));
    measured_.tokens = report.tokens;
    measured_.model_flops = report.model_flops;
    measured_.recompute_flops = report.recompute_flops;
    measured_.loss = report.loss;
    return report.duration_seconds;
  }

  const JobSpec spec_;
  TimingDevice device_;
  JobPrograms programs_;
  ArenaMemory state_, step_, host_;
  std::unique_ptr<DiskFile> disk_;
  RandomTokens tokens_;
  std::unique_ptr<Executor> executor_;
  int64_t steps_ = 0;
  StepMeasurement measured_;
};

}  // namespace

std::string DiskDirectory(const JobSpec& spec) {
  return spec.memory.offload_dir.empty()
             ? std::filesystem::temp_directory_path().string()
             : spec.memory.offload_dir;
}

absl::StatusOr<std::unique_ptr<StepBench>> StepBench::Create(
    const JobSpec& spec, const CostProfile& profile) {
  EBB_ASSIGN_OR_RETURN(std::unique_ptr<Device> cpu,
                       MakeCpuDevice(DescribeCpu(spec.threads)));
  auto bench = std::make_unique<JobBench>(spec, std::move(cpu));
  EBB_RETURN_IF_ERROR(bench->Prepare(profile));
  return bench;
}

}  // namespace ebb::bench
