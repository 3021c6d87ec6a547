// What operations take on a machine: the named input from which the planner
// counts seconds. An op on types that were measured takes what was measured.
// All else goes by a roofline (Williams et al. 2009): an op takes as long as
// its arithmetic or its bytes do, whichever is more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ops/op_def.h"
#include "worker/model/graph.h"
#include "worker/program/program.h"

namespace ebb {

struct CostProfile {
  std::string source;  // for people: "roofline of 2 threads of avx512_core"
  double product_flops_per_second = 0;       // matrix products of fp32
  double bf16_product_flops_per_second = 0;  // and of bf16
  double other_flops_per_second = 0;
  double bytes_per_second = 0;  // of operands read or written
  double launch_seconds = 0;    // of every op, however small
  // Of copies between the device and host memory, either way.
  double host_bytes_per_second = 0;
  // What a second of such copies takes from the ops beside it: on a CPU the
  // copies run on its cores.
  double copy_share = 0;
  // Seconds of one run, by OpKey.
  std::map<std::string, double> measured;

  bool operator==(const CostProfile&) const = default;

  // Of one copy, one way.
  double CopySeconds(int64_t bytes) const;
  // Of copies that last so long beside ops that do.
  double CopiesBeside(double copy_seconds, double op_seconds) const {
    return std::max(copy_share * copy_seconds, copy_seconds - op_seconds);
  }
};

// Key in CostProfile::measured of a copy of 1 MiB to host memory or back.
inline constexpr char kHostCopyKey[] = "copy of 1 MiB to host";

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
// take from those), and of ops that were measured.
struct StepSeconds {
  double total = 0;
  double recompute = 0;
  double copies = 0;
  double measured = 0;
};
StepSeconds SecondsOf(const Program& program, const CostProfile& profile);

}  // namespace ebb
