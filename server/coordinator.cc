// Requests, the queue and attempts. The effect of each decision comes after its
// transaction. Switches of policy: coordinator_switches.cc. What ranks say and
// are told: coordinator_ranks.cc.
#include "server/coordinator.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "monitoring/log.h"
#include "proto/convert.h"
#include "proto/effective_spec.h"
#include "proto/validator.h"
#include "proto/violations.h"
#include "server/job_state.h"
#include "server/live_job.h"
#include "server/log_file.h"
#include "server/offload_directory.h"
#include "server/plan_views.h"
#include "server/policy_switch.h"
#include "worker/program/plan.h"

namespace ebb {
namespace {

// A spec is a page of text; glob patterns and value lists leave it far below.
constexpr int64_t kMaxSpecBytes = 1 << 20;
// A backend is probed by running it: not with thousands of threads.
constexpr int kMaxThreadsPerCore = 8;
constexpr size_t kMaxRequestIdBytes = 128;
// As the system's PATH_MAX.
constexpr size_t kMaxDirectoryBytes = 4095;
// Of a prompt, and of what is made of it.
constexpr size_t kMaxSampleTokens = 65536;
constexpr double kMaxTemperature = 1000;
constexpr int kDefaultPageSize = 50;
constexpr int kMaxPageSize = 1000;
// Half of gRPC's limit of 4 MiB for a message.
constexpr int64_t kMaxPageBytes = 2 << 20;
constexpr int kNumLogLines = 10;
constexpr int64_t kMaxLogBytes = 2048;
// So many reports are stored at once without waiting for kStorePeriod.
constexpr size_t kStoreBatch = 50;
constexpr absl::Duration kStorePeriod = absl::Milliseconds(100);
constexpr absl::Duration kIdlePeriod = absl::Seconds(1);
// A kill that had no effect is tried again after this.
constexpr absl::Duration kKillPeriod = absl::Seconds(5);

bool IsJobId(const std::string& id) {
  return id.size() == 8 && std::all_of(id.begin(), id.end(), [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c)) ||
                  absl::ascii_islower(static_cast<unsigned char>(c));
         });
}

absl::Status NoSuchJob(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("no such job: '", OneLine(id), "'"));
}

// What is asked for besides the plan.
absl::Status CheckViews(const v1::PlanJobRequest& request) {
  const int points = request.timeline_points();
  if (points < 0 || points > kMaxTimelinePoints) {
    return FieldError("timeline_points", absl::StrCat(points),
                      "must be a number of points",
                      absl::StrCat("use 0 to ", kMaxTimelinePoints));
  }
  if (!request.accounting().empty() && request.accounting() != "paper") {
    return FieldError("accounting", OneLine(request.accounting()),
                      "must be a known accounting",
                      "use paper, or leave it out for what Ebb stores");
  }
  return absl::OkStatus();
}

// Whether the request can be answered by any checkpoint of a model with this
// vocabulary.
absl::Status CheckSampleRequest(const v1::SampleJobRequest& request,
                                int64_t vocab) {
  const std::string limit = absl::StrCat("at most ", kMaxSampleTokens);
  switch (request.prompt_case()) {
    case v1::SampleJobRequest::PROMPT_NOT_SET:
      return FieldError("prompt", "", "must be text or token ids",
                        "set one of the two");
    case v1::SampleJobRequest::kText:
      if (request.text().size() > kMaxSampleTokens) {
        return FieldError("text", absl::StrCat(request.text().size(), " bytes"),
                          limit, "use a shorter prompt");
      }
      break;
    case v1::SampleJobRequest::kTokenIds:
      if (request.token_ids().ids().empty() ||
          static_cast<size_t>(request.token_ids().ids_size()) >
              kMaxSampleTokens) {
        return FieldError("token_ids",
                          absl::StrCat(request.token_ids().ids_size(), " ids"),
                          absl::StrCat("must be 1 to ", kMaxSampleTokens),
                          "give at least one and not more");
      }
      for (const int32_t id : request.token_ids().ids()) {
        if (id >= 0 && id < vocab) continue;
        return FieldError("token_ids", absl::StrCat(id),
                          "must be ids of the model's vocabulary",
                          absl::StrCat("use 0 to ", vocab - 1));
      }
      break;
  }
  if (request.num_tokens() < 1 ||
      static_cast<size_t>(request.num_tokens()) > kMaxSampleTokens) {
    return FieldError("num_tokens", absl::StrCat(request.num_tokens()),
                      absl::StrCat("must be 1 to ", kMaxSampleTokens),
                      "use fewer");
  }
  const double temperature = request.temperature();
  if (!(temperature >= 0 && temperature <= kMaxTemperature)) {
    return FieldError("temperature", absl::StrCat(temperature),
                      absl::StrCat("must be 0 to ", kMaxTemperature),
                      "use 1 to draw as the model says");
  }
  if (request.top_k() < 0) {
    return FieldError("top_k", absl::StrCat(request.top_k()),
                      "must not be negative", "use 0 for all tokens");
  }
  if (request.step() < 0) {
    return FieldError("step", absl::StrCat(request.step()),
                      "must be a step of the job, or 0 for the newest",
                      "leave it out");
  }
  return absl::OkStatus();
}

absl::Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("cannot make directory ", path, ": ", strerror(errno)));
}

// What is needed of a spec in bytes, deterministic, to compare two requests.
std::string SpecIdentity(const v1::JobSpec& spec) {
  // Specs have no maps: serialization of equal messages is equal.
  return spec.SerializeAsString();
}

