// A plan made ready to run, and the switches to other plans that wait for
// their step.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/backend.h"
#include "worker/model/job_spec.h"
#include "worker/program/job_programs.h"
#include "worker/program/plan.h"

namespace ebb {

struct PreparedPlan {
  Plan plan;
  JobPrograms programs;
  std::string offload_directory;  // for values that wait on disk
  // Where the plan's bytes and those of the programs disagree.
  std::vector<std::string> differences;
};

// Lowers the plan for one rank. Pure: any thread may call it.
// Errors: FAILED_PRECONDITION for a plan of several ranks; those of LowerJob.
absl::StatusOr<std::unique_ptr<PreparedPlan>> PreparePlan(
    const JobSpec& spec, const Plan& plan, const Backend& backend,
    int64_t evaluation_sequences);

// An order to go on under another plan.
struct PlanSwitch {
  // Rises from order to order.
  int64_t number = 0;
  // An error: why the order could not be read.
  absl::StatusOr<Plan> plan;
  // What to do if its arenas cannot be had, in order of falling peak.
  std::vector<Plan> ladder;
  std::string offload_directory;  // of the plan and the ladder
  // First step under the plan, the same on all ranks; 0, or one that has run:
  // as soon as it is prepared.
  int64_t at_step = 0;
};

// Switches that wait. A thread of its own, started by the first of them,
// prepares one after the other while steps run, so that a switch takes less
// time than a step. Add and TakeDue belong to the thread that trains.
class SwitchQueue {
 public:
  using Prepare =
      std::function<absl::StatusOr<std::unique_ptr<PreparedPlan>>(const Plan&)>;

  struct Due {
    PlanSwitch order;
    absl::StatusOr<std::unique_ptr<PreparedPlan>> prepared;
  };

  // `prepare` is called on the queue's thread.
  explicit SwitchQueue(Prepare prepare);
  // Waits for the preparation that runs.
  ~SwitchQueue();

  // An order whose number is not above all that came before is known already
  // and changes nothing.
  void Add(PlanSwitch order);

  // Called before a step: takes out the newest switch that is prepared and due
  // then, and forgets all older ones. Waits for one that must come with this
  // very step.
  std::optional<Due> TakeDue(int64_t step);

 private:
  struct Waiting {
    PlanSwitch order;
    bool is_prepared = false;
    absl::StatusOr<std::unique_ptr<PreparedPlan>> prepared;
  };

  void Run();

  const Prepare prepare_;
  std::thread thread_;
  int64_t newest_ = 0;  // number that was added
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // By number.
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ebb
