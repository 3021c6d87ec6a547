#include "server/cost_profiles.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/philox.h"
#include "kernels/status.h"
#include "monitoring/log.h"
#include "nlohmann/json.hpp"
#include "proto/spec_writer.h"

namespace ebb {
namespace {

using Json = nlohmann::json;

// Ops of some thousand jobs.
constexpr size_t kMaxOps = 100000;
constexpr size_t kMaxAnswerBytes = 16 << 20;

bool IsTime(double seconds) { return std::isfinite(seconds) && seconds > 0; }

// An object of names and times; errors: INTERNAL.
absl::StatusOr<std::map<std::string, double>> ReadSeconds(
    const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InternalError("is no object of times");
  std::map<std::string, double> seconds;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_number() || !IsTime(value.get<double>())) {
      return absl::InternalError(absl::StrCat("has no time of ", key));
    }
    seconds[key] = value.get<double>();
  }
  return seconds;
}

}  // namespace

CostProfiles::CostProfiles(std::string directory)
    : directory_(std::move(directory)) {}

std::string CostProfiles::PathOf(const Backend& backend) const {
  const std::string name = absl::StrCat(
      backend.kind, "\n", backend.device_model, "\n", backend.instruction_set,
      "\n", backend.threads, "\n", backend.libraries);
  uint64_t hash = 0;
  for (const char byte : name) {
    hash = philox::Mix(hash ^ static_cast<uint8_t>(byte));
  }
  return absl::StrFormat("%s/%016x.json", directory_, hash);
}

CostProfiles::Seconds& CostProfiles::Load(const std::string& path) {
  auto [it, is_new] = by_path_.try_emplace(path);
  if (!is_new) return it->second;
  std::ifstream file(path);
  if (!file) return it->second;
  const std::string text(std::istreambuf_iterator<char>(file), {});
  auto seconds = ReadSeconds(text);
  if (seconds.ok()) {
    it->second = *std::move(seconds);
  } else {
    EBB_LOG(WARNING) << "measured times are left out: " << path << " "
                     << seconds.status().message();
  }
  return it->second;
}

CostProfile CostProfiles::ProfileOf(const Backend& backend,
                                    const std::string& offload_dir) {
  CostProfile profile = RooflineProfile(backend);
  absl::MutexLock lock(&mutex_);
  profile.TakeMeasured(Load(PathOf(backend)), offload_dir);
  return profile;
}

void CostProfiles::Keep(const Backend& backend,
                        const std::map<std::string, double>& seconds) {
  const std::string path = PathOf(backend);
  absl::MutexLock lock(&mutex_);
  Seconds& known = Load(path);
  for (const auto& [key, value] : seconds) {
    const bool has_room = known.size() < kMaxOps || known.count(key) != 0;
    if (IsTime(value) && has_room) known[key] = value;
  }
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  // Beside it and renamed: a reader after a crash finds the old or the new.
  const std::string beside = absl::StrCat(path, ".new");
  std::ofstream file(beside, std::ios::trunc);
  file << Json(known).dump(1) << "\n";
  file.close();
  if (file) std::filesystem::rename(beside, path, error);
  if (!file || error) {
    EBB_LOG(WARNING) << "measured times are not kept: cannot write " << path;
  }
}

absl::StatusOr<std::map<std::string, double>> ProfileThroughWorker(
    JobTools& tools, const v1::JobSpec& spec,
    const std::string& offload_directory,
    const std::function<bool()>& cancelled) {
  std::string output;
  ToolCall call;
  call.arguments = {"--profile", offload_directory};
  call.input = SpecToJson(spec);
  call.on_output = [&output](absl::string_view piece) {
    absl::StrAppend(&output, piece);
    return output.size() <= kMaxAnswerBytes;
  };
  call.is_cancelled = cancelled;
  EBB_RETURN_IF_ERROR(tools.Run(call));
  auto seconds = ReadSeconds(output);
  if (!seconds.ok()) {
    return absl::InternalError(
        absl::StrCat("the worker's profile ", seconds.status().message()));
  }
  return seconds;
}

}  // namespace ebb
