// Writing, reading, finding and removing native checkpoints.
#include "worker/checkpoint/native.h"

#include <errno.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "kernels/status.h"
#include "worker/checkpoint/crc32c.h"
#include "worker/checkpoint/file_io.h"

namespace ebb {
namespace {

constexpr char kManifestName[] = "manifest.json";
constexpr char kRankFile[] = "rank-0.bin";
// A tensor takes some 200 bytes: this is 300,000 of them, and bounds what a
// hostile manifest can make us hold.
constexpr int64_t kLargestManifest = int64_t{64} << 20;
// Bytes checked and written at a time, while they are in the cache.
constexpr int64_t kChunkBytes = int64_t{1} << 20;

// "step-12" -> 12; -1 for other names.
int64_t StepOfName(absl::string_view name) {
  int64_t step = -1;
  if (!absl::ConsumePrefix(&name, "step-") || !absl::SimpleAtoi(name, &step) ||
      step < 0 || absl::StrCat(step) != name) {
    return -1;
  }
  return step;
}

// ".step-12.replaced-3" -> 12; -1 for other names.
int64_t StepOfReplaced(absl::string_view name) {
  const size_t end = name.find(".replaced-");
  if (!absl::ConsumePrefix(&name, ".") || end == absl::string_view::npos) {
    return -1;
  }
  return StepOfName(name.substr(0, end - 1));
}

bool IsPartial(absl::string_view name) {
  return absl::StartsWith(name, ".step-") &&
         absl::StrContains(name, ".partial-");
}

// Fills the partial directory: rank file, manifest, and itself synced.
absl::StatusOr<int64_t> FillDirectory(
    FileSystem& files, const std::string& directory, const CheckpointMeta& meta,
    absl::Span<const CheckpointTensor> tensors) {
  static constexpr std::array<char, kAlignment> kZeros = {};
  Manifest manifest;
  manifest.meta = meta;
  int64_t end = 0;
  OutputFile data(files, PathWithin(directory, kRankFile));
  EBB_RETURN_IF_ERROR(data.Create());
  for (const CheckpointTensor& tensor : tensors) {
    if (tensor.fetch != nullptr) EBB_RETURN_IF_ERROR(tensor.fetch());
    const int64_t bytes = tensor.type.bytes();
    const int64_t padding = AlignUp(bytes) - bytes;
    const char* from = static_cast<const char*>(tensor.data);
    uint32_t crc = 0;
    for (int64_t done = 0; done < bytes; done += kChunkBytes) {
      const int64_t chunk = std::min(kChunkBytes, bytes - done);
      crc = Crc32c(crc, from + done, chunk);
      EBB_RETURN_IF_ERROR(data.Write(from + done, chunk));
    }
    if (padding > 0) {
      crc = Crc32c(crc, kZeros.data(), padding);
      EBB_RETURN_IF_ERROR(data.Write(kZeros.data(), padding));
    }
    CheckpointEntry entry;
    entry.name = tensor.name;
    entry.role = tensor.role;
    entry.type = tensor.type;
    entry.file = kRankFile;
    entry.offset = end;
    entry.crc = crc;
    manifest.tensors.push_back(std::move(entry));
    end += bytes + padding;
  }
  EBB_RETURN_IF_ERROR(data.SyncAndClose());
  manifest.files = {{kRankFile, end}};

  EBB_ASSIGN_OR_RETURN(const std::string text, PrintManifest(manifest));
  if (static_cast<int64_t>(text.size()) > kLargestManifest) {
    return absl::InvalidArgumentError(
        absl::StrCat("the manifest takes ", text.size(),
                     " bytes: want at most ", kLargestManifest));
  }
  OutputFile file(files, PathWithin(directory, kManifestName));
  EBB_RETURN_IF_ERROR(file.Create());
  EBB_RETURN_IF_ERROR(
      file.Write(text.data(), static_cast<int64_t>(text.size())));
  EBB_RETURN_IF_ERROR(file.SyncAndClose());
  EBB_RETURN_IF_ERROR(SyncDirectory(files, directory));
  return end + static_cast<int64_t>(text.size());
}

// Gives the finished partial directory its name, synced. A checkpoint that has
// the name is swapped out, or waits beside it meanwhile; it goes only when the
// new one is safe. What of it cannot be removed is left to pruning.
absl::Status Publish(FileSystem& files, const std::string& parent,
                     const std::string& partial, int64_t step) {
  const std::string final_path = PathWithin(parent, CheckpointName(step));
  int error = files.Rename(partial, final_path);
  if (error == 0) return SyncDirectory(files, parent);
  if (error != EEXIST && error != ENOTEMPTY) {
    return IoError("rename", partial, error);
  }
  error = files.Exchange(partial, final_path);
  if (error == 0) {
    EBB_RETURN_IF_ERROR(SyncDirectory(files, parent));
    // The old one, now under this name. What stays goes with pruning.
    RemoveTree(files, partial).IgnoreError();
    return absl::OkStatus();
  }
  if (error != ENOSYS && error != EINVAL && error != ENOTSUP) {
    return IoError("exchange", partial, error);
  }
  EBB_ASSIGN_OR_RETURN(
      const std::string waiting,
      MakeNumbered(files, absl::StrCat(parent, "/.", CheckpointName(step),
                                       ".replaced-")));
  // A rename replaces an empty directory.
  error = files.Rename(final_path, waiting);
  if (error != 0) return IoError("rename", final_path, error);
  error = files.Rename(partial, final_path);
  if (error != 0) {
    files.Rename(waiting, final_path);
    return IoError("rename", partial, error);
  }
  EBB_RETURN_IF_ERROR(SyncDirectory(files, parent));
  RemoveTree(files, waiting).IgnoreError();
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadManifestText(const std::string& directory) {
  const std::string path = PathWithin(directory, kManifestName);
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return errno == ENOENT || errno == ENOTDIR
               ? absl::NotFoundError(absl::StrCat(
                     directory, " is no checkpoint: it has no ", kManifestName))
               : IoError("open", path, errno);
  }
  if (!S_ISREG(info.st_mode) || info.st_size > kLargestManifest) {
    return absl::DataLossError(
        absl::StrCat(path, " is not a manifest: ", info.st_size, " bytes"));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  EBB_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  EBB_RETURN_IF_ERROR(file.Read(0, text.data(), info.st_size));
  return text;
}

struct Candidate {
  int64_t step;
  std::string name;
};

// Complete-looking directories below `parent`, newest first; one that waits to
// be replaced comes behind the one with the name.
absl::StatusOr<std::vector<Candidate>> ListCandidates(
    const std::string& parent) {
  std::vector<std::string> names;
  const int error = PosixFileSystem().List(parent, &names);
  if (error == ENOENT || error == ENOTDIR) {
    return absl::NotFoundError(absl::StrCat(parent, " is no directory"));
  }
  if (error != 0) return IoError("list", parent, error);
  std::vector<Candidate> candidates;
  for (const std::string& name : names) {
    const int64_t step = std::max(StepOfName(name), StepOfReplaced(name));
    if (step >= 0) candidates.push_back({step, name});
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) {
              if (a.step != b.step) return a.step > b.step;
              return a.name > b.name;  // "step-N" before ".step-N.replaced-K"
            });
  return candidates;
}

}  // namespace

std::string CheckpointName(int64_t step) { return absl::StrCat("step-", step); }

absl::StatusOr<int64_t> WriteCheckpoint(
    absl::string_view parent, const CheckpointMeta& meta,
    absl::Span<const CheckpointTensor> tensors, FileSystem& files) {
  std::set<std::pair<std::string, CheckpointRole>> seen;
  for (const CheckpointTensor& tensor : tensors) {
    if (!seen.emplace(tensor.name, tensor.role).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two tensors named ", tensor.name, " with role ",
                       CheckpointRoleName(tensor.role)));
    }
  }
  const std::string directory(parent);
  EBB_RETURN_IF_ERROR(MakeDirectories(files, directory));
  EBB_ASSIGN_OR_RETURN(
      const std::string partial,
      MakeNumbered(files,
                   absl::StrCat(directory, "/.", CheckpointName(meta.step),
                                ".partial-")));
  absl::StatusOr<int64_t> bytes = FillDirectory(files, partial, meta, tensors);
  absl::Status status = bytes.status();
  if (status.ok()) status = Publish(files, directory, partial, meta.step);
  if (!status.ok()) {
    RemoveTree(files, partial).IgnoreError();
    return status;
  }
  return bytes;
}

