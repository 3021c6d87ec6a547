// `ebb export`: a job's checkpoint as Hugging Face files.
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/job_lookup.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/format.h"
#include "client/output.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"
#include "proto/json_output.h"
#include "proto/scalar_text.h"
#include "proto/violations.h"

namespace ebb {

absl::StatusOr<int> RunExport(const CommandContext& context,
                              const ExportOptions& options) {
  Environment& environment = context.environment;
  v1::ExportJobRequest request;
  request.set_id(options.job);
  request.set_directory(environment.AbsolutePath(options.directory));
  request.set_step(options.step);
  if (!options.shard_size.empty()) {
    const Scalar<int64_t> bytes = ParseByteSize(options.shard_size);
    if (!bytes.ok() || bytes.value <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--shard-size: got ", OneLine(options.shard_size),
                       ": must be a size above 0; write it as in 2GiB"));
    }
    request.set_shard_bytes(bytes.value);
  }
  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobClient> client,
      ConnectToCoordinator(environment, context.server, context.timing));
  const absl::StatusOr<v1::ExportJobResponse> response =
      client->ExportJob(request);
  if (!response.ok()) {
    return SuggestJob(response.status(), options.job, *client);
  }
  if (context.output == OutputFormat::kTable) {
    *environment.out << "step " << response->step() << " of " << response->id()
                     << " exported to " << OneLine(response->directory(), 4096)
                     << ": " << response->files_size() << " files, "
                     << FormatBytes(response->bytes()) << "\n";
  } else {
    *environment.out << WriteJson(
        nlohmann::ordered_json::parse(MessageToJson(*response)),
        context.output);
  }
  return kExitOk;
}

}  // namespace ebb
