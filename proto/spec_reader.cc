#include "proto/spec_reader.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/field_rules.h"
#include "proto/name_suggestion.h"
#include "proto/scalar_text.h"
#include "proto/spec_text.h"
#include "proto/validator.h"
#include "proto/violations.h"

namespace ebb {

namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Names that other trainers use, and ours: for suggestions only.
struct Synonym {
  absl::string_view name;
  absl::string_view path;
};

constexpr Synonym kSynonyms[] = {
    {"accumulate", "batch.micro"},
    {"batch_size", "batch.global"},
    {"block_size", "model.seq_len"},
    {"clip_grad", "optimizer.clip"},
    {"context_length", "model.seq_len"},
    {"d_ff", "model.ffn"},
    {"d_model", "model.hidden"},
    {"dim", "model.hidden"},
    {"dtype", "precision"},
    {"ffn_hidden_size", "model.ffn"},
    {"global_batch_size", "batch.global"},
    {"grad_clip", "optimizer.clip"},
    {"gradient_checkpointing", "memory.policy"},
    {"hidden_size", "model.hidden"},
    {"intermediate_size", "model.ffn"},
    {"learning_rate", "optimizer.lr"},
    {"max_iters", "steps"},
    {"max_steps", "steps"},
    {"micro_batch_size", "batch.micro"},
    {"min_learning_rate", "lr_schedule.min_lr"},
    {"n_ctx", "model.seq_len"},
    {"n_embd", "model.hidden"},
    {"n_head", "model.heads"},
    {"n_heads", "model.heads"},
    {"n_layer", "model.layers"},
    {"n_layers", "model.layers"},
    {"num_attention_heads", "model.heads"},
    {"num_experts", "model.experts"},
    {"num_heads", "model.heads"},
    {"num_hidden_layers", "model.layers"},
    {"num_layers", "model.layers"},
    {"num_steps", "steps"},
    {"pipeline_parallel", "parallel.pipeline"},
    {"recompute_policy", "memory.policy"},
    {"seq_length", "model.seq_len"},
    {"sequence_length", "model.seq_len"},
    {"tensor_parallel", "parallel.tensor"},
    {"tie_embeddings", "model.tied_embeddings"},
    {"train_data", "data.train"},
    {"train_steps", "steps"},
    {"vocab_size", "model.vocab"},
    {"warmup_steps", "lr_schedule.warmup"},
};

std::vector<std::string> FieldNames(const Descriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) {
    names.push_back(type.field(i)->name());
  }
  return names;
}

// Paths of all fields of the spec, sections too: last name -> full paths.
void CollectPaths(const Descriptor& type, const std::string& prefix,
                  std::multimap<std::string, std::string>& paths) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string path = JoinFieldPath(prefix, field.name());
    paths.emplace(field.name(), path);
    if (IsSection(field)) CollectPaths(*field.message_type(), path, paths);
  }
}

const std::multimap<std::string, std::string>& AllPaths() {
  static const auto& paths = *[] {
    auto* all = new std::multimap<std::string, std::string>;
    CollectPaths(*v1::JobSpec::descriptor(), "", *all);
    return all;
  }();
  return paths;
}

// What to do about a key that `section` (its message type and path) lacks.
std::string UnknownKeyFix(absl::string_view key, const Descriptor& type,
                          absl::string_view section) {
  std::string folded = absl::AsciiStrToLower(key);
  std::replace(folded.begin(), folded.end(), '-', '_');
  const auto belongs = [&](absl::string_view path) {
    const size_t dot = path.rfind('.');
    if (dot == absl::string_view::npos) {
      return absl::StrCat("write ", path, " at the top level");
    }
    const absl::string_view home = path.substr(0, dot);
    return home == section
               ? absl::StrCat("did you mean ", path.substr(dot + 1), "?")
               : absl::StrCat("write ", path.substr(dot + 1),
                              " in the section ", home, " (", path, ")");
  };
  const std::vector<std::string> names = FieldNames(type);
  if (std::find(names.begin(), names.end(), folded) != names.end()) {
    return absl::StrCat("did you mean ", folded, "?");
  }
  if (const auto [begin, end] = AllPaths().equal_range(folded); begin != end) {
    std::vector<std::string> places;
    for (auto it = begin; it != end; ++it) {
      places.push_back(belongs(it->second));
    }
    return absl::StrJoin(places, " or ");
  }
  for (const Synonym& synonym : kSynonyms) {
    if (synonym.name == folded) return belongs(synonym.path);
  }
  const std::string here = NearestName(folded, names);
  if (!here.empty()) return absl::StrCat("did you mean ", here, "?");
  std::vector<std::string> all_names;
  for (const auto& [name, path] : AllPaths()) all_names.push_back(name);
  const std::string elsewhere = NearestName(folded, all_names);
  if (!elsewhere.empty()) return belongs(AllPaths().find(elsewhere)->second);
  return absl::StrCat("remove it; keys here are ", absl::StrJoin(names, ", "));
}