absl::StatusOr<CheckpointReader> CheckpointReader::Open(
    absl::string_view directory) {
  CheckpointReader reader;
  reader.directory_ = std::string(directory);
  EBB_ASSIGN_OR_RETURN(const std::string text,
                       ReadManifestText(reader.directory_));
  absl::StatusOr<Manifest> manifest = ParseManifest(text);
  if (!manifest.ok()) {
    return Annotate(manifest.status(),
                    PathWithin(reader.directory_, kManifestName));
  }
  for (const ManifestFile& file : manifest->files) {
    const std::string path = PathWithin(reader.directory_, file.name);
    absl::StatusOr<InputFile> data = InputFile::Open(path);
    if (absl::IsNotFound(data.status())) {
      // Pruned since its manifest was read, or broken.
      EBB_RETURN_IF_ERROR(ReadManifestText(reader.directory_).status());
      return absl::DataLossError(data.status().message());
    }
    EBB_ASSIGN_OR_RETURN(InputFile opened, std::move(data));
    if (opened.bytes() != file.bytes) {
      return absl::DataLossError(absl::StrCat(path, " has ", opened.bytes(),
                                              " bytes: want ", file.bytes));
    }
    reader.files_[file.name] =
        std::make_shared<const InputFile>(std::move(opened));
  }
  reader.meta_ = std::move(manifest->meta);
  reader.entries_ = std::move(manifest->tensors);
  return reader;
}

