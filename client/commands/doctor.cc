// `ebb doctor`: what could be in the way, and what to do about it.
#include "client/checks.h"
#include "client/commands/commands.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "client/table.h"
#include "nlohmann/json.hpp"
#include "proto/violations.h"

namespace ebb {
namespace {

// The word padded to four letters, in green, yellow or red.
std::string ColoredWord(Check::Result result, bool color) {
  std::string word = ResultWord(result);
  word.resize(4, ' ');
  if (!color) return word;
  const char* const start = result == Check::kOk     ? "\x1b[32m"
                            : result == Check::kWarn ? "\x1b[33m"
                                                     : "\x1b[31m";
  return start + word + "\x1b[0m";
}

}  // namespace

absl::StatusOr<int> RunDoctor(const CommandContext& context) {
  const Environment& environment = context.environment;
  std::vector<Check> checks = {CheckStateDirectory(environment),
                               CheckSocketPath(environment)};
  for (Check& check :
       CheckCoordinator(environment, context.server, context.timing)) {
    checks.push_back(std::move(check));
  }
  checks.push_back(CheckProgram(environment, "ebbd"));
  checks.push_back(CheckProgram(environment, "ebb-worker"));
  checks.push_back(CheckDevice(environment));
  checks.push_back(CheckMemory(AvailableMemoryBytes()));
  checks.push_back(CheckDisk(environment));

  bool failed = false;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    if (check.result == Check::kFail) failed = true;
    list.push_back({{"name", check.name},
                    {"result", ResultWord(check.result)},
                    {"detail", check.detail},
                    {"fix", check.fix}});
  }
  std::ostream& out = *environment.out;
  if (context.output == OutputFormat::kJson) {
    const nlohmann::ordered_json json = {{"checks", list}};
    out << WriteJson(json, context.output);
  } else if (context.output == OutputFormat::kJsonl) {
    for (const auto& entry : list) out << WriteJson(entry, context.output);
  } else {
    for (const Check& check : checks) {
      out << ColoredWord(check.result, environment.CanColor()) << "  "
          << check.name << ": " << OneLine(check.detail, 1000);
      if (!check.fix.empty()) out << ": " << check.fix;
      out << "\n";
    }
  }
  return failed ? kExitPrecondition : kExitOk;
}

}  // namespace ebb
