// Names of the choices of a job spec.
#include "worker/model/job_spec.h"

namespace ebb {

const char* PolicyName(Policy policy) {
  switch (policy) {
    case Policy::kNone:
      return "none";
    case Policy::kSelective:
      return "selective";
    case Policy::kCheap:
      return "cheap";
    case Policy::kFull:
      return "full";
    case Policy::kSqrt:
      return "sqrt";
    case Policy::kCustom:
      return "custom";
    case Policy::kAuto:
      return "auto";
  }
  return "?";
}

}  // namespace ebb
