// See graph_makers.h.
#include "server/planner/testing/graph_makers.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>

namespace ebb {
namespace {

// Not std::uniform_int_distribution, which libraries may implement as they
// like.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  // From least to most, both included.
  int Roll(int least, int most) {
    return least + static_cast<int>(engine_() %
                                    static_cast<uint64_t>(most - least + 1));
  }

 private:
  std::mt19937_64 engine_;
};

std::vector<int> Sorted(const std::set<int>& set) {
  return {set.begin(), set.end()};
}

std::vector<int> ChainInputs(int i, int num_layers) {
  std::set<int> inputs;
  if (i > 0) inputs.insert(i - 1);
  if (i > num_layers) inputs.insert(2 * num_layers - i);
  return Sorted(inputs);
}

}  // namespace

GraphProblem UnitChain(int num_layers) {
  GraphProblem problem;
  for (int i = 0; i <= 2 * num_layers; ++i) {
    ProblemNode node;
    node.name = "n" + std::to_string(i);
    node.seconds = 1;
    node.bytes = 1;
    node.inputs = ChainInputs(i, num_layers);
    problem.nodes.push_back(node);
  }
  problem.outputs = {2 * num_layers};
  return problem;
}

GraphProblem TrainingChain(uint64_t seed, int num_nodes) {
  Dice dice(seed);
  const int num_layers = (num_nodes - 1) / 2;
  GraphProblem problem;
  for (int i = 0; i <= 2 * num_layers; ++i) {
    const bool backward = i > num_layers;
    const int mirror = 2 * num_layers - i;
    ProblemNode node;
    node.name = (backward ? "b" : "f") + std::to_string(backward ? mirror : i);
    node.bytes =
        backward ? problem.nodes[mirror].bytes : int64_t{dice.Roll(1, 6)};
    node.seconds = backward ? 2 * problem.nodes[mirror].seconds
                            : static_cast<double>(dice.Roll(1, 9));
    if (dice.Roll(0, 3) == 0) node.workspace_bytes = dice.Roll(1, 3);
    node.inputs = ChainInputs(i, num_layers);
    problem.nodes.push_back(node);
  }
  problem.outputs = {2 * num_layers};
  problem.resident_bytes = dice.Roll(0, 5);
  return problem;
}

GraphProblem RandomGraph(uint64_t seed, int num_nodes) {
  Dice dice(seed);
  GraphProblem problem;
  problem.resident_bytes = dice.Roll(0, 5);
  int num_once = 0;
  for (int i = 0; i < num_nodes; ++i) {
    ProblemNode node;
    node.name = "n" + std::to_string(i);
    node.seconds = dice.Roll(0, 9);
    node.bytes = dice.Roll(0, 8);
    if (dice.Roll(0, 2) == 0) node.workspace_bytes = dice.Roll(1, 4);
    if (dice.Roll(0, 9) == 0 && num_once < 2) {
      node.recomputable = false;
      ++num_once;
    }
    std::set<int> inputs;
    // Thin graphs, long ones, and ones that come back to what they made first.
    const int shape = static_cast<int>(seed % 3);
    if (i > 0 && shape > 0 && dice.Roll(0, 7) > 0) inputs.insert(i - 1);
    if (shape == 2 && 2 * i >= num_nodes && dice.Roll(0, 7) > 0) {
      inputs.insert(num_nodes - 1 - i);
    }
    for (int k = i == 0 ? 0 : dice.Roll(0, shape == 0 ? 3 : 1); k > 0; --k) {
      // Mostly near ones, as in real graphs.
      const int back =
          dice.Roll(0, 2) == 0 ? dice.Roll(1, i) : dice.Roll(1, std::min(i, 4));
      inputs.insert(i - back);
    }
    node.inputs = Sorted(inputs);
    problem.nodes.push_back(node);
  }
  std::set<int> outputs = {num_nodes - 1};
  for (int k = dice.Roll(0, 2); k > 0; --k) {
    outputs.insert(dice.Roll(0, num_nodes - 1));
  }
  problem.outputs = Sorted(outputs);
  return problem;
}

int64_t FileOrderPeak(const GraphProblem& problem) {
  const int num_nodes = static_cast<int>(problem.nodes.size());
  std::vector<int> last_use(num_nodes, -1);
  for (int i = 0; i < num_nodes; ++i) {
    for (const int input : problem.nodes[i].inputs) last_use[input] = i;
  }
  for (const int output : problem.outputs) last_use[output] = num_nodes;
  int64_t bytes = problem.resident_bytes;
  int64_t peak = bytes;
  for (int i = 0; i < num_nodes; ++i) {
    bytes += problem.nodes[i].bytes;
    peak = std::max(peak, bytes + problem.nodes[i].workspace_bytes);
    for (int value = 0; value <= i; ++value) {
      if (last_use[value] == i || (value == i && last_use[i] < 0)) {
        bytes -= problem.nodes[value].bytes;
      }
    }
  }
  return peak;
}

double OnceSeconds(const GraphProblem& problem) {
  std::vector<bool> needed(problem.nodes.size(), false);
  for (const int output : problem.outputs) needed[output] = true;
  double seconds = 0;
  for (size_t i = problem.nodes.size(); i-- > 0;) {
    if (!needed[i]) continue;
    seconds += problem.nodes[i].seconds;
    for (const int input : problem.nodes[i].inputs) needed[input] = true;
  }
  return seconds;
}

}  // namespace ebb