// On a CPU host memory is the device's. That both fit budgets of their own says
// nothing where nobody has said how much may wait in host memory.
void CheckSharedMemory(int64_t available_bytes, Plan& plan) {
  int64_t device = 0, host = 0;
  for (const RankPlan& rank : plan.ranks) {
    device += rank.peak_bytes;
    host += rank.host_bytes;
  }
  if (!plan.fits || host == 0 || device + host <= available_bytes) return;
  plan.fits = false;
  plan.shortfall = absl::StrCat(
      "on a CPU what waits in host memory lies beside the rest: need ", device,
      " bytes and ", host, " more in host memory, have ", available_bytes,
      ": set memory.budget lower, or memory.host_budget to say what may wait "
      "there");
}

// Why there is nothing to sample from or to export.
absl::Status NoCheckpoint(const v1::Job& job) {
  const int64_t every = job.spec().checkpoint().every();
  return absl::FailedPreconditionError(absl::StrCat(
      "job ", job.id(), " has no checkpoint",
      every == 0 ? ": submit it with --set checkpoint.every=N to write one "
                   "every N steps"
                 : absl::StrCat(IsFinal(job.state()) ? "" : " yet",
                                ": it writes one every ", every,
                                " steps (checkpoint.every) and ",
                                IsFinal(job.state()) ? "ended at" : "is at",
                                " step ", job.last_step())));
}

}  // namespace

struct Coordinator::Planned {
  v1::JobSpec effective;
  JobSpec spec;
  Plan plan;
};

Coordinator::Coordinator(CoordinatorParts parts, CoordinatorOptions options)
    : parts_(std::move(parts)), options_(std::move(options)) {}

Coordinator::~Coordinator() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Coordinator::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Coordinator::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const bool busy =
          !pending_.empty() ||
          std::any_of(live_.begin(), live_.end(), [](const auto& entry) {
            return HasAttempt(entry.second->job.state());
          });
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || wake_ ||
               (!store_failing_ && pending_.size() >= kStoreBatch);
      };
      parts_.clock->Await(
          &mutex_, absl::Condition(&due),
          parts_.clock->Monotonic() +
              (busy && !store_failing_ ? kStorePeriod : kIdlePeriod));
      if (stopping_) return;
      wake_ = false;
    }
    Tick();
  }
}

void Coordinator::Wake() { wake_ = true; }

void Coordinator::Changed() { ++num_changes_; }

int64_t Coordinator::WaitForChange(int64_t seen, absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto newer = [this, seen]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || num_changes_ > seen;
  };
  mutex_.AwaitWithTimeout(absl::Condition(&newer), timeout);
  return num_changes_;
}

// --- Requests ---

absl::StatusOr<Coordinator::Planned> Coordinator::PlanSpec(
    const v1::JobSpec& spec, bool allow_built_in) {
  if (static_cast<int64_t>(spec.ByteSizeLong()) > kMaxSpecBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the spec has ", spec.ByteSizeLong(), " bytes: at most ",
                     kMaxSpecBytes, " are taken"));
  }
  EBB_RETURN_IF_ERROR(ValidateSpec(spec));
  MachineDefaults machine;
  machine.threads = parts_.inventory->cores();
  machine.budget_bytes = parts_.inventory->available_bytes();
  machine.host_budget_bytes = machine.budget_bytes / 2;
  Planned planned;
  EBB_ASSIGN_OR_RETURN(planned.effective, EffectiveSpec(spec, machine));
  EBB_ASSIGN_OR_RETURN(planned.spec, JobSpecFromMessage(planned.effective));
  const v1::ResourceSpec& resources = planned.effective.resources();
  const std::string device =
      resources.device() == v1::DEVICE_KIND_CUDA ? "cuda" : "cpu";
  const int max_threads = kMaxThreadsPerCore * parts_.inventory->cores();
  absl::StatusOr<Backend> backend =
      resources.threads() <= max_threads
          ? parts_.inventory->Describe(device, resources.threads())
          : FieldError("resources.threads", absl::StrCat(resources.threads()),
                       absl::StrCat("this machine has ",
                                    parts_.inventory->cores(), " cores"),
                       absl::StrCat("use at most ", max_threads));
  if (backend.ok() && !resources.device_model().empty() &&
      resources.device_model() != backend->device_model) {
    backend =
        FieldError("resources.device_model", resources.device_model(),
                   "must be a device of this machine",
                   absl::StrCat("leave it out or use ", backend->device_model));
  }
  if (!backend.ok()) {
    if (!allow_built_in) return backend.status();
    backend = BuiltInCpuBackend();
    backend->threads = resources.threads();
  }
  EBB_ASSIGN_OR_RETURN(planned.plan, parts_.plan_job(planned.spec, *backend));
  if (device == "cpu" && !spec.memory().has_host_budget()) {
    CheckSharedMemory(machine.budget_bytes, planned.plan);
  }
  return planned;
}

