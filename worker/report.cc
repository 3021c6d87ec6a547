// Dials, writes, reads. One mutex guards all state; it is never held in a call
// to gRPC but TryCancel, which only sets a flag.
#include "worker/report.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/status.h"
#include "monitoring/log.h"
#include "proto/convert.h"
#include "proto/report_file.h"
#include "proto/rpc_status.h"
#include "proto/worker_service.grpc.pb.h"

namespace ebb {

void OrderMailbox::Post(TrainerOrder order) {
  switch (order) {
    case TrainerOrder::kCancel:
      cancelled_ = true;
      cancel_ = true;
      break;
    case TrainerOrder::kCheckpoint:
      checkpoint_ = true;
      break;
    case TrainerOrder::kNone:
      break;
  }
}

TrainerOrder OrderMailbox::Take() {
  if (cancel_.exchange(false)) return TrainerOrder::kCancel;
  if (checkpoint_.exchange(false)) return TrainerOrder::kCheckpoint;
  return TrainerOrder::kNone;
}

void OrderMailbox::PostSwitch(PlanSwitch order) {
  absl::MutexLock lock(&mutex_);
  switches_.push_back(std::move(order));
}

std::vector<PlanSwitch> OrderMailbox::TakeSwitches() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(switches_, {});
}

namespace {

// What cannot be read is answered by the training loop, too.
PlanSwitch SwitchFromMessage(const v1::SwitchOrder& message) {
  PlanSwitch order;
  order.number = message.number();
  order.at_step = message.at_step();
  order.offload_directory = message.offload_dir();
  order.plan = PlanFromMessage(message.plan());
  if (absl::StatusOr<std::vector<Plan>> ladder =
          PlansFromMessages(message.ladder());
      ladder.ok()) {
    order.ladder = *std::move(ladder);
  } else if (order.plan.ok()) {
    order.plan = ladder.status();
  }
  return order;
}

using CallStream =
    grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>;

// A fresh channel for every connection: gRPC's own backoff would come on top
// of ours.
std::shared_ptr<grpc::Channel> Dial(const std::string& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A Unix socket's path is no valid authority.
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  // A plan of a deep model may be longer than gRPC's 4 MiB.
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(),
                                   arguments);
}

// The coordinator will say the same to every further try.
bool IsRefusal(const absl::Status& status, bool assigned) {
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
      return true;
    // A rank that trains does not stop for these: the coordinator may be one
    // that was started wrongly and will be replaced.
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return !assigned;
    default:
      return false;
  }
}

struct Unacknowledged {
  int64_t sequence = 0;
  // Serialized: ten times smaller than the message.
  std::string message;
};

}  // namespace

struct ReportStream::State {
  State(ReportStreamOptions options, OrderMailbox* mailbox)
      : options(std::move(options)),
        clock(*this->options.clock),
        mailbox(*mailbox),
        disconnected_since(clock.Monotonic()),
        random(getpid()) {}

