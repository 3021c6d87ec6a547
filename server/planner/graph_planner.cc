// See graph_planner.h.
#include "server/planner/graph_planner.h"

#include <algorithm>
#include <utility>

#include "server/planner/graph_bound.h"
#include "server/planner/graph_search.h"

namespace ebb {
namespace {

// Shares of the time at which a phase gives way to the next. Small graphs end
// long before the first.
constexpr double kEndOfBounding = 0.05;
constexpr double kEndOfFitting = 0.15;
constexpr double kEndOfTrying = 0.4;
constexpr double kEndOfQuickLook = 0.5;
constexpr double kEndOfProving = 0.65;
// Beams: first a quick look, then ever wider ones.
constexpr int64_t kQuickWidth = 16;
constexpr int64_t kLargestWidth = int64_t{1} << 16;
constexpr int kWidthStep = 4;
// Of equal peaks beams prefer what holds less.
constexpr double kTieBreak = 1e-3;
// Beams value a byte at these multiples of the graph's seconds a byte.
constexpr double kPrices[] = {1, 0.125, 0, 8};

// What an order of computations does.
struct Replayed {
  std::vector<ScheduleStep> steps;
  int64_t peak_bytes = 0;
  double total_seconds = 0;
  int64_t extra_ticks = kNoCost;  // of no order
};

// Frees every value right after its last use.
Replayed ReplayOrder(const GraphProblem& problem, const SearchGraph& graph,
                     const std::vector<int>& order) {
  constexpr int kNobody = -1;
  const int length = static_cast<int>(order.size());
  std::vector<int> maker(graph.num_nodes, kNobody);  // position in the order
  std::vector<int> last_use(length, kNobody);
  std::vector<int64_t> num_runs(graph.num_nodes, 0);
  for (int i = 0; i < length; ++i) {
    for (const int input : graph.inputs[order[i]]) last_use[maker[input]] = i;
    maker[order[i]] = i;
    ++num_runs[order[i]];
  }
  for (int node = 0; node < graph.num_nodes; ++node) {
    if ((graph.outputs[node >> 6] >> (node & 63)) & 1) {
      last_use[maker[node]] = length;
    }
  }
  Replayed result;
  result.extra_ticks = 0;
  std::vector<std::vector<int>> freed(length);
  for (int i = 0; i < length; ++i) {
    if (last_use[i] < length) freed[last_use[i]].push_back(order[i]);
  }
  int64_t bytes = problem.resident_bytes;
  result.peak_bytes = bytes;
  for (int i = 0; i < length; ++i) {
    const int node = order[i];
    bytes += graph.bytes[node];
    result.peak_bytes =
        std::max(result.peak_bytes, bytes + graph.workspace_bytes[node]);
    result.steps.push_back(
        {ScheduleStep::Action::kCompute, graph.problem_nodes[node]});
    std::sort(freed[i].begin(), freed[i].end());
    for (const int value : freed[i]) {
      bytes -= graph.bytes[value];
      result.steps.push_back(
          {ScheduleStep::Action::kFree, graph.problem_nodes[value]});
    }
  }
  // Node by node, so that equal schedules have equal totals to the bit.
  for (int node = 0; node < graph.num_nodes; ++node) {
    result.total_seconds += static_cast<double>(num_runs[node]) *
                            problem.nodes[graph.problem_nodes[node]].seconds;
    result.extra_ticks += (num_runs[node] - 1) * graph.ticks[node];
  }
  return result;
}

class Planner {
 public:
  Planner(const GraphProblem& problem, int64_t budget_bytes,
          const GraphPlanOptions& options)
      : problem_(problem),
        options_(options),
        budget_bytes_(budget_bytes),
        capacity_(budget_bytes - problem.resident_bytes),
        graph_(problem) {
    for (int node = 0; node < graph_.num_nodes; ++node) {
      once_seconds_ += problem.nodes[graph_.problem_nodes[node]].seconds;
      once_ticks_ += static_cast<double>(graph_.ticks[node]);
      once_bytes_ += static_cast<double>(graph_.bytes[node]);
    }
  }

  GraphPlan Run() {
    plan_.lower_bound_seconds = SecondsBound(
        problem_, budget_bytes_, [this] { return IsOver(kEndOfBounding); });
    if (Fit()) {
      Improve();
      plan_.outcome = GraphPlan::Outcome::kPlanned;
      plan_.steps = std::move(best_.steps);
      plan_.total_seconds = best_.total_seconds;
      plan_.peak_bytes = best_.peak_bytes;
      plan_.least_budget_bound = plan_.least_budget_found = 0;
    }
    return std::move(plan_);
  }

 private:
  bool IsOver(double share) const { return options_.time_used() >= share; }

  SearchTask Task(SearchAim aim, int64_t bytes, double end_share) const {
    SearchTask task;
    task.graph = &graph_;
    task.aim = aim;
    task.end = graph_.outputs;
    task.bytes = bytes;
    // A set and its entry, twice since tables grow by doubling; its places in
    // the table and in the queue.
    task.max_states =
        options_.search_bytes / (2 * (8 * graph_.num_words + 24) + 16 + 32);
    task.stop = [this, end_share] { return IsOver(end_share); };
    return task;
  }

