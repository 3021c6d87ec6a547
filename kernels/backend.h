// What a plan needs to know of the machine that will run it: a named input of
// planning, found by `ebb-worker --describe` or built in, never looked up by
// the planner itself.
#pragma once

#include <cstdint>
#include <string>

namespace ebb {

struct Backend {
  std::string kind = "cpu";     // cpu | cuda
  std::string device_model;     // as the device names itself
  std::string instruction_set;  // oneDNN's name of the widest set in use:
                                // "sse41", "avx2", "avx512_core", ...
  int threads = 1;              // of one rank's kernels
  std::string libraries;        // "onednn 2.6.3 highway 1.0.3"
  int64_t runtime_bytes = 0;    // resident bytes of libraries and process
                                // that training adds outside the arenas
                                // (JIT code, primitive caches, thread
                                // stacks), probed at start
  bool built_in = false;        // not probed: a plan made with it says so

  bool operator==(const Backend&) const = default;
};

// Whether matrix products take bf16 as it is with this
// Backend::instruction_set. Elsewhere they widen their operands in scratch and
// run at about fp32's rate.
bool HasBf16Products(const std::string& instruction_set);

// A fixed CPU backend for golden files and for plans of machines that are not
// there: 2 threads, avx512_core.
Backend BuiltInCpuBackend();

}  // namespace ebb
