// Checks that descriptions share: every message names op and slot, says what
// is expected and ends with what was given.
#pragma once

#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/ops/op_def.h"
#include "kernels/tensor.h"

namespace ebb {

// Returns "fp32 [4, 17]", or "nothing" for an unbound type.
std::string TypeText(const TensorType& type);

// Returns the error "OP.SLOT: expected EXPECTED, got TYPE".
absl::Status SlotError(const OpDef& op, int slot, absl::string_view expected,
                       const TensorType& got);

// Checks that a slot is bound and has the element type of an activation (fp32
// or bf16), this rank and dims of at least 1. Errors: INVALID_ARGUMENT.
absl::Status CheckActivation(const OpDef& op, Types types, int slot, int rank);

// Checks that a slot is bound and has this element type, this rank and dims of
// at least 1. Errors: INVALID_ARGUMENT.
absl::Status CheckRank(const OpDef& op, Types types, int slot, DType dtype,
                       int rank);

// Checks that a slot has exactly the expected type; an optional slot may be
// unbound. Errors: INVALID_ARGUMENT.
absl::Status CheckType(const OpDef& op, Types types, int slot,
                       const TensorType& expected);

// Checks that attrs.seq_len is positive and divides the rows of `slot`.
// Errors: INVALID_ARGUMENT.
absl::Status CheckSequences(const OpDef& op, const OpAttrs& attrs, Types types,
                            int slot);

// Checks that attrs.dropout is in [0, 1). Errors: INVALID_ARGUMENT.
absl::Status CheckDropout(const OpDef& op, const OpAttrs& attrs);

}  // namespace ebb
