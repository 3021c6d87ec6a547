// The way back of encode.
//   bf16      x_i = code_i
//   fp8_e4m3  x_i = code_i * scale_r, r the row of element i
//   code   state (read)  bf16 | fp8_e4m3, any rank; a row is the last dim
//   scale  state (read)  f32, dims of x without the last; bf16: unbound
//   x      aux           dims of code, elements of attrs.result (f32 | bf16)
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::decode {
enum Slots : int { kCode, kScale, kX, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::decode