const CheckpointEntry* CheckpointReader::Find(absl::string_view name,
                                              CheckpointRole role) const {
  const auto it = std::lower_bound(
      entries_.begin(), entries_.end(), std::make_pair(role, name),
      [](const Entry& entry,
         const std::pair<CheckpointRole, absl::string_view>& key) {
        if (entry.role != key.first) return entry.role < key.first;
        return entry.name < key.second;
      });
  if (it == entries_.end() || it->role != role || it->name != name) {
    return nullptr;
  }
  return &*it;
}

absl::Status CheckpointReader::Read(absl::string_view name, CheckpointRole role,
                                    const TensorType& type, void* out) const {
  const Entry* entry = Find(name, role);
  if (entry == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        directory_, " has no ", CheckpointRoleName(role), " ", name));
  }
  if (!(entry->type == type)) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " in ", directory_, ": want ", StoredTypeText(type),
                     ", have ", StoredTypeText(entry->type)));
  }
  const std::string path = PathWithin(directory_, entry->file);
  const int64_t bytes = type.bytes();
  const int64_t padding = AlignUp(bytes) - bytes;
  std::array<char, kAlignment> tail;
  const InputFile& file = *files_.at(entry->file);
  absl::Status status = file.Read(entry->offset, out, bytes);
  if (status.ok()) {
    status = file.Read(entry->offset + bytes, tail.data(), padding);
  }
  if (!status.ok()) return Annotate(status, name);
  const uint32_t crc = Crc32c(Crc32c(0, out, bytes), tail.data(), padding);
  if (crc != entry->crc) {
    return absl::DataLossError(absl::StrCat(
        "checksum of ", name, " (", CheckpointRoleName(role), ") in ", path,
        ": want ", absl::Hex(entry->crc), ", got ", absl::Hex(crc)));
  }
  return absl::OkStatus();
}

absl::Status WeightsMatch::ToStatus(absl::string_view directory) const {
  if (missing.empty() && mismatched.empty()) return absl::OkStatus();
  std::string text =
      absl::StrCat("the weights of ", directory, " are not this model's");
  if (!missing.empty()) {
    absl::StrAppend(&text, "; missing: ", absl::StrJoin(missing, ", "));
  }
  if (!mismatched.empty()) {
    absl::StrAppend(&text, "; different: ", absl::StrJoin(mismatched, ", "));
  }
  return absl::InvalidArgumentError(text);
}

