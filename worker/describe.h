// What `ebb-worker --describe` prints.
#pragma once

#include <string>

#include "kernels/backend.h"
#include "kernels/kernel_table.h"

namespace ebb {

// One JSON object, in one line:
//   {"backend": {"kind", "device_model", "instruction_set", "threads",
//                "libraries", "runtime_bytes"},
//    "kernels": [{"op", "dtype", "forward", "backward"}, ...]}
// Kernels stand in the order of ops; `forward` and `backward` say whether there
// is such a kernel. runtime_bytes is text, as every 64-bit number in our JSON.
std::string DescribeJson(const Backend& backend, const KernelTable& kernels);

}  // namespace ebb
