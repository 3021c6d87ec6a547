// See graph_bound.h.
#include "server/planner/graph_bound.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace ebb {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();
// Lines that are looked at for one node; a handful is usual.
constexpr int kMaxLines = 40;
// Of sums of doubles: so much less is certain.
constexpr double kRounding = 1e-11;

// Largest flow from a source to a sink by Dinic's method. A flow that rounding
// left a little small is a bound all the same.
class Flow {
 public:
  explicit Flow(int num_points) : first_(num_points, -1) {}

  void AddEdge(int from, int to, double capacity) {
    edges_.push_back({to, first_[from], capacity});
    first_[from] = static_cast<int>(edges_.size()) - 1;
    edges_.push_back({from, first_[to], 0});
    first_[to] = static_cast<int>(edges_.size()) - 1;
  }

  double Run(int source, int sink) {
    double total = 0;
    while (SetLevels(source, sink)) {
      next_ = first_;
      while (const double sent = Send(source, sink)) total += sent;
    }
    return total;
  }

  // After Run: the point is on the source's side of the cut.
  bool IsReached(int point) const { return levels_[point] >= 0; }

 private:
  struct Edge {
    int to;
    int next;  // edge of the same point
    double left;
  };

  bool SetLevels(int source, int sink) {
    levels_.assign(first_.size(), -1);
    levels_[source] = 0;
    std::queue<int> points({source});
    while (!points.empty()) {
      const int point = points.front();
      points.pop();
      for (int e = first_[point]; e >= 0; e = edges_[e].next) {
        if (edges_[e].left <= 0 || levels_[edges_[e].to] >= 0) continue;
        levels_[edges_[e].to] = levels_[point] + 1;
        points.push(edges_[e].to);
      }
    }
    return levels_[sink] >= 0;
  }

  // Along one path, without recursion: graphs may be thousands deep.
  double Send(int source, int sink) {
    std::vector<int> path;
    int point = source;
    while (point != sink) {
      int& e = next_[point];
      while (e >= 0 && (edges_[e].left <= 0 ||
                        levels_[edges_[e].to] != levels_[point] + 1)) {
        e = edges_[e].next;
      }
      if (e >= 0) {
        path.push_back(e);
        point = edges_[e].to;
        continue;
      }
      if (point == source) return 0;
      // A dead end: the edge that led here leads nowhere.
      const int back = path.back();
      path.pop_back();
      point = edges_[back ^ 1].to;
      next_[point] = edges_[back].next;
    }
    double sent = kUnlimited;
    for (const int e : path) sent = std::min(sent, edges_[e].left);
    for (const int e : path) {
      edges_[e].left -= sent;
      edges_[e ^ 1].left += sent;
    }
    return sent;
  }

  std::vector<int> first_;
  std::vector<int> next_;
  std::vector<int> levels_;
  std::vector<Edge> edges_;  // an edge and its reverse stand side by side
};

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
    if (excess_bytes() <= 0) return 0;
    double all_seconds = 0;
    for (const ProblemNode& node : problem_.nodes) all_seconds += node.seconds;
    if (all_seconds <= 0) return 0;
    // The line of holding all, and that of holding as little as possible: a
    // byte costs as much as everything.
    Line above{.seconds = 0, .bytes = static_cast<double>(wanted_bytes_)};
    Line below = Cut(all_seconds);
    double best = std::max(0.0, Value(below, all_seconds));
    const auto room = static_cast<double>(room_);
    for (int i = 0; i < kMaxLines; ++i) {
      if (below.bytes > room || below.bytes >= above.bytes) break;
      const double price =
          (below.seconds - above.seconds) / (above.bytes - below.bytes);
      if (!(price > 0)) break;
      const Line line = Cut(price);
      best = std::max(best, Value(line, price));
      const double crossing = above.seconds + price * above.bytes;
      if (line.flow >= crossing * (1 - kRounding)) break;
      (line.bytes > room ? above : below) = line;
    }
    return best;
  }

 private:
  enum class Kind : uint8_t { kOther, kAncestor, kDescendant, kHeld };

  // A cut: what it costs at a price a byte is seconds + price * bytes.
  struct Line {
    double seconds = 0;
    double bytes = 0;
    double flow = 0;  // at the price it was found for
  };

  void Want(int node) {
    if (kinds_[node] == Kind::kAncestor || kinds_[node] == Kind::kOther) {
      wanted_[node] = true;
    }
  }

  double Value(const Line& line, double price) const {
    return line.flow - price * static_cast<double>(room_);
  }

  // Two points a node: "wanted", on the source's side if something after the
  // moment reads it, and "runs", on that side if it runs then.
  Line Cut(double price) const {
    const int num_nodes = static_cast<int>(problem_.nodes.size());
    const int source = 2 * num_nodes;
    const int sink = source + 1;
    const auto wanted = [](int node) { return 2 * node; };
    const auto runs = [](int node) { return 2 * node + 1; };
    Flow flow(2 * num_nodes + 2);
    for (int i = 0; i < num_nodes; ++i) {
      const ProblemNode& node = problem_.nodes[i];
      const Kind kind = kinds_[i];
      if (wanted_[i]) flow.AddEdge(source, wanted(i), kUnlimited);
      if (!needed_[i] || kind == Kind::kHeld || kind == Kind::kDescendant) {
        continue;
      }
      flow.AddEdge(wanted(i), runs(i), price * static_cast<double>(node.bytes));
      if (kind == Kind::kAncestor) {
        flow.AddEdge(runs(i), sink,
                     node.recomputable ? node.seconds : kUnlimited);
      }
      for (const int input : node.inputs) {
        // (One that is held anyway leads nowhere.)
        flow.AddEdge(runs(i), wanted(input), kUnlimited);
      }
    }
    Line line;
    line.flow = flow.Run(source, sink);
    for (int i = 0; i < num_nodes; ++i) {
      if (!flow.IsReached(wanted(i))) continue;
      if (!flow.IsReached(runs(i))) {
        line.bytes += static_cast<double>(problem_.nodes[i].bytes);
      } else if (kinds_[i] == Kind::kAncestor) {
        line.seconds += problem_.nodes[i].seconds;
      }
    }
    return line;
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
