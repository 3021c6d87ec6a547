#include "worker/program/cost_profile.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ebb {
namespace {

// Of one thread of a server's core at some 2.8 GHz.
struct ThreadRates {
  const char* instruction_set;  // prefix of Backend::instruction_set
  double product_flops;
  double other_flops;
};
constexpr ThreadRates kThreadRates[] = {
    {"avx512", 120e9, 8e9},
    {"avx2", 60e9, 4e9},
    {"", 15e9, 2e9},
};
constexpr double kThreadBytes = 10e9;
// Memory does not grow with threads for ever.
constexpr double kMostBytes = 200e9;
// Products of bf16 over those of fp32, where the processor has them.
constexpr double kBf16Speed = 2.5;
constexpr double kCpuLaunch = 2e-6;
// Copies by one more thread on the cores of a team, of which it has every
// second turn on one core: half of what memcpy does alone. The others of the
// team wait for the one beside it, whose half is then gone for all.
constexpr CopyRate kCpuHostCopies = {.bytes_per_second = 3e9, .share = 0.5};
// A solid-state disk, which takes no core while it works.
constexpr CopyRate kCpuDiskCopies = {.bytes_per_second = 1e9, .share = 0.2};

// One H200: dense bf16 and memory as published (papers.md 7.1), at what large
// products and kernels reach of them.
constexpr double kCudaBf16Flops = 0.7 * 989.4e12;
constexpr double kCudaFlops = 0.7 * 67e12;
constexpr double kCudaOtherFlops = 30e12;
constexpr double kCudaBytes = 0.85 * 4.8e12;
constexpr double kCudaLaunch = 4e-6;
constexpr CopyRate kCudaHostCopies = {.bytes_per_second = 50e9};  // PCIe 5
constexpr CopyRate kCudaDiskCopies = {.bytes_per_second = 4e9};

}  // namespace

CostProfile RooflineProfile(const Backend& backend) {
  CostProfile profile;
  if (backend.kind == "cuda") {
    profile.source = "roofline of one H200";
    profile.product_flops_per_second = kCudaFlops;
    profile.bf16_product_flops_per_second = kCudaBf16Flops;
    profile.other_flops_per_second = kCudaOtherFlops;
    profile.bytes_per_second = kCudaBytes;
    profile.launch_seconds = kCudaLaunch;
    profile.host = kCudaHostCopies;
    profile.disk = kCudaDiskCopies;
    return profile;
  }
  const ThreadRates* rates = kThreadRates;
  while (!absl::StartsWith(backend.instruction_set, rates->instruction_set)) {
    ++rates;
  }
  const int threads = std::max(1, backend.threads);
  profile.source = absl::StrCat("roofline of ", threads,
                                threads == 1 ? " thread of " : " threads of ",
                                backend.instruction_set);
  profile.product_flops_per_second = threads * rates->product_flops;
  profile.bf16_product_flops_per_second =
      profile.product_flops_per_second *
      (HasBf16Products(backend.instruction_set) ? kBf16Speed : 1);
  profile.other_flops_per_second = threads * rates->other_flops;
  profile.bytes_per_second = std::min(kMostBytes, threads * kThreadBytes);
  profile.launch_seconds = kCpuLaunch;
  profile.host = kCpuHostCopies;
  profile.disk = kCpuDiskCopies;
  return profile;
}

std::string DiskPlace(const std::string& offload_dir) {
  return offload_dir.empty() ? "disk" : absl::StrCat("disk in ", offload_dir);
}

std::string CopyKey(const std::string& place) {
  return absl::StrCat("copy of 1 MiB to ", place);
}

std::string CopyLossKey(const std::string& place) {
  return absl::StrCat("taken from ops by a copy of 1 MiB to ", place);
}

void CostProfile::TakeMeasured(std::map<std::string, double> seconds,
                               const std::string& offload_dir) {
  measured = std::move(seconds);
  const auto take = [this](const std::string& place, CopyRate& rate) {
    const auto copy = measured.find(CopyKey(place));
    if (copy == measured.end()) return;
    rate.bytes_per_second = (1 << 20) / copy->second;
    const auto loss = measured.find(CopyLossKey(place));
    if (loss == measured.end()) return;
    rate.share = std::min(1.0, loss->second / copy->second);
  };
  take(kHostPlace, host);
  take(DiskPlace(offload_dir), disk);
}