// Turns the tree into the message; remembers where each path stands.
class Reader {
 public:
  explicit Reader(std::vector<v1::Violation>& violations)
      : violations_(violations) {}

  void ReadRoot(const SpecNode& root, v1::JobSpec* spec) {
    nodes_[""] = &root;
    ReadSection(root, "", spec);
  }

  // Paths whose text could not be read.
  const std::set<std::string>& unreadable() const { return unreadable_; }

  // Where everything stands that was met.
  std::map<std::string, FieldPlace> Places() const {
    std::map<std::string, FieldPlace> places;
    for (const auto& [path, node] : nodes_) {
      FieldPlace& place = places[path];
      place = {*node->file, node->line, node->column, std::nullopt};
      if (node->kind == SpecNode::Kind::kScalar) place.text = NodeText(*node);
    }
    return places;
  }

 private:
  // Nobody reads more, and a text of a mebibyte can hold a hundred thousand.
  bool IsFull() const { return violations_.size() >= kMaxViolations; }

  void Add(const SpecNode& node, const std::string& path, std::string value,
           std::string rule, std::string fix) {
    if (IsFull()) {
      unreadable_.insert(path);
      return;
    }
    v1::Violation& violation = violations_.emplace_back();
    violation.set_file(*node.file);
    violation.set_line(node.line);
    violation.set_column(node.column);
    violation.set_field(path);
    violation.set_value(std::move(value));
    violation.set_rule(std::move(rule));
    violation.set_fix(std::move(fix));
  }

  // A mistake in the value of `path`: the path is not readable.
  void Refuse(const SpecNode& node, const std::string& path, std::string rule,
              std::string fix) {
    Add(node, path, NodeText(node), std::move(rule), std::move(fix));
    unreadable_.insert(path);
  }

  // True if the node uses no part of YAML that specs leave out.
  bool CheckFeature(const SpecNode& node, const std::string& path) {
    if (node.feature.empty()) return true;
    Add(node, path, node.feature,
        "anchors, aliases, tags and merge keys are not read",
        "write the value out; text that starts with & * or ! goes in quotes");
    unreadable_.insert(path);
    return false;
  }

  void ReadSection(const SpecNode& node, const std::string& path,
                   Message* message) {
    if (!CheckFeature(node, path)) return;
    if (node.kind != SpecNode::Kind::kSection) {
      Refuse(node, path,
             path.empty() ? "a spec must be a section (`key: value` lines)"
                          : "must be a section (`key: value` lines)",
             path.empty() ? "write at least model, data, batch and steps"
                          : "write its keys below it, or remove it");
      return;
    }
    const Descriptor& type = *message->GetDescriptor();
    std::map<std::string, const SpecNode*> seen;
    for (const SpecEntry& entry : node.entries) {
      if (IsFull()) {
        unreadable_.insert("");
        break;
      }
      const SpecNode& key = entry.key;
      if (!CheckFeature(key, path)) continue;
      if (key.kind != SpecNode::Kind::kScalar) {
        Add(key, path, NodeText(key), "keys are names", "write a name");
        continue;
      }
      const std::string child = JoinFieldPath(path, key.text);
      if (const auto [first, is_new] = seen.emplace(key.text, &key); !is_new) {
        Add(key, child, key.text,
            absl::StrCat("key stands twice, first in ", *first->second->file,
                         first->second->line > 0
                             ? absl::StrCat(" line ", first->second->line)
                             : ""),
            "keep one");
        unreadable_.insert(child);
        continue;
      }
      if (key.text == "<<") {
        Add(key, child, key.text,
            "anchors, aliases, tags and merge keys are not read",
            "write the values out");
        continue;
      }
      const FieldDescriptor* field = type.FindFieldByName(key.text);
      if (field == nullptr) {
        Add(key, child, key.text, "unknown key",
            UnknownKeyFix(key.text, type, path));
        continue;
      }
      // What is wrong with a whole section is shown at its key; its value may
      // begin on the next line.
      nodes_[child] = IsSection(*field) ? &key : &entry.value;
      ReadField(entry.value, child, message, *field);
    }
  }

