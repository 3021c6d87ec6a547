// Writing a directory: weights in files of bounded size with their index,
// moments, configuration; into a directory of another name, which gets its own
// when everything is on the disk.
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/file_io.h"
#include "worker/checkpoint/huggingface.h"
#include "worker/checkpoint/huggingface_config.h"
#include "worker/checkpoint/huggingface_names.h"
#include "worker/checkpoint/safetensors.h"

namespace ebb {
namespace {

// Elements of a transposed tensor that are held at a time, beside the tensor.
constexpr int64_t kBlockElements = int64_t{1} << 20;

// A tensor to be written and the checkpoint's tensor that it is a part of.
struct Source {
  const CheckpointEntry* entry = nullptr;
  HuggingFaceTensor part;

  int64_t bytes() const {
    return part.rows * entry->type.row_elements() * int64_t{sizeof(float)};
  }
};

// One file of weights.
struct Shard {
  std::vector<Source> sources;
  int64_t bytes = 0;
};

// Names of one layer come together, and layers in the order of their numbers.
absl::StatusOr<std::vector<Source>> SourcesOf(
    const CheckpointReader& checkpoint, HuggingFaceFamily family,
    const ModelSpec& model, CheckpointRole role) {
  std::vector<Source> sources;
  for (const CheckpointEntry& entry : checkpoint.entries()) {
    if (entry.role != role) continue;
    if (entry.type.dtype != DType::kF32) {
      return absl::UnimplementedError(absl::StrCat(entry.name, " is ",
                                                   StoredTypeText(entry.type),
                                                   ": only fp32 is exported"));
    }
    EBB_ASSIGN_OR_RETURN(
        std::vector<HuggingFaceTensor> parts,
        HuggingFaceTensorsOf(family, model, entry.name, entry.type));
    for (HuggingFaceTensor& part : parts) {
      sources.push_back({&entry, std::move(part)});
    }
  }
  return sources;
}

// Cuts before a tensor that would make a file too large.
std::vector<Shard> MakeShards(std::vector<Source> sources,
                              int64_t shard_bytes) {
  std::vector<Shard> shards(1);
  for (Source& source : sources) {
    const int64_t bytes = source.bytes();
    if (shards.back().bytes > 0 && shards.back().bytes + bytes > shard_bytes) {
      shards.emplace_back();
    }
    shards.back().bytes += bytes;
    shards.back().sources.push_back(std::move(source));
  }
  return shards;
}

// Writes the rows of one part, as [in, out] where the file wants that.
absl::Status WritePart(const Source& source, const std::vector<float>& values,
                       SafetensorsWriter& writer) {
  const HuggingFaceTensor& part = source.part;
  const int64_t columns = source.entry->type.row_elements();
  const float* const from = values.data() + part.first_row * columns;
  if (!part.transposed) {
    return writer.Write({from, static_cast<size_t>(part.rows * columns)});
  }
  const int64_t block =
      std::clamp<int64_t>(kBlockElements / part.rows, 1, columns);
  std::vector<float> rows(static_cast<size_t>(block * part.rows));
  for (int64_t first = 0; first < columns; first += block) {
    const int64_t count = std::min(block, columns - first);
    for (int64_t row = 0; row < part.rows; ++row) {
      for (int64_t n = 0; n < count; ++n) {
        rows[n * part.rows + row] = from[row * columns + first + n];
      }
    }
    EBB_RETURN_IF_ERROR(
        writer.Write({rows.data(), static_cast<size_t>(count * part.rows)}));
  }
  return absl::OkStatus();
}

// Writes directories of one checkpoint.
class Exporter {
 public:
  Exporter(const CheckpointReader& checkpoint, std::string directory,
           const ExportSettings& options, FileSystem& files)
      : checkpoint_(checkpoint),
        directory_(std::move(directory)),
        options_(options),
        files_(files) {}

  absl::Status WriteText(const std::string& name, const std::string& text) {
    OutputFile file(files_, PathWithin(directory_, name));
    EBB_RETURN_IF_ERROR(file.Create());
    EBB_RETURN_IF_ERROR(
        file.Write(text.data(), static_cast<int64_t>(text.size())));
    EBB_RETURN_IF_ERROR(file.SyncAndClose());
    Count(name, static_cast<int64_t>(text.size()));
    return absl::OkStatus();
  }

  // `suffixes` are what stands behind the tensors' names, by role.
  absl::Status WriteTensors(
      const std::string& name, const std::vector<Source>& sources,
      const std::map<CheckpointRole, std::string>& suffixes,
      const std::map<std::string, std::string>& metadata) {
    std::vector<SafetensorsOutput> outputs;
    int64_t bytes = 0;
    for (const Source& source : sources) {
      outputs.push_back(
          {absl::StrCat(source.part.name, suffixes.at(source.entry->role)),
           source.part.shape});
      bytes += source.bytes();
    }
    SafetensorsWriter writer(files_, PathWithin(directory_, name));
    EBB_RETURN_IF_ERROR(writer.Begin(outputs, metadata));
    const CheckpointEntry* held = nullptr;
    std::vector<float> values;
    for (const Source& source : sources) {
      if (options_.cancelled()) return absl::CancelledError("cancelled");
      // Parts of one parameter follow each other.
      if (source.entry != held) {
        held = source.entry;
        values.resize(static_cast<size_t>(held->type.num_elements()));
        EBB_RETURN_IF_ERROR(checkpoint_.Read(held->name, held->role, held->type,
                                             values.data()));
      }
      EBB_RETURN_IF_ERROR(WritePart(source, values, writer));
    }
    EBB_RETURN_IF_ERROR(writer.Finish());
    Count(name, bytes);
    return absl::OkStatus();
  }

