// A computation graph whose values may be computed again, as `ebb plan --graph`
// takes it, and schedules that compute its outputs: plain structs and the one
// reader of their JSON text. Pure.
//
// The rules that a schedule keeps:
//   - a node runs when all its inputs are resident; while it runs, inputs,
//     output and workspace are resident together with all else that is;
//   - its output stays resident until it is freed; it may be computed again,
//     unless the node is not recomputable;
//   - all that is resident, `resident_bytes` included, fits the budget;
//   - at the end all outputs of the graph are resident.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ebb {

// Limits of what is read, so that no sum of bytes overflows.
inline constexpr int kMaxProblemNodes = 5000;
inline constexpr int kMaxProblemInputs = 100'000;  // of all nodes together
inline constexpr int64_t kMaxNodeBytes = int64_t{1} << 48;
inline constexpr int64_t kMaxProblemBudget = int64_t{1} << 62;
inline constexpr double kMaxNodeSeconds = 1e9;
inline constexpr size_t kMaxNodeNameBytes = 200;

// A computation and the one value that it makes.
struct ProblemNode {
  std::string name;
  double seconds = 0;  // of one run, finite
  int64_t bytes = 0;   // of the output
  // Positions of the nodes whose outputs it reads: earlier ones, ascending,
  // each once.
  std::vector<int> inputs;
  int64_t workspace_bytes = 0;  // only while it runs
  bool recomputable = true;     // false: may run once only
};

struct GraphProblem {
  std::vector<ProblemNode> nodes;  // in a valid execution order
  std::vector<int> outputs;        // positions, each once; at least one
  int64_t resident_bytes = 0;      // always resident beside the values
};

struct ScheduleStep {
  enum class Action : uint8_t { kCompute, kFree };
  Action action = Action::kCompute;
  int node = 0;

  bool operator==(const ScheduleStep&) const = default;
};

// One mistake of a text: where, what was found, what is required, what to do.
struct TextMistake {
  std::string field;  // "nodes[3] (gelu).seconds"; empty: the whole text
  std::string value;
  std::string rule;
  std::string fix;
  int line = 0;  // 1-based, of mistakes in the JSON itself; 0: see field
  int column = 0;
};

// What was read; worth something only without mistakes.
struct ReadProblem {
  GraphProblem problem;
  std::vector<TextMistake> mistakes;
};

// Reads {"nodes": [{"name", "seconds", "bytes", "inputs", "workspace_bytes",
// "recomputable"}], "outputs", "resident_bytes"}. Gathers all mistakes, at most
// a thousand, each naming its node.
ReadProblem ReadGraphProblem(absl::string_view json);

// A schedule with what it is for. Figures that the text does not state are
// empty.
struct ReadScheduleFile {
  GraphProblem problem;
  std::optional<int64_t> budget_bytes;
  std::vector<ScheduleStep> steps;
  std::optional<double> total_seconds;
  std::optional<int64_t> peak_bytes;
  std::vector<TextMistake> mistakes;
};

// Reads {"graph", "budget_bytes", "schedule": ["compute X", "free X"], ...}, as
// `ebb plan --graph --output json` prints it. `graph_json`, unless empty, is
// the graph instead of the text's own. Other fields are ignored.
ReadScheduleFile ReadSchedule(absl::string_view json,
                              absl::string_view graph_json);

// "compute X" or "free X".
std::string ScheduleStepText(const GraphProblem& problem, ScheduleStep step);

}  // namespace ebb