  void ReadField(const SpecNode& node, const std::string& path,
                 Message* message, const FieldDescriptor& field) {
    const Reflection& reflection = *message->GetReflection();
    if (IsSection(field)) {
      ReadSection(node, path, reflection.MutableMessage(message, &field));
    } else if (field.is_repeated()) {
      ReadList(node, path, message, field);
    } else if (CheckScalar(node, path, field)) {
      ReadScalar(node, path, message, field);
    }
  }

  // True if the node is a scalar that may stand for the field.
  bool CheckScalar(const SpecNode& node, const std::string& path,
                   const FieldDescriptor& field) {
    if (!CheckFeature(node, path)) return false;
    if (node.kind == SpecNode::Kind::kScalar) return true;
    const bool text = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    Refuse(node, path, Requirement(field),
           node.kind == SpecNode::Kind::kNull
               ? absl::StrCat("write a value",
                              text ? " (in quotes: \"null\", \"\")" : "",
                              ", or remove the key for the default")
               : "write one value");
    return false;
  }

  void ReadList(const SpecNode& node, const std::string& path, Message* message,
                const FieldDescriptor& field) {
    if (!CheckFeature(node, path)) return;
    if (node.kind != SpecNode::Kind::kList) {
      Refuse(node, path, "must be a list of texts", "write it as in [gelu]");
      return;
    }
    for (size_t i = 0; i < node.items.size(); ++i) {
      const SpecNode& item = node.items[i];
      const std::string item_path = absl::StrCat(path, "[", i, "]");
      nodes_[item_path] = &item;
      if (!CheckScalar(item, item_path, field)) {
        unreadable_.insert(path);
      } else {
        message->GetReflection()->AddString(message, &field, item.text);
      }
    }
  }

  void ReadScalar(const SpecNode& node, const std::string& path,
                  Message* message, const FieldDescriptor& field) {
    const Reflection& reflection = *message->GetReflection();
    const v1::FieldRule& rule = RuleOf(field);
    const std::string& text = node.text;
    // Sizes and durations have units, so they may be quoted like any text;
    // numbers and true/false must not: quotes make text of them.
    const bool is_plain_only =
        field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL ||
        (IsNumber(field) && !rule.byte_size());
    if (is_plain_only && node.quoted) {
      Refuse(node, path, absl::StrCat(Requirement(field), ", not text"),
             "remove the quotes");
      return;
    }
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        reflection.SetString(message, &field, text);
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        if (text != "true" && text != "false") {
          Refuse(node, path, Requirement(field), BoolFix(text));
        } else {
          reflection.SetBool(message, &field, text == "true");
        }
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        ReadChoice(node, path, message, field);
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        if (const auto value = Parsed(ParseDouble(text), node, path, field)) {
          reflection.SetDouble(message, &field, *value);
        }
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        if (const auto value = Parsed(ParseInt64(text), node, path, field)) {
          if (*value < std::numeric_limits<int32_t>::min() ||
              *value > std::numeric_limits<int32_t>::max()) {
            Refuse(node, path, Requirement(field), "");
          } else {
            reflection.SetInt32(message, &field, static_cast<int32_t>(*value));
          }
        }
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        if (const auto value = Parsed(
                rule.byte_size() ? ParseByteSize(text) : ParseInt64(text), node,
                path, field)) {
          reflection.SetInt64(message, &field, *value);
        }
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        if (const auto value = Parsed(ParseUint64(text), node, path, field)) {
          reflection.SetUInt64(message, &field, *value);
        }
        break;
      default:  // the only message that is a scalar
        if (const auto value = Parsed(ParseDuration(text), node, path, field)) {
          reflection.MutableMessage(message, &field)->CopyFrom(*value);
        }
        break;
    }
  }

  // Mistakes of one text that are told.
  static constexpr size_t kMaxViolations = 500;

  static bool IsNumber(const FieldDescriptor& field) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_DOUBLE:
      case FieldDescriptor::CPPTYPE_INT32:
      case FieldDescriptor::CPPTYPE_INT64:
      case FieldDescriptor::CPPTYPE_UINT64:
        return true;
      default:
        return false;
    }
  }

  static std::string BoolFix(absl::string_view text) {
    const std::string lower = absl::AsciiStrToLower(text);
    if (lower == "yes" || lower == "y" || lower == "on" || lower == "1" ||
        lower == "true") {
      return "write true";
    }
    if (lower == "no" || lower == "n" || lower == "off" || lower == "0" ||
        lower == "false") {
      return "write false";
    }
    return "write true or false";
  }

  // The value, or nothing after a violation that says what the field wants and
  // what is wrong with the text.
  template <typename T>
  std::optional<T> Parsed(Scalar<T> scalar, const SpecNode& node,
                          const std::string& path,
                          const FieldDescriptor& field) {
    if (scalar.ok()) return std::move(scalar.value);
    Refuse(node, path, absl::StrCat(Requirement(field), ": ", scalar.rule),
           scalar.fix);
    return std::nullopt;
  }

  void ReadChoice(const SpecNode& node, const std::string& path,
                  Message* message, const FieldDescriptor& field) {
    const auto* value = FindChoice(*field.enum_type(), node.text);
    if (value != nullptr) {
      message->GetReflection()->SetEnum(message, &field, value);
      return;
    }
    const std::string near =
        NearestName(node.text, ChoiceWords(*field.enum_type()));
    Refuse(node, path, Requirement(field),
           near.empty() ? "" : absl::StrCat("did you mean ", near, "?"));
  }

  std::vector<v1::Violation>& violations_;
  std::set<std::string> unreadable_;
  std::map<std::string, const SpecNode*> nodes_;
};

