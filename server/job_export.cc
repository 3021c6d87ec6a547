// Arguments out, one line of JSON back.
#include "server/job_export.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace ebb {
namespace {

using Json = nlohmann::json;

// Names of files and two paths: far below.
constexpr size_t kMaxAnswerBytes = 1 << 20;

bool IsAnswer(const Json& answer) {
  const auto has = [&](const char* name, Json::value_t type) {
    return answer.contains(name) && answer[name].type() == type;
  };
  return answer.is_object() && has("step", Json::value_t::number_unsigned) &&
         has("bytes", Json::value_t::number_unsigned) &&
         has("checkpoint", Json::value_t::string) &&
         has("directory", Json::value_t::string) &&
         has("files", Json::value_t::array);
}

}  // namespace

absl::StatusOr<v1::ExportJobResponse> ExportThroughWorker(
    JobTools& tools, const std::string& checkpoints,
    const v1::ExportJobRequest& request,
    const std::function<bool()>& cancelled) {
  std::string output;
  ToolCall call;
  call.arguments = {"--export",      checkpoints,
                    "--to",          request.directory(),
                    "--step",        absl::StrCat(request.step()),
                    "--shard-bytes", absl::StrCat(request.shard_bytes())};
  call.on_output = [&output](absl::string_view piece) {
    absl::StrAppend(&output, piece);
    return output.size() <= kMaxAnswerBytes;
  };
  call.is_cancelled = cancelled;
  EBB_RETURN_IF_ERROR(tools.Run(call));
  const Json answer = Json::parse(output, nullptr, /*allow_exceptions=*/false);
  if (!IsAnswer(answer)) {
    return absl::InternalError("the worker's answer to an export is none");
  }
  v1::ExportJobResponse response;
  response.set_id(request.id());
  response.set_step(answer["step"].get<int64_t>());
  response.set_directory(answer["directory"].get<std::string>());
  response.set_checkpoint_directory(answer["checkpoint"].get<std::string>());
  response.set_bytes(answer["bytes"].get<int64_t>());
  for (const Json& file : answer["files"]) {
    if (file.is_string()) response.add_files(file.get<std::string>());
  }
  return response;
}

}  // namespace ebb