absl::StatusOr<Coordinator::Planned> Coordinator::PlanAndCheckFiles(
    const v1::JobSpec& spec) {
  absl::StatusOr<Planned> planned = PlanSpec(spec, /*allow_built_in=*/false);
  std::vector<v1::Violation> violations = GetViolations(planned.status());
  if (!planned.ok() && violations.empty()) return planned;
  JobFiles files = parts_.check_files(WithDefaults(spec), violations);
  if (!files.violations.empty()) {
    // First: a client that has read the spec itself knows the others, and a
    // status holds only so many.
    violations.insert(violations.begin(), files.violations.begin(),
                      files.violations.end());
    return ViolationsStatus(
        planned.ok() ? files.code : absl::StatusCode::kInvalidArgument,
        violations);
  }
  if (!planned.ok()) return planned;
  if (!planned->plan.fits) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the job does not fit: ", planned->plan.shortfall));
  }
  int64_t disk_bytes = 0;
  for (const RankPlan& rank : planned->plan.ranks)
    disk_bytes += rank.disk_bytes;
  EBB_RETURN_IF_ERROR(CheckOffloadRoom(planned->effective.memory(),
                                       options_.state_directory, disk_bytes));
  planned->effective.mutable_checkpoint()->set_init_from(files.init_from);
  return planned;
}

absl::Status Coordinator::CheckJob(const v1::CheckJobRequest& request) {
  return PlanAndCheckFiles(request.spec()).status();
}

absl::StatusOr<v1::PlanJobResponse> Coordinator::PlanJob(
    const v1::PlanJobRequest& request, const std::function<bool()>& cancelled) {
  EBB_RETURN_IF_ERROR(CheckViews(request));
  EBB_ASSIGN_OR_RETURN(
      Planned planned,
      PlanSpec(request.spec(), /*allow_built_in=*/!request.profile()));
  if (request.profile()) {
    EBB_ASSIGN_OR_RETURN(const auto seconds,
                         parts_.measure_ops(planned.effective, cancelled));
    parts_.keep_op_times(planned.plan.backend, seconds);
    EBB_ASSIGN_OR_RETURN(planned.plan,
                         parts_.plan_job(planned.spec, planned.plan.backend));
  }
  v1::PlanJobResponse response;
  if (request.dump()) {
    const int num_ranks = static_cast<int>(planned.plan.ranks.size());
    if (request.rank() < 0 || request.rank() >= num_ranks) {
      return FieldError("rank", absl::StrCat(request.rank()),
                        "must be a rank of the job",
                        absl::StrCat("use 0 to ", num_ranks - 1));
    }
    EBB_ASSIGN_OR_RETURN(
        *response.mutable_dump(),
        parts_.dump_job(planned.spec, planned.plan, planned.plan.backend));
  }
  if (request.timeline_points() > 0) {
    EBB_ASSIGN_OR_RETURN(
        *response.mutable_timeline(),
        TimelineOfPlan(planned.spec, planned.plan, request.timeline_points()));
  }
  if (!request.accounting().empty()) {
    EBB_ASSIGN_OR_RETURN(*response.mutable_paper_accounting(),
                         PaperAccountingOfPlan(planned.spec, planned.plan));
  }
  *response.mutable_plan() = PlanToMessage(planned.plan);
  *response.mutable_effective_spec() = std::move(planned.effective);
  return response;
}

absl::StatusOr<std::optional<v1::Job>> Coordinator::FindByRequest(
    const v1::CreateJobRequest& request) {
  if (request.request_id().empty()) return std::optional<v1::Job>();
  EBB_ASSIGN_OR_RETURN(std::optional<RequestRow> row,
                       parts_.store->GetRequest(request.request_id()));
  if (!row) return std::optional<v1::Job>();
  if (row->spec != SpecIdentity(request.spec())) {
    return absl::AlreadyExistsError(
        absl::StrCat("request_id '", OneLine(request.request_id()),
                     "' was used with another spec, for job ", row->job_id));
  }
  EBB_ASSIGN_OR_RETURN(NumberedJob found, parts_.store->GetJob(row->job_id));
  return std::optional<v1::Job>(std::move(found.job));
}

absl::StatusOr<v1::Job> Coordinator::CreateJob(
    const v1::CreateJobRequest& request) {
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return FieldError("request_id", OneLine(request.request_id()),
                      absl::StrCat("at most ", kMaxRequestIdBytes, " bytes"),
                      "use a shorter one");
  }
  EBB_ASSIGN_OR_RETURN(std::optional<v1::Job> earlier, FindByRequest(request));
  if (earlier) return *std::move(earlier);
  EBB_ASSIGN_OR_RETURN(Planned planned, PlanAndCheckFiles(request.spec()));
  v1::JobPlans plans;
  EBB_ASSIGN_OR_RETURN(
      *plans.mutable_ladder(),
      MakeLadder(planned.effective, planned.spec, planned.plan));

  absl::MutexLock lock(&mutex_);
  // A twin of this request may have come first.
  EBB_ASSIGN_OR_RETURN(earlier, FindByRequest(request));
  if (earlier) return *std::move(earlier);
  auto live = std::make_unique<LiveJob>();
  v1::Job& job = live->job;
  do {
    job.set_id(parts_.make_id());
    job.set_directory(
        absl::StrCat(options_.state_directory, "/jobs/", job.id()));
  } while (std::filesystem::exists(job.directory()) ||
           parts_.store->GetJob(job.id()).ok());
  EBB_RETURN_IF_ERROR(MakeDirectory(job.directory()));
  job.set_name(planned.effective.name());
  *job.mutable_plan() = PlanToMessage(planned.plan);
  *job.mutable_spec() = std::move(planned.effective);
  SetTime(parts_.clock->Now(), job.mutable_create_time());
  live->queue_time = parts_.clock->Monotonic();
  live->ranks.resize(live->num_ranks());
  live->plans = std::move(plans);
  Change change;
  change.new_jobs.emplace_back();  // ChangeState fills it
  change.plans.push_back({job.id(), live->plans});
  if (!request.request_id().empty()) {
    change.requests.push_back(
        {request.request_id(), job.id(), SpecIdentity(request.spec())});
  }
  const absl::Status stored = ChangeState(
      *live, v1::STATE_QUEUED, v1::REASON_WAITING, "", std::move(change));
  if (!stored.ok()) {
    std::error_code ignored;
    std::filesystem::remove_all(job.directory(), ignored);
    return stored;
  }
  EBB_ASSIGN_OR_RETURN(const NumberedJob numbered,
                       parts_.store->GetJob(job.id()));
  live->number = numbered.number;
  v1::Job answer = job;
  live_[answer.id()] = std::move(live);
  Wake();
  return answer;
}

