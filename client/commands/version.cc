// `ebb version`: of this program; asks no coordinator.
#include "client/version.h"

#include "client/commands/commands.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "nlohmann/json.hpp"
#include "proto/revision.h"

namespace ebb {

absl::StatusOr<int> RunVersion(const CommandContext& context) {
  if (context.output == OutputFormat::kTable) {
    *context.environment.out << "ebb " << kVersion << "\nrevision " << kRevision
                             << "\n";
  } else {
    const nlohmann::ordered_json json = {{"version", kVersion},
                                         {"revision", kRevision}};
    *context.environment.out << WriteJson(json, context.output);
  }
  return kExitOk;
}

}  // namespace ebb
