// Describes this machine's CPU.
//
// Bytes outside the arenas are computed, not probed in every process: a probe
// differs by some pages from run to run, and descriptions must agree. The
// figures come from the growth of anonymous resident memory over the products
// of a decoder (five linears, three products each: 1.1 MiB where oneDNN
// generates code for them); cpu_device_test measures it.
#include <hwy/highway.h>
#include <oneapi/dnnl/dnnl.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_memory.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/device.h"

namespace ebb {
namespace {

// Products of a training program: about six shapes, forward and two gradients.
constexpr int64_t kNumProducts = 18;
// Code and bookkeeping of one product of oneDNN's, with primitives for two row
// counts.
constexpr int64_t kJitProductBytes = 96 << 10;
// Touched pages of one thread's stack and of its arguments.
constexpr int64_t kThreadBytes = 32 << 10;
constexpr int64_t kMebibyte = 1 << 20;

int64_t RuntimeBytes(const std::string& instruction_set, int threads) {
  const int64_t product_bytes =
      HasBf16Products(instruction_set) ? kJitProductBytes : 0;
  const int64_t bytes = kNumProducts * product_bytes + threads * kThreadBytes;
  return (bytes + kMebibyte - 1) / kMebibyte * kMebibyte;
}

std::string DeviceModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

int AllowedThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int affinity =
      sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  const double quota = std::floor(cpu::AllowedProcessors());
  return std::max(1,
                  std::min(affinity, static_cast<int>(std::max(1.0, quota))));
}

}  // namespace

Backend DescribeCpu(int threads) {
  const dnnl_version_t& version = *dnnl_version();
  Backend backend;
  backend.kind = "cpu";
  backend.device_model = DeviceModel();
  backend.instruction_set = cpu::UseDetectedInstructionSet();
  backend.threads = threads > 0 ? threads : AllowedThreads();
  backend.libraries = absl::StrCat("onednn ", version.major, ".", version.minor,
                                   ".", version.patch, " highway ", HWY_MAJOR,
                                   ".", HWY_MINOR, ".", HWY_PATCH);
  backend.runtime_bytes =
      RuntimeBytes(backend.instruction_set, backend.threads);
  return backend;
}

}  // namespace ebb
