// ebbd: the coordinator as a program. `ebb` starts it where none runs; its log
// goes to standard error. SIGTERM and SIGINT end it and leave jobs running, a
// second one ends it at once.
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/status.h"
#include "monitoring/clock.h"
#include "monitoring/log.h"
#include "proto/revision.h"
#include "server/coordinator.h"
#include "server/cost_profiles.h"
#include "server/exporter.h"
#include "server/inventory.h"
#include "server/job_export.h"
#include "server/job_files.h"
#include "server/job_sample.h"
#include "server/job_tool.h"
#include "server/local_socket.h"
#include "server/metric_table.h"
#include "server/metrics_endpoint.h"
#include "server/planner/ladder.h"
#include "server/planner/plan_job.h"
#include "server/process_launcher.h"
#include "server/services.h"
#include "server/state_directory.h"
#include "server/store.h"

namespace ebb {
namespace {

// Bounded pages: some hundred series for each of a few hundred live jobs.
constexpr int kMaxSeries = 50000;
// What calls have to end by themselves when the coordinator stops.
constexpr absl::Duration kStopGrace = absl::Milliseconds(500);

// Job tools at once: each holds the largest tensor of a model, or all of it.
constexpr int kMaxTools = 4;

// How often the coordinator looks whether its directory is still there.
constexpr absl::Duration kDirectoryPeriod = absl::Seconds(1);

// [a-z0-9]{8}.
std::string RandomId() {
  static std::random_device device;
  constexpr absl::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::uniform_int_distribution<size_t> letter(0, kLetters.size() - 1);
  std::string id(8, ' ');
  for (char& c : id) c = kLetters[letter(device)];
  return id;
}

// Directories of jobs without a job table: somebody took the table away. The
// coordinator starts with an empty one; what the jobs wrote stays where it is.
void WarnOfLostJobs(const std::string& path, const std::string& database) {
  std::error_code ignored;
  const uintmax_t size = std::filesystem::file_size(database, ignored);
  const bool has_table = !ignored && size > 0;
  const std::string jobs = absl::StrCat(path, "/jobs");
  if (has_table || !std::filesystem::exists(jobs, ignored)) return;
  int64_t count = 0;
  for (auto it = std::filesystem::directory_iterator(jobs, ignored);
       it != std::filesystem::directory_iterator(); it.increment(ignored)) {
    ++count;
  }
  if (count == 0) return;
  EBB_LOG(ERROR) << "the job table " << database << " is missing or empty, but "
                 << jobs << " has " << count
                 << " jobs: they are not listed; their files stay";
}

// PATH appears complete or not at all.
absl::Status WriteServerFile(const std::string& path,
                             const nlohmann::json& content) {
  const std::string beside = absl::StrCat(path, ".tmp");
  {
    std::ofstream file(beside, std::ios::trunc);
    file << content.dump() << "\n";
    if (!file.flush()) {
      return absl::InternalError(absl::StrCat("cannot write ", beside));
    }
  }
  if (std::rename(beside.c_str(), path.c_str()) != 0) {
    return absl::InternalError(
        absl::StrCat("cannot rename ", beside, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

std::optional<std::string> Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

absl::Status Serve(const std::string& state_flag) {
  EBB_ASSIGN_OR_RETURN(const std::string path, StateDirectoryPath(state_flag));
  // The lock before any listener: a second server would steal the socket.
  EBB_ASSIGN_OR_RETURN(const auto directory, StateDirectory::Open(path));
  const std::string socket_path = absl::StrCat(path, "/ebbd.sock");
  const std::string info_path = absl::StrCat(path, "/ebbd.json");
  std::remove(info_path.c_str());
  if (socket_path.size() > kMaxSocketPathBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the socket's path has ", socket_path.size(), " bytes, at most ",
        kMaxSocketPathBytes, " are possible: ", socket_path,
        ": set EBB_STATE (or --state) to a shorter directory"));
  }

  // What is made from here on is for this user alone.
  umask(077);

  // All threads inherit the mask; main waits for the signals.
  signal(SIGPIPE, SIG_IGN);
  // A file that may not grow that far is an error of the call.
  signal(SIGXFSZ, SIG_IGN);
  sigset_t stop_signals;
  sigemptyset(&stop_signals);
  sigaddset(&stop_signals, SIGTERM);
  sigaddset(&stop_signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop_signals, nullptr);

  const std::string database = absl::StrCat(path, "/ebbd.db");
  WarnOfLostJobs(path, database);
  EBB_ASSIGN_OR_RETURN(const auto store, Store::Open(database));
  if (!store->recovery_note().empty()) {
    EBB_LOG(ERROR) << store->recovery_note();
  }
  EBB_ASSIGN_OR_RETURN(std::vector<MetricEntry> catalogue,
                       ParseCatalogue(BuiltInCatalogue()));
  MetricTable table(std::move(catalogue), kMaxSeries);
  Exporter exporter(&table, &Clock::Real());
  store->SetObserver([&exporter](const char* operation, absl::Duration time) {
    exporter.StoreOperation(operation, time);
  });
  EBB_ASSIGN_OR_RETURN(auto opened,
                       MetricsEndpoint::Open(Environment("EBB_METRICS_ADDRESS"),
                                             table.collectable()));
  // Its threads take seconds to stop: it ends with the process.
  static const MetricsEndpoint* const endpoint = opened.release();
  const std::string metrics_address =
      endpoint == nullptr ? "" : endpoint->address();

  std::error_code error;
  const std::string worker_program =
      (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() /
       "ebb-worker")
          .string();
  LocalInventory inventory(worker_program);
  JobTools tools(worker_program, kMaxTools);
  CostProfiles profiles(absl::StrCat(path, "/profiles"));
  ProcessLauncher launcher(
      {worker_program, path, absl::StrCat("unix:", socket_path)});
  exporter.SetBuild(EBB_VERSION, kRevision);
  exporter.SetDeviceMemory("cpu", inventory.memory_bytes());

  CoordinatorParts parts;
  parts.store = store.get();
  parts.launcher = &launcher;
  parts.exporter = &exporter;
  parts.inventory = &inventory;
  parts.clock = &Clock::Real();
  parts.plan_job = [&profiles](const JobSpec& spec, const Backend& backend) {
    return PlanJob(spec, backend,
                   profiles.ProfileOf(backend, spec.memory.offload_dir));
  };
  parts.measure_ops = [&tools, &path](const v1::JobSpec& spec,
                                      const std::function<bool()>& cancelled) {
    return ProfileThroughWorker(tools, spec, path, cancelled);
  };
  parts.keep_op_times = [&profiles](
                            const Backend& backend,
                            const std::map<std::string, double>& seconds) {
    profiles.Keep(backend, seconds);
  };
  parts.plan_ladder = [&profiles](const JobSpec& spec, const Plan& plan) {
    return PlanLadder(
        spec, plan, profiles.ProfileOf(plan.backend, spec.memory.offload_dir));
  };
  parts.dump_job = DumpJob;
  parts.check_files = CheckJobFiles;
  parts.export_job = [&tools](const std::string& checkpoints,
                              const v1::ExportJobRequest& request,
                              const std::function<bool()>& cancelled) {
    return ExportThroughWorker(tools, checkpoints, request, cancelled);
  };
  parts.sample_job = [&tools](const std::string& checkpoints,
                              const v1::SampleJobRequest& request,
                              const SampleListener& listener) {
    return SampleThroughWorker(tools, checkpoints, request, listener);
  };
  parts.make_id = RandomId;
  CoordinatorOptions options;
  options.state_directory = path;
  options.poison = Environment("EBB_POISON") == "1";
  Coordinator coordinator(std::move(parts), options);
  EBB_RETURN_IF_ERROR(coordinator.Recover());

  ServerInfo info;
  info.version = EBB_VERSION;
  info.pid = getpid();
  info.metrics_address = metrics_address;
  info.state_directory = path;
  info.start_time = absl::Now();
  info.backends = [&inventory] { return inventory.known(); };
  EBB_ASSIGN_OR_RETURN(const auto services,
                       Services::Start(&coordinator, &exporter, info));
  coordinator.Start();
  const uid_t own = geteuid();
  EBB_ASSIGN_OR_RETURN(
      auto socket,
      LocalSocket::Listen(
          socket_path, [own](uid_t peer) { return PeerAllowed(peer, own); },
          [&services](int fd) { services->AddConnection(fd); }));
  EBB_RETURN_IF_ERROR(
      WriteServerFile(info_path, {{"pid", getpid()},
                                  {"version", EBB_VERSION},
                                  {"socket", socket_path},
                                  {"metrics_address", metrics_address}}));
  EBB_LOG(INFO) << "serving on " << socket_path << ", metrics "
                << (metrics_address.empty() ? "off" : metrics_address);

  const timespec period = absl::ToTimespec(kDirectoryPeriod);
  int received = -1;
  while (received < 0 && directory->IsPresent()) {
    received = sigtimedwait(&stop_signals, nullptr, &period);
  }
  const bool lost = received < 0;
  if (lost) {
    EBB_LOG(ERROR) << "the state directory was removed: stopping: " << path;
  } else {
    EBB_LOG(INFO) << "signal " << received << ": stopping, jobs run on";
  }
  // From here on a second signal ends the process at once.
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &stop_signals, nullptr);
  if (!lost) std::remove(info_path.c_str());
  socket.reset();
  services->Shutdown(kStopGrace);
  return lost ? absl::FailedPreconditionError(
                    absl::StrCat("the state directory was removed: ", path))
              : absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Coordinator of Ebb: takes jobs, plans them, runs them.",
               "ebbd");
  std::string state;
  app.add_option("--state", state,
                 "State directory (default: $EBB_STATE, then the XDG state "
                 "directory's ebb/)");
  app.set_version_flag("--version", EBB_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  const absl::Status status = Serve(state);
  if (status.ok()) return 0;
  std::fprintf(stderr, "ebbd: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status)      ? 2
         : absl::IsUnavailable(status)        ? 6
         : absl::IsFailedPrecondition(status) ? 5
                                              : 1;
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  const int code = ebb::Main(argc, argv);
  std::fflush(nullptr);
  std::cout.flush();
  // Without destructors of static objects: the endpoint's threads still run.
  std::_Exit(code);
}