// A --set argument as a tree.
struct Set {
  std::vector<std::string> names;
  SpecNode value;
};

// Largest depth of a path in --set; JobSpec has three levels.
constexpr size_t kMaxSetNames = 16;

// Reads "a.b=value"; adds violations and returns nothing if it cannot.
std::optional<Set> ParseSet(const std::string& argument,
                            std::vector<v1::Violation>& violations) {
  const size_t equals = argument.find('=');
  Set set;
  bool well_formed = equals != std::string::npos && equals > 0;
  if (well_formed) {
    set.names = absl::StrSplit(argument.substr(0, equals), '.');
    well_formed = set.names.size() <= kMaxSetNames;
    for (const std::string& name : set.names) well_formed &= !name.empty();
  }
  if (!well_formed) {
    v1::Violation& violation = violations.emplace_back();
    violation.set_file("--set");
    violation.set_value(OneLine(argument));
    violation.set_rule("must be PATH=VALUE");
    violation.set_fix("write it as in --set optimizer.lr=1e-4");
    return std::nullopt;
  }
  const std::string file =
      absl::StrCat("--set ", OneLine(argument.substr(0, equals), 200));
  const std::string value = argument.substr(equals + 1);
  // Nothing is nothing, as after a colon in a file.
  SpecText text;
  if (absl::StripAsciiWhitespace(value).empty()) {
    text.root.file = std::make_shared<const std::string>(file);
  } else {
    text = ParseSpecText(value, file, SpecLanguage::kYaml, kMaxSpecBytes);
  }
  for (v1::Violation& violation : text.violations) {
    violation.set_field(argument.substr(0, equals));
    violation.set_line(0);
    violations.push_back(violation);
  }
  if (!text.violations.empty()) return std::nullopt;
  set.value = std::move(text.root);
  return set;
}

// Lines of an argument say nothing.
void ClearLines(SpecNode& node) {
  node.line = 0;
  for (SpecNode& item : node.items) ClearLines(item);
  for (SpecEntry& entry : node.entries) {
    ClearLines(entry.key);
    ClearLines(entry.value);
  }
}

