// PlanGraph and CheckSchedule: requests about graphs that are no jobs. They
// touch neither the store nor the coordinator, and hold no lock while a search
// runs.
#pragma once

#include <atomic>
#include <functional>

#include "absl/status/statusor.h"
#include "proto/job_service.pb.h"

namespace ebb {

// Thread-safe. Calls run on their callers' threads.
class GraphRequests {
 public:
  // Ends soon after `cancelled` says true; asked often. At most
  // kMaxGraphSearches at a time. Errors as in job_service.proto.
  absl::StatusOr<v1::PlanGraphResponse> Plan(
      const v1::PlanGraphRequest& request,
      const std::function<bool()>& cancelled);

  absl::StatusOr<v1::CheckScheduleResponse> Check(
      const v1::CheckScheduleRequest& request);

 private:
  std::atomic<int> num_searches_ = 0;
};

// Each may hold half a GiB and a core for as long as it was given.
inline constexpr int kMaxGraphSearches = 2;

}  // namespace ebb
