// See graph_problem.h.
#include "server/planner/graph_problem.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace ebb {
namespace {

using nlohmann::json;

// More than anyone reads; a wrong file of any size stays small.
constexpr size_t kMaxMistakes = 1000;

constexpr const char* kGraphFields[] = {"nodes", "outputs", "resident_bytes"};
constexpr const char* kNodeFields[] = {
    "name", "seconds", "bytes", "inputs", "recomputable", "workspace_bytes"};

class Mistakes {
 public:
  void Add(std::string field, std::string value, std::string rule,
           std::string fix) {
    if (list_.size() >= kMaxMistakes) return;
    list_.push_back({std::move(field), std::move(value), std::move(rule),
                     std::move(fix), 0, 0});
  }
  void Add(TextMistake mistake) {
    if (list_.size() < kMaxMistakes) list_.push_back(std::move(mistake));
  }
  bool empty() const { return list_.empty(); }
  std::vector<TextMistake> Take() { return std::move(list_); }

 private:
  std::vector<TextMistake> list_;
};

// What stands there, short enough for a message.
std::string ValueText(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) {
    return absl::StrCat("a list of ", value.size());
  }
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 80) text = absl::StrCat(text.substr(0, 77), "...");
  return text;
}

// Finds keys that an object has twice, which the library would drop in silence.
class DuplicateKeys {
 public:
  explicit DuplicateKeys(Mistakes* mistakes) : mistakes_(mistakes) {}

  bool OnEvent(json::parse_event_t event, const json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        BeginValue();
        stack_.push_back({event == json::parse_event_t::array_start, -1, {}});
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        stack_.pop_back();
        break;
      case json::parse_event_t::key: {
        const std::string key = parsed.get<std::string>();
        if (!stack_.back().keys.insert(key).second) {
          mistakes_->Add(absl::StrCat(Path(), Path().empty() ? "" : ".", key),
                         "the field twice", "an object has each field once",
                         "keep one of them");
        }
        stack_.back().key = key;
        break;
      }
      case json::parse_event_t::value:
        BeginValue();
        break;
    }
    return true;
  }

 private:
  struct Level {
    bool is_array;
    int index;
    std::set<std::string> keys;
    std::string key = {};
  };

  void BeginValue() {
    if (!stack_.empty() && stack_.back().is_array) ++stack_.back().index;
  }

  // Of the innermost object.
  std::string Path() const {
    std::string path;
    for (size_t i = 0; i + 1 < stack_.size(); ++i) {
      if (stack_[i].is_array) {
        absl::StrAppend(&path, "[", stack_[i].index, "]");
      } else {
        absl::StrAppend(&path, path.empty() ? "" : ".", stack_[i].key);
      }
    }
    return path;
  }

  Mistakes* mistakes_;
  std::vector<Level> stack_;
};

// The text as a value, or null with a mistake.
json ParseJson(absl::string_view text, const std::string& what,
               Mistakes* mistakes) {
  DuplicateKeys duplicates(mistakes);
  try {
    return json::parse(
        text.begin(), text.end(),
        [&duplicates](int, json::parse_event_t event, const json& parsed) {
          return duplicates.OnEvent(event, parsed);
        });
  } catch (const json::parse_error& error) {
    TextMistake mistake;
    const size_t end = std::min(
        text.size(), static_cast<size_t>(error.byte > 0 ? error.byte - 1 : 0));
    mistake.line = 1 + static_cast<int>(
                           std::count(text.begin(), text.begin() + end, '\n'));
    const size_t line_start = text.substr(0, end).rfind('\n');
    mistake.column = static_cast<int>(
        end - (line_start == absl::string_view::npos ? 0 : line_start + 1) + 1);
    const std::string reason = error.what();
    const size_t bracket = reason.find("] ");
    mistake.value = "what is no JSON";
    mistake.rule =
        bracket == std::string::npos ? reason : reason.substr(bracket + 2);
    mistake.fix = absl::StrCat("write ", what, " as JSON");
    mistakes->Add(std::move(mistake));
  } catch (const json::exception& error) {
    const std::string reason = error.what();
    const size_t bracket = reason.find("] ");
    mistakes->Add(
        "", "what is no JSON",
        bracket == std::string::npos ? reason : reason.substr(bracket + 2),
        absl::StrCat("write ", what, " as JSON"));
  }
  return nullptr;
}

// A whole number, written as such, as 1e9 or as text ("1073741824", the way
// that Ebb prints 64-bit numbers).
std::optional<int64_t> WholeNumber(const json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (!(std::fabs(number) <= 0x1p53) || number != std::floor(number)) {
      return std::nullopt;
    }
    return static_cast<int64_t>(number);
  }
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    int64_t number = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) {
      return std::nullopt;
    }
    return number;
  }
  return std::nullopt;
}

