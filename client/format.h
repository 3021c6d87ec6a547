// Numbers and times as people read them. Pure. (Foreign text goes
// through OneLine of proto/violations.h.)
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ebb {

// "512 B", "1.50 MiB": three significant digits, powers of 1024.
std::string FormatBytes(int64_t bytes);

// "1.50 MiB (1572864 B)"; below 1 KiB just "512 B".
std::string FormatExactBytes(int64_t bytes);

// "0 FLOP", "12.3 GFLOP": three significant digits, powers of 1000.
std::string FormatFlops(double flops);

// "987", "45.1k", "1.20M": three significant digits, powers of 1000.
std::string FormatCount(double count);

// A ratio of 0.241 is "24.1 %".
std::string FormatPercent(double ratio);

// "1.8432": four decimals; "nan" and "inf" stay words.
std::string FormatLoss(double loss);

// "0.42 s", "12.3 s", "3m 05s", "2h 07m", "4d 03h". Negative is taken as 0.
std::string DurationText(absl::Duration duration);

// "310 us", "12.3 ms", "1.42 s", then as DurationText: what an op or a step
// takes. 0 is "0 s".
std::string FormatSeconds(double seconds);

// "2024-01-31 13:05:07"; an infinite past is "-".
std::string TimeText(absl::Time time, absl::TimeZone zone);

// Code points of UTF-8 text: its width on a terminal, wide characters aside.
int DisplayWidth(absl::string_view text);

}  // namespace ebb
