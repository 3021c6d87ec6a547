// ebb-worker: one rank of an attempt, or with a flag the supervisor of its
// ranks, a description of this machine, or a job tool (server/job_tool.h):
// export of a checkpoint, sampling from one.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/device.h"
#include "kernels/kernel_table.h"
#include "monitoring/log.h"
#include "worker/describe.h"
#include "worker/export.h"
#include "worker/profiling.h"
#include "worker/rank.h"
#include "worker/sampling.h"
#include "worker/supervisor/detach.h"
#include "worker/supervisor/supervisor.h"

namespace ebb {
namespace {

constexpr int kUsage = 2;

int Complain(const absl::Status& status, int code) {
  std::fprintf(stderr, "ebb-worker: %s\n",
               std::string(status.message()).c_str());
  return code;
}

int Describe(int threads) {
  const Backend backend = DescribeCpu(threads);
  std::puts(DescribeJson(backend, CpuKernelTable()).c_str());
  return 0;
}

int SuperviseRanks(const std::string& directory, int num_ranks) {
  if (!directory.starts_with("/")) {
    return Complain(
        absl::InvalidArgumentError(absl::StrCat("--directory: got '", directory,
                                                "': must be an absolute path")),
        kUsage);
  }
  if (absl::Status status = DetachProcess(directory + "/supervisor.log");
      !status.ok()) {
    return Complain(status, 1);
  }
  LogFields fields;
  if (const char* job = std::getenv("EBB_JOB")) fields.job = job;
  if (const char* attempt = std::getenv("EBB_ATTEMPT")) {
    if (!absl::SimpleAtoi(attempt, &fields.attempt)) fields.attempt = -1;
  }
  SetLogFields(fields);
  // The same file, also when it was replaced on disk since.
  const absl::Status status = Supervise({.directory = directory,
                                         .num_ranks = num_ranks,
                                         .command = {"/proc/self/exe"}});
  if (status.ok()) return 0;
  EBB_LOG(ERROR) << status.message();
  return 1;
}

// What a job tool ends with (server/job_tool.h).
int ToolExitCode(const absl::Status& status) {
  return status.ok() ? 0 : 64 + static_cast<int>(status.code());
}

// Set by SIGTERM and SIGINT: the call that started a job tool is given up.
volatile sig_atomic_t given_up = 0;

// What every job tool begins with: it ends with its coordinator, and a signal
// asks it to.
void BeginTool() {
  const auto give_up = [](int) { given_up = 1; };
  signal(SIGTERM, give_up);
  signal(SIGINT, give_up);
  signal(SIGXFSZ, SIG_IGN);  // an error of the call, which says more
  prctl(PR_SET_PDEATHSIG, SIGTERM);
}

int Export(const ExportRequest& request) {
  BeginTool();
  const absl::StatusOr<ExportResult> result =
      ExportCheckpoint(request, [] { return given_up != 0; });
  if (!result.ok()) {
    return Complain(result.status(), ToolExitCode(result.status()));
  }
  std::puts(ExportJson(*result).c_str());
  return 0;
}

int RunSample(const SamplingOptions& options) {
  BeginTool();
  // Cores are for ranks that train, first of all.
  constexpr int kNiceness = 10;
  setpriority(PRIO_PROCESS, 0, kNiceness);
  const std::string prompt(std::istreambuf_iterator<char>(std::cin), {});
  const absl::Status status =
      Sample(options, prompt, [](absl::string_view piece) {
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        return std::fflush(stdout) == 0 && given_up == 0;
      });
  return status.ok() ? 0 : Complain(status, ToolExitCode(status));
}

int Profile(const std::string& offload_directory) {
  BeginTool();
  const std::string spec(std::istreambuf_iterator<char>(std::cin), {});
  const absl::StatusOr<std::string> profile =
      ProfileJobText(spec, offload_directory, [] { return given_up != 0; });
  if (!profile.ok()) {
    return Complain(profile.status(), ToolExitCode(profile.status()));
  }
  std::puts(profile->c_str());
  return 0;
}

int Rank() {
  const absl::StatusOr<RankEnvironment> environment = RankEnvironment::Read();
  if (!environment.ok()) return Complain(environment.status(), kUsage);
  return RunRank(*environment, EBB_VERSION);
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Worker of Ebb. Without flags: one rank, as its supervisor starts it.",
      "ebb-worker");
  bool supervise = false;
  bool describe = false;
  std::string directory;
  int num_ranks = 1;
  int threads = 0;
  CLI::Option* supervise_flag = app.add_flag(
      "--supervise", supervise, "Own the ranks of one attempt on this host");
  CLI::Option* directory_option =
      app.add_option("--directory", directory, "Directory of the attempt")
          ->needs(supervise_flag);
  app.add_option("--ranks", num_ranks, "Ranks to start")
      ->check(CLI::Range(1, 65536))
      ->needs(supervise_flag);
  supervise_flag->needs(directory_option);
  CLI::Option* describe_flag =
      app.add_flag("--describe", describe, "Print backend and kernels as JSON");
  app.add_option("--threads", threads,
                 "Threads to describe (0: all this process may run on)")
      ->check(CLI::Range(0, 4096))
      ->needs(describe_flag);
  supervise_flag->excludes(describe_flag);
  ExportRequest request;
  CLI::Option* export_option =
      app.add_option("--export", request.checkpoints,
                     "Write a checkpoint below this directory as Hugging Face "
                     "files and print what was written as JSON")
          ->excludes(supervise_flag)
          ->excludes(describe_flag);
  CLI::Option* to_option =
      app.add_option("--to", request.directory,
                     "Directory to write, absolute; none or an empty one")
          ->needs(export_option);
  export_option->needs(to_option);
  app.add_option("--shard-bytes", request.shard_bytes,
                 "Largest file of weights (0: 5 GB)")
      ->check(CLI::NonNegativeNumber)
      ->needs(export_option);
  SamplingOptions sampling;
  CLI::Option* sample_option =
      app.add_option(
             "--sample", sampling.checkpoints,
             "Continue the prompt on standard input with the weights of "
             "a checkpoint below this directory")
          ->excludes(supervise_flag)
          ->excludes(describe_flag)
          ->excludes(export_option);
  int64_t step = 0;
  CLI::Option* step_option =
      app.add_option("--step", step,
                     "Step of the checkpoint (0: the newest complete one)")
          ->check(CLI::NonNegativeNumber);
  app.add_option("--tokens", sampling.num_tokens, "Tokens to make")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->needs(sample_option);
  app.add_option("--temperature", sampling.settings.temperature,
                 "Divides the logits (0: always the likeliest token)")
      ->check(CLI::Range(0.0, 1e300))
      ->capture_default_str()
      ->needs(sample_option);
  app.add_option("--top-k", sampling.settings.top_k,
                 "Consider the K likeliest tokens alone (0: all)")
      ->check(CLI::NonNegativeNumber)
      ->needs(sample_option);
  app.add_option("--seed", sampling.settings.seed,
                 "Equal seeds give equal tokens")
      ->needs(sample_option);
  app.add_flag("--ids", sampling.ids,
               "Prompt and output are token ids, not text")
      ->needs(sample_option);
  std::string profile_directory;
  auto* profile =
      app.add_option(
             "--profile", profile_directory,
             "Measure what the ops of the job take whose spec stands on "
             "standard input (JSON), and copies to host memory and to a "
             "file in this directory; print it as JSON")
          ->type_name("DIR")
          ->excludes(supervise_flag)
          ->excludes(describe_flag)
          ->excludes(export_option)
          ->excludes(sample_option);
  app.set_version_flag("--version", EBB_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (supervise) return SuperviseRanks(directory, num_ranks);
  if (describe) return Describe(threads);
  if (*step_option && !*export_option && !*sample_option) {
    return Complain(
        absl::InvalidArgumentError("--step needs --export or --sample"),
        kUsage);
  }
  request.step = sampling.step = step;
  if (*export_option) return Export(request);
  if (*sample_option) return RunSample(sampling);
  if (*profile) return Profile(profile_directory);
  return Rank();
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) { return ebb::Main(argc, argv); }