  // The dialling thread.
  void Run();
  // One connection from dialling to its end.
  absl::Status RunConnection();
  void WriteMessages(CallStream& stream);
  void ReadMessages(CallStream& stream);
  void Handle(const v1::CoordinatorMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // The next message to write, if there is one.
  std::optional<std::string> TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool HasNext() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return (!started.empty() && !started_sent) ||
           (!queue.empty() && queue.back().sequence > sent_sequence);
  }
  v1::WorkerMessage Envelope() const;
  v1::WorkerMessage RegisterMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Enqueue(v1::WorkerMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Waits for `condition`, at the latest until a monotonic time.
  template <typename Condition>
  bool Await(const Condition& condition, absl::Duration deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return clock.Await(&mutex, absl::Condition(&condition), deadline);
  }

  const ReportStreamOptions options;
  Clock& clock;
  OrderMailbox& mailbox;

  mutable absl::Mutex mutex;
  // Of the caller's side.
  bool stopped ABSL_GUARDED_BY(mutex) = false;
  bool closing ABSL_GUARDED_BY(mutex) = false;
  std::optional<v1::Backend> backend ABSL_GUARDED_BY(mutex);
  std::string started ABSL_GUARDED_BY(mutex);  // serialized; empty: not yet
  std::deque<Unacknowledged> queue ABSL_GUARDED_BY(mutex);
  int64_t last_sequence ABSL_GUARDED_BY(mutex) = 0;
  // Of the coordinator's side.
  std::optional<v1::Assignment> assignment ABSL_GUARDED_BY(mutex);
  bool assigned ABSL_GUARDED_BY(mutex) = false;
  absl::Status refusal ABSL_GUARDED_BY(mutex);
  // Of the connection.
  grpc::ClientContext* context ABSL_GUARDED_BY(mutex) = nullptr;
  bool registered ABSL_GUARDED_BY(mutex) = false;  // was answered
  bool broken ABSL_GUARDED_BY(mutex) = false;
  bool started_sent ABSL_GUARDED_BY(mutex) = false;
  int64_t sent_sequence ABSL_GUARDED_BY(mutex) = 0;
  absl::Duration disconnected_since ABSL_GUARDED_BY(mutex);  // monotonic
  // Rises whenever `registered` changes, for waits that depend on it.
  int64_t changes ABSL_GUARDED_BY(mutex) = 0;

  // Of the dialling thread.
  std::minstd_rand random;
  std::thread thread;
};

v1::WorkerMessage ReportStream::State::Envelope() const {
  v1::WorkerMessage message;
  message.set_job_id(options.job);
  message.set_attempt(options.attempt);
  message.set_rank(options.rank);
  return message;
}

v1::WorkerMessage ReportStream::State::RegisterMessage() {
  v1::WorkerMessage message = Envelope();
  v1::Register& registration = *message.mutable_register_();
  registration.set_pid(getpid());
  registration.set_version(options.version);
  registration.set_resumed(assigned);
  if (backend.has_value()) *registration.mutable_backend() = *backend;
  return message;
}

void ReportStream::State::Enqueue(v1::WorkerMessage message) {
  message.set_sequence(++last_sequence);
  queue.push_back({last_sequence, message.SerializeAsString()});
}

std::optional<std::string> ReportStream::State::TakeNext() {
  if (!started.empty() && !started_sent) {
    started_sent = true;
    return started;
  }
  if (queue.empty()) return std::nullopt;
  // Numbers in the queue are consecutive.
  int64_t index =
      std::max<int64_t>(0, sent_sequence + 1 - queue.front().sequence);
  if (index >= static_cast<int64_t>(queue.size())) return std::nullopt;
  sent_sequence = queue[index].sequence;
  return queue[index].message;
}

void ReportStream::State::Handle(const v1::CoordinatorMessage& message) {
  if (!registered) {
    registered = true;
    ++changes;
  }
  switch (message.message_case()) {
    case v1::CoordinatorMessage::kAssignment:
      if (!assigned) {
        assigned = true;
        assignment = message.assignment();
      }
      break;
    case v1::CoordinatorMessage::kAcknowledge:
      while (!queue.empty() &&
             queue.front().sequence <= message.acknowledge().sequence()) {
        sent_sequence = std::max(sent_sequence, queue.front().sequence);
        queue.pop_front();
      }
      break;
    case v1::CoordinatorMessage::kOrder:
      switch (message.order().kind()) {
        case v1::Order::KIND_CANCEL:
          mailbox.Post(TrainerOrder::kCancel);
          break;
        case v1::Order::KIND_CHECKPOINT:
          mailbox.Post(TrainerOrder::kCheckpoint);
          break;
        case v1::Order::KIND_SWITCH:
          mailbox.PostSwitch(SwitchFromMessage(message.order().switch_order()));
          break;
        default:
          EBB_LOG(WARNING) << "unknown order " << message.order().kind();
      }
      break;
    case v1::CoordinatorMessage::MESSAGE_NOT_SET:
      EBB_LOG(WARNING) << "unknown message from the coordinator";
      break;
  }
}

void ReportStream::State::ReadMessages(CallStream& stream) {
  pthread_setname_np(pthread_self(), "ebb-read");
  v1::CoordinatorMessage message;
  while (stream.Read(&message)) {
    absl::MutexLock lock(&mutex);
    Handle(message);
  }
  absl::MutexLock lock(&mutex);
  broken = true;
}

void ReportStream::State::WriteMessages(CallStream& stream) {
  v1::WorkerMessage message;
  {
    absl::MutexLock lock(&mutex);
    message = RegisterMessage();
  }
  while (stream.Write(message)) {
    absl::MutexLock lock(&mutex);
    // Nothing is written before the answer to the registration, which may
    // acknowledge reports of an earlier connection.
    auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      return broken || closing || (registered && HasNext());
    };
    Await(ready, absl::InfiniteDuration());
    if (broken || closing) return;
    message.ParseFromString(*TakeNext());
  }
}

absl::Status ReportStream::State::RunConnection() {
  std::unique_ptr<v1::WorkerService::Stub> stub =
      v1::WorkerService::NewStub(Dial(options.server));
  grpc::ClientContext connection;
  {
    absl::MutexLock lock(&mutex);
    if (closing) return absl::OkStatus();
    context = &connection;
    broken = false;
    started_sent = false;
    sent_sequence = 0;
  }
  std::unique_ptr<CallStream> stream = stub->Connect(&connection);
  std::thread reader([&] { ReadMessages(*stream); });
  WriteMessages(*stream);
  {
    absl::MutexLock lock(&mutex);
    context = nullptr;
    // A broken stream brings its status by itself, and cancelling would hide
    // it.
    if (!broken && closing) connection.TryCancel();
  }
  reader.join();
  grpc::Status status = stream->Finish();
  return FromGrpcStatus(status);
}

