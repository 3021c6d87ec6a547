#include "worker/job_checkpoint.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "proto/convert.h"
#include "proto/spec_reader.h"

namespace ebb {
namespace {

absl::StatusOr<CheckpointReader> FindCheckpoint(const std::string& checkpoints,
                                                int64_t step) {
  if (step > 0) {
    absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(
        absl::StrCat(checkpoints, "/", CheckpointName(step)));
    if (!absl::IsNotFound(reader.status())) return reader;
    const auto newest = FindNewestComplete(checkpoints);
    return absl::NotFoundError(absl::StrCat(
        "no checkpoint of step ", step,
        newest.ok() ? absl::StrCat(": the newest is of step ", newest->step)
                    : ""));
  }
  absl::StatusOr<FoundCheckpoint> found = FindNewestComplete(checkpoints);
  if (absl::IsNotFound(found.status())) {
    return absl::FailedPreconditionError(found.status().message());
  }
  if (!found.ok()) return found.status();
  return std::move(found->reader);
}

}  // namespace

absl::StatusOr<JobCheckpoint> OpenJobCheckpoint(const std::string& checkpoints,
                                                int64_t step) {
  JobCheckpoint opened;
  EBB_ASSIGN_OR_RETURN(opened.reader, FindCheckpoint(checkpoints, step));
  EBB_ASSIGN_OR_RETURN(
      const v1::JobSpec spec,
      ReadSpec(opened.reader.meta().spec,
               opened.reader.directory() + "/manifest.json", {}));
  EBB_ASSIGN_OR_RETURN(opened.spec, JobSpecFromMessage(spec));
  return opened;
}

}  // namespace ebb
