// What could stand next on a command line. Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/command_description.h"

namespace ebb {

struct Candidate {
  std::string word;
  std::string description;
};

struct Completion {
  std::vector<Candidate> candidates;
  // The names of files are right here, too.
  bool files = false;
};

// `words`: the line after "ebb" up to the cursor; the last one is the word that
// is being written, perhaps empty. `list_jobs` is asked only where a job's id
// is wanted. Only what begins with the last word is returned.
Completion CompleteLine(
    const ProgramDescription& program, const std::vector<std::string>& words,
    const std::function<std::vector<Candidate>()>& list_jobs);

// The script for a shell ("bash", "zsh", "fish"); empty for another one. It
// asks `ebb completion candidates WORDS...` and understands its answer
// (PrintCompletion).
std::string CompletionScript(const std::string& shell);

// A line a candidate, "WORD<tab>DESCRIPTION", and the line ":files" where files
// are right.
std::string PrintCompletion(const Completion& completion);

}  // namespace ebb
