// Flags from a request, chunks from output.
#include "server/job_sample.h"

#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace ebb {
namespace {

// A line is a number.
constexpr size_t kMaxLineBytes = 32;

std::vector<std::string> Arguments(const std::string& checkpoints,
                                   const v1::SampleJobRequest& request) {
  std::vector<std::string> arguments = {
      "--sample", checkpoints, "--step", absl::StrCat(request.step()),
      "--tokens", absl::StrCat(request.num_tokens()),
      // All digits: equal requests get equal tokens.
      "--temperature", absl::StrFormat("%.17g", request.temperature()),
      "--top-k", absl::StrCat(request.top_k()), "--seed",
      absl::StrCat(request.seed())};
  if (request.has_token_ids()) arguments.push_back("--ids");
  return arguments;
}

// Turns the worker's output into chunks: a line with the step, then text as it
// is, or a line an id.
class Output {
 public:
  Output(bool ids, const SampleListener& listener)
      : ids_(ids), listener_(listener) {}

  // False: nobody listens, or the output makes no sense.
  bool Add(absl::string_view piece) {
    v1::SampleChunk chunk;
    while (!piece.empty()) {
      if (step_ > 0 && !ids_) {
        chunk.set_text(absl::StrCat(chunk.text(), piece));
        break;
      }
      const size_t end = piece.find('\n');
      absl::StrAppend(&line_, piece.substr(0, end));
      if (line_.size() > kMaxLineBytes) return Fail();
      if (end == absl::string_view::npos) break;
      piece.remove_prefix(end + 1);
      int64_t number = 0;
      if (!absl::SimpleAtoi(line_, &number)) return Fail();
      line_.clear();
      if (step_ > 0) {
        chunk.add_token_ids(static_cast<int32_t>(number));
      } else if (number > 0) {
        step_ = number;
      } else {
        return Fail();
      }
    }
    if (step_ == 0) return true;
    chunk.set_step(step_);
    return listener_.on_chunk(chunk);
  }

  bool failed() const { return failed_; }

 private:
  bool Fail() {
    failed_ = true;
    return false;
  }

  const bool ids_;
  const SampleListener& listener_;
  std::string line_;
  int64_t step_ = 0;
  bool failed_ = false;
};

}  // namespace

absl::Status SampleThroughWorker(JobTools& tools,
                                 const std::string& checkpoints,
                                 const v1::SampleJobRequest& request,
                                 const SampleListener& listener) {
  Output output(request.has_token_ids(), listener);
  ToolCall call;
  call.arguments = Arguments(checkpoints, request);
  call.input = request.has_token_ids()
                   ? absl::StrJoin(request.token_ids().ids(), " ")
                   : request.text();
  call.on_output = [&output](absl::string_view piece) {
    return output.Add(piece);
  };
  call.is_cancelled = listener.is_cancelled;
  const absl::Status status = tools.Run(call);
  if (output.failed()) {
    return absl::InternalError("the worker's output is no sample");
  }
  return status;
}

}  // namespace ebb
