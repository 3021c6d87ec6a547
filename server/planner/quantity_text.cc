#include "server/planner/quantity_text.h"

#include <cstddef>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ebb {

std::string BytesText(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double size = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* larger : {"KiB", "MiB", "GiB"}) {
    if (size < 1024) break;
    size /= 1024;
    unit = larger;
  }
  return absl::StrFormat("%.1f %s", size, unit);
}

std::string SecondsText(double seconds) {
  if (seconds >= 1000) return absl::StrFormat("%.0f s", seconds);
  if (seconds >= 1) return absl::StrFormat("%.3g s", seconds);
  return seconds >= 1e-3 ? absl::StrFormat("%.3g ms", 1e3 * seconds)
                         : absl::StrFormat("%.3g us", 1e6 * seconds);
}

std::string FlopsText(double flops) {
  const char* unit = "FLOP";
  for (const char* larger : {"kFLOP", "MFLOP", "GFLOP", "TFLOP"}) {
    if (flops < 1000) break;
    flops /= 1000;
    unit = larger;
  }
  return absl::StrFormat("%.3g %s", flops, unit);
}

std::string ExactBytesText(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B")
                   : absl::StrFormat("%.*f %s (%d B)",
                                     value < 10    ? 2
                                     : value < 100 ? 1
                                                   : 0,
                                     value, kUnits[unit], bytes);
}

}  // namespace ebb
