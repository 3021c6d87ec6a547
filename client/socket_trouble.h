// What is wrong with a Unix socket at which nobody answers.
#pragma once

#include <string>

namespace ebb {

// Why no connection to the socket at `path` can be made; empty if one can.
std::string FindSocketTrouble(const std::string& path);

}  // namespace ebb