namespace {

std::string TypeKey(const TensorType& type) {
  std::string key = absl::StrCat(DTypeName(type.dtype), "[");
  for (int d = 0; d < type.rank; ++d) absl::StrAppend(&key, type.dims[d], ",");
  key.back() = ']';
  return key;
}

std::string ErrorKey(const char* which, const std::string& value,
                     const TensorType& type, DType format, bool is_of_a_job) {
  return absl::StrCat(which, " error of ", value, " ", TypeKey(type), " as ",
                      DTypeName(format), is_of_a_job ? "" : ", random");
}

}  // namespace

void AddEncodeErrors(const EncodeErrors& encoded,
                     const std::vector<EncodeError>& errors, bool is_of_a_job,
                     std::map<std::string, double>& measured) {
  for (size_t i = 0; i < errors.size(); ++i) {
    // Times are kept beside them, and of those 0 is none.
    if (!(errors[i].relative_error > 0) ||
        !std::isfinite(errors[i].largest_error)) {
      continue;
    }
    const auto key = [&](const char* which) {
      return ErrorKey(which, errors[i].value, encoded.types[i], encoded.format,
                      is_of_a_job);
    };
    measured[key("relative")] = errors[i].relative_error;
    measured[key("largest")] = errors[i].largest_error;
  }
}

std::optional<MeasuredError> FindEncodeError(const CostProfile& profile,
                                             const std::string& value,
                                             const TensorType& type,
                                             DType format) {
  for (const bool is_of_a_job : {true, false}) {
    const auto find = [&](const char* which) {
      return profile.measured.find(
          ErrorKey(which, value, type, format, is_of_a_job));
    };
    const auto relative = find("relative"), largest = find("largest");
    if (relative == profile.measured.end() ||
        largest == profile.measured.end()) {
      continue;
    }
    return MeasuredError{relative->second, largest->second, is_of_a_job};
  }
  return std::nullopt;
}

std::string OpKey(Op op, const OpAttrs& attrs, Types types, uint32_t bound) {
  const OpDef& def = GetOpDef(op);
  std::string key = absl::StrCat(def.name, bound == 0 ? " forward" : " d(");
  for (int slot = 0; slot < def.num_slots() && bound != 0; ++slot) {
    if (HasSlot(bound, slot)) absl::StrAppend(&key, def.slots[slot].name, ",");
  }
  if (bound != 0) key.back() = ')';
  for (const TensorType& type : types) {
    if (!type.bound()) {
      key += " -";
      continue;
    }
    absl::StrAppend(&key, " ", TypeKey(type));
  }
  if (attrs.num_heads > 0) {
    absl::StrAppend(&key, " heads ", attrs.num_heads, "/", attrs.num_kv_heads);
  }
  if (attrs.seq_len > 0) absl::StrAppend(&key, " seq ", attrs.seq_len);
  return key;
}

double OpSeconds(Op op, const OpAttrs& attrs, Types types, uint32_t bound,
                 const CostProfile& profile) {
  if (!profile.measured.empty()) {
    const auto found = profile.measured.find(OpKey(op, attrs, types, bound));
    if (found != profile.measured.end()) return found->second;
  }
  const OpDef& def = GetOpDef(op);
  double flops =
      static_cast<double>(bound == 0 ? def.forward_flops(attrs, types)
                                     : def.backward_flops(attrs, types, bound));
  double products =
      def.product_flops == nullptr
          ? 0
          : static_cast<double>(def.product_flops(attrs, types, bound));
  if (bound != 0 && def.inner_recompute_flops != nullptr) {
    const auto inner =
        static_cast<double>(def.inner_recompute_flops(attrs, types));
    flops += inner;
    if (products > 0) products += inner;
  }
  products = std::min(products, flops);
  double bytes = 0;
  bool is_bf16 = false;
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    if (!types[slot].bound()) continue;
    is_bf16 = is_bf16 || types[slot].dtype == DType::kBf16;
    // A gather touches the rows that it takes, not the table.
    const bool is_table = def.slots[slot].role == Role::kParam && products == 0;
    const auto own = static_cast<double>(types[slot].bytes());
    if (!is_table) bytes += own;
    if (bound == 0 || is_table) continue;
    const Role role = def.slots[slot].role;
    if (role == Role::kOutput || HasSlot(bound, slot)) {
      bytes += static_cast<double>(GradientType(role, types[slot]).bytes());
    }
  }
  const double arithmetic =
      products / (is_bf16 ? profile.bf16_product_flops_per_second
                          : profile.product_flops_per_second) +
      (flops - products) / profile.other_flops_per_second;
  return profile.launch_seconds +
         std::max(arithmetic, bytes / profile.bytes_per_second);
}