absl::StatusOr<v1::Job> Coordinator::GetJob(const v1::GetJobRequest& request) {
  if (!IsJobId(request.id())) return NoSuchJob(request.id());
  auto found = parts_.store->GetJob(request.id());
  if (absl::IsNotFound(found.status())) return NoSuchJob(request.id());
  if (!found.ok()) return found.status();
  return std::move(found->job);
}

absl::StatusOr<v1::ListJobsResponse> Coordinator::ListJobs(
    const v1::ListJobsRequest& request) {
  if (request.page_size() < 0) {
    return FieldError("page_size", absl::StrCat(request.page_size()),
                      "must not be negative", "leave it out for 50");
  }
  std::vector<v1::State> states;
  for (const int state : request.states()) {
    if (!v1::State_IsValid(state) || state == v1::STATE_UNSPECIFIED) {
      return FieldError("states", absl::StrCat(state),
                        "must be states of a job", "use ebb.v1.State");
    }
    states.push_back(static_cast<v1::State>(state));
  }
  // A page token is "p" and the number of the last job of the page before.
  int64_t before = 0;
  if (!request.page_token().empty() &&
      (request.page_token()[0] != 'p' ||
       !absl::SimpleAtoi(request.page_token().substr(1), &before) ||
       before <= 0)) {
    return FieldError("page_token", OneLine(request.page_token()),
                      "must be the next_page_token of an answer",
                      "start without one");
  }
  const int limit = request.page_size() == 0
                        ? kDefaultPageSize
                        : std::min<int>(request.page_size(), kMaxPageSize);
  EBB_ASSIGN_OR_RETURN(
      std::vector<NumberedJob> jobs,
      parts_.store->ListJobs(states, before, limit + 1, kMaxPageBytes));
  v1::ListJobsResponse response;
  int64_t last = 0;
  for (NumberedJob& job : jobs) {
    if (response.jobs_size() == limit) break;
    last = job.number;
    *response.add_jobs() = std::move(job.job);
  }
  if (last > 0) {
    // Short of the limit, the page may have been cut by its bytes.
    EBB_ASSIGN_OR_RETURN(const std::vector<NumberedJob> more,
                         parts_.store->ListJobs(states, last, 1, 1));
    if (!more.empty()) {
      response.set_next_page_token(absl::StrCat("p", last));
    }
  }
  return response;
}

absl::StatusOr<v1::Job> Coordinator::CancelJob(
    const v1::CancelJobRequest& request) {
  absl::MutexLock lock(&mutex_);
  const auto found = live_.find(request.id());
  if (found == live_.end()) {
    EBB_ASSIGN_OR_RETURN(const v1::Job job, GetJob([&] {
                           v1::GetJobRequest get;
                           get.set_id(request.id());
                           return get;
                         }()));
    return absl::FailedPreconditionError(absl::StrCat(
        "the job has ended: ", StateLabel(job.state()), ": job ", job.id()));
  }
  LiveJob& live = *found->second;
  switch (live.job.state()) {
    case v1::STATE_QUEUED: {
      EBB_RETURN_IF_ERROR(ChangeState(live, v1::STATE_CANCELLED,
                                      v1::REASON_USER_REQUEST,
                                      "cancelled before it started"));
      v1::Job job = live.job;
      live_.erase(found);
      Wake();
      return job;
    }
    case v1::STATE_CANCELLING:
      break;
    default:
      live.cancel_time = parts_.clock->Monotonic();
      EBB_RETURN_IF_ERROR(
          ChangeState(live, v1::STATE_CANCELLING, v1::REASON_USER_REQUEST, ""));
  }
  live.cancel_now |= request.now();
  Wake();
  return live.job;
}

absl::Status Coordinator::DeleteJob(const v1::DeleteJobRequest& request) {
  if (!IsJobId(request.id())) return NoSuchJob(request.id());
  std::string aside;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = live_.find(request.id());
    if (found != live_.end()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the job has not ended: ", StateLabel(found->second->job.state()),
          ": cancel it first: job ", request.id()));
    }
    auto stored = parts_.store->GetJob(request.id());
    if (absl::IsNotFound(stored.status())) return NoSuchJob(request.id());
    EBB_RETURN_IF_ERROR(stored.status());
    // Out of the way first: a crash leaves either the whole job or a folder
    // that the next start removes.
    aside =
        absl::StrCat(options_.state_directory, "/jobs/.deleted-", request.id());
    std::error_code error;
    std::filesystem::rename(stored->job.directory(), aside, error);
    if (error && error != std::errc::no_such_file_or_directory) {
      return absl::InternalError(absl::StrCat(
          "cannot remove ", stored->job.directory(), ": ", error.message()));
    }
    EBB_RETURN_IF_ERROR(parts_.store->DeleteJob(request.id()));
    parts_.exporter->JobDeleted(stored->job.state());
    Changed();
  }
  std::error_code error;
  std::filesystem::remove_all(aside, error);
  if (error) {
    EBB_LOG(WARNING) << "cannot remove " << aside << ": " << error.message();
  }
  EBB_LOG(INFO) << "job " << request.id() << " deleted";
  return absl::OkStatus();
}

