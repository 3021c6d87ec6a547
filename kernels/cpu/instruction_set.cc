// Names of instruction sets, and the two libraries' switches.
#include "kernels/cpu/instruction_set.h"

#include <hwy/targets.h>
#include <oneapi/dnnl/dnnl.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/backend.h"

namespace ebb::cpu {
namespace {

struct InstructionSet {
  const char* name;
  dnnl_cpu_isa_t isa;
  int64_t disabled_targets;  // of Highway
};

constexpr int64_t kAboveAvx2 = HWY_AVX3 | HWY_AVX3_DL;
constexpr int64_t kAboveSse4 = kAboveAvx2 | HWY_AVX2;

constexpr InstructionSet kInstructionSets[] = {
    {"sse41", dnnl_cpu_isa_sse41, kAboveSse4},
    {"avx", dnnl_cpu_isa_avx, kAboveSse4},
    {"avx2", dnnl_cpu_isa_avx2, kAboveAvx2},
    {"avx2_vnni", dnnl_cpu_isa_avx2_vnni, kAboveAvx2},
    {"avx512_mic", dnnl_cpu_isa_avx512_mic, kAboveAvx2},
    {"avx512_mic_4ops", dnnl_cpu_isa_avx512_mic_4ops, kAboveAvx2},
    {"avx512_core", dnnl_cpu_isa_avx512_core, 0},
    {"avx512_core_vnni", dnnl_cpu_isa_avx512_core_vnni, 0},
    {"avx512_core_bf16", dnnl_cpu_isa_avx512_core_bf16, 0},
    {"avx512_core_amx", dnnl_cpu_isa_avx512_core_amx, 0},
};

// A machine without vector instructions that oneDNN names.
constexpr InstructionSet kNoInstructionSet = {"none", dnnl_cpu_isa_all,
                                              kAboveSse4};

const InstructionSet& DetectedInstructionSet() {
  const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  for (const InstructionSet& set : kInstructionSets) {
    if (set.isa == isa) return set;
  }
  return kNoInstructionSet;
}

// Tells Highway, once for a set. Highway chooses the kernels' targets anew at
// the first call after it was told and, while it looks at the machine, has all
// of them chosen for a moment: were that call one of a team of threads, another
// thread could run a kernel of a wider set meanwhile, whose sums round
// otherwise.
void DisableTargets(int64_t disabled) {
  static absl::Mutex mutex(absl::kConstInit);
  static int64_t in_force = -1;
  absl::MutexLock lock(&mutex);
  if (disabled == in_force) return;
  hwy::DisableTargets(disabled);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  in_force = disabled;
}

}  // namespace

std::string UseDetectedInstructionSet() {
  const InstructionSet& set = DetectedInstructionSet();
  DisableTargets(set.disabled_targets);
  return set.name;
}

bool HasBf16Instructions() {
  static const bool has = HasBf16Products(DetectedInstructionSet().name);
  return has;
}

absl::Status UseInstructionSet(const std::string& name) {
  const InstructionSet* wanted = nullptr;
  for (const InstructionSet& set : kInstructionSets) {
    if (name == set.name) wanted = &set;
  }
  if (wanted == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown instruction set '", name, "'"));
  }
  // Fails once oneDNN has looked at the set; then the check below decides.
  (void)dnnl_set_max_cpu_isa(wanted->isa);
  const std::string used = UseDetectedInstructionSet();
  if (used != name) {
    return absl::FailedPreconditionError(
        absl::StrCat("instruction set '", name,
                     "' cannot be used: this process has '", used, "'"));
  }
  return absl::OkStatus();
}

}  // namespace ebb::cpu
