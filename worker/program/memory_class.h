// The memory classes of design.md section 4: the same words in plan, JSON,
// metrics and dumps. Their sum at the moment of the peak is the peak.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>

namespace ebb {

enum class MemoryClass : uint8_t {
  kParameters,
  kGradients,
  kOptimizer,
  kSaved,
  kLive,
  kRecompute,
  kWorkspace,
  kCommunication,
  kRuntime,
  kFragmentation,
  kNumClasses,
};

constexpr int kNumMemoryClasses = static_cast<int>(MemoryClass::kNumClasses);

const char* MemoryClassName(MemoryClass memory_class);  // "parameters", ...

// Bytes by class.
struct MemoryBytes {
  std::array<int64_t, kNumMemoryClasses> bytes = {};

  int64_t& operator[](MemoryClass c) { return bytes[static_cast<int>(c)]; }
  int64_t operator[](MemoryClass c) const { return bytes[static_cast<int>(c)]; }
  int64_t Sum() const {
    return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  }
  bool operator==(const MemoryBytes&) const = default;
};

}  // namespace ebb
