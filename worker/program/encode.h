// The encoding of saved values, put between the instructions of a draft.
//
// A value that is encoded has its own storage for as long as forward reads it,
// and another, decoded, for as long as backward does; between the two only its
// codes are there (class `saved`: the code and, of fp8_e4m3, the scales), on
// the device or, where the plan offloads the value, in host memory.
//
//   forward, iteration i                 backward, iteration i
//     compute x i                          decode  code i -> x i (live)
//     ... readers of x i ...               ... readers of x i ...
//     encode  x i -> code i
//
// The input of a group of layers, which else has a place in every group's
// record, then has one place that each group finds it in and hands on to the
// next.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "worker/program/draft.h"

namespace ebb {

// Adds what encodes and decodes the values that backward reads as decoded, and
// the sums of what that loses. Runs behind FuseRows, since neither is part of a
// row loop, and before InsertCopies, which moves the codes.
// Errors: INTERNAL if a value is made or read in a block of another segment.
absl::Status InsertCodecs(Draft& draft, const Backend& backend);

}  // namespace ebb
