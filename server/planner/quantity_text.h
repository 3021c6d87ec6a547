// Quantities as the planner's texts write them.
#pragma once

#include <cstdint>
#include <string>

namespace ebb {

// "12 B", "1.5 KiB", "64.0 MiB".
std::string BytesText(int64_t bytes);

// "52.9 MiB (55429376 B)": what a user may have to copy.
std::string ExactBytesText(int64_t bytes);

// "1.24 s", "310 us".
std::string SecondsText(double seconds);

// "700 FLOP", "101 MFLOP".
std::string FlopsText(double flops);

}  // namespace ebb
