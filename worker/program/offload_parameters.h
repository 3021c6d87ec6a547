// The copies of parameters that lie off the device, put between the
// instructions of a microbatch.
//
// A block of layers computes with a copy of each parameter on the device. The
// copy of the next iteration's layer begins behind the last reader of this
// iteration's, into the same place, so that the device holds little more than
// one layer's parameters; where a parameter is held for most of an iteration
// (in backward blocks that compute forward again) there are two places in turn.
// Those of the first layer come during the block before. Parameters outside the
// layers come during the last layer before their first reader, in pieces, and
// stay until the last one of neighbouring blocks. Nothing is copied back: the
// update alone changes parameters (offload_state.h).
//
//   forward, iteration i              backward, iteration i
//     await    w i                      await    w i
//     compute  w i                      compute  d(w i)
//     prefetch w i+1                    prefetch w i-1
#pragma once

#include "absl/status/status.h"
#include "worker/program/draft.h"

namespace ebb {

// Lets all instructions of the microbatch compute with copies of parameters
// that lie off the device; without any it does nothing. Runs behind Fuse.
// Errors: INTERNAL if a block writes one.
absl::Status InsertParameterCopies(Draft& draft);

}  // namespace ebb
