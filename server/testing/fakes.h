// Stand-ins for what the coordinator works with, moved by hand, and a
// coordinator set up with them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "monitoring/fake_clock.h"
#include "proto/worker_service.pb.h"
#include "server/coordinator.h"

namespace ebb {

// Attempts are what the test says. Called under the coordinator's lock or by
// the test between its calls.
class FakeLauncher final : public Launcher {
 public:
  const char* name() const override { return "process"; }
  absl::Status Launch(const AttemptKey& key) override;
  AttemptObservation Observe(const AttemptKey& key) override;
  bool Adopt(const AttemptKey& key) override;
  absl::Status Stop(const AttemptKey& key, StopSignal signal) override;
  void Forget(const AttemptKey& key) override;

  // "ID/attempt"; what Observe says, kAlive at first.
  std::map<std::string, AttemptObservation> attempts;
  // Of launches, in order.
  std::vector<std::string> launched;
  std::vector<StopSignal> signals;
  std::vector<std::string> forgotten;
  absl::Status launch_status;
  // The attempts that Adopt knows are those of `attempts`.

  // All processes end; rank 0 as `exit` says.
  void End(const std::string& id, int attempt, RankExit exit);
};

class FakeInventory final : public Inventory {
 public:
  absl::StatusOr<Backend> Describe(const std::string& device,
                                   int threads) override;
  int cores() const override { return num_cores; }
  int64_t memory_bytes() const override { return memory; }
  int64_t available_bytes() const override { return memory; }
  std::vector<Backend> known() const override { return {}; }

  int num_cores = 2;
  int64_t memory = int64_t{8} << 30;
};

// Keeps what the coordinator sends.
class FakeConnection final : public WorkerConnection {
 public:
  void Send(v1::CoordinatorMessage message) override;
  void Close(const absl::Status& status) override;

  std::vector<v1::CoordinatorMessage> sent() const;
  std::optional<absl::Status> closed() const;

 private:
  mutable absl::Mutex mutex_;
  std::vector<v1::CoordinatorMessage> sent_;
  std::optional<absl::Status> closed_;
};

// A state directory, a store and a coordinator in it that can be "killed" and
// started again.
class TestCoordinator {
 public:
  TestCoordinator();
  ~TestCoordinator();

  Coordinator* operator->() { return coordinator_.get(); }
  Coordinator* get() { return coordinator_.get(); }

  // As kill -9 and a new start: only the store and the launcher stay.
  void Restart();

  std::string Page() const;

  FakeClock clock;
  FakeLauncher launcher;
  FakeInventory inventory;
  // What plan_job returns, less the backend.
  Plan plan;
  // What measure_ops returns, and what keep_op_times was given last.
  absl::StatusOr<std::map<std::string, double>> measured =
      std::map<std::string, double>();
  std::map<std::string, double> op_times;
  // Of the policies that are here plan_job says their peak, and whether it fits
  // the spec's budget.
  std::map<Policy, int64_t> peaks;
  // What plan_ladder returns, for the spec's budget.
  std::vector<PlanRung> ladder;
  // What check_files says, and which mistakes it was told of.
  JobFiles files;
  std::vector<v1::Violation> files_wrong;
  // What export_job returns, and what it was asked for.
  absl::StatusOr<v1::ExportJobResponse> exported = v1::ExportJobResponse();
  std::string exported_checkpoints;
  // What sample_job sends and returns, and what it was asked for.
  std::vector<v1::SampleChunk> sampled;
  absl::Status sample_status;
  std::string sampled_checkpoints;
  std::unique_ptr<Store> store;
  std::unique_ptr<Exporter> exporter;
  std::string directory;

  // A small valid spec.
  static v1::JobSpec Spec(const std::string& name = "test");
  // Creates a job and returns its id; fails the test otherwise.
  std::string Create(const v1::JobSpec& spec = Spec());
  v1::Job Get(const std::string& id);

 private:
  void Start();

  int num_ids_ = 0;
  absl::Mutex files_mutex_;
  std::unique_ptr<MetricTable> table_;
  std::unique_ptr<Coordinator> coordinator_;
};

// Brings a new job to RUNNING; its connection.
std::shared_ptr<FakeConnection> BringToRun(TestCoordinator& test,
                                           const std::string& id,
                                           int attempt = 1);

// What a worker of the test backend says first.
v1::WorkerMessage RegisterMessage(const std::string& id, int attempt,
                                  bool resumed = false);
v1::WorkerMessage StartedMessage(const std::string& id, int attempt);
v1::WorkerMessage StepMessage(const std::string& id, int attempt,
                              int64_t sequence, int64_t step);
v1::WorkerMessage SwitchedMessage(const std::string& id, int attempt,
                                  int64_t sequence, int64_t number,
                                  int64_t step);
v1::WorkerMessage FinishedMessage(const std::string& id, int attempt,
                                  int64_t sequence, int code,
                                  const std::string& message = "");

}  // namespace ebb
