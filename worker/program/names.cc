// The words for memory classes, phases and decisions; names of values.
#include "absl/strings/str_cat.h"
#include "kernels/ops/op_def.h"
#include "worker/program/memory_class.h"
#include "worker/program/plan.h"
#include "worker/program/program.h"

namespace ebb {

const char* MemoryClassName(MemoryClass memory_class) {
  switch (memory_class) {
    case MemoryClass::kParameters:
      return "parameters";
    case MemoryClass::kGradients:
      return "gradients";
    case MemoryClass::kOptimizer:
      return "optimizer";
    case MemoryClass::kSaved:
      return "saved";
    case MemoryClass::kLive:
      return "live";
    case MemoryClass::kRecompute:
      return "recompute";
    case MemoryClass::kWorkspace:
      return "workspace";
    case MemoryClass::kCommunication:
      return "communication";
    case MemoryClass::kRuntime:
      return "runtime";
    case MemoryClass::kFragmentation:
      return "fragmentation";
    case MemoryClass::kNumClasses:
      break;
  }
  return "?";
}

const char* PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kRecompute:
      return "recompute";
    case Phase::kBackward:
      return "backward";
    case Phase::kUpdate:
      return "update";
  }
  return "?";
}

const char* ActivationDecisionName(ActivationDecision decision) {
  switch (decision) {
    case ActivationDecision::kKeep:
      return "keep";
    case ActivationDecision::kRecompute:
      return "recompute";
    case ActivationDecision::kRecomputeTwice:
      return "recompute_twice";
    case ActivationDecision::kOffloadHost:
    case ActivationDecision::kOffloadDisk:
      return "offload";
  }
  return "?";
}

const char* OffloadPlaceName(ActivationDecision decision) {
  if (decision == ActivationDecision::kOffloadHost) return "host";
  return decision == ActivationDecision::kOffloadDisk ? "disk" : "";
}

ValueName NameOf(const Block& block, const Instruction& instruction,
                 const Operand& operand) {
  if (operand.buffer < 0) {
    const SlotDef& slot = GetOpDef(instruction.op).slots[operand.slot];
    return {absl::StrCat(instruction.name, ".", slot.name),
            instruction.layer_offset};
  }
  const Buffer& buffer = block.buffers[operand.buffer];
  return {buffer.name, buffer.layer_offset};
}

}  // namespace ebb
