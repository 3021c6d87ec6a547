// Jobs as users name them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/job_client.h"

namespace ebb {

// A NOT_FOUND for `job` gets the nearest id that exists, or the id of a job
// that has this name; other statuses stay as they are, and so does one for a
// job that is there. Asks the coordinator only for NOT_FOUND.
absl::Status SuggestJob(const absl::Status& status, const std::string& job,
                        JobClient& client);

}  // namespace ebb