// Puts the value at its path, making sections on the way. A key that stands
// twice in the file stays a mistake.
void ApplySet(Set set, SpecNode& root) {
  ClearLines(set.value);
  const std::shared_ptr<const std::string> file = set.value.file;
  SpecNode* node = &root;
  for (const std::string& name : set.names) {
    if (node->kind != SpecNode::Kind::kSection) {
      *node = SpecNode();
      node->kind = SpecNode::Kind::kSection;
      node->file = file;
    }
    auto& entries = node->entries;
    auto entry =
        std::find_if(entries.begin(), entries.end(), [&](const SpecEntry& e) {
          return e.key.kind == SpecNode::Kind::kScalar && e.key.text == name;
        });
    if (entry == entries.end()) {
      SpecEntry fresh;
      fresh.key.kind = SpecNode::Kind::kScalar;
      fresh.key.text = name;
      fresh.key.file = file;
      fresh.value.file = file;
      entries.push_back(std::move(fresh));
      entry = std::prev(entries.end());
    }
    node = &entry->value;
  }
  *node = std::move(set.value);
}

// Stores change(path, text) in every field that is set and has rule.path.
template <typename Change>
void ChangePaths(Message* message, const std::string& prefix,
                 const Change& change) {
  const Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string path = JoinFieldPath(prefix, field->name());
    if (IsSection(*field)) {
      ChangePaths(reflection.MutableMessage(message, field), path, change);
    } else if (RuleOf(*field).path()) {
      reflection.SetString(message, field,
                           change(path, reflection.GetString(*message, field)));
    }
  }
}

// Gives a violation the place of its field, or of the section around one that
// is not set.
void Locate(const std::map<std::string, FieldPlace>& places,
            v1::Violation* violation) {
  std::string path = violation->field();
  auto found = places.find(path);
  while (found == places.end()) {
    if (path.empty()) return;
    const size_t cut = path.find_last_of(".[");
    path = cut == std::string::npos ? "" : path.substr(0, cut);
    found = places.find(path);
  }
  violation->set_file(found->second.file);
  violation->set_line(found->second.line);
  violation->set_column(found->second.column);
}

// In the order of the text; what has no line (--set, missing sections) last and
// first.
void SortByPlace(absl::string_view file,
                 std::vector<v1::Violation>* violations) {
  const auto place = [&](const v1::Violation& violation) {
    return std::make_pair(violation.file() != file, violation.line());
  };
  std::stable_sort(violations->begin(), violations->end(),
                   [&](const v1::Violation& a, const v1::Violation& b) {
                     return place(a) < place(b);
                   });
}

// One of the paths is the other, or a section above it.
bool Overlap(absl::string_view a, absl::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  return !a.empty() && b.substr(0, a.size()) == a &&
         (a.size() == b.size() || b[a.size()] == '.' || b[a.size()] == '[');
}

std::string AbsolutePath(std::string path, absl::string_view directory) {
  if (path.empty() || path[0] == '/' || directory.empty()) return path;
  while (absl::string_view(path).substr(0, 2) == "./") path.erase(0, 2);
  if (path.empty() || path == ".") return std::string(directory);
  return absl::StrCat(directory, directory.back() == '/' ? "" : "/", path);
}

}  // namespace

SpecReading ReadSpecWithPlaces(absl::string_view text, absl::string_view file,
                               std::span<const std::string> sets,
                               const SpecDirectories& directories) {
  SpecReading reading;
  reading.file = std::string(file);
  SpecText parsed =
      ParseSpecText(text, file, SpecLanguage::kYamlOrJson, kMaxSpecBytes);
  std::vector<v1::Violation> violations = std::move(parsed.violations);
  // After an error of syntax the tree has no end: what is missing there, and
  // rules about what is not set, say nothing; nor does what stands in the line
  // of the error and below.
  const bool complete = violations.empty();
  reading.complete = complete;
  const size_t num_syntax_violations = violations.size();
  const int last_line = complete ? 0 : violations[0].line() - 1;
  std::set<std::string> set_paths;
  for (const std::string& argument : sets) {
    std::optional<Set> set = ParseSet(argument, violations);
    if (!set.has_value()) continue;
    set_paths.insert(absl::StrJoin(set->names, "."));
    ApplySet(*std::move(set), parsed.root);
  }

  v1::JobSpec& spec = reading.spec;
  Reader reader(violations);
  const bool has_tree =
      complete || parsed.root.kind == SpecNode::Kind::kSection;
  if (has_tree) reader.ReadRoot(parsed.root, &spec);
  reading.places = reader.Places();
  if (!complete) {
    violations.erase(std::remove_if(violations.begin() + num_syntax_violations,
                                    violations.end(),
                                    [&](const v1::Violation& violation) {
                                      return violation.file() == file &&
                                             violation.line() > last_line;
                                    }),
                     violations.end());
  }

  // A path of --set, or one in a section that --set gives.
  const auto is_from_set = [&](const std::string& path) {
    for (size_t end = path.size(); end != std::string::npos && end > 0;
         end = path.rfind('.', end - 1)) {
      if (set_paths.count(path.substr(0, end)) > 0) return true;
    }
    return false;
  };
  ChangePaths(&spec, "", [&](const std::string& path, std::string value) {
    return AbsolutePath(std::move(value), is_from_set(path) ? directories.sets
                                                            : directories.file);
  });

  bool all_not_built = violations.empty();
  if (complete && reader.unreadable().count("") == 0) {
    for (SpecMistake& mistake : FindSpecMistakes(
             spec,
             {.relative_paths = true, .unreadable = reader.unreadable()})) {
      Locate(reading.places, &mistake.violation);
      const auto place = reading.places.find(mistake.violation.field());
      if (place != reading.places.end() && place->second.text.has_value()) {
        mistake.violation.set_value(*place->second.text);
      }
      all_not_built &= mistake.not_built;
      violations.push_back(std::move(mistake.violation));
    }
  }
  if (violations.empty()) return reading;
  SortByPlace(file, &violations);
  reading.status =
      ViolationsStatus(all_not_built ? absl::StatusCode::kUnimplemented
                                     : absl::StatusCode::kInvalidArgument,
                       violations);
  return reading;
}

