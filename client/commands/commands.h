// One function per subcommand. Each takes what the command line says and gives
// the exit code, or a status that the caller prints; on an error nothing is on
// standard output (but for a plan that does not fit, which is shown).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/command_description.h"
#include "client/environment.h"
#include "client/job_client.h"

namespace ebb {

// What all commands share.
struct CommandContext {
  Environment& environment;
  OutputFormat output = OutputFormat::kTable;
  // --server; empty: $EBB_SERVER, else the local coordinator.
  std::string server;
  CallTiming timing;
};

// Of `ebb plan` about a computation graph instead of a job. Empty: not given.
struct GraphOptions {
  std::string graph;       // its file
  std::string budget;      // as in specs: "2GiB"
  std::string time_limit;  // "5m"
  std::string check;       // a schedule's file
};
absl::StatusOr<int> RunPlanGraph(const CommandContext& context,
                                 const GraphOptions& options);
absl::StatusOr<int> RunCheckSchedule(const CommandContext& context,
                                     const GraphOptions& options);

struct PlanOptions {
  // Empty: a graph is asked about.
  std::string spec;
  std::vector<std::string> sets;
  bool dump = false;
  int rank = 0;
  bool profile = false;
  // paper; empty: what Ebb stores.
  std::string accounting;
  // File for a picture; -: standard output, instead of the plan.
  std::string svg;
  GraphOptions graph;
};
absl::StatusOr<int> RunPlan(const CommandContext& context,
                            const PlanOptions& options);

struct SubmitOptions {
  std::string spec;
  std::vector<std::string> sets;
  bool watch = false;
  bool wait = false;
  // Empty: a random one.
  std::string request_id;
};
absl::StatusOr<int> RunSubmit(const CommandContext& context,
                              const SubmitOptions& options);

struct ListOptions {
  // Lower-case words; empty: all.
  std::vector<std::string> states;
  // All pages, not the newest jobs only.
  bool all = false;
};
absl::StatusOr<int> RunList(const CommandContext& context,
                            const ListOptions& options);

absl::StatusOr<int> RunGet(const CommandContext& context,
                           const std::string& job);
absl::StatusOr<int> RunDescribe(const CommandContext& context,
                                const std::string& job);
absl::StatusOr<int> RunWatch(const CommandContext& context,
                             const std::string& job);

struct StepsOptions {
  std::string job;
  bool follow = false;
};
absl::StatusOr<int> RunSteps(const CommandContext& context,
                             const StepsOptions& options);

struct LogsOptions {
  std::string job;
  int rank = 0;
  bool follow = false;
  // 0: from the start.
  int tail = 0;
};
absl::StatusOr<int> RunLogs(const CommandContext& context,
                            const LogsOptions& options);

absl::StatusOr<int> RunCompare(const CommandContext& context,
                               const std::vector<std::string>& jobs);

struct SampleOptions {
  std::string job;
  // One of the two is set.
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_tokens;
  int tokens = 100;
  double temperature = 1;
  int64_t top_k = 0;
  uint64_t seed = 0;
  // Of the checkpoint; 0: the newest.
  int64_t step = 0;
};
absl::StatusOr<int> RunSample(const CommandContext& context,
                              const SampleOptions& options);

struct PolicyOptions {
  std::string job;
  // As in specs: "full", "2GiB". Empty budget: it stays.
  std::string policy;
  std::string budget;
  // Of fields of `memory`.
  std::vector<std::string> sets;
  // First step under it; 0: the next one.
  int64_t at_step = 0;
  bool next_run = false;
};
absl::StatusOr<int> RunPolicy(const CommandContext& context,
                              const PolicyOptions& options);

absl::StatusOr<int> RunCancel(const CommandContext& context,
                              const std::string& job, bool now);
absl::StatusOr<int> RunDelete(const CommandContext& context,
                              const std::string& job);
struct ExportOptions {
  std::string job;
  std::string directory;
  // 0: the newest checkpoint.
  int64_t step = 0;
  // As in specs: "2GiB"; empty: the coordinator's default.
  std::string shard_size;
};
absl::StatusOr<int> RunExport(const CommandContext& context,
                              const ExportOptions& options);
// cancel: end all jobs first.
absl::StatusOr<int> RunStop(const CommandContext& context, bool cancel);
absl::StatusOr<int> RunCompletion(const CommandContext& context,
                                  const std::string& shell);
// What could stand next on a line that is being written.
int RunCandidates(const CommandContext& context,
                  const ProgramDescription& program,
                  const std::vector<std::string>& words);
absl::StatusOr<int> RunDoctor(const CommandContext& context);
absl::StatusOr<int> RunVersion(const CommandContext& context);

}  // namespace ebb
