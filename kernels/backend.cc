// What instruction sets can do, and the built-in backend of plans and golden
// files.
#include "kernels/backend.h"

namespace ebb {

bool HasBf16Products(const std::string& instruction_set) {
  return instruction_set == "avx512_core_bf16" ||
         instruction_set == "avx512_core_amx";
}

Backend BuiltInCpuBackend() {
  return {
      .kind = "cpu",
      .device_model = "built-in",
      .instruction_set = "avx512_core",
      .threads = 2,
      .libraries = "onednn 2.6.3 highway 1.0.3",
      .runtime_bytes = int64_t{2} << 20,
      .built_in = true,
  };
}

}  // namespace ebb
