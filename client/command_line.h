// The command line of `ebb`: what may be said, and from there to one command.
#pragma once

#include <string>
#include <vector>

#include "client/command_description.h"
#include "client/environment.h"
#include "client/job_client.h"

namespace ebb {

// Runs `ebb ARGUMENTS...` (without the program's name) to its exit code. Data
// goes to environment.out, talk and errors to environment.err.
int RunEbb(const std::vector<std::string>& arguments, Environment& environment,
           const CallTiming& timing = {});

// What may be said.
ProgramDescription DescribeProgram();

// Every command with its options and arguments, one command a line: the
// surface that scripts rely on, frozen by a test.
std::string CommandSurface();

}  // namespace ebb
