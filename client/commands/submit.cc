// `ebb submit`: a spec becomes a job.
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/commands.h"
#include "client/commands/follow.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "client/spec_file.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"
#include "proto/violations.h"

namespace ebb {
namespace {

// What the coordinator finds in the files that a wrong spec names, so that they
// are told with its other mistakes. OK also if nobody can be asked.
absl::Status CheckFiles(const CommandContext& context,
                        const SpecReading& reading) {
  if (!reading.complete) return absl::OkStatus();
  const absl::StatusOr<std::unique_ptr<JobClient>> client =
      ConnectToCoordinator(context.environment, context.server, context.timing);
  if (!client.ok()) return absl::OkStatus();
  return (*client)->CheckJob(reading.spec);
}

// 128 random bits in hexadecimal.
std::string RandomRequestId() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&id, "%08x", random());
  return id;
}

}  // namespace

absl::StatusOr<int> RunSubmit(const CommandContext& context,
                              const SubmitOptions& options) {
  Environment& environment = context.environment;
  EBB_ASSIGN_OR_RETURN(const SpecReading reading,
                       LoadSpec(environment, options.spec, options.sets));
  if (!reading.status.ok()) return reading.Join(CheckFiles(context, reading));
  v1::CreateJobRequest request;
  *request.mutable_spec() = reading.spec;
  request.set_request_id(options.request_id.empty() ? RandomRequestId()
                                                    : options.request_id);
  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobClient> client,
      ConnectToCoordinator(environment, context.server, context.timing));
  const absl::StatusOr<v1::Job> job = client->CreateJob(request);
  if (!job.ok()) {
    const absl::Status status = reading.Join(job.status());
    if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
      return Annotate(
          status, absl::StrCat("the job may have been accepted: submit again "
                               "with --request-id ",
                               request.request_id(), " to have it once"));
    }
    return status;
  }
  const std::string& asked = reading.spec.checkpoint().init_from();
  const std::string& taken = job->spec().checkpoint().init_from();
  if (taken != asked) {
    *environment.err << "ebb: checkpoint.init_from: the newest complete "
                        "checkpoint of "
                     << OneLine(asked, 4096)
                     << " is taken: " << OneLine(taken, 4096) << "\n";
  }
  const bool follows = options.watch || options.wait;
  if (context.output == OutputFormat::kTable) {
    // Flushed: a script reads the id while the job is being followed.
    *environment.out << job->id() << "\n" << std::flush;
  } else if (!follows) {
    *environment.out << WriteJson(ToJson(*job), context.output);
  }
  if (!follows) return kExitOk;
  const bool shows = options.watch && context.output == OutputFormat::kTable;
  return FollowToEnd(context, *client, *job,
                     shows ? FollowDisplay::kProgress : FollowDisplay::kNone);
}

}  // namespace ebb