// A field that holds bytes; 0 with a mistake.
int64_t ReadBytes(const json& value, const std::string& field, int64_t least,
                  int64_t most, Mistakes* mistakes) {
  const std::optional<int64_t> number = WholeNumber(value);
  if (number && *number >= least && *number <= most) return *number;
  mistakes->Add(field, ValueText(value),
                absl::StrCat("must be a whole number of bytes from ", least,
                             " to ", most),
                "write it as in 1048576");
  return 0;
}

double ReadSeconds(const json& value, const std::string& field,
                   Mistakes* mistakes) {
  if (value.is_number()) {
    const double seconds = value.get<double>();
    if (seconds >= 0 && seconds <= kMaxNodeSeconds) return seconds;
  }
  mistakes->Add(
      field, ValueText(value),
      absl::StrCat("must be a number of seconds from 0 to ", kMaxNodeSeconds),
      "write it as in 0.0125");
  return 0;
}

// Names the fields that an object must not have.
template <size_t kNumFields>
void RefuseUnknownFields(const json& object, const std::string& prefix,
                         const char* const (&known)[kNumFields],
                         Mistakes* mistakes) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(std::begin(known), std::end(known), key) != std::end(known)) {
      continue;
    }
    std::string list;
    for (const char* name : known) absl::StrAppend(&list, " ", name);
    mistakes->Add(absl::StrCat(prefix, key), ValueText(value),
                  "there is no such field",
                  absl::StrCat("leave it out; the fields are", list));
  }
}

// Why a text cannot name a node; empty: it can.
std::string NameRule(const std::string& name) {
  if (name.empty()) return "must not be empty";
  if (name.size() > kMaxNodeNameBytes) {
    return absl::StrCat("must have at most ", kMaxNodeNameBytes, " bytes");
  }
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) return "must not have control characters";
  }
  return "";
}

class ProblemReader {
 public:
  ProblemReader(std::string prefix, Mistakes* mistakes)
      : prefix_(std::move(prefix)), mistakes_(mistakes) {}

  GraphProblem Read(const json& graph) {
    if (!graph.is_object()) {
      mistakes_->Add(
          prefix_.empty() ? "" : prefix_.substr(0, prefix_.size() - 1),
          ValueText(graph), "must be an object with nodes and outputs",
          "server/planner/README.md has the format");
      return {};
    }
    RefuseUnknownFields(graph, prefix_, kGraphFields, mistakes_);
    if (const json* nodes =
            Required(graph, prefix_, "nodes", "list the nodes")) {
      ReadNodes(*nodes);
    }
    if (const json* outputs =
            Required(graph, prefix_, "outputs", "name the nodes to end with")) {
      ReadOutputs(*outputs);
    }
    if (const auto found = graph.find("resident_bytes"); found != graph.end()) {
      problem_.resident_bytes =
          ReadBytes(*found, absl::StrCat(prefix_, "resident_bytes"), 0,
                    kMaxNodeBytes, mistakes_);
    }
    return std::move(problem_);
  }

 private:
  const json* Required(const json& object, const std::string& prefix,
                       const char* name, const char* fix) {
    const auto found = object.find(name);
    if (found != object.end()) return &*found;
    mistakes_->Add(absl::StrCat(prefix, name), "", "is required", fix);
    return nullptr;
  }

  // All names first: an input may wrongly stand before its node.
  void ReadNodes(const json& nodes) {
    if (!CheckList(nodes, absl::StrCat(prefix_, "nodes"), kMaxProblemNodes,
                   "node")) {
      return;
    }
    problem_.nodes.resize(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) ReadName(nodes[i], i);
    for (size_t i = 0; i < nodes.size(); ++i) ReadNode(nodes[i], i);
  }

  bool CheckList(const json& list, const std::string& field, size_t most,
                 const char* what) {
    if (list.is_array() && !list.empty() && list.size() <= most) return true;
    mistakes_->Add(
        field, ValueText(list),
        absl::StrCat("must be a list of 1 to ", most, " ", what, "s"),
        absl::StrCat("give at least one ", what));
    return false;
  }

  // "nodes[3] (gelu)."
  std::string NodePrefix(size_t i) const {
    const std::string& name = problem_.nodes[i].name;
    return absl::StrCat(prefix_, "nodes[", i, "]",
                        name.empty() ? "" : absl::StrCat(" (", name, ")"), ".");
  }

