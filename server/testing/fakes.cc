// The stand-ins.
#include "server/testing/fakes.h"

#include <stdlib.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/convert.h"

namespace ebb {
namespace {

std::string Name(const AttemptKey& key) {
  return absl::StrCat(key.job_id, "/", key.attempt);
}

Backend TestBackend(int threads) {
  Backend backend;
  backend.kind = "cpu";
  backend.device_model = "test machine";
  backend.instruction_set = "avx2";
  backend.libraries = "none";
  backend.threads = threads;
  return backend;
}

v1::WorkerMessage Message(const std::string& id, int attempt) {
  v1::WorkerMessage message;
  message.set_job_id(id);
  message.set_attempt(attempt);
  return message;
}

}  // namespace

absl::Status FakeLauncher::Launch(const AttemptKey& key) {
  if (!launch_status.ok()) return launch_status;
  EXPECT_EQ(attempts.count(Name(key)), 0u) << "launched twice: " << Name(key);
  EXPECT_TRUE(std::filesystem::is_directory(key.directory));
  launched.push_back(Name(key));
  attempts[Name(key)].supervisor = SupervisorState::kAlive;
  attempts[Name(key)].exits.resize(key.num_ranks);
  return absl::OkStatus();
}

AttemptObservation FakeLauncher::Observe(const AttemptKey& key) {
  return attempts[Name(key)];
}

bool FakeLauncher::Adopt(const AttemptKey& key) {
  return attempts.count(Name(key)) > 0;
}

absl::Status FakeLauncher::Stop(const AttemptKey& key, StopSignal signal) {
  EXPECT_EQ(attempts.count(Name(key)), 1u);
  signals.push_back(signal);
  return absl::OkStatus();
}

void FakeLauncher::Forget(const AttemptKey& key) {
  forgotten.push_back(Name(key));
}

void FakeLauncher::End(const std::string& id, int attempt, RankExit exit) {
  AttemptObservation& observed = attempts[absl::StrCat(id, "/", attempt)];
  observed.supervisor = SupervisorState::kEnded;
  observed.exits.resize(1);
  observed.exits[0] = exit;
  if (!exit.stopped && (exit.signal != 0 || exit.exit_code != 0)) {
    observed.failed_rank = 0;
  }
}

absl::StatusOr<Backend> FakeInventory::Describe(const std::string& device,
                                                int threads) {
  if (device != "cpu") return absl::UnimplementedError("no such device");
  return TestBackend(threads);
}

void FakeConnection::Send(v1::CoordinatorMessage message) {
  absl::MutexLock lock(&mutex_);
  sent_.push_back(std::move(message));
}

void FakeConnection::Close(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  closed_ = status;
}

std::vector<v1::CoordinatorMessage> FakeConnection::sent() const {
  absl::MutexLock lock(&mutex_);
  return sent_;
}

std::optional<absl::Status> FakeConnection::closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

TestCoordinator::TestCoordinator() {
  std::string pattern = ::testing::TempDir() + "/coordinatorXXXXXX";
  EXPECT_NE(mkdtemp(pattern.data()), nullptr);
  directory = pattern;
  plan.ranks.resize(1);
  plan.ranks[0].peak_bytes = 1 << 20;
  plan.budget_bytes = 1 << 30;
  Start();
}

TestCoordinator::~TestCoordinator() {
  coordinator_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
}

void TestCoordinator::Start() {
  auto opened = Store::Open(absl::StrCat(directory, "/ebbd.db"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  store = *std::move(opened);
  const auto catalogue = ParseCatalogue(BuiltInCatalogue());
  ASSERT_TRUE(catalogue.ok());
  table_ = std::make_unique<MetricTable>(*catalogue, 100000);
  exporter = std::make_unique<Exporter>(table_.get(), &clock);
  CoordinatorParts parts;
  parts.store = store.get();
  parts.launcher = &launcher;
  parts.exporter = exporter.get();
  parts.inventory = &inventory;
  parts.clock = &clock;
  parts.plan_job = [this](const JobSpec& spec, const Backend& backend) {
    Plan made = plan;
    made.backend = backend;
    made.policy = spec.memory.policy;
    made.group = spec.memory.policy == Policy::kFull ? spec.memory.group : 0;
    if (spec.memory.offload == Offload::kDisk) made.ranks[0].disk_bytes = 4096;
    if (const auto peak = peaks.find(made.policy); peak != peaks.end()) {
      made.budget_bytes = spec.memory.budget_bytes;
      made.ranks[0].peak_bytes = peak->second;
      made.fits = peak->second <= made.budget_bytes;
      made.shortfall = absl::StrCat("need ", peak->second);
    }
    return absl::StatusOr<Plan>(made);
  };
  parts.measure_ops = [this](const v1::JobSpec&, const std::function<bool()>&) {
    return measured;
  };
  parts.keep_op_times = [this](const Backend&,
                               const std::map<std::string, double>& seconds) {
    op_times = seconds;
  };
  parts.plan_ladder = [this](const JobSpec& spec, const Plan& made) {
    std::vector<PlanRung> rungs = ladder;
    for (PlanRung& rung : rungs) {
      rung.memory.budget_bytes = spec.memory.budget_bytes;
      rung.plan.backend = made.backend;
      rung.plan.budget_bytes = spec.memory.budget_bytes;
      rung.plan.fits =
          rung.plan.ranks[0].peak_bytes <= spec.memory.budget_bytes;
    }
    return absl::StatusOr<std::vector<PlanRung>>(rungs);
  };
  parts.dump_job = [](const JobSpec&, const Plan&, const Backend&) {
    return absl::StatusOr<std::string>("the program");
  };
  parts.check_files = [this](const v1::JobSpec&,
                             const std::vector<v1::Violation>& wrong) {
    // Many may ask at once.
    absl::MutexLock lock(&files_mutex_);
    files_wrong = wrong;
    return files;
  };
  parts.export_job = [this](const std::string& checkpoints,
                            const v1::ExportJobRequest&,
                            const std::function<bool()>&) {
    exported_checkpoints = checkpoints;
    return exported;
  };
  parts.sample_job = [this](const std::string& checkpoints,
                            const v1::SampleJobRequest&,
                            const SampleListener& listener) {
    sampled_checkpoints = checkpoints;
    for (const v1::SampleChunk& chunk : sampled) {
      if (!listener.on_chunk(chunk)) return absl::CancelledError("nobody");
    }
    return sample_status;
  };
  parts.make_id = [this] { return absl::StrCat("job", 10000 + num_ids_++); };
  CoordinatorOptions options;
  options.state_directory = directory;
  coordinator_ = std::make_unique<Coordinator>(std::move(parts), options);
  const absl::Status recovered = coordinator_->Recover();
  ASSERT_TRUE(recovered.ok()) << recovered;
}

void TestCoordinator::Restart() {
  coordinator_.reset();
  exporter.reset();
  store.reset();
  Start();
}

std::string TestCoordinator::Page() const { return table_->Text(); }

v1::JobSpec TestCoordinator::Spec(const std::string& name) {
  v1::JobSpec spec;
  spec.set_name(name);
  spec.mutable_model()->set_layers(2);
  spec.mutable_model()->set_hidden(16);
  spec.mutable_model()->set_heads(2);
  spec.mutable_model()->set_vocab(257);
  spec.mutable_model()->set_seq_len(16);
  spec.mutable_data()->set_train("/data/corpus.txt");
  spec.mutable_batch()->set_global(4);
  spec.mutable_batch()->set_micro(2);
  spec.set_steps(100);
  return spec;
}

std::string TestCoordinator::Create(const v1::JobSpec& spec) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = spec;
  const auto job = coordinator_->CreateJob(request);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? job->id() : "";
}

v1::Job TestCoordinator::Get(const std::string& id) {
  v1::GetJobRequest request;
  request.set_id(id);
  const auto job = coordinator_->GetJob(request);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : v1::Job();
}

std::shared_ptr<FakeConnection> BringToRun(TestCoordinator& test,
                                           const std::string& id, int attempt) {
  test->Tick();
  auto connection = std::make_shared<FakeConnection>();
  const absl::Status connected =
      test->Connect(RegisterMessage(id, attempt), connection);
  EXPECT_TRUE(connected.ok()) << connected;
  EXPECT_TRUE(
      test->Receive(StartedMessage(id, attempt), connection.get()).ok());
  test->Tick();
  EXPECT_EQ(test.Get(id).state(), v1::STATE_RUNNING);
  return connection;
}

v1::WorkerMessage RegisterMessage(const std::string& id, int attempt,
                                  bool resumed) {
  v1::WorkerMessage message = Message(id, attempt);
  message.mutable_register_()->set_pid(1);
  message.mutable_register_()->set_resumed(resumed);
  *message.mutable_register_()->mutable_backend() =
      BackendToMessage(TestBackend(2));
  return message;
}

v1::WorkerMessage StartedMessage(const std::string& id, int attempt) {
  v1::WorkerMessage message = Message(id, attempt);
  message.mutable_started();
  return message;
}

v1::WorkerMessage StepMessage(const std::string& id, int attempt,
                              int64_t sequence, int64_t step) {
  v1::WorkerMessage message = Message(id, attempt);
  message.set_sequence(sequence);
  v1::Step& report = *message.mutable_report()->mutable_step();
  report.set_step(step);
  report.set_loss(5.0 / static_cast<double>(step));
  report.set_tokens(64);
  report.add_ranks();
  return message;
}

v1::WorkerMessage SwitchedMessage(const std::string& id, int attempt,
                                  int64_t sequence, int64_t number,
                                  int64_t step) {
  v1::WorkerMessage message = Message(id, attempt);
  message.set_sequence(sequence);
  v1::Switched& switched = *message.mutable_report()->mutable_switched();
  switched.set_number(number);
  switched.set_step(step);
  switched.set_duration_seconds(0.25);
  return message;
}

v1::WorkerMessage FinishedMessage(const std::string& id, int attempt,
                                  int64_t sequence, int code,
                                  const std::string& text) {
  v1::WorkerMessage message = Message(id, attempt);
  message.set_sequence(sequence);
  message.mutable_finished()->set_code(code);
  message.mutable_finished()->set_message(text);
  message.mutable_finished()->set_weights_hash(77);
  return message;
}

}  // namespace ebb
