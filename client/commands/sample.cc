// `ebb sample`: tokens from a job's checkpoint, shown as they are made.
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/commands/commands.h"
#include "client/commands/job_lookup.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"
#include "proto/violations.h"

namespace ebb {
namespace {

// The coordinator takes no more.
constexpr double kMaxTemperature = 1000;

absl::StatusOr<v1::TokenIds> ParseTokens(const std::string& text) {
  v1::TokenIds ids;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(word, &id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--prompt-tokens: got ", OneLine(text),
                       ": must be token ids with commas between: write 1,2,3"));
    }
    ids.add_ids(id);
  }
  return ids;
}

absl::StatusOr<v1::SampleJobRequest> MakeRequest(const SampleOptions& options) {
  v1::SampleJobRequest request;
  request.set_id(options.job);
  // NaN, too, which is in no range.
  if (!(options.temperature >= 0 && options.temperature <= kMaxTemperature)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--temperature: got ", options.temperature,
                     ": must be 0 to ", kMaxTemperature));
  }
  if (options.prompt.has_value() == options.prompt_tokens.has_value()) {
    return absl::InvalidArgumentError(
        "give --prompt TEXT or --prompt-tokens IDS (the second for models of "
        "data that is no text)");
  }
  if (options.prompt.has_value()) {
    request.set_text(*options.prompt);
  } else {
    EBB_ASSIGN_OR_RETURN(*request.mutable_token_ids(),
                         ParseTokens(*options.prompt_tokens));
  }
  request.set_num_tokens(options.tokens);
  request.set_temperature(options.temperature);
  request.set_top_k(options.top_k);
  request.set_seed(options.seed);
  request.set_step(options.step);
  return request;
}

// Made text may hold any byte; what would command a terminal is shown as '?'.
std::string TerminalText(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) c = '?';
  }
  return text;
}

nlohmann::ordered_json Result(const v1::SampleJobRequest& request, int64_t step,
                              const std::string& text,
                              const std::vector<int32_t>& ids) {
  nlohmann::ordered_json json = {{"job", request.id()}, {"step", step}};
  if (request.has_token_ids()) {
    json["prompt_tokens"] = std::vector<int32_t>(
        request.token_ids().ids().begin(), request.token_ids().ids().end());
    json["tokens"] = ids;
  } else {
    json["prompt"] = request.text();
    json["text"] = text;
  }
  json["temperature"] = request.temperature();
  json["top_k"] = absl::StrCat(request.top_k());
  json["seed"] = absl::StrCat(request.seed());
  return json;
}

}  // namespace

absl::StatusOr<int> RunSample(const CommandContext& context,
                              const SampleOptions& options) {
  Environment& environment = context.environment;
  EBB_ASSIGN_OR_RETURN(const v1::SampleJobRequest request,
                       MakeRequest(options));
  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobClient> client,
      ConnectToCoordinator(environment, context.server, context.timing));
  const bool table = context.output == OutputFormat::kTable;
  int64_t step = 0;
  std::string text;
  std::vector<int32_t> ids;
  const auto show = [&](const std::string& piece) {
    *environment.out << (environment.out_is_terminal ? TerminalText(piece)
                                                     : piece)
                     << std::flush;
  };
  const absl::Status status =
      client->SampleJob(request, [&](const v1::SampleChunk& chunk) {
        if (table && step == 0) {
          show(request.has_token_ids()
                   ? absl::StrJoin(request.token_ids().ids(), ",")
                   : request.text());
        }
        step = chunk.step();
        if (table) {
          show(chunk.text());
          for (const int32_t id : chunk.token_ids()) {
            show(absl::StrCat(",", id));
          }
          return;
        }
        text += chunk.text();
        ids.insert(ids.end(), chunk.token_ids().begin(),
                   chunk.token_ids().end());
      });
  if (table && step > 0) *environment.out << "\n";
  if (!status.ok()) return SuggestJob(status, options.job, *client);
  if (!table) {
    *environment.out << WriteJson(Result(request, step, text, ids),
                                  context.output);
  }
  return kExitOk;
}

}  // namespace ebb