SpecReading ReadSets(absl::string_view section,
                     std::span<const std::string> sets,
                     absl::string_view directory) {
  SpecReading reading;
  reading.complete = true;
  std::vector<v1::Violation> violations;
  SpecNode root;
  root.kind = SpecNode::Kind::kSection;
  root.file = std::make_shared<const std::string>("");
  for (const std::string& argument : sets) {
    std::optional<Set> set = ParseSet(argument, violations);
    if (!set.has_value()) continue;
    if (set->names[0] == section) {
      ApplySet(*std::move(set), root);
      continue;
    }
    v1::Violation& violation = violations.emplace_back();
    violation.set_field(absl::StrJoin(set->names, "."));
    violation.set_file(*set->value.file);
    violation.set_value(NodeText(set->value));
    violation.set_rule(absl::StrCat("must be a field of ", section));
    violation.set_fix("leave it out");
  }
  Reader reader(violations);
  reader.ReadRoot(root, &reading.spec);
  reading.places = reader.Places();
  ChangePaths(&reading.spec, "", [&](const std::string&, std::string value) {
    return AbsolutePath(std::move(value), directory);
  });
  if (!violations.empty()) {
    reading.status =
        ViolationsStatus(absl::StatusCode::kInvalidArgument, violations);
  }
  return reading;
}

absl::Status SpecReading::Join(const absl::Status& found) const {
  const std::vector<v1::Violation> own = GetViolations(status);
  std::vector<v1::Violation> joined = own;
  for (v1::Violation violation : GetViolations(found)) {
    const bool follows =
        !own.empty() &&
        (places.count(violation.field()) == 0 ||
         std::any_of(own.begin(), own.end(), [&](const v1::Violation& mistake) {
           return Overlap(mistake.field(), violation.field());
         }));
    if (follows) continue;
    violation.set_file(file);
    if (places.count(violation.field()) > 0) Locate(places, &violation);
    joined.push_back(std::move(violation));
  }
  if (joined.size() == own.size()) return status.ok() ? found : status;
  SortByPlace(file, &joined);
  return ViolationsStatus(
      status.ok() ? found.code() : absl::StatusCode::kInvalidArgument, joined);
}

absl::StatusOr<v1::JobSpec> ReadSpec(absl::string_view text,
                                     absl::string_view file,
                                     std::span<const std::string> sets,
                                     const SpecDirectories& directories) {
  SpecReading reading = ReadSpecWithPlaces(text, file, sets, directories);
  if (!reading.status.ok()) return reading.status;
  return std::move(reading.spec);
}

absl::Status MakePathsAbsolute(v1::JobSpec* spec, absl::string_view directory) {
  if (directory.empty() || directory[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("directory must be absolute: ", directory));
  }
  ChangePaths(spec, "", [&](const std::string&, std::string value) {
    return AbsolutePath(std::move(value), directory);
  });
  return absl::OkStatus();
}

}  // namespace ebb