WeightsMatch MatchWeights(const CheckpointReader& reader,
                          absl::Span<const WantedWeight> wanted) {
  WeightsMatch match;
  std::set<absl::string_view> names;
  for (const WantedWeight& weight : wanted) {
    names.insert(weight.name);
    const CheckpointEntry* entry =
        reader.Find(weight.name, CheckpointRole::kParameter);
    if (entry == nullptr) {
      match.missing.push_back(
          absl::StrCat(weight.name, " ", StoredTypeText(weight.type)));
    } else if (!(entry->type == weight.type)) {
      match.mismatched.push_back(
          absl::StrCat(weight.name, ": want ", StoredTypeText(weight.type),
                       ", have ", StoredTypeText(entry->type)));
    }
  }
  for (const CheckpointEntry& entry : reader.entries()) {
    if (entry.role == CheckpointRole::kParameter && !names.count(entry.name)) {
      match.unused.push_back(entry.name);
    }
  }
  return match;
}

absl::StatusOr<std::vector<std::string>> ReadWeights(
    const CheckpointReader& reader, absl::Span<const WantedWeight> wanted) {
  const WeightsMatch match = MatchWeights(reader, wanted);
  EBB_RETURN_IF_ERROR(match.ToStatus(reader.directory()));
  for (const WantedWeight& weight : wanted) {
    EBB_RETURN_IF_ERROR(reader.Read(weight.name, CheckpointRole::kParameter,
                                    weight.type, weight.out));
  }
  return match.unused;
}

absl::StatusOr<FoundCheckpoint> FindNewestComplete(absl::string_view parent,
                                                   int64_t before_step) {
  const std::string directory(parent);
  FoundCheckpoint found;
  // Of all that were listed so far. Every listing after the first has a newer
  // one or is the last, so this ends when nobody writes.
  int64_t newest_step = -1;
  for (bool has_newer = true; has_newer;) {
    EBB_ASSIGN_OR_RETURN(const std::vector<Candidate> candidates,
                         ListCandidates(directory));
    has_newer = false;
    found.skipped.clear();
    for (const Candidate& candidate : candidates) {
      if (candidate.step >= before_step) continue;
      if (candidate.step > newest_step) {
        newest_step = candidate.step;
        has_newer = true;
      }
      const std::string path = PathWithin(directory, candidate.name);
      absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(path);
      absl::Status status = reader.status();
      if (status.ok() && reader->meta().step != candidate.step) {
        status = absl::DataLossError(
            absl::StrCat("its manifest is of step ", reader->meta().step));
      }
      if (status.ok()) {
        found.reader = *std::move(reader);
        found.directory = path;
        found.step = candidate.step;
        return found;
      }
      found.skipped.push_back(
          absl::StrCat(candidate.name, ": ", status.message()));
    }
  }
  return absl::NotFoundError(
      absl::StrCat("no complete checkpoint below ", parent,
                   found.skipped.empty() ? "" : "; passed over: ",
                   absl::StrJoin(found.skipped, "; ")));
}

absl::StatusOr<std::vector<std::string>> PruneCheckpoints(
    absl::string_view parent, int keep, FileSystem& files) {
  const std::string directory(parent);
  std::vector<std::string> names;
  if (const int error = files.List(directory, &names)) {
    return IoError("list", directory, error);
  }
  EBB_ASSIGN_OR_RETURN(const std::vector<Candidate> candidates,
                       ListCandidates(directory));
  std::vector<std::string> doomed;
  for (const std::string& name : names) {
    if (IsPartial(name)) doomed.push_back(name);
  }
  int num_complete = 0;
  std::set<int64_t> kept_steps;
  for (const Candidate& candidate : candidates) {
    // One that was being replaced goes once the one with the name is whole.
    if (kept_steps.count(candidate.step) != 0) {
      doomed.push_back(candidate.name);
      continue;
    }
    if (num_complete >= std::max(keep, 1)) {
      doomed.push_back(candidate.name);
      continue;
    }
    if (CheckpointReader::Open(PathWithin(directory, candidate.name)).ok()) {
      ++num_complete;
      kept_steps.insert(candidate.step);
    }
  }
  std::vector<std::string> removed;
  absl::Status status;
  for (const std::string& name : doomed) {
    const std::string path = PathWithin(directory, name);
    // Without its manifest it is no checkpoint any more: who opens it now finds
    // none, not a broken one.
    files.RemoveFile(PathWithin(path, kManifestName));
    const absl::Status failed = RemoveTree(files, path);
    if (failed.ok()) {
      removed.push_back(name);
    } else {
      status.Update(failed);
    }
  }
  if (!status.ok()) return status;
  return removed;
}

}  // namespace ebb
