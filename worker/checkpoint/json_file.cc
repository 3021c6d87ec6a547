// See json_file.h.
#include "worker/checkpoint/json_file.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "worker/checkpoint/file_io.h"

namespace ebb {
namespace {

using Json = nlohmann::json;

// Deepest values that the library's parser hands to a callback.
constexpr int kDeepest = 32;

}  // namespace

absl::StatusOr<Json> ParseJson(absl::string_view text) {
  // The parser takes a zero byte for the end.
  if (text.find('\0') != absl::string_view::npos) {
    return absl::DataLossError("not JSON: it has a zero byte");
  }
  std::string complaint;
  std::vector<std::set<std::string>> members;  // of the objects that are open
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepest) complaint = absl::StrCat("deeper than ", kDeepest);
    if (!complaint.empty()) return false;
    if (event == Json::parse_event_t::object_start) {
      members.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      members.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!members.back().insert(name).second) {
        complaint = absl::StrCat("two members named ", name.substr(0, 100));
      }
    }
    return true;
  };
  try {
    Json value = Json::parse(text.begin(), text.end(), watch);
    if (!complaint.empty()) return absl::DataLossError(complaint);
    return value;
  } catch (const Json::parse_error& error) {
    return absl::DataLossError(absl::StrCat("not JSON at byte ", error.byte));
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrCat("not JSON: error ", error.id));
  }
}

absl::StatusOr<Json> ReadJsonFile(const std::string& path) {
  EBB_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.bytes() > kLargestJsonFile) {
    return absl::DataLossError(absl::StrCat("at most ", kLargestJsonFile,
                                            " bytes are taken, found ",
                                            file.bytes(), ": ", path));
  }
  std::string text(static_cast<size_t>(file.bytes()), '\0');
  EBB_RETURN_IF_ERROR(file.Read(0, text.data(), file.bytes()));
  absl::StatusOr<Json> value = ParseJson(text);
  if (!value.ok()) return Annotate(value.status(), path);
  if (!value->is_object()) {
    return absl::DataLossError(absl::StrCat("no JSON object: ", path));
  }
  return value;
}

}  // namespace ebb
