// A program as text: golden files, `ebb plan --dump`, debug logs.
#pragma once

#include <string>

#include "worker/program/program.h"

namespace ebb {

std::string Dump(const Program& program);

}  // namespace ebb
