// The widest instruction set that oneDNN and Highway use in this process: both
// are kept at the same one, so that a Backend's name for it says what bits to
// expect.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace ebb::cpu {

// Returns oneDNN's name of the set in use, in lower case ("avx512_core"), and
// keeps Highway to it. The environment variable ONEDNN_MAX_CPU_ISA lowers it.
std::string UseDetectedInstructionSet();

// HasBf16Products of the set in use, at no cost after the first call.
bool HasBf16Instructions();

// Keeps the process to the set `name`. Must come before the first product of
// the process if it is narrower than the machine's.
// Errors: INVALID_ARGUMENT: no such set; FAILED_PRECONDITION: this machine or
// process cannot use exactly this one.
absl::Status UseInstructionSet(const std::string& name);

}  // namespace ebb::cpu
