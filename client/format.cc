// See format.h.
#include "client/format.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ebb {
namespace {

// Three significant digits of a number in [0, 10000).
std::string ThreeDigits(double value) {
  if (value < 9.995) return absl::StrFormat("%.2f", value);
  if (value < 99.95) return absl::StrFormat("%.1f", value);
  return absl::StrFormat("%.0f", value);
}

// Scales by `base` until the value prints with at most `base - 1`.
std::string Scaled(double value, double base, const char* const* units,
                   int num_units, const char* separator) {
  int unit = 0;
  while (unit + 1 < num_units && value >= base - 0.5) {
    value /= base;
    ++unit;
  }
  return absl::StrCat(ThreeDigits(value), separator, units[unit]);
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B",   "KiB", "MiB", "GiB",
                                           "TiB", "PiB", "EiB"};
  if (bytes < 0) return absl::StrCat("-", FormatBytes(-bytes));
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  return Scaled(static_cast<double>(bytes), 1024, kUnits, 7, " ");
}

std::string FormatExactBytes(int64_t bytes) {
  if (bytes > -1024 && bytes < 1024) return FormatBytes(bytes);
  return absl::StrCat(FormatBytes(bytes), " (", bytes, " B)");
}

std::string FormatFlops(double flops) {
  static constexpr const char* kUnits[] = {"FLOP",  "kFLOP", "MFLOP", "GFLOP",
                                           "TFLOP", "PFLOP", "EFLOP", "ZFLOP"};
  if (flops == 0) return "0 FLOP";
  return Scaled(flops, 1000, kUnits, 8, " ");
}

std::string FormatCount(double count) {
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  if (count < 999.5) return absl::StrFormat("%.0f", count);
  return Scaled(count, 1000, kUnits, 6, "");
}

std::string FormatPercent(double ratio) {
  return absl::StrFormat("%.1f %%", ratio * 100);
}

std::string FormatLoss(double loss) {
  if (std::isnan(loss)) return "nan";  // the format shows its sign
  return absl::StrFormat("%.4f", loss);
}

std::string DurationText(absl::Duration duration) {
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(duration));
  if (seconds < 9.995) return absl::StrFormat("%.2f s", seconds);
  if (seconds < 59.95) return absl::StrFormat("%.1f s", seconds);
  if (!(seconds < 1e10)) return "-";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const int64_t minutes = whole / 60;
  const int64_t hours = minutes / 60;
  if (hours == 0) return absl::StrFormat("%dm %02ds", minutes, whole % 60);
  if (hours < 48) return absl::StrFormat("%dh %02dm", hours, minutes % 60);
  return absl::StrFormat("%dd %02dh", hours / 24, hours % 24);
}

std::string FormatSeconds(double seconds) {
  if (seconds == 0) return "0 s";
  if (!(seconds < 0.9995)) return DurationText(absl::Seconds(seconds));
  const double scaled = seconds < 0.9995e-3 ? seconds * 1e6 : seconds * 1e3;
  return absl::StrCat(ThreeDigits(scaled), seconds < 0.9995e-3 ? " us" : " ms");
}

std::string TimeText(absl::Time time, absl::TimeZone zone) {
  if (time == absl::InfinitePast()) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", time, zone);
}

int DisplayWidth(absl::string_view text) {
  int width = 0;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) >> 6) != 2) ++width;
  }
  return width;
}

}  // namespace ebb
