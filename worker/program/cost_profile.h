// What operations take on a machine: the named input from which the planner
// counts seconds. An op on types that were measured takes what was measured.
// All else goes by a roofline (Williams et al. 2009): an op takes as long as
// its arithmetic or its bytes do, whichever is more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ops/op_def.h"
#include "worker/model/graph.h"
#include "worker/program/program.h"
#include "worker/program/step_report.h"

namespace ebb {

// Copies between the device and one place off it, either way.
struct CopyRate {
  double bytes_per_second = 0;  // while ops run beside
  // What a second of such copies takes from those: on a CPU copies run on the
  // cores of the ops.
  double share = 0;
  bool operator==(const CopyRate&) const = default;
};

// Copies made one after the other: how long they last, and what they take from
// the ops beside them.
struct CopyTime {
  double seconds = 0;
  double taken = 0;

  void Add(const CopyRate& rate, double bytes) {
    seconds += bytes / rate.bytes_per_second;
    taken += rate.share * bytes / rate.bytes_per_second;
  }
  // What they add to ops that last so long.
  double Beside(double op_seconds) const {
    return std::max(taken, seconds - op_seconds);
  }
};

struct CostProfile {
  std::string source;  // for people: "roofline of 2 threads of avx512_core"
  double product_flops_per_second = 0;       // matrix products of fp32
  double bf16_product_flops_per_second = 0;  // and of bf16
  double other_flops_per_second = 0;
  double bytes_per_second = 0;  // of operands read or written
  double launch_seconds = 0;    // of every op, however small
  CopyRate host;
  CopyRate disk;
  // Seconds of one run, by OpKey.
  std::map<std::string, double> measured;

  bool operator==(const CostProfile&) const = default;

  // Of values that wait in host memory or on disk.
  const CopyRate& RateTo(Offload place) const {
    return place == Offload::kDisk ? disk : host;
  }
  // Puts measured seconds in force: those of ops, by OpKey, and those of
  // copies, by the keys below; values on disk wait in `offload_dir`.
  void TakeMeasured(std::map<std::string, double> seconds,
                    const std::string& offload_dir);
};

// Where values wait, in the keys of copies; `offload_dir` as
// memory.offload_dir says it (empty: the attempt's directory).
inline constexpr char kHostPlace[] = "host";
std::string DiskPlace(const std::string& offload_dir);
// Keys of measured seconds: what a copy of 1 MiB lasts beside ops, either way,
// and what it takes from those.
std::string CopyKey(const std::string& place);
std::string CopyLossKey(const std::string& place);

// What encoding a value loses, as a step measured it.
struct MeasuredError {
  double relative_error = 0;  // as EncodeError's
  double largest_error = 0;
  // Of a job's own step; else of a step on random weights and tokens.
  bool is_of_a_job = false;
};

// Adds to `measured` what a step's encoding lost, under keys of its own; but
// nothing where it lost nothing.
void AddEncodeErrors(const EncodeErrors& encoded,
                     const std::vector<EncodeError>& errors, bool is_of_a_job,
                     std::map<std::string, double>& measured);

// That of a value of this name and type, the job's own if there is one.
std::optional<MeasuredError> FindEncodeError(const CostProfile& profile,
                                             const std::string& value,
                                             const TensorType& type,
                                             DType format);

// The most that an element which is not tiny beside its row's largest loses,
// relative to itself: half a unit of the mantissa's last bit.
constexpr double EncodeErrorBound(DType format) {
  return format == DType::kBf16 ? 1.0 / 256 : 1.0 / 16;
}

// Rates that machines of this kind reach, for all threads together: what the
// bench measures on AVX-512 and published peaks elsewhere.
CostProfile RooflineProfile(const Backend& backend);

// Names what an op's time depends on: "linear forward bf16[1024,768] ...", one
// line. The same for the forward pass and for what is computed again.
std::string OpKey(Op op, const OpAttrs& attrs, Types types, uint32_t bound);

// Seconds of one run of the op on these types: forward (bound 0) or the
// gradients of `bound`. Operands are all bound slots and, backward, their
// gradients. What an op costs depends on nothing else, so a step under a plan
// costs what it costs under `none` and the forward seconds of what is computed
// again.
double OpSeconds(Op op, const OpAttrs& attrs, Types types, uint32_t bound,
                 const CostProfile& profile);

// The same for a node of the graph, forward.
double NodeSeconds(const Graph& graph, const Node& node,
                   const CostProfile& profile);

// Types of an instruction's slots, and the gradients that it computes (0: it
// runs forward).
struct InstructionTypes {
  std::vector<TensorType> types;
  uint32_t bound = 0;

  explicit InstructionTypes(const Instruction& instruction);
};

// Seconds of a step, and of these those of what is computed again, those that
// copies add (what of them the ops of the same block do not hide, and what they
// take from those), of encoding and decoding, and of ops that were measured.
struct StepSeconds {
  double total = 0;
  double recompute = 0;
  double copies = 0;
  double encoding = 0;
  double measured = 0;
};
StepSeconds SecondsOf(const Program& program, const CostProfile& profile);

}  // namespace ebb