absl::StatusOr<v1::ExportJobResponse> Coordinator::ExportJob(
    const v1::ExportJobRequest& request,
    const std::function<bool()>& cancelled) {
  v1::GetJobRequest get;
  get.set_id(request.id());
  EBB_ASSIGN_OR_RETURN(const v1::Job job, GetJob(get));
  const std::string& directory = request.directory();
  if (!absl::StartsWith(directory, "/") ||
      directory.size() > kMaxDirectoryBytes ||
      directory.find('\0') != std::string::npos) {
    return FieldError("directory", OneLine(directory),
                      absl::StrCat("must be an absolute path of at most ",
                                   kMaxDirectoryBytes, " bytes"),
                      "write it from / on");
  }
  if (request.step() < 0) {
    return FieldError("step", absl::StrCat(request.step()),
                      "must be a step of the job, or 0 for the newest",
                      "leave it out");
  }
  if (request.shard_bytes() < 0) {
    return FieldError("shard_bytes", absl::StrCat(request.shard_bytes()),
                      "must be a size, or 0 for 5 GB", "leave it out");
  }
  absl::StatusOr<v1::ExportJobResponse> response = parts_.export_job(
      absl::StrCat(job.directory(), "/checkpoints"), request, cancelled);
  if (!response.ok()) {
    if (job.checkpoint_step() == 0 &&
        absl::IsFailedPrecondition(response.status())) {
      return NoCheckpoint(job);
    }
    return Annotate(response.status(), absl::StrCat("job ", request.id()));
  }
  EBB_LOG(INFO) << "job " << request.id() << " exported: step "
                << response->step() << " to " << OneLine(directory, 4096);
  return response;
}

absl::Status Coordinator::SampleJob(const v1::SampleJobRequest& request,
                                    const SampleListener& listener) {
  v1::GetJobRequest get;
  get.set_id(request.id());
  EBB_ASSIGN_OR_RETURN(const v1::Job job, GetJob(get));
  EBB_RETURN_IF_ERROR(CheckSampleRequest(request, job.spec().model().vocab()));
  if (job.checkpoint_step() == 0) return NoCheckpoint(job);
  return Annotate(
      parts_.sample_job(absl::StrCat(job.directory(), "/checkpoints"), request,
                        listener),
      absl::StrCat("job ", job.id()));
}

absl::StatusOr<JobEvents> Coordinator::EventsAfter(const std::string& id,
                                                   int64_t sequence,
                                                   int limit) {
  v1::GetJobRequest get;
  get.set_id(id);
  // In this order: a final state that is read first has its event already.
  EBB_ASSIGN_OR_RETURN(const v1::Job job, GetJob(get));
  JobEvents result;
  EBB_ASSIGN_OR_RETURN(result.events,
                       parts_.store->Events(id, sequence, limit));
  for (v1::JobEvent& event : result.events) {
    if (!event.has_job()) continue;
    *event.mutable_job()->mutable_spec() = job.spec();
    *event.mutable_job()->mutable_plan() = job.plan();
  }
  if (!result.events.empty() && sequence >= 0 &&
      result.events.front().sequence() > sequence + 1) {
    result.events.front().set_history_lost(true);
  }
  result.ended =
      IsFinal(job.state()) && static_cast<int>(result.events.size()) < limit;
  return result;
}

absl::StatusOr<JobSteps> Coordinator::StepsAfter(const std::string& id,
                                                 int64_t step, int limit) {
  v1::GetJobRequest get;
  get.set_id(id);
  EBB_ASSIGN_OR_RETURN(const v1::Job job, GetJob(get));
  JobSteps result;
  const int num_ranks = std::max(1, job.plan().ranks_size());
  EBB_ASSIGN_OR_RETURN(result.steps,
                       parts_.store->Steps(id, num_ranks, step, limit));
  result.ended =
      IsFinal(job.state()) && static_cast<int>(result.steps.size()) < limit;
  return result;
}

absl::StatusOr<LogLocation> Coordinator::FindLog(const std::string& id,
                                                 int attempt, int rank) {
  v1::GetJobRequest get;
  get.set_id(id);
  EBB_ASSIGN_OR_RETURN(v1::Job job, GetJob(get));
  LogLocation location;
  location.num_ranks = std::max(1, job.plan().ranks_size());
  location.ended = IsFinal(job.state());
  if (rank < 0 || rank >= location.num_ranks) {
    return FieldError("rank", absl::StrCat(rank), "must be a rank of the job",
                      absl::StrCat("use 0 to ", location.num_ranks - 1));
  }
  if (attempt < 0 || attempt > job.attempt()) {
    return FieldError(
        "attempt", absl::StrCat(attempt), "must be an attempt of the job",
        absl::StrCat("use 1 to ", job.attempt(), ", or 0 for the newest"));
  }
  location.attempt = attempt == 0 ? job.attempt() : attempt;
  job.set_attempt(location.attempt);
  location.directory = AttemptDirectory(job);
  return location;
}

// --- Changes ---