void ReportStream::State::Run() {
  pthread_setname_np(pthread_self(), "ebb-report");
  absl::Duration backoff = options.first_backoff;
  bool said = false;  // one line a loss, not one a try
  for (;;) {
    absl::Status status = RunConnection();
    absl::MutexLock lock(&mutex);
    if (closing) return;
    if (registered) {
      registered = false;
      disconnected_since = clock.Monotonic();
      ++changes;
      backoff = options.first_backoff;
      said = false;
    }
    if (IsRefusal(status, assigned)) {
      EBB_LOG(ERROR) << "the coordinator refuses this rank: "
                     << status.ToString();
      refusal = status;
      mailbox.Post(TrainerOrder::kCancel);
      return;
    }
    if (!std::exchange(said, true)) {
      EBB_LOG(WARNING) << "no coordinator, trying again: "
                       << (status.ok() ? "stream closed" : status.ToString());
    }
    // Half of it by chance, so that the ranks of a job do not come at once.
    double share = std::uniform_real_distribution<double>(0.5, 1.0)(random);
    auto done = [this]()
                    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return closing; };
    if (Await(done, clock.Monotonic() + share * backoff)) return;
    backoff = std::min(2 * backoff, options.longest_backoff);
  }
}

ReportStream::ReportStream(ReportStreamOptions options, OrderMailbox* mailbox)
    : state_(std::make_unique<State>(std::move(options), mailbox)) {
  state_->thread = std::thread([state = state_.get()] { state->Run(); });
}

ReportStream::~ReportStream() {
  {
    absl::MutexLock lock(&state_->mutex);
    state_->closing = true;
    if (state_->context != nullptr) state_->context->TryCancel();
  }
  state_->thread.join();
}

absl::StatusOr<v1::Assignment> ReportStream::AwaitAssignment() {
  State& state = *state_;
  absl::MutexLock lock(&state.mutex);
  auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
    return state.assignment.has_value() || state.stopped || !state.refusal.ok();
  };
  state.Await(done, absl::InfiniteDuration());
  if (!state.refusal.ok()) return state.refusal;
  if (!state.assignment.has_value()) {
    return absl::CancelledError("asked to end before the job began");
  }
  return *std::exchange(state.assignment, std::nullopt);
}

void ReportStream::SetBackend(const v1::Backend& backend) {
  absl::MutexLock lock(&state_->mutex);
  state_->backend = backend;
}

void ReportStream::Start(const v1::Started& started) {
  v1::WorkerMessage message = state_->Envelope();
  *message.mutable_started() = started;
  absl::MutexLock lock(&state_->mutex);
  state_->started = message.SerializeAsString();
}

void ReportStream::Report(const v1::RankReport& report) {
  State& state = *state_;
  v1::WorkerMessage message = state.Envelope();
  *message.mutable_report() = report;
  absl::MutexLock lock(&state.mutex);
  auto room = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
    return static_cast<int64_t>(state.queue.size()) <
               state.options.most_unacknowledged ||
           state.stopped || !state.refusal.ok();
  };
  if (!room()) {
    EBB_LOG(WARNING) << state.queue.size()
                     << " reports are not acknowledged: waiting";
    state.Await(room, absl::InfiniteDuration());
  }
  if (!state.refusal.ok()) return;
  state.Enqueue(std::move(message));
}

absl::Status ReportStream::Finish(const v1::Finished& finished) {
  State& state = *state_;
  v1::WorkerMessage message = state.Envelope();
  *message.mutable_finished() = finished;
  std::vector<std::string> rest;
  {
    absl::MutexLock lock(&state.mutex);
    if (!state.refusal.ok()) return state.refusal;
    state.Enqueue(std::move(message));
    const absl::Duration begin = state.clock.Monotonic();
    for (;;) {
      bool stopped = state.stopped;
      int64_t changes = state.changes;
      absl::Duration patience =
          stopped ? state.options.stopped_patience : state.options.patience;
      absl::Duration deadline =
          state.registered
              ? begin + state.options.acknowledge_patience
              : std::max(begin, state.disconnected_since) + patience;
      auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
        return state.queue.empty() || !state.refusal.ok() ||
               state.stopped != stopped || state.changes != changes;
      };
      if (!state.Await(done, deadline)) break;
      if (!state.refusal.ok()) return state.refusal;
      if (state.queue.empty()) return absl::OkStatus();
    }
    for (Unacknowledged& item : state.queue) {
      rest.push_back(std::move(item.message));
    }
    state.queue.clear();
    state.closing = true;
    if (state.context != nullptr) state.context->TryCancel();
  }
  EBB_LOG(WARNING) << "no coordinator takes the last " << rest.size()
                   << " reports: leaving them in " << state.options.report_file;
  return WriteReportFile(state.options.report_file, rest);
}

void ReportStream::Stop() {
  absl::MutexLock lock(&state_->mutex);
  state_->stopped = true;
}

int64_t ReportStream::unacknowledged() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->queue.size();
}

}  // namespace ebb
