// See job_lookup.h.
#include "client/commands/job_lookup.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/job_service.pb.h"
#include "proto/name_suggestion.h"

namespace ebb {

absl::Status SuggestJob(const absl::Status& status, const std::string& job,
                        JobClient& client) {
  if (!absl::IsNotFound(status)) return status;
  v1::ListJobsRequest request;
  request.set_page_size(1000);
  const absl::StatusOr<v1::ListJobsResponse> jobs = client.ListJobs(request);
  if (!jobs.ok()) return status;
  std::vector<std::string> ids;
  std::string suggestion;
  for (const v1::Job& other : jobs->jobs()) {
    // Of this job something else was not found.
    if (other.id() == job) return status;
    ids.push_back(other.id());
    // Newest first: the newest of this name.
    if (suggestion.empty() && other.name() == job) suggestion = other.id();
  }
  if (suggestion.empty()) suggestion = NearestName(job, ids);
  return absl::NotFoundError(absl::StrCat(
      status.message(),
      suggestion.empty() ? "; `ebb list --all` shows the jobs"
                         : absl::StrCat("; did you mean ", suggestion, "?")));
}

}  // namespace ebb