void Coordinator::AddEvent(LiveJob& live, v1::JobEvent event, Change* change) {
  event.set_sequence(++live.last_event);
  SetTime(parts_.clock->Now(), event.mutable_time());
  change->events.push_back({live.job.id(), std::move(event)});
}

absl::Status Coordinator::ChangeState(LiveJob& live, v1::State to,
                                      v1::Reason reason,
                                      const std::string& message,
                                      Change change) {
  const v1::State from = live.job.state();
  const absl::Status allowed = CheckTransition(from, to, reason);
  if (!allowed.ok()) {
    parts_.exporter->TransitionRefused(from, to);
    const absl::Status status =
        Annotate(allowed, absl::StrCat("job ", live.job.id()));
    EBB_LOG(ERROR) << status.message();
    return status;
  }
  v1::Job job = live.job;
  job.set_state(to);
  job.set_reason(reason);
  job.set_message(message);
  if (to == v1::STATE_STARTING && !job.has_start_time()) {
    SetTime(parts_.clock->Now(), job.mutable_start_time());
  }
  if (IsFinal(to)) SetTime(parts_.clock->Now(), job.mutable_end_time());
  if (to == v1::STATE_STARTING) {
    job.set_attempt(job.attempt() + 1);
    AttemptRow attempt;
    attempt.job_id = job.id();
    attempt.attempt = job.attempt();
    attempt.launch_time = parts_.clock->Now();
    change.attempts.push_back(attempt);
  }
  const int64_t last_event = live.last_event;
  // An attempt begins with all that waits for one.
  v1::JobPlans plans = live.plans;
  const bool replanned =
      to == v1::STATE_STARTING && !job.pending_switches().empty();
  if (replanned) {
    AddSwitchEvents(live, TakeDueSwitches(job.last_step() + 1, {&job, &plans}),
                    &change);
    change.plans.push_back({job.id(), plans});
  }
  v1::JobEvent event;
  *event.mutable_job() = job;
  AddEvent(live, std::move(event), &change);
  if (!change.new_jobs.empty()) {
    change.new_jobs.front() = job;
  } else {
    (replanned ? change.replanned_jobs : change.jobs).push_back(job);
  }
  const absl::Status stored = parts_.store->Apply(change);
  if (!stored.ok()) {
    live.last_event = last_event;
    EBB_LOG(ERROR) << "job " << job.id() << " stays " << StateLabel(from)
                   << ": " << stored.message();
    return Annotate(stored, absl::StrCat("job ", job.id()));
  }
  live.job = std::move(job);
  live.plans = std::move(plans);
  parts_.exporter->JobChanged(from, live.job);
  EBB_LOG(INFO) << "job " << live.job.id() << " attempt " << live.job.attempt()
                << ": " << StateLabel(from) << " to " << StateLabel(to)
                << (reason == v1::REASON_UNSPECIFIED ? "" : ", ")
                << (reason == v1::REASON_UNSPECIFIED ? "" : ReasonLabel(reason))
                << (message.empty() ? "" : ": ") << message;
  Changed();
  return absl::OkStatus();
}

// --- Attempts ---

void Coordinator::Tick() {
  absl::MutexLock lock(&mutex_);
  StoreReports().IgnoreError();  // logged; tried again at the next look
  for (auto entry = live_.begin(); entry != live_.end();) {
    LiveJob& live = *entry->second;
    if (HasAttempt(live.job.state()) && !Supervise(live)) {
      entry = live_.erase(entry);
    } else {
      ++entry;
    }
  }
  Schedule();
  parts_.exporter->Expire();
  parts_.exporter->SetStoreSize(parts_.store->SizeBytes());
}

void Coordinator::Schedule() {
  int threads = 0;
  int64_t bytes = 0;
  bool any = false;
  std::vector<LiveJob*> queue;
  for (const auto& [id, live] : live_) {
    if (HasAttempt(live->job.state())) {
      any = true;
      threads += live->num_threads();
      bytes += live->bytes();
    } else if (live->job.state() == v1::STATE_QUEUED) {
      queue.push_back(live.get());
    }
  }
  // Larger priority first, then older. The first that does not fit holds the
  // rest back: nobody is overtaken for ever.
  std::sort(queue.begin(), queue.end(), [](const auto* a, const auto* b) {
    return std::pair(-int64_t{a->job.spec().priority()}, a->number) <
           std::pair(-int64_t{b->job.spec().priority()}, b->number);
  });
  for (LiveJob* live : queue) {
    const bool fits =
        threads + live->num_threads() <= parts_.inventory->cores() &&
        bytes + live->bytes() <= parts_.inventory->memory_bytes();
    // A job larger than the machine was accepted knowingly: it runs alone.
    if (any && !fits) return;
    // Stored before it happens: a job never runs twice.
    if (!ChangeState(*live, v1::STATE_STARTING, v1::REASON_UNSPECIFIED, "")
             .ok()) {
      return;
    }
    parts_.exporter->QueueWaited(parts_.clock->Monotonic() - live->queue_time);
    LaunchAttempt(*live);
    any = true;
    threads += live->num_threads();
    bytes += live->bytes();
  }
}

void Coordinator::LaunchAttempt(LiveJob& live) {
  live.launch_time = parts_.clock->Monotonic();
  live.ranks.clear();
  live.ranks.resize(live.num_ranks());
  live.end_time.reset();
  live.finished_time.reset();
  live.last_signal.reset();
  live.left_reports_read = false;
  parts_.exporter->AttemptStarted(live.job, live.num_ranks());
  const AttemptKey key = live.key();
  absl::Status status = MakeDirectory(live.job.directory());
  if (status.ok()) status = MakeDirectory(key.directory);
  if (status.ok()) status = parts_.launcher->Launch(key);
  parts_.exporter->LauncherOperation(parts_.launcher->name(), "launch",
                                     status.ok());
  if (!status.ok()) {
    live.launch_error =
        absl::StrCat("the attempt could not be launched: ", status.message());
  }
  Wake();
}

