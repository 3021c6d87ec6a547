// First values of a parameter, from the counter-based generator: a pure
// function of (seed, value, element), so neither threads nor layout nor the
// order of parameters matter.
//
// Normal values: element e takes word e mod 4 of the Philox block (sequence 0,
// step 0, e div 4). Words 0 and 1 make a pair of normals, words 2 and 3 another
// (Box & Muller 1958): u = (word + 1/2) / 2^32, r = sqrt(-2 ln u_0),
// (r cos(2 pi u_1), r sin(2 pi u_1)), in double, times the standard deviation,
// rounded to fp32. No value is further out than 6.7 standard deviations.
#pragma once

#include <cstdint>
#include <span>

#include "worker/model/graph.h"

namespace ebb {

// Fills `out` with elements first_element .. of a parameter. `value_key` is
// ValueKey() of its name and layer; seed, key and standard deviation are read
// for kNormal alone.
void InitializeParameter(uint64_t seed, uint64_t value_key, Init init,
                         double standard_deviation, int64_t first_element,
                         std::span<float> out);

}  // namespace ebb
