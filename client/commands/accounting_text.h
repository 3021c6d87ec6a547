// What publications count for a job beside what Ebb stores, as people read it.
// Pure.
#pragma once

#include <string>

namespace ebb {

namespace v1 {
class PaperAccounting;
}

// What `ebb plan --accounting paper` adds: bytes of a layer by tensor, sums and
// FLOPs by policy, FLOPs of a token by convention, and how the two ways of
// counting differ.
std::string AccountingText(const v1::PaperAccounting& accounting);

}  // namespace ebb