  void ReadName(const json& node, size_t i) {
    if (!node.is_object()) return;  // ReadNode says so
    const std::string field = absl::StrCat(prefix_, "nodes[", i, "].name");
    const json* const name =
        Required(node, absl::StrCat(prefix_, "nodes[", i, "]."), "name",
                 "name the node");
    if (name == nullptr) return;
    if (!name->is_string()) {
      mistakes_->Add(field, ValueText(*name), "must be text", "quote it");
      return;
    }
    const std::string text = name->get<std::string>();
    if (const std::string rule = NameRule(text); !rule.empty()) {
      mistakes_->Add(field, ValueText(*name), rule, "choose another name");
      return;
    }
    const auto [found, inserted] =
        positions_.emplace(text, static_cast<int>(i));
    problem_.nodes[i].name = text;
    if (!inserted) {
      mistakes_->Add(
          field, text,
          absl::StrCat("is the name of nodes[", found->second, "] already"),
          "give each node a name of its own");
    }
  }

  void ReadNode(const json& node, size_t i) {
    if (!node.is_object()) {
      mistakes_->Add(absl::StrCat(prefix_, "nodes[", i, "]"), ValueText(node),
                     "must be an object",
                     "write {\"name\", \"seconds\", \"bytes\", \"inputs\"}");
      return;
    }
    ProblemNode& result = problem_.nodes[i];
    const std::string prefix = NodePrefix(i);
    RefuseUnknownFields(node, prefix, kNodeFields, mistakes_);
    if (const json* seconds =
            Required(node, prefix, "seconds", "say how long one run takes")) {
      result.seconds =
          ReadSeconds(*seconds, absl::StrCat(prefix, "seconds"), mistakes_);
    }
    if (const json* bytes =
            Required(node, prefix, "bytes", "say how large the output is")) {
      result.bytes = ReadBytes(*bytes, absl::StrCat(prefix, "bytes"), 0,
                               kMaxNodeBytes, mistakes_);
    }
    if (const json* inputs = Required(node, prefix, "inputs",
                                      "write [] for a node that reads none")) {
      ReadInputs(*inputs, i, prefix);
    }
    if (const auto found = node.find("workspace_bytes"); found != node.end()) {
      result.workspace_bytes =
          ReadBytes(*found, absl::StrCat(prefix, "workspace_bytes"), 0,
                    kMaxNodeBytes, mistakes_);
    }
    if (const auto found = node.find("recomputable"); found != node.end()) {
      if (found->is_boolean()) {
        result.recomputable = found->get<bool>();
      } else {
        mistakes_->Add(absl::StrCat(prefix, "recomputable"), ValueText(*found),
                       "must be true or false", "write it without quotes");
      }
    }
  }

  void ReadInputs(const json& inputs, size_t i, const std::string& prefix) {
    if (!inputs.is_array()) {
      mistakes_->Add(absl::StrCat(prefix, "inputs"), ValueText(inputs),
                     "must be a list of names of nodes",
                     "write [] for a node that reads none");
      return;
    }
    num_inputs_ += inputs.size();
    if (num_inputs_ > kMaxProblemInputs) {
      if (num_inputs_ - inputs.size() <= kMaxProblemInputs) {
        mistakes_->Add(absl::StrCat(prefix, "inputs"), ValueText(inputs),
                       absl::StrCat("all nodes together have at most ",
                                    kMaxProblemInputs, " inputs"),
                       "take a smaller graph");
      }
      return;
    }
    std::set<int> positions;
    for (size_t k = 0; k < inputs.size(); ++k) {
      const std::string field = absl::StrCat(prefix, "inputs[", k, "]");
      const std::optional<int> position = FindNode(inputs[k], field);
      if (!position) continue;
      if (*position >= static_cast<int>(i)) {
        mistakes_->Add(
            field, problem_.nodes[*position].name,
            *position == static_cast<int>(i)
                ? std::string("a node cannot read its own output")
                : absl::StrCat("stands later, as nodes[", *position,
                               "]: inputs must stand before the node"),
            "put the nodes into an order in which they can run; a cycle has "
            "none");
        continue;
      }
      positions.insert(*position);
    }
    problem_.nodes[i].inputs.assign(positions.begin(), positions.end());
  }

  void ReadOutputs(const json& outputs) {
    const std::string field = absl::StrCat(prefix_, "outputs");
    if (!CheckList(outputs, field, kMaxProblemNodes, "name")) return;
    std::set<int> seen;
    for (size_t k = 0; k < outputs.size(); ++k) {
      const std::string entry = absl::StrCat(field, "[", k, "]");
      const std::optional<int> position = FindNode(outputs[k], entry);
      if (!position) continue;
      if (!seen.insert(*position).second) {
        mistakes_->Add(entry, ValueText(outputs[k]), "is named before",
                       "name each output once");
        continue;
      }
      problem_.outputs.push_back(*position);
    }
  }

  std::optional<int> FindNode(const json& name, const std::string& field) {
    if (name.is_string()) {
      const auto found = positions_.find(name.get<std::string>());
      if (found != positions_.end()) return found->second;
    }
    mistakes_->Add(field, ValueText(name), "must be the name of a node",
                   "name one of the nodes");
    return std::nullopt;
  }

