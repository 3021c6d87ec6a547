// What a command sees of the process around it: streams, terminal, environment
// variables, directories. Commands touch nothing else of it, so tests run them
// in memory.
#pragma once

#include <functional>
#include <istream>
#include <map>
#include <ostream>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ebb {

enum class OutputFormat { kTable, kJson, kJsonl };

struct Environment {
  // Data on out, talk on err.
  std::istream* in = nullptr;
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  // Width of the terminal at err or out; asked anew for every line, people
  // resize.
  std::function<int()> columns = [] { return 80; };
  std::map<std::string, std::string> variables;
  std::string working_directory;
  // Where ebb, ebbd and ebb-worker stand.
  std::string program_directory;
  absl::TimeZone zone = absl::UTCTimeZone();

  // The variable's value, empty if it is not set.
  std::string Variable(absl::string_view name) const;

  // Lines may be drawn over: err is a terminal that can.
  bool CanRedraw() const;

  // Text on out may be coloured: a terminal that can, and NO_COLOR is empty;
  // or CLICOLOR_FORCE is set.
  bool CanColor() const;

  // `path` itself if absolute, else under the working directory.
  std::string AbsolutePath(absl::string_view path) const;
};

// Of this process.
Environment SystemEnvironment();

}  // namespace ebb
