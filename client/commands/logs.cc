// `ebb logs`: what a rank said.
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/follow.h"
#include "client/commands/job_lookup.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/interrupt.h"
#include "client/json_list.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"

namespace ebb {
namespace {

// Log bytes as JSON objects, one a line of the log. A line longer than the
// largest is cut into several objects.
class LogLines {
 public:
  LogLines(int rank, JsonList* list) : rank_(rank), list_(list) {}

  void Add(const v1::LogChunk& chunk) {
    if (chunk.attempt() != attempt_) End();
    attempt_ = chunk.attempt();
    for (const char c : chunk.content()) {
      if (c != '\n') line_ += c;
      if (c == '\n' || line_.size() == kMaxLineBytes) Flush();
    }
  }

  // A last line without a line break.
  void End() {
    if (!line_.empty()) Flush();
  }

 private:
  static constexpr size_t kMaxLineBytes = 1 << 20;

  void Flush() {
    list_->Add({{"rank", rank_}, {"attempt", attempt_}, {"line", line_}});
    line_.clear();
  }

  const int rank_;
  JsonList* const list_;
  int attempt_ = 0;
  std::string line_;
};

}  // namespace

absl::StatusOr<int> RunLogs(const CommandContext& context,
                            const LogsOptions& options) {
  Environment& environment = context.environment;
  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobClient> client,
      ConnectToCoordinator(environment, context.server, context.timing));
  v1::StreamLogsRequest request;
  request.set_id(options.job);
  request.set_rank(options.rank);
  request.set_follow(options.follow);
  request.set_tail_lines(options.tail);
  JsonList list("lines", context.output, *environment.out);
  LogLines lines(options.rank, &list);
  const auto print = [&](const v1::LogChunk& chunk) {
    if (context.output == OutputFormat::kTable) {
      *environment.out << chunk.content() << std::flush;
    } else {
      lines.Add(chunk);
    }
  };
  std::unique_ptr<InterruptScope> interrupt;
  if (options.follow) {
    interrupt = std::make_unique<InterruptScope>([&] { client->Cancel(); });
    client->set_on_notice([&](absl::string_view text) {
      *environment.err << text << "\n" << std::flush;
    });
  }
  const absl::Status status = client->StreamLogs(request, print);
  const bool detached = interrupt != nullptr && interrupt->interrupted();
  if (!status.ok() && !detached) {
    return SuggestJob(status, options.job, *client);
  }
  lines.End();
  list.End();
  return status.ok() ? static_cast<int>(kExitOk)
                     : Detached(context, options.job);
}

}  // namespace ebb