  const ExportedFiles& exported() const { return exported_; }

 private:
  void Count(const std::string& name, int64_t bytes) {
    exported_.names.push_back(name);
    exported_.bytes += bytes;
  }

  const CheckpointReader& checkpoint_;
  const std::string directory_;
  const ExportSettings& options_;
  FileSystem& files_;
  ExportedFiles exported_;
};

absl::Status WriteWeights(Exporter& exporter, std::vector<Source> sources,
                          int64_t shard_bytes) {
  // What the library wants to see before it reads a file.
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  const std::map<CheckpointRole, std::string> suffixes = {
      {CheckpointRole::kParameter, ""}};
  const std::vector<Shard> shards = MakeShards(std::move(sources), shard_bytes);
  if (shards.size() == 1) {
    return exporter.WriteTensors("model.safetensors", shards[0].sources,
                                 suffixes, metadata);
  }
  nlohmann::ordered_json index;
  int64_t total = 0;
  for (const Shard& shard : shards) total += shard.bytes;
  index["metadata"]["total_size"] = total;
  nlohmann::ordered_json& map = index["weight_map"];
  for (size_t n = 0; n < shards.size(); ++n) {
    const std::string name =
        absl::StrFormat("model-%05d-of-%05d.safetensors", n + 1, shards.size());
    for (const Source& source : shards[n].sources) {
      map[source.part.name] = name;
    }
    EBB_RETURN_IF_ERROR(
        exporter.WriteTensors(name, shards[n].sources, suffixes, metadata));
  }
  return exporter.WriteText("model.safetensors.index.json",
                            absl::StrCat(index.dump(2), "\n"));
}

absl::StatusOr<ExportedFiles> WriteAll(const CheckpointReader& checkpoint,
                                       const ModelSpec& model,
                                       HuggingFaceFamily family,
                                       const std::string& directory,
                                       const ExportSettings& options,
                                       FileSystem& files) {
  Exporter exporter(checkpoint, directory, options, files);
  EBB_RETURN_IF_ERROR(exporter.WriteText(
      "config.json", absl::StrCat(MakeConfig(family, model).dump(2), "\n")));
  EBB_ASSIGN_OR_RETURN(
      std::vector<Source> weights,
      SourcesOf(checkpoint, family, model, CheckpointRole::kParameter));
  EBB_RETURN_IF_ERROR(
      WriteWeights(exporter, std::move(weights), options.shard_bytes));

  std::vector<Source> moments;
  const std::map<CheckpointRole, std::string> suffixes = {
      {CheckpointRole::kFirstMoment, ".first_moment"},
      {CheckpointRole::kSecondMoment, ".second_moment"}};
  for (const auto& [role, suffix] : suffixes) {
    EBB_ASSIGN_OR_RETURN(std::vector<Source> sources,
                         SourcesOf(checkpoint, family, model, role));
    std::move(sources.begin(), sources.end(), std::back_inserter(moments));
  }
  if (!moments.empty()) {
    EBB_RETURN_IF_ERROR(exporter.WriteTensors(
        "optimizer.safetensors", moments, suffixes,
        {{"step", absl::StrCat(checkpoint.meta().step)}}));
  }
  return exporter.exported();
}

// A directory may be written there: nothing is, or an empty one.
absl::Status CheckPlace(const std::string& directory, FileSystem& files) {
  std::vector<std::string> names;
  const int error = files.List(directory, &names);
  if (error == 0 && !names.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory, " is not empty"));
  }
  if (error == ENOTDIR) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory, " is no directory"));
  }
  if (error != 0 && error != ENOENT) return IoError("list", directory, error);
  const std::string above =
      directory.substr(0, std::max<size_t>(directory.find_last_of('/'), 1));
  struct stat info;
  if (stat(above.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("no such directory: ", above));
  }
  if (access(above.c_str(), W_OK | X_OK) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("may not write in ", above));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExportedFiles> ExportHuggingFace(
    const CheckpointReader& checkpoint, const ModelSpec& model,
    const std::string& directory, const ExportSettings& options,
    FileSystem& files) {
  EBB_CHECK(absl::StartsWith(directory, "/") && options.shard_bytes > 0);
  EBB_ASSIGN_OR_RETURN(const HuggingFaceFamily family, FamilyOfModel(model));
  // "DIR/" is DIR.
  std::string path = directory;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  EBB_RETURN_IF_ERROR(CheckPlace(path, files));
  EBB_ASSIGN_OR_RETURN(const std::string partial,
                       MakeNumbered(files, absl::StrCat(path, ".partial-")));
  absl::StatusOr<ExportedFiles> exported =
      WriteAll(checkpoint, model, family, partial, options, files);
  absl::Status status = exported.status();
  if (status.ok()) status = SyncDirectory(files, partial);
  if (status.ok()) {
    // Replaces an empty directory, and none that was filled meanwhile.
    const int error = files.Rename(partial, path);
    if (error == EEXIST || error == ENOTEMPTY || error == ENOTDIR) {
      status = absl::FailedPreconditionError(
          absl::StrCat(path, " is there, and no empty directory"));
    } else if (error != 0) {
      status = IoError("rename", partial, error);
    }
  }
  if (!status.ok()) {
    RemoveTree(files, partial).IgnoreError();
    return status;
  }
  EBB_RETURN_IF_ERROR(SyncDirectory(
      files, path.substr(0, std::max<size_t>(path.find_last_of('/'), 1))));
  return exported;
}

}  // namespace ebb
