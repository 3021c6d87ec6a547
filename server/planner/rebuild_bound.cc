// See rebuild_bound.h.
#include "server/planner/rebuild_bound.h"

#include <algorithm>
#include <queue>

namespace ebb {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();
// Lines that are looked at; a handful is usual.
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

// A cut: what it costs at a price a byte is seconds + price * bytes.
struct Line {
  double seconds = 0;
  double bytes = 0;
  double flow = 0;  // at the price it was found for
};

// At this price holding it elsewhere is cheaper.
bool IsElsewhere(const RebuildNode& node, double price) {
  return node.elsewhere_seconds < price * static_cast<double>(node.bytes);
}

double HoldingCost(const RebuildNode& node, double price) {
  if (node.bytes == RebuildNode::kCannotHold) return kUnlimited;
  return IsElsewhere(node, price) ? node.elsewhere_seconds
                                  : price * static_cast<double>(node.bytes);
}

// Two points a node: "wanted", on the source's side if something reads it, and
// "runs", on that side if it runs.
Line Cut(const std::vector<RebuildNode>& nodes, double price) {
  const int num_nodes = static_cast<int>(nodes.size());
  const int source = 2 * num_nodes;
  const int sink = source + 1;
  const auto wanted = [](int node) { return 2 * node; };
  const auto runs = [](int node) { return 2 * node + 1; };
  Flow flow(2 * num_nodes + 2);
  for (int i = 0; i < num_nodes; ++i) {
    const RebuildNode& node = nodes[i];
    if (node.given) continue;  // leads nowhere
    if (node.wanted) flow.AddEdge(source, wanted(i), kUnlimited);
    flow.AddEdge(wanted(i), runs(i), HoldingCost(node, price));
    if (node.seconds > 0) flow.AddEdge(runs(i), sink, node.seconds);
    for (const int input : node.inputs) {
      flow.AddEdge(runs(i), wanted(input), kUnlimited);
    }
  }
  Line line;
  line.flow = flow.Run(source, sink);
  for (int i = 0; i < num_nodes; ++i) {
    if (nodes[i].given || !flow.IsReached(wanted(i))) continue;
    if (!flow.IsReached(runs(i))) {
      if (IsElsewhere(nodes[i], price)) {
        line.seconds += nodes[i].elsewhere_seconds;
      } else {
        line.bytes += static_cast<double>(nodes[i].bytes);
      }
    } else {
      line.seconds += nodes[i].seconds;
    }
  }
  return line;
}

}  // namespace

double LeastRebuildSeconds(const std::vector<RebuildNode>& nodes,
                           int64_t room) {
  double all_seconds = 0;
  Line above;  // of holding all that is wanted
  for (const RebuildNode& node : nodes) {
    if (node.given) continue;
    if (node.seconds < kUnlimited) all_seconds += node.seconds;
    if (node.elsewhere_seconds < kUnlimited) {
      all_seconds += node.elsewhere_seconds;
    }
    if (node.wanted && node.bytes != RebuildNode::kCannotHold) {
      above.bytes += static_cast<double>(node.bytes);
    }
  }
  const auto room_bytes = static_cast<double>(room);
  if (above.bytes <= room_bytes || all_seconds <= 0) return 0;
  const auto value = [&](const Line& line, double price) {
    return line.flow - price * room_bytes;
  };
  // And of holding as little as possible: a byte costs as much as everything.
  Line below = Cut(nodes, all_seconds);
  double best = std::max(0.0, value(below, all_seconds));
  for (int i = 0; i < kMaxLines; ++i) {
    if (below.bytes > room_bytes || below.bytes >= above.bytes) break;
    const double price =
        (below.seconds - above.seconds) / (above.bytes - below.bytes);
    if (!(price > 0)) break;
    const Line line = Cut(nodes, price);
    best = std::max(best, value(line, price));
    const double crossing = above.seconds + price * above.bytes;
    if (line.flow >= crossing * (1 - kRounding)) break;
    (line.bytes > room_bytes ? above : below) = line;
  }
  return best;
}

}  // namespace ebb
