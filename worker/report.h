// A rank's side of the stream to the coordinator (proto/worker_service.proto).
//
// Reports are numbered and kept until the coordinator has stored them. A lost
// stream is dialled again for as long as the rank lives, with waits of 100 ms
// doubling to 2 s; what is not acknowledged is sent again, in order. So the
// coordinator gets every report, some of them twice, under the same number.
// Training does not wait for any of this, but for one case: with 100 000
// reports unacknowledged, Report blocks until there is room.
//
// Two threads: one dials and writes, one reads (a new one every connection).
// They sleep in gRPC or in the mutex.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "monitoring/clock.h"
#include "worker/runtime/trainer.h"

namespace ebb {
namespace v1 {
class Assignment;
class Backend;
class Finished;
class RankReport;
class Started;
}  // namespace v1

// Where orders wait for the training loop. Any thread may call anything.
class OrderMailbox {
 public:
  // kCancel and kCheckpoint wait side by side; the same order twice is one.
  void Post(TrainerOrder order);

  // Takes an order out, kCancel before kCheckpoint, or returns kNone.
  TrainerOrder Take();

  void PostSwitch(PlanSwitch order);
  // Takes out all that were posted, in order.
  std::vector<PlanSwitch> TakeSwitches();

  // kCancel was posted, taken out since or not.
  bool cancelled() const { return cancelled_; }

 private:
  std::atomic<bool> cancel_ = false;
  std::atomic<bool> checkpoint_ = false;
  std::atomic<bool> cancelled_ = false;
  absl::Mutex mutex_;
  std::vector<PlanSwitch> switches_ ABSL_GUARDED_BY(mutex_);
};

struct ReportStreamOptions {
  std::string server;  // gRPC target: unix:PATH
  std::string job;
  int attempt = 0;
  int rank = 0;
  std::string version;
  // Where Finish leaves what it could not deliver (proto/report_file.h).
  std::string report_file;
  int64_t most_unacknowledged = 100000;
  absl::Duration first_backoff = absl::Milliseconds(100);
  absl::Duration longest_backoff = absl::Seconds(2);
  // How long Finish waits without a coordinator, ...
  absl::Duration patience = absl::Seconds(10);
  // ... the same after Stop (the supervisor kills 10 s after SIGTERM) ...
  absl::Duration stopped_patience = absl::Seconds(2);
  // ... and with a coordinator that does not acknowledge.
  absl::Duration acknowledge_patience = absl::Seconds(60);
  Clock* clock = &Clock::Real();
};

// All functions but Stop and unacknowledged belong to one thread.
class ReportStream {
 public:
  // Starts dialling. Orders go to `mailbox`, which must outlive the stream; a
  // coordinator that refuses this rank after the assignment
  // (FAILED_PRECONDITION or NOT_FOUND: the attempt is no longer the job's)
  // counts as kCancel.
  ReportStream(ReportStreamOptions options, OrderMailbox* mailbox);
  // Drops what is not delivered: call Finish first.
  ~ReportStream();

  // Waits for the coordinator to say what to do, however long that takes.
  // Errors: CANCELLED after Stop; the coordinator's, if it refuses this rank.
  absl::StatusOr<v1::Assignment> AwaitAssignment();

  // What later registrations say of this machine. The first one cannot: the
  // number of threads comes with the assignment.
  void SetBackend(const v1::Backend& backend);

  // Sent once on every connection.
  void Start(const v1::Started& started);

  // Numbers and keeps a report; returns at once unless the queue is full.
  void Report(const v1::RankReport& report);

  // Numbers and keeps the last message, then waits until all is acknowledged.
  // Where that does not happen in time, leaves the rest in the report file.
  // Called once. Errors: the coordinator's, if it refused this rank (nothing
  // is kept then); those of writing the file.
  absl::Status Finish(const v1::Finished& finished);

  // Any thread: the process was asked to end. Ends AwaitAssignment, a wait for
  // room in Report, and long waits in Finish. Posts no order.
  void Stop();

  int64_t unacknowledged() const;

 private:
  struct State;

  std::unique_ptr<State> state_;
};

}  // namespace ebb
