// The commands of `ebb` as data: what completion offers and man pages tell.
// command_line.cc makes it from the parser itself, so that neither can say what
// the parser does not take.
#pragma once

#include <string>
#include <vector>

namespace ebb {

struct OptionDescription {
  // "--set", or "JOB" for an argument.
  std::string name;
  // What the value is called: "FIELD=VALUE", for an argument its name; empty: a
  // flag.
  std::string value;
  std::string description;
  bool is_argument = false;
  bool required = false;
  bool repeated = false;
};

struct CommandDescription {
  std::string name;
  std::string description;
  std::vector<OptionDescription> options;  // arguments first
};

struct ProgramDescription {
  std::string description;
  std::vector<OptionDescription> options;  // that every command takes
  std::vector<CommandDescription> commands;
};

}  // namespace ebb