double NodeSeconds(const Graph& graph, const Node& node,
                   const CostProfile& profile) {
  std::vector<TensorType> types(node.slots.size());
  for (size_t slot = 0; slot < node.slots.size(); ++slot) {
    const int value = node.slots[slot].value;
    if (value >= 0) types[slot] = graph.values[value].type;
  }
  return OpSeconds(node.op, node.attrs, types, 0, profile);
}

InstructionTypes::InstructionTypes(const Instruction& instruction)
    : types(GetOpDef(instruction.op).slots.size()) {
  for (const Operand& operand : instruction.operands) {
    // The gradient of a parameter is wider than it.
    if (!operand.gradient || !types[operand.slot].bound()) {
      types[operand.slot] = operand.type;
    }
    if (operand.gradient && operand.written) bound |= Reads(operand.slot);
  }
}

namespace {

// How often an instruction runs in all iterations of its block.
int64_t NumRuns(const Block& block, const Instruction& instruction) {
  if (block.one_row) return 1;
  switch (instruction.iterations) {
    case Iterations::kAll:
      return block.count;
    case Iterations::kFirst:
    case Iterations::kLast:
      return 1;
    case Iterations::kAllButFirst:
    case Iterations::kAllButLast:
      return block.count - 1;
  }
  return block.count;
}

}  // namespace

StepSeconds SecondsOf(const Program& program, const CostProfile& profile) {
  StepSeconds seconds;
  for (size_t b = 0; b < program.blocks.size(); ++b) {
    const Block& block = program.blocks[b];
    const int index = static_cast<int>(b);
    const double times =
        index >= program.begin_microbatch && index < program.end_microbatch
            ? program.num_microbatches
            : 1;
    double ops = 0;
    CopyTime copies;
    for (const Instruction& instruction : block.instructions) {
      const auto runs = static_cast<double>(NumRuns(block, instruction));
      if (instruction.kind == InstructionKind::kOffload ||
          instruction.kind == InstructionKind::kPrefetch) {
        const Buffer& a = block.buffers[instruction.operands[0].buffer];
        const Buffer& b = block.buffers[instruction.operands[1].buffer];
        const bool on_disk =
            IsOnDisk(a.address.arena) || IsOnDisk(b.address.arena);
        copies.Add(on_disk ? profile.disk : profile.host,
                   runs * static_cast<double>(a.bytes));
      }
      if (instruction.kind != InstructionKind::kCompute) continue;
      const InstructionTypes call(instruction);
      const double own = runs * OpSeconds(instruction.op, instruction.attrs,
                                          call.types, call.bound, profile);
      ops += own;
      const bool measured =
          !profile.measured.empty() &&
          profile.measured.count(OpKey(instruction.op, instruction.attrs,
                                       call.types, call.bound)) != 0;
      if (measured) seconds.measured += times * own;
      if (instruction.phase == Phase::kRecompute) {
        seconds.recompute += times * own;
      }
      if (instruction.op == Op::kEncode || instruction.op == Op::kDecode) {
        seconds.encoding += times * own;
      }
    }
    const double added = copies.Beside(ops);
    seconds.copies += times * added;
    seconds.total += times * (ops + added);
  }
  return seconds;
}

}  // namespace ebb