  // Finds any schedule that fits, or the least budget that one fits.
  bool Fit() {
    const int64_t least = LeastBudgetBound(problem_) - problem_.resident_bytes;
    const int64_t floor = std::max(capacity_, least);
    SearchTask task = Task(SearchAim::kBytes, floor, kEndOfFitting);
    SearchResult found = SearchBestFirst(task);
    plan_.num_states += found.num_states;
    int64_t bound = std::max(found.bound, least);
    int64_t smallest = found.cost;
    // Beams for what the exact search could not finish.
    if (smallest == kNoCost && bound <= capacity_) {
      Beams(1, kLargestWidth, kEndOfTrying);
      if (best_.extra_ticks != kNoCost) return true;
    }
    task.stop = [this] { return IsOver(1); };
    for (int64_t width = 1;
         smallest == kNoCost || (smallest > capacity_ && smallest > bound);
         width *= kWidthStep) {
      // What fits nothing by proof gets a good budget, not the last byte.
      const double end_share = bound > capacity_ ? 2 * kEndOfFitting : 1;
      if (width > kLargestWidth || IsOver(end_share)) break;
      task.cost_limit = smallest;
      for (const bool reluctant : {true, false}) {
        SearchResult beam = SearchBeam(
            task,
            {.width = width, .byte_price = kTieBreak, .reluctant = reluctant});
        plan_.num_states += beam.num_states;
        if (beam.cost >= smallest) continue;
        task.cost_limit = smallest = beam.cost;
        found.order = std::move(beam.order);
        if (smallest <= capacity_) break;
      }
    }
    if (smallest <= capacity_) {
      best_ = ReplayOrder(problem_, graph_, found.order);
      return true;
    }
    plan_.outcome = bound > capacity_ ? GraphPlan::Outcome::kInfeasible
                                      : GraphPlan::Outcome::kUndecided;
    plan_.least_budget_bound = bound + problem_.resident_bytes;
    if (smallest != kNoCost) {
      plan_.least_budget_found = smallest + problem_.resident_bytes;
    }
    return false;
  }

  // From a schedule that fits to the best one, as far as time goes.
  void Improve() {
    Beams(1, kQuickWidth, kEndOfQuickLook);
    if (IsOptimal()) return;
    SearchTask task = Task(SearchAim::kSeconds, capacity_, kEndOfProving);
    task.cost_limit = best_.extra_ticks;
    const SearchResult exact = SearchBestFirst(task);
    plan_.num_states += exact.num_states;
    Take(exact);
    if (exact.bound >= best_.extra_ticks) {
      plan_.optimal = true;
      plan_.lower_bound_seconds = best_.total_seconds;
      return;
    }
    plan_.lower_bound_seconds =
        std::max(plan_.lower_bound_seconds,
                 (once_seconds_ +
                  static_cast<double>(exact.bound) * graph_.tick_seconds) *
                     (1 - 1e-11));
    Beams(kQuickWidth * kWidthStep, kLargestWidth, 1);
    IsOptimal();
  }

  // Says so in the plan if the best schedule meets its bound.
  bool IsOptimal() {
    if (best_.extra_ticks > 0 &&
        best_.total_seconds > plan_.lower_bound_seconds * (1 + 2e-11)) {
      return false;
    }
    plan_.optimal = true;
    plan_.lower_bound_seconds = best_.total_seconds;
    return true;
  }

  // Ends with the first schedule where there is none yet.
  void Beams(int64_t first_width, int64_t last_width, double end_share) {
    const bool any = best_.extra_ticks == kNoCost;
    const double ticks_per_byte =
        once_bytes_ > 0 ? once_ticks_ / once_bytes_ : 0;
    SearchTask task = Task(SearchAim::kSeconds, capacity_, end_share);
    for (int64_t width = first_width; width <= last_width;
         width *= kWidthStep) {
      for (const bool reluctant : {true, false}) {
        for (const double price : kPrices) {
          if (best_.extra_ticks == 0 || IsOver(end_share)) return;
          task.cost_limit = best_.extra_ticks;
          const SearchResult beam =
              SearchBeam(task, {.width = width,
                                .byte_price = price * ticks_per_byte,
                                .reluctant = reluctant});
          plan_.num_states += beam.num_states;
          Take(beam);
          if (any && best_.extra_ticks != kNoCost) return;
        }
      }
    }
  }

  void Take(const SearchResult& result) {
    if (result.cost >= best_.extra_ticks) return;
    best_ = ReplayOrder(problem_, graph_, result.order);
  }

  const GraphProblem& problem_;
  const GraphPlanOptions& options_;
  const int64_t budget_bytes_;
  const int64_t capacity_;  // of the budget, for values and workspace
  const SearchGraph graph_;
  // Of every needed node once.
  double once_seconds_ = 0;
  double once_ticks_ = 0;
  double once_bytes_ = 0;
  Replayed best_;
  GraphPlan plan_;
};

}  // namespace

GraphPlan PlanGraph(const GraphProblem& problem, int64_t budget_bytes,
                    const GraphPlanOptions& options) {
  return Planner(problem, budget_bytes, options).Run();
}

}  // namespace ebb
