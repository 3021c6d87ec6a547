// Describes this machine's CPU.
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
  backend.runtime_bytes = 0;
  return backend;
}

}  // namespace ebb
