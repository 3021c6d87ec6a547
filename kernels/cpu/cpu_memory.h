// What memory and processors this process may still take: the machine's, and
// the limits of its control groups (versions 1 and 2).
#pragma once

#include <cstdint>
#include <string>

namespace ebb::cpu {

// Bytes that can be taken now: the smallest of MemAvailable and, for the
// process's control group and every one above it, the limit less what is used
// (file pages that can be dropped not counted). `root` stands before /proc and
// the mount points, for tests.
int64_t AvailableMemory(const std::string& root = "");

// Processors that control groups allow; a large number if there is no quota.
double AllowedProcessors(const std::string& root = "");

// Anonymous and shared resident bytes of this process.
int64_t ResidentBytes();

}  // namespace ebb::cpu
