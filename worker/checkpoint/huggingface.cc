// Reading a directory: everything is matched before anything is read.
#include "worker/checkpoint/huggingface.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/status.h"
#include "worker/checkpoint/file_io.h"
#include "worker/checkpoint/huggingface_config.h"
#include "worker/checkpoint/huggingface_names.h"
#include "worker/checkpoint/json_file.h"
#include "worker/checkpoint/safetensors.h"

namespace ebb {
namespace {

constexpr char kConfig[] = "config.json";
constexpr char kWeights[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
// Every shard is an open file; the largest published models have some 200.
constexpr size_t kMostShards = 800;
// Names in one list of a message.
constexpr size_t kMostNames = 20;
// Elements of a transposed tensor that are held at a time.
constexpr int64_t kBlockElements = int64_t{1} << 20;

bool Exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

// "a, b and 3 more".
std::string Listed(const std::vector<std::string>& names) {
  if (names.size() <= kMostNames) return absl::StrJoin(names, ", ");
  return absl::StrCat(
      absl::StrJoin(names.begin(), names.begin() + kMostNames, ", "), " and ",
      names.size() - kMostNames, " more");
}

// What is wrong with a directory, gathered in lists.
struct Problems {
  std::vector<std::string> config;
  std::vector<std::string> files;
  std::vector<std::string> missing;
  std::vector<std::string> different;
  std::vector<std::string> twice;

  absl::Status ToStatus(const std::string& directory) const {
    std::string text;
    const auto append = [&](const char* what,
                            const std::vector<std::string>& list) {
      if (list.empty()) return;
      absl::StrAppend(&text, "; ", what, Listed(list));
    };
    append("config.json: ", config);
    append("files: ", files);
    append("missing: ", missing);
    append("different: ", different);
    append("under two names: ", twice);
    if (text.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the weights of ", directory, " are not this model's", text));
  }
};

// The tensors of a directory by name, from one file or many.
class Tensors {
 public:
  struct Found {
    const SafetensorsReader* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };

  // Opens index and files; what is wrong is in `problems`, and the rest is
  // there.
  static Tensors Open(const std::string& directory, Problems* problems) {
    Tensors tensors;
    const std::string index = PathWithin(directory, kIndex);
    const std::string single = PathWithin(directory, kWeights);
    if (Exists(index)) {
      tensors.ReadIndex(directory, problems);
      if (Exists(single) && tensors.files_.count(kWeights) == 0) {
        problems->files.push_back(
            absl::StrCat(kIndex, " does not name ", kWeights,
                         ", which is there, too: remove one of them"));
      }
    } else if (const SafetensorsReader* file =
                   tensors.AddFile(directory, kWeights, problems)) {
      for (const SafetensorsEntry& entry : file->entries()) {
        tensors.found_[entry.name] = {file, &entry};
      }
    }
    return tensors;
  }

  // By name; an entry is null for a name that the index has and that cannot be
  // had, which is a problem already.
  const std::map<std::string, Found>& found() const { return found_; }

  // Copies of tensors that the index takes from elsewhere, or not at all.
  const std::vector<std::string>& passed_over() const { return passed_over_; }

 private:
  const SafetensorsReader* AddFile(const std::string& directory,
                                   const std::string& name,
                                   Problems* problems) {
    absl::StatusOr<SafetensorsReader> file =
        SafetensorsReader::Open(PathWithin(directory, name));
    if (!file.ok()) {
      problems->files.push_back(std::string(file.status().message()));
      return nullptr;
    }
    return (files_[name] =
                std::make_unique<SafetensorsReader>(*std::move(file)))
        .get();
  }

  void ReadIndex(const std::string& directory, Problems* problems) {
    const absl::StatusOr<nlohmann::json> index =
        ReadJsonFile(PathWithin(directory, kIndex));
    if (!index.ok()) {
      problems->files.push_back(std::string(index.status().message()));
      return;
    }
    const auto map = index->find("weight_map");
    if (map == index->end() || !map->is_object()) {
      problems->files.push_back(absl::StrCat(kIndex, " has no weight_map"));
      return;
    }
    std::set<std::string> opened;  // or refused
    for (const auto& [tensor, file] : map->items()) {
      const std::string name = file.is_string() ? file.get<std::string>() : "";
      // A plain name: nothing outside the directory is ever opened.
      if (name.empty() || name[0] == '.' ||
          name.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
        problems->files.push_back(
            absl::StrCat(kIndex, " has ", tensor, " in '", name.substr(0, 100),
                         "', which is no plain name of a file"));
        found_[tensor] = {};
        continue;
      }
      if (opened.insert(name).second) {
        if (opened.size() > kMostShards) {
          problems->files.push_back(
              absl::StrCat(kIndex, " names more than ", kMostShards, " files"));
          return;
        }
        AddFile(directory, name, problems);
      }
      const auto shard = files_.find(name);
      if (shard == files_.end()) {
        found_[tensor] = {};
        continue;
      }
      const SafetensorsEntry* const entry = shard->second->Find(tensor);
      if (entry == nullptr) {
        problems->missing.push_back(absl::StrCat(
            tensor, " (", kIndex, " has it in ", name, ", which has not)"));
      }
      found_[tensor] = {shard->second.get(), entry};
    }
    for (const auto& [name, file] : files_) {
      for (const SafetensorsEntry& entry : file->entries()) {
        const auto found = found_.find(entry.name);
        if (found != found_.end() && found->second.entry == &entry) continue;
        passed_over_.push_back(absl::StrCat(
            entry.name, " in ", name, " (",
            found == found_.end() ? "not in the index"
                                  : "the index takes it from elsewhere",
            ")"));
      }
    }
  }

  std::map<std::string, std::unique_ptr<SafetensorsReader>> files_;
  std::map<std::string, Found> found_;
  std::vector<std::string> passed_over_;
};

// A tensor and where it goes.
struct MatchedTensor {
  Tensors::Found from;
  HuggingFaceTensor part;
  const WantedWeight* weight = nullptr;
};

// A directory that holds a model's weights.
struct MatchedDirectory {
  Tensors tensors;
  std::vector<MatchedTensor> parts;
  // The head's own copy where embeddings are tied.
  std::optional<Tensors::Found> tied_head;
  UnusedTensors unused;
};

bool IsRead(const char* dtype) {
  const absl::string_view name = dtype;
  return name == "F32" || name == "BF16" || name == "F16";
}

class Matcher {
 public:
  Matcher(const HuggingFaceTable& table, const ModelSpec& model,
          const Tensors& tensors, Problems* problems)
      : table_(table), model_(model), tensors_(tensors), problems_(problems) {}

  // The tensor of a name that must be there, of this shape; nothing, and a
  // problem more, if it is not.
  std::optional<Tensors::Found> Take(const std::string& name,
                                     const std::vector<int64_t>& shape) {
    const auto& found = tensors_.found();
    const auto whole = found.find(name);
    const auto bare = found.find(WithoutPrefix(table_, name));
    const auto end = found.end();
    const std::string want = absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
    if (whole == end && bare == end) {
      problems_->missing.push_back(absl::StrCat(name, " ", want));
      return std::nullopt;
    }
    if (whole != end) taken_.insert(whole->first);
    if (bare != end) taken_.insert(bare->first);
    if (whole != end && bare != end && whole != bare) {
      problems_->twice.push_back(
          absl::StrCat(whole->first, " and ", bare->first));
      return std::nullopt;
    }
    const auto& [stored_name, from] = whole != end ? *whole : *bare;
    if (from.entry == nullptr) return std::nullopt;  // said already
    if (from.entry->shape != shape || !IsRead(from.entry->dtype)) {
      problems_->different.push_back(
          absl::StrCat(stored_name, ": want F32, BF16 or F16 ", want, ", have ",
                       SafetensorsTypeText(*from.entry)));
      return std::nullopt;
    }
    return from;
  }

  bool Has(const std::string& name) const {
    return tensors_.found().count(name) != 0;
  }

  std::vector<MatchedTensor> TakeParts(absl::Span<const WantedWeight> wanted) {
    std::vector<MatchedTensor> parts;
    for (const WantedWeight& weight : wanted) {
      EBB_CHECK(weight.type.dtype == DType::kF32);
      absl::StatusOr<std::vector<HuggingFaceTensor>> tensors =
          HuggingFaceTensorsOf(table_.family, model_, weight.name, weight.type);
      if (!tensors.ok()) {
        problems_->missing.push_back(std::string(tensors.status().message()));
        continue;
      }
      for (HuggingFaceTensor& tensor : *tensors) {
        if (const auto from = Take(tensor.name, tensor.shape)) {
          parts.push_back({*from, std::move(tensor), &weight});
        }
      }
    }
    return parts;
  }

  UnusedTensors Unused() const {
    UnusedTensors unused = tensors_.passed_over();
    for (const auto& [name, from] : tensors_.found()) {
      if (taken_.count(name) == 0 && !IsHuggingFaceBuffer(table_, name)) {
        unused.push_back(name);
      }
    }
    return unused;
  }

 private:
  const HuggingFaceTable& table_;
  const ModelSpec& model_;
  const Tensors& tensors_;
  Problems* problems_;
  std::set<std::string> taken_;
};

absl::StatusOr<MatchedDirectory> Match(const std::string& directory,
                                       const ModelSpec& model,
                                       absl::Span<const WantedWeight> wanted) {
  const absl::StatusOr<nlohmann::json> config =
      ReadJsonFile(PathWithin(directory, kConfig));
  if (!config.ok()) {
    return absl::InvalidArgumentError(config.status().message());
  }
  absl::StatusOr<HuggingFaceFamily> family = FamilyOfConfig(*config);
  if (!family.ok()) {
    return Annotate(family.status(), PathWithin(directory, kConfig));
  }
  Problems problems;
  problems.config = CompareConfig(*config, *family, model);
  MatchedDirectory matched;
  matched.tensors = Tensors::Open(directory, &problems);
  // A directory without any readable file: one mistake, not hundreds.
  if (problems.files.empty() || !matched.tensors.found().empty()) {
    const HuggingFaceTable& table = TableOf(*family);
    Matcher matcher(table, model, matched.tensors, &problems);
    matched.parts = matcher.TakeParts(wanted);
    if (model.tied_embeddings && matcher.Has(table.head)) {
      matched.tied_head = matcher.Take(table.head, {model.vocab, model.hidden});
    }
    matched.unused = matcher.Unused();
  }
  EBB_RETURN_IF_ERROR(problems.ToStatus(directory));
  return matched;
}

// Reads one tensor into its rows of a weight.
absl::Status ReadPart(const MatchedTensor& matched) {
  const TensorType& type = matched.weight->type;
  const int64_t columns = type.row_elements();
  const HuggingFaceTensor& part = matched.part;
  float* const out =
      static_cast<float*>(matched.weight->out) + part.first_row * columns;
  const SafetensorsReader& file = *matched.from.file;
  const SafetensorsEntry& entry = *matched.from.entry;
  if (!part.transposed) {
    return file.Read(
        entry, 0,
        absl::MakeSpan(out, static_cast<size_t>(part.rows * columns)));
  }
  // The file's rows are the weight's columns.
  const int64_t block =
      std::clamp<int64_t>(kBlockElements / part.rows, 1, columns);
  std::vector<float> values(static_cast<size_t>(block * part.rows));
  for (int64_t first = 0; first < columns; first += block) {
    const int64_t count = std::min(block, columns - first);
    EBB_RETURN_IF_ERROR(file.Read(
        entry, first * part.rows,
        absl::MakeSpan(values.data(), static_cast<size_t>(count * part.rows))));
    for (int64_t row = 0; row < part.rows; ++row) {
      for (int64_t n = 0; n < count; ++n) {
        out[row * columns + first + n] = values[n * part.rows + row];
      }
    }
  }
  return absl::OkStatus();
}

// A tied head that is there must be the embedding.
absl::Status CheckTiedHead(const MatchedDirectory& matched,
                           absl::Span<const WantedWeight> wanted) {
  const auto embedding = std::find_if(
      wanted.begin(), wanted.end(), [](const WantedWeight& weight) {
        return weight.name == "embedding.weight";
      });
  EBB_CHECK(embedding != wanted.end());
  const float* const values = static_cast<const float*>(embedding->out);
  const int64_t elements = embedding->type.num_elements();
  std::vector<float> piece(
      static_cast<size_t>(std::min(kBlockElements, elements)));
  for (int64_t done = 0; done < elements;) {
    const int64_t count = std::min(kBlockElements, elements - done);
    EBB_RETURN_IF_ERROR(matched.tied_head->file->Read(
        *matched.tied_head->entry, done,
        absl::MakeSpan(piece.data(), static_cast<size_t>(count))));
    if (std::memcmp(piece.data(), values + done,
                    static_cast<size_t>(count) * sizeof(float)) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          matched.tied_head->entry->name,
          " is not the embedding, and tie_word_embeddings says it is: ",
          matched.tied_head->file->path()));
    }
    done += count;
  }
  return absl::OkStatus();
}

}  // namespace

bool IsHuggingFaceDirectory(absl::string_view directory) {
  return Exists(PathWithin(directory, kConfig));
}

absl::StatusOr<UnusedTensors> CheckHuggingFaceWeights(
    absl::string_view directory, const ModelSpec& model,
    absl::Span<const WantedWeight> wanted) {
  EBB_ASSIGN_OR_RETURN(const MatchedDirectory matched,
                       Match(std::string(directory), model, wanted));
  return matched.unused;
}

absl::StatusOr<UnusedTensors> ReadHuggingFaceWeights(
    absl::string_view directory, const ModelSpec& model,
    absl::Span<const WantedWeight> wanted) {
  EBB_ASSIGN_OR_RETURN(const MatchedDirectory matched,
                       Match(std::string(directory), model, wanted));
  for (const MatchedTensor& part : matched.parts) {
    EBB_RETURN_IF_ERROR(ReadPart(part));
  }
  if (matched.tied_head) {
    EBB_RETURN_IF_ERROR(CheckTiedHead(matched, wanted));
  }
  return matched.unused;
}

}  // namespace ebb