  const std::string prefix_;  // empty, or "graph."
  Mistakes* const mistakes_;
  GraphProblem problem_;
  std::map<std::string, int> positions_;
  size_t num_inputs_ = 0;
};

void ReadSteps(const json& file, const GraphProblem& problem,
               std::vector<ScheduleStep>* steps, Mistakes* mistakes) {
  const auto found = file.find("schedule");
  if (found == file.end() || !found->is_array()) {
    mistakes->Add("schedule", found == file.end() ? "" : ValueText(*found),
                  "must be a list of \"compute NAME\" and \"free NAME\"",
                  "take what ebb plan --graph --output json prints");
    return;
  }
  std::map<std::string, int> positions;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    positions.emplace(problem.nodes[i].name, static_cast<int>(i));
  }
  constexpr absl::string_view kCompute = "compute ";
  constexpr absl::string_view kFree = "free ";
  for (size_t i = 0; i < found->size(); ++i) {
    const json& entry = (*found)[i];
    const std::string field = absl::StrCat("schedule[", i, "]");
    const std::string text =
        entry.is_string() ? entry.get<std::string>() : std::string();
    const bool compute = absl::StartsWith(text, kCompute);
    if (!compute && !absl::StartsWith(text, kFree)) {
      mistakes->Add(field, ValueText(entry),
                    "must be \"compute NAME\" or \"free NAME\"",
                    "write one of the two");
      continue;
    }
    const std::string name =
        text.substr(compute ? kCompute.size() : kFree.size());
    const auto position = positions.find(name);
    if (position == positions.end()) {
      mistakes->Add(field, ValueText(entry), "the graph has no such node",
                    "name one of its nodes, or give its graph by --graph");
      continue;
    }
    steps->push_back(
        {compute ? ScheduleStep::Action::kCompute : ScheduleStep::Action::kFree,
         position->second});
  }
}

}  // namespace

ReadProblem ReadGraphProblem(absl::string_view text) {
  Mistakes mistakes;
  const json graph = ParseJson(text, "the graph", &mistakes);
  ReadProblem result;
  if (!graph.is_null() || mistakes.empty()) {
    result.problem = ProblemReader("", &mistakes).Read(graph);
  }
  result.mistakes = mistakes.Take();
  return result;
}

ReadScheduleFile ReadSchedule(absl::string_view text,
                              absl::string_view graph_json) {
  ReadScheduleFile result;
  Mistakes mistakes;
  const json file = ParseJson(text, "the schedule", &mistakes);
  if (!file.is_object()) {
    if (mistakes.empty()) {
      mistakes.Add("", ValueText(file), "must be an object with a schedule",
                   "take what ebb plan --graph --output json prints");
    }
    result.mistakes = mistakes.Take();
    return result;
  }
  if (!graph_json.empty()) {
    ReadProblem read = ReadGraphProblem(graph_json);
    for (TextMistake& mistake : read.mistakes) {
      // Its line is the graph file's, which the field says.
      mistake.field = absl::StrCat("graph", mistake.field.empty() ? "" : ".",
                                   mistake.field);
      mistake.line = mistake.column = 0;
      mistakes.Add(std::move(mistake));
    }
    result.problem = std::move(read.problem);
  } else if (const auto found = file.find("graph"); found != file.end()) {
    result.problem = ProblemReader("graph.", &mistakes).Read(*found);
  } else {
    mistakes.Add("graph", "", "is required", "add it, or give it by --graph");
  }
  // Without its graph no step means anything.
  if (mistakes.empty())
    ReadSteps(file, result.problem, &result.steps, &mistakes);
  if (const auto found = file.find("budget_bytes"); found != file.end()) {
    result.budget_bytes =
        ReadBytes(*found, "budget_bytes", 1, kMaxProblemBudget, &mistakes);
  }
  if (const auto found = file.find("peak_bytes"); found != file.end()) {
    result.peak_bytes =
        ReadBytes(*found, "peak_bytes", 0, kMaxProblemBudget, &mistakes);
  }
  if (const auto found = file.find("total_seconds"); found != file.end()) {
    if (found->is_number()) {
      result.total_seconds = found->get<double>();
    } else {
      mistakes.Add("total_seconds", ValueText(*found),
                   "must be a number of seconds", "leave it out");
    }
  }
  result.mistakes = mistakes.Take();
  return result;
}

std::string ScheduleStepText(const GraphProblem& problem, ScheduleStep step) {
  return absl::StrCat(
      step.action == ScheduleStep::Action::kCompute ? "compute " : "free ",
      problem.nodes[step.node].name);
}

}  // namespace ebb
