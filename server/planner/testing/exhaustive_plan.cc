// See exhaustive_plan.h.
#include "server/planner/testing/exhaustive_plan.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace ebb {
namespace {

// Dijkstra's algorithm over (resident set, nodes of one run that have run).
// `enter` gives a path's cost from its cost before and the node computed with
// so many bytes resident meanwhile; empty: not allowed.
std::optional<double> Shortest(
    const GraphProblem& problem,
    const std::function<std::optional<double>(double, int, int64_t)>& enter) {
  const int num_nodes = static_cast<int>(problem.nodes.size());
  std::vector<uint32_t> inputs(num_nodes, 0);
  std::vector<uint32_t> run_bit(num_nodes, 0);
  int num_bits = num_nodes;
  for (int i = 0; i < num_nodes; ++i) {
    for (const int input : problem.nodes[i].inputs) inputs[i] |= 1u << input;
    if (!problem.nodes[i].recomputable) run_bit[i] = 1u << num_bits++;
  }
  uint32_t outputs = 0;
  for (const int output : problem.outputs) outputs |= 1u << output;
  std::vector<double> cost(size_t{1} << num_bits,
                           std::numeric_limits<double>::infinity());
  using Open = std::pair<double, uint32_t>;
  std::priority_queue<Open, std::vector<Open>, std::greater<>> open;
  const auto reach = [&](uint32_t state, double path) {
    if (path >= cost[state]) return;
    cost[state] = path;
    open.emplace(path, state);
  };
  reach(0, 0);
  while (!open.empty()) {
    const auto [path, state] = open.top();
    open.pop();
    if (path > cost[state]) continue;
    if ((state & outputs) == outputs) return path;
    int64_t bytes = problem.resident_bytes;
    for (int i = 0; i < num_nodes; ++i) {
      if ((state >> i) & 1) bytes += problem.nodes[i].bytes;
    }
    for (int i = 0; i < num_nodes; ++i) {
      const uint32_t bit = 1u << i;
      if ((state & bit) != 0) {
        reach(state & ~bit, path);
        continue;
      }
      if ((state & inputs[i]) != inputs[i] || (state & run_bit[i]) != 0) {
        continue;
      }
      const std::optional<double> next = enter(
          path, i,
          bytes + problem.nodes[i].bytes + problem.nodes[i].workspace_bytes);
      if (next) reach(state | bit | run_bit[i], *next);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> ExhaustiveSeconds(const GraphProblem& problem,
                                        int64_t budget_bytes) {
  return Shortest(
      problem,
      [&](double path, int node, int64_t bytes) -> std::optional<double> {
        if (bytes > budget_bytes) return std::nullopt;
        return path + problem.nodes[node].seconds;
      });
}

std::optional<int64_t> ExhaustiveLeastBudget(const GraphProblem& problem) {
  const std::optional<double> least = Shortest(problem, [](double path, int,
                                                           int64_t bytes) {
    return std::optional<double>(std::max(path, static_cast<double>(bytes)));
  });
  if (!least) return std::nullopt;
  return static_cast<int64_t>(*least);
}

}  // namespace ebb
