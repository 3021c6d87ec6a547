// See graph_bound.h.
#include "server/planner/graph_bound.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/planner/rebuild_bound.h"

namespace ebb {
namespace {

// Of sums of doubles: so much less is certain.
constexpr double kRounding = 1e-11;

std::vector<bool> NeededNodes(const GraphProblem& problem) {
  std::vector<bool> needed(problem.nodes.size(), false);
  for (const int output : problem.outputs) needed[output] = true;
  for (size_t i = problem.nodes.size(); i-- > 0;) {
    if (!needed[i]) continue;
    for (const int input : problem.nodes[i].inputs) needed[input] = true;
  }
  return needed;
}

// The moment at which one node runs for the first time.
class Moment {
 public:
  Moment(const GraphProblem& problem, const std::vector<bool>& needed, int v,
         int64_t budget_bytes)
      : problem_(problem),
        needed_(needed),
        v_(v),
        kinds_(problem.nodes.size()) {
    const std::vector<ProblemNode>& nodes = problem.nodes;
    const int num_nodes = static_cast<int>(nodes.size());
    kinds_[v] = Kind::kAncestor;
    for (int i = v; i >= 0; --i) {
      if (kinds_[i] != Kind::kAncestor) continue;
      for (const int input : nodes[i].inputs) kinds_[input] = Kind::kAncestor;
    }
    for (int i = v + 1; i < num_nodes; ++i) {
      for (const int input : nodes[i].inputs) {
        if (input == v || kinds_[input] == Kind::kDescendant) {
          kinds_[i] = Kind::kDescendant;
        }
      }
    }
    room_ = budget_bytes - problem.resident_bytes - nodes[v].workspace_bytes -
            nodes[v].bytes;
    kinds_[v] = Kind::kHeld;
    for (const int input : nodes[v].inputs) {
      kinds_[input] = Kind::kHeld;
      room_ -= nodes[input].bytes;
    }
    wanted_.assign(nodes.size(), false);
    for (int i = v + 1; i < num_nodes; ++i) {
      if (!needed[i] || kinds_[i] != Kind::kDescendant) continue;
      for (const int input : nodes[i].inputs) Want(input);
    }
    for (const int output : problem.outputs) Want(output);
    for (int i = 0; i < num_nodes; ++i) {
      if (wanted_[i]) wanted_bytes_ += nodes[i].bytes;
    }
  }

  // Of what is wanted after the moment and does not fit: without any, the
  // moment forces nothing.
  int64_t excess_bytes() const { return wanted_bytes_ - room_; }

  // Seconds of forced extra runs.
  double Bound() const {
    const std::vector<ProblemNode>& nodes = problem_.nodes;
    std::vector<RebuildNode> rebuild(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      RebuildNode& own = rebuild[i];
      own.given = !needed_[i] || kinds_[i] == Kind::kHeld ||
                  kinds_[i] == Kind::kDescendant;
      if (own.given) continue;
      own.wanted = wanted_[i];
      own.bytes = nodes[i].bytes;
      own.inputs = nodes[i].inputs;
      // What is no ancestor may run for the first time.
      if (kinds_[i] == Kind::kAncestor) {
        own.seconds =
            nodes[i].recomputable ? nodes[i].seconds : RebuildNode::kCannotRun;
      }
    }
    return LeastRebuildSeconds(rebuild, room_);
  }

 private:
  enum class Kind : uint8_t { kOther, kAncestor, kDescendant, kHeld };

  void Want(int node) {
    if (kinds_[node] == Kind::kAncestor || kinds_[node] == Kind::kOther) {
      wanted_[node] = true;
    }
  }

  const GraphProblem& problem_;
  const std::vector<bool>& needed_;
  const int v_;
  std::vector<Kind> kinds_;
  std::vector<bool> wanted_;  // by descendants or as outputs, and not held
  int64_t room_ = 0;          // beside what v's run holds
  int64_t wanted_bytes_ = 0;
};

}  // namespace

int64_t LeastBudgetBound(const GraphProblem& problem) {
  const std::vector<bool> needed = NeededNodes(problem);
  int64_t least = 0;
  for (const int output : problem.outputs) least += problem.nodes[output].bytes;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    if (!needed[i]) continue;
    const ProblemNode& node = problem.nodes[i];
    int64_t bytes = node.bytes + node.workspace_bytes;
    for (const int input : node.inputs) bytes += problem.nodes[input].bytes;
    least = std::max(least, bytes);
  }
  return problem.resident_bytes + least;
}

double SecondsBound(const GraphProblem& problem, int64_t budget_bytes,
                    const std::function<bool()>& stop) {
  const std::vector<bool> needed = NeededNodes(problem);
  double once = 0;
  std::vector<std::pair<int64_t, int>> moments;  // tightest first
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    if (!needed[i]) continue;
    once += problem.nodes[i].seconds;
    const Moment moment(problem, needed, static_cast<int>(i), budget_bytes);
    moments.emplace_back(-moment.excess_bytes(), static_cast<int>(i));
  }
  std::sort(moments.begin(), moments.end());
  double extra = 0;
  for (const auto& [excess, v] : moments) {
    if (excess >= 0 || stop()) break;
    extra = std::max(extra, Moment(problem, needed, v, budget_bytes).Bound());
  }
  return (once + extra) * (1 - kRounding);
}

}  // namespace ebb