bool Coordinator::Supervise(LiveJob& live) {
  const absl::Duration now = parts_.clock->Monotonic();
  const AttemptKey key = live.key();
  AttemptObservation observed;
  if (live.launch_error.empty()) {
    observed = parts_.launcher->Observe(key);
  } else {
    observed.supervisor = SupervisorState::kEnded;
    observed.supervisor_error = live.launch_error;
  }
  const bool gone = observed.supervisor == SupervisorState::kEnded ||
                    observed.supervisor == SupervisorState::kLost;
  if (gone && !live.end_time) live.end_time = now;
  const bool connected =
      std::any_of(live.ranks.begin(), live.ranks.end(),
                  [](const auto& r) { return r.connection != nullptr; });
  // What came over the stream is first in order.
  if (gone && (!connected || now - *live.end_time >= kDrainGrace)) {
    ReadLeftReports(live);
  }
  // Judged only with all that is known on disk; but a job that is being
  // cancelled is ended even if the store takes nothing.
  const bool stored = StoreReports().ok();
  if (!stored && live.job.state() != v1::STATE_CANCELLING) return true;

  AttemptView view;
  view.state = live.job.state();
  view.supervisor = observed.supervisor;
  view.supervisor_error = CutMessage(ToUtf8(observed.supervisor_error));
  view.failed_rank = observed.failed_rank;
  const auto& timeout = live.job.spec().resources().timeout();
  view.start_timeout =
      absl::Seconds(timeout.seconds()) + absl::Nanoseconds(timeout.nanos());
  view.since_launch = now - live.launch_time;
  view.since_end = live.end_time ? now - *live.end_time : absl::Duration();
  view.since_cancel = now - live.cancel_time;
  view.cancel_now = live.cancel_now;
  bool all_finished = true;
  for (int r = 0; r < live.num_ranks(); ++r) {
    const LiveRank& rank = live.ranks[r];
    RankView& out = view.ranks.emplace_back();
    out.connected = rank.connection != nullptr;
    out.started = rank.started;
    out.stepped = rank.stepped;
    if (rank.finished) {
      out.finished_code = rank.finished->code();
      out.finished_message = rank.finished->message();
    }
    all_finished &= rank.finished.has_value();
    if (r < static_cast<int>(observed.exits.size())) {
      out.exit = observed.exits[r];
    }
  }
  if (all_finished && !live.finished_time) live.finished_time = now;
  if (live.finished_time) view.since_finished = now - *live.finished_time;

  const std::optional<Judgement> judgement = Judge(view);
  if (!judgement) return true;
  switch (judgement->kind) {
    case Judgement::Kind::kRun:
      if (ChangeState(live, v1::STATE_RUNNING, v1::REASON_UNSPECIFIED, "")
              .ok()) {
        parts_.exporter->StartTook(now - live.launch_time);
      }
      return true;
    case Judgement::Kind::kOrderCancel:
      for (LiveRank& rank : live.ranks) {
        if (rank.connection == nullptr || rank.order_sent) continue;
        v1::CoordinatorMessage order;
        order.mutable_order()->set_kind(v1::Order::KIND_CANCEL);
        rank.connection->Send(std::move(order));
        rank.order_sent = true;
      }
      return true;
    case Judgement::Kind::kTerminate:
      StopAttempt(live, StopSignal::kTerminate);
      return true;
    case Judgement::Kind::kKill:
      StopAttempt(live, StopSignal::kKill);
      return true;
    case Judgement::Kind::kEnd:
      return stored ? EndJob(live, *judgement) : true;
  }
  return true;
}

void Coordinator::StopAttempt(LiveJob& live, StopSignal signal) {
  const absl::Duration now = parts_.clock->Monotonic();
  if (live.last_signal == signal &&
      (signal == StopSignal::kTerminate ||
       now - live.last_signal_time < kKillPeriod)) {
    return;
  }
  live.last_signal = signal;
  live.last_signal_time = now;
  const char* operation =
      signal == StopSignal::kTerminate ? "terminate" : "kill";
  const absl::Status status = parts_.launcher->Stop(live.key(), signal);
  parts_.exporter->LauncherOperation(parts_.launcher->name(), operation,
                                     status.ok());
  EBB_LOG(INFO) << "job " << live.job.id() << " attempt " << live.job.attempt()
                << ": " << operation << ": "
                << (status.ok() ? "sent" : std::string(status.message()));
}

