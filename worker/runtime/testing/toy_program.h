// A small program written by hand, for tests of what runs programs: it shows
// every kind of instruction and address.
//
//   block begin                   fill_zero  -> total
//   block load                    load_batch -> tokens, targets
//   block forward   layers 0..2   dropout    L*.x -> L*.y      L*.y is saved
//                                 gelu       L*.y -> L*.z      L*.z is live
//   block backward  layers 2..0   gelu       d(L*.y) from L*.y, L*.z.grad
//   block head                    sum        losses -> total
//   block end                     clip_scale total -> norm, scale
// Values are [4, 2] fp32 (64 bytes with padding); two microbatches of one
// sequence of four tokens. One parameter, w, that nothing trains.
#pragma once

#include "worker/program/program.h"

namespace ebb {

constexpr int kToyLayers = 3;

// Offsets in the step arena.
enum ToyOffset : int64_t {
  kToyTotal = 0,
  kToyNorm = 64,
  kToyScale = 128,
  kToyTokens = 192,
  kToyTargets = 256,
  kToyX = 320,      // one instance, read by every layer
  kToySaved = 384,  // L*.y of layer l at kToySaved + 64 l
  kToyLive = 576,   // L*.z, and L*.z.grad in backward
  kToyGrad = 640,   // L*.y.grad
  kToyLosses = 704,
  kToyStepBytes = 832,  // of which the last 64 belong to nothing
};

// Index of its blocks.
enum ToyBlock : int {
  kToyBegin,
  kToyLoad,
  kToyForward,
  kToyBackward,
  kToyHead,
  kToyEnd,
};

Program MakeToyProgram();

}  // namespace ebb