bool Coordinator::EndJob(LiveJob& live, const Judgement& judgement) {
  const AttemptKey key = live.key();
  std::string message = judgement.message;
  if (judgement.rank >= 0) {
    const std::string path = LogFilePath(key.directory, judgement.rank);
    const auto offset = TailOffset(path, kNumLogLines, kMaxLogBytes);
    const auto tail = offset.ok() ? ReadLog(path, *offset, kMaxLogBytes)
                                  : absl::StatusOr<std::string>(std::string());
    if (tail.ok() && !tail->empty()) {
      absl::StrAppend(&message, "\nlast lines of its log:\n",
                      absl::StripTrailingAsciiWhitespace(ToUtf8(*tail)));
    }
  }
  if (message.empty() && judgement.state == v1::STATE_CANCELLED) {
    message = absl::StrCat("cancelled at step ", live.job.last_step());
  }
  Change change;
  AttemptRow attempt;
  attempt.job_id = live.job.id();
  attempt.attempt = live.job.attempt();
  attempt.launch_time = absl::FromUnixSeconds(live.job.start_time().seconds());
  attempt.ended = true;
  change.attempts.push_back(attempt);
  const bool cancelling = live.job.state() == v1::STATE_CANCELLING;
  if (!ChangeState(live, judgement.state, judgement.reason, message,
                   std::move(change))
           .ok()) {
    return true;
  }
  if (cancelling) {
    parts_.exporter->CancelTook(parts_.clock->Monotonic() - live.cancel_time);
  }
  for (LiveRank& rank : live.ranks) {
    if (rank.connection != nullptr) rank.connection->Close(absl::OkStatus());
  }
  parts_.launcher->Forget(key);
  parts_.exporter->JobEnded(live.job.id());
  Wake();
  return false;
}

// --- Start ---

absl::Status Coordinator::Recover() {
  const std::string jobs_directory =
      absl::StrCat(options_.state_directory, "/jobs");
  EBB_RETURN_IF_ERROR(MakeDirectory(jobs_directory));
  std::error_code error;
  std::vector<std::filesystem::path> deleted;
  for (const auto& entry :
       std::filesystem::directory_iterator(jobs_directory, error)) {
    if (absl::StartsWith(entry.path().filename().string(), ".deleted-")) {
      deleted.push_back(entry.path());
    }
  }
  EBB_ASSIGN_OR_RETURN(const std::vector<int64_t> counts,
                       parts_.store->CountJobs());
  EBB_ASSIGN_OR_RETURN(std::vector<NumberedJob> jobs, parts_.store->LiveJobs());
  for (const auto& path : deleted) {
    // Renamed, but was the row still there? Then the job comes back.
    const std::string id = path.filename().string().substr(9);
    if (parts_.store->GetJob(id).ok()) {
      std::filesystem::rename(path, absl::StrCat(jobs_directory, "/", id),
                              error);
    } else {
      std::filesystem::remove_all(path, error);
    }
  }
  absl::MutexLock lock(&mutex_);
  parts_.exporter->SetJobCounts(counts);
  for (NumberedJob& job : jobs) RecoverJob(std::move(job));
  return absl::OkStatus();
}

void Coordinator::RecoverJob(NumberedJob stored) {
  const std::string id = stored.job.id();
  auto owned = std::make_unique<LiveJob>();
  LiveJob& live = *owned;
  live.number = stored.number;
  live.job = std::move(stored.job);
  const auto last_event = parts_.store->LastEvent(id);
  live.last_event = last_event.ok() ? *last_event : 0;
  auto plans = parts_.store->GetPlans(id);
  if (plans.ok()) {
    live.plans = *std::move(plans);
  } else {
    EBB_LOG(ERROR) << "job " << id << ": " << plans.status().message();
  }
  // Of a store that was damaged.
  DropTornSwitches({&live.job, &live.plans});
  live.ranks.resize(live.num_ranks());
  const absl::Duration now = parts_.clock->Monotonic();
  // Deadlines begin anew: nobody is judged for the time without coordinator.
  live.queue_time = live.launch_time = live.cancel_time = now;
  live_[id] = std::move(owned);
  if (!HasAttempt(live.job.state())) return;

  const auto rows = parts_.store->Ranks(id, live.job.attempt());
  if (rows.ok()) {
    for (const RankRow& row : *rows) {
      if (row.rank < 0 || row.rank >= live.num_ranks()) continue;
      LiveRank& rank = live.ranks[row.rank];
      rank.started = row.started;
      rank.stepped = row.stepped;
      rank.stored_sequence = rank.received_sequence = row.sequence;
      rank.finished = row.finished;
    }
  }
  parts_.exporter->AttemptStarted(live.job, live.num_ranks());
  parts_.exporter->PolicySwitched(id, live.job.num_switches(),
                                  /*replayed=*/true);
  ReplaySteps(live);
  const bool lived = parts_.launcher->Adopt(live.key());
  parts_.exporter->LauncherOperation(parts_.launcher->name(), "adopt", lived);
  EBB_LOG(INFO) << "job " << id << " attempt " << live.job.attempt() << ": "
                << (lived ? "found again" : "was never launched");
  if (lived) return;
  if (live.job.state() != v1::STATE_STARTING) {
    live.launch_error = "the attempt never ran";
    return;
  }
  // Stored, then the coordinator died: launch it now, under a new number.
  const absl::Status changed =
      ChangeState(live, v1::STATE_STARTING, v1::REASON_UNSPECIFIED,
                  "the coordinator restarted before the attempt was launched");
  if (changed.ok()) {
    LaunchAttempt(live);
  } else {
    live.launch_error = "the attempt never ran";
  }
}

void Coordinator::ReplaySteps(const LiveJob& live) {
  constexpr int kBatch = 1000;
  int64_t after = 0;
  while (true) {
    const auto steps =
        parts_.store->Steps(live.job.id(), live.num_ranks(), after, kBatch);
    if (!steps.ok() || steps->empty()) return;
    for (const v1::Step& step : *steps) {
      parts_.exporter->StepStored(live.job.id(), 0, step, /*replayed=*/true);
    }
    after = steps->back().step();
  }
}

}  // namespace ebb
