// See graph_search.h.
#include "server/planner/graph_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <queue>
#include <utility>

#include "kernels/status.h"

namespace ebb {
namespace {

constexpr uint32_t kNoState = std::numeric_limits<uint32_t>::max();
// States between two looks at the clock, of sets of one word; of larger ones
// fewer.
constexpr int64_t kStopPeriod = 256;
// Bits of a longest node's ticks: sums of a million of them still fit.
constexpr int kTickBits = 41;

bool Has(const uint64_t* words, int node) {
  return (words[node >> 6] >> (node & 63)) & 1;
}
void Set(uint64_t* words, int node) {
  words[node >> 6] |= uint64_t{1} << (node & 63);
}
void Clear(uint64_t* words, int node) {
  words[node >> 6] &= ~(uint64_t{1} << (node & 63));
}

// Every state that a search has met, each once. Never forgets: a search that
// needs more than it may hold ends.
class StateTable {
 public:
  struct Entry {
    int64_t cost;
    uint32_t parent;
    int32_t move;  // node that was computed to come here from the parent
    int32_t remaining;
  };

  StateTable(int num_words, int64_t max_states)
      : num_words_(num_words),
        max_states_(std::min<int64_t>(max_states, kNoState)),
        slots_(1024, kNoState) {}

  bool full() const { return size() >= max_states_; }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  Entry& entry(uint32_t state) { return entries_[state]; }
  const uint64_t* words(uint32_t state) const {
    return words_.data() + static_cast<size_t>(state) * num_words_;
  }

  // The state's place, and whether it is new.
  std::pair<uint32_t, bool> Insert(const NodeSet& set) {
    if (2 * entries_.size() >= slots_.size()) Grow();
    size_t slot = Slot(set.data());
    while (slots_[slot] != kNoState) {
      if (std::equal(set.begin(), set.end(), words(slots_[slot]))) {
        return {slots_[slot], false};
      }
      slot = (slot + 1) & (slots_.size() - 1);
    }
    const auto state = static_cast<uint32_t>(entries_.size());
    slots_[slot] = state;
    entries_.push_back({});
    words_.insert(words_.end(), set.begin(), set.end());
    return {state, true};
  }

 private:
  size_t Slot(const uint64_t* set) const {
    uint64_t hash = 0x9e3779b97f4a7c15;
    for (int i = 0; i < num_words_; ++i) {
      hash = (hash ^ set[i]) * 0xff51afd7ed558ccd;
      hash ^= hash >> 32;
    }
    return hash & (slots_.size() - 1);
  }

  void Grow() {
    slots_.assign(2 * slots_.size(), kNoState);
    for (uint32_t state = 0; state < entries_.size(); ++state) {
      size_t slot = Slot(words(state));
      while (slots_[slot] != kNoState) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = state;
    }
  }

  const int num_words_;
  const int64_t max_states_;
  std::vector<Entry> entries_;
  std::vector<uint64_t> words_;
  std::vector<uint32_t> slots_;  // a power of two, at most half full
};

// A state on its way into the table.
struct Candidate {
  NodeSet set;
  int64_t held_bytes = 0;  // of the set
  int64_t cost = 0;
  int remaining = 0;
};

class Search {
 public:
  explicit Search(const SearchTask& task)
      : task_(task),
        graph_(*task.graph),
        stop_period_(std::max<int64_t>(1, kStopPeriod / graph_.num_words)),
        table_(task.graph->num_words, task.max_states) {}

  SearchResult BestFirst() {
    // Least cost first, then the one that is nearest to the begin.
    struct Open {
      int64_t cost;
      int32_t remaining;
      uint32_t state;
      bool operator<(const Open& other) const {
        if (cost != other.cost) return cost > other.cost;
        return remaining > other.remaining;
      }
    };
    std::priority_queue<Open> open;
    const auto add = [&](const Candidate& candidate, uint32_t parent,
                         int move) {
      if (candidate.cost >= task_.cost_limit) return kNoState;
      const uint32_t state = Reach(candidate, parent, move);
      if (state == kNoState) return kNoState;
      open.push({candidate.cost, candidate.remaining, state});
      return state;
    };
    add(Start(), kNoState, -1);
    SearchResult result;
    for (int64_t num_looks = 1; !open.empty(); ++num_looks) {
      const Open next = open.top();
      result.bound = std::max(result.bound, next.cost);
      if (table_.full() || (num_looks % stop_period_ == 0 && task_.stop())) {
        result.num_states = table_.size();
        return result;
      }
      open.pop();
      if (next.cost != table_.entry(next.state).cost) continue;  // outdated
      if (next.remaining == 0) {
        result.cost = result.bound = next.cost;
        result.order = OrderTo(next.state);
        result.num_states = table_.size();
        return result;
      }
      Expand(next.state, nullptr, add);
    }
    result.bound = kNoCost;
    result.num_states = table_.size();
    return result;
  }

  SearchResult Beam(const BeamShape& shape) {
    struct Open {
      double score;
      uint32_t state;
      int64_t cost;
      bool operator<(const Open& other) const { return score > other.score; }
    };
    const Candidate start = Start();
    std::vector<std::priority_queue<Open>> levels(start.remaining + 1);
    const auto add = [&](const Candidate& candidate, uint32_t parent,
                         int move) {
      if (table_.full() || candidate.cost >= task_.cost_limit) return kNoState;
      const uint32_t state = Reach(candidate, parent, move);
      if (state == kNoState) return kNoState;
      const double score =
          static_cast<double>(candidate.cost) +
          shape.byte_price * static_cast<double>(candidate.held_bytes);
      levels[candidate.remaining].push({score, state, candidate.cost});
      return state;
    };
    add(start, kNoState, -1);
    SearchResult result;
    int64_t num_looks = 0;
    for (int level = start.remaining; level > 0; --level) {
      std::priority_queue<Open>& open = levels[level];
      for (int64_t taken = 0; taken < shape.width && !open.empty();) {
        const Open next = open.top();
        open.pop();
        if (next.cost != table_.entry(next.state).cost) continue;
        if (++num_looks % stop_period_ == 0 && task_.stop()) return result;
        ++taken;
        Expand(next.state, &shape, add);
      }
      levels[level] = {};
    }
    // The last entry of the empty set has its least cost.
    for (; !levels[0].empty(); levels[0].pop()) {
      const Open& last = levels[0].top();
      if (last.cost != table_.entry(last.state).cost) continue;
      result.cost = last.cost;
      result.order = OrderTo(last.state);
      break;
    }
    result.num_states = table_.size();
    return result;
  }

 private:
  Candidate Start() const {
    Candidate start;
    start.set = task_.end;
    start.cost = task_.aim == SearchAim::kSeconds ? 0 : task_.bytes;
    start.held_bytes = HeldBytes(task_.end);
    start.remaining = graph_.CountAncestors(task_.end);
    Advance(&start, nullptr);
    return start;
  }

  const uint64_t* Inputs(int node) const {
    return graph_.input_words.data() +
           static_cast<size_t>(node) * graph_.num_words;
  }

  template <typename Visit>
  void ForEach(const NodeSet& set, Visit visit) const {
    for (int i = 0; i < graph_.num_words; ++i) {
      for (uint64_t word = set[i]; word != 0; word &= word - 1) {
        visit(64 * i + std::countr_zero(word));
      }
    }
  }

  // Another one of the set descends from the node.
  bool IsBelow(int node, const NodeSet& set) const {
    const uint64_t* const descendants =
        graph_.descendant_words.data() +
        static_cast<size_t>(node) * graph_.num_words;
    for (int i = node >> 6; i < graph_.num_words; ++i) {
      if ((descendants[i] & set[i]) != 0) return true;
    }
    return false;
  }

  int64_t HeldBytes(const NodeSet& set) const {
    int64_t bytes = 0;
    ForEach(set, [&](int node) { bytes += graph_.bytes[node]; });
    return bytes;
  }

  // Of the inputs that the set does not have.
  int64_t MissingBytes(int node, const NodeSet& set, bool* any) const {
    int64_t bytes = 0;
    *any = false;
    for (const int input : graph_.inputs[node]) {
      if (Has(set.data(), input)) continue;
      *any = true;
      bytes += graph_.bytes[input];
    }
    return bytes;
  }

  // The state in the table, or kNoState if it is there at no larger cost.
  uint32_t Reach(const Candidate& candidate, uint32_t parent, int move) {
    const auto [state, inserted] = table_.Insert(candidate.set);
    StateTable::Entry& entry = table_.entry(state);
    if (!inserted && entry.cost <= candidate.cost) return kNoState;
    entry = {candidate.cost, parent, move, candidate.remaining};
    return state;
  }

  // The candidate's state before `node` was computed as the last one; of its
  // inputs so many bytes were not in the set.
  void Undo(int node, int64_t missing_bytes, Candidate* candidate) const {
    candidate->held_bytes += missing_bytes - graph_.bytes[node];
    if (!IsBelow(node, candidate->set)) --candidate->remaining;
    Clear(candidate->set.data(), node);
    for (int i = 0; i < graph_.num_words; ++i) {
      candidate->set[i] |= Inputs(node)[i];
    }
  }

  // Makes the computations that no schedule can lose by; appends them to the
  // order, last one first, unless it is null.
  void Advance(Candidate* candidate, std::vector<int>* order) const {
    for (bool changed = true; changed;) {
      changed = false;
      for (int i = graph_.num_words - 1; i >= 0; --i) {
        uint64_t word = candidate->set[i];
        while (word != 0) {
          const int bit = 63 - std::countl_zero(word);
          word &= ~(uint64_t{1} << bit);
          const int node = 64 * i + bit;
          if (IsBelow(node, candidate->set)) continue;
          bool any_missing = false;
          const int64_t missing =
              MissingBytes(node, candidate->set, &any_missing);
          if (any_missing && graph_.inputs_bytes[node] > graph_.bytes[node]) {
            continue;
          }
          if (candidate->held_bytes + missing + graph_.workspace_bytes[node] >
              task_.bytes) {
            continue;
          }
          Undo(node, missing, candidate);
          if (order != nullptr) order->push_back(node);
          changed = true;
          word |= candidate->set[i] & ((uint64_t{1} << bit) - 1);
        }
      }
    }
  }

  // A computation that may be the last one of a state.
  struct Step {
    int node;
    bool extra;             // of a node that the rest needs once more
    int64_t missing_bytes;  // of inputs that enter the set
    int64_t bytes;          // resident while it runs
  };

  Step StepOf(int node, const NodeSet& set, int64_t held) const {
    bool any_missing = false;
    const int64_t missing = MissingBytes(node, set, &any_missing);
    return {node, IsBelow(node, set), missing,
            held + missing + graph_.workspace_bytes[node]};
  }

  // It costs nothing beyond the way to a state of this cost.
  bool IsFree(const Step& step, int64_t cost) const {
    if (step.extra) return false;
    return step.bytes <=
           (task_.aim == SearchAim::kSeconds ? task_.bytes : cost);
  }

  // Adds the states before each computation that may be the last one of the
  // state. A beam adds extra ones only where nothing else is free, if it is
  // reluctant, and follows each down.
  template <typename Add>
  void Expand(uint32_t state, const BeamShape* beam, const Add& add) {
    const StateTable::Entry entry = table_.entry(state);
    const NodeSet set(table_.words(state),
                      table_.words(state) + graph_.num_words);
    const int64_t held = HeldBytes(set);
    std::vector<Step> extra;
    bool any_free = false;
    ForEach(set, [&](int node) {
      const Step step = StepOf(node, set, held);
      if (step.extra) {
        if (graph_.recomputable[node]) extra.push_back(step);
        return;
      }
      any_free |= IsFree(step, entry.cost);
      Compute(step, state, set, held, add);
    });
    if (beam != nullptr && beam->reluctant && any_free) return;
    for (const Step& step : extra) {
      const uint32_t reached = Compute(step, state, set, held, add);
      if (beam != nullptr) Sink(reached, set, held, add);
    }
  }

  // To drop a value in favour of its inputs gives no room until they are
  // dropped, too, down to what was held anyway: goes there at once.
  template <typename Add>
  void Sink(uint32_t state, const NodeSet& before, int64_t held_before,
            const Add& add) {
    while (state != kNoState && candidate_.held_bytes >= held_before) {
      const NodeSet set = candidate_.set;
      const int64_t held = candidate_.held_bytes;
      int next = -1;
      ForEach(set, [&](int node) {
        if (!Has(before.data(), node)) next = node;
      });
      if (next < 0) return;
      const Step step = StepOf(next, set, held);
      if (step.extra && !graph_.recomputable[next]) return;
      state = Compute(step, state, set, held, add);
    }
  }

  // Adds the state before the computation; kNoState: it does not fit, or is
  // nothing new.
  template <typename Add>
  uint32_t Compute(const Step& step, uint32_t state, const NodeSet& set,
                   int64_t held, const Add& add) {
    const StateTable::Entry entry = table_.entry(state);
    candidate_.cost = entry.cost;
    if (task_.aim == SearchAim::kBytes) {
      candidate_.cost = std::max(entry.cost, step.bytes);
    } else {
      if (step.bytes > task_.bytes) return kNoState;
      if (step.extra) candidate_.cost += graph_.ticks[step.node];
    }
    candidate_.set = set;
    candidate_.held_bytes = held;
    candidate_.remaining = entry.remaining;
    Undo(step.node, step.missing_bytes, &candidate_);
    Advance(&candidate_, nullptr);
    return add(candidate_, state, step.node);
  }

  // The order of a whole schedule, first computation first.
  std::vector<int> OrderTo(uint32_t state) {
    std::vector<int> moves;
    for (uint32_t s = state; s != kNoState; s = table_.entry(s).parent) {
      if (table_.entry(s).move >= 0) moves.push_back(table_.entry(s).move);
    }
    std::vector<int> order;
    Candidate candidate;
    candidate.set = task_.end;
    candidate.held_bytes = HeldBytes(task_.end);
    Advance(&candidate, &order);
    for (size_t i = moves.size(); i-- > 0;) {
      order.push_back(moves[i]);
      bool any_missing = false;
      Undo(moves[i], MissingBytes(moves[i], candidate.set, &any_missing),
           &candidate);
      Advance(&candidate, &order);
    }
    for (const uint64_t word : candidate.set) EBB_CHECK(word == 0);
    std::reverse(order.begin(), order.end());
    return order;
  }

  const SearchTask& task_;
  const SearchGraph& graph_;
  const int64_t stop_period_;
  StateTable table_;
  Candidate candidate_;
};

// The largest power of two of which `most` has fewer than 2^kTickBits.
double TickSeconds(double most) {
  if (most <= 0) return 1;
  int exponent = 0;
  std::frexp(most, &exponent);
  // A denormal would lose what it divides.
  return std::ldexp(1.0, std::max(exponent - kTickBits, -1000));
}

}  // namespace

SearchGraph::SearchGraph(const GraphProblem& problem) {
  const int num_problem_nodes = static_cast<int>(problem.nodes.size());
  std::vector<bool> needed(num_problem_nodes, false);
  for (const int output : problem.outputs) needed[output] = true;
  for (int i = num_problem_nodes - 1; i >= 0; --i) {
    if (!needed[i]) continue;
    for (const int input : problem.nodes[i].inputs) needed[input] = true;
  }
  std::vector<int> position(num_problem_nodes, -1);
  double longest = 0;
  for (int i = 0; i < num_problem_nodes; ++i) {
    if (!needed[i]) continue;
    position[i] = num_nodes++;
    problem_nodes.push_back(i);
    longest = std::max(longest, problem.nodes[i].seconds);
  }
  num_words = (num_nodes + 63) / 64;
  tick_seconds = TickSeconds(longest);
  outputs.resize(num_words);
  input_words.resize(static_cast<size_t>(num_nodes) * num_words);
  descendant_words.resize(static_cast<size_t>(num_nodes) * num_words);
  for (const int output : problem.outputs) {
    Set(outputs.data(), position[output]);
  }
  for (int node = 0; node < num_nodes; ++node) {
    const ProblemNode& from = problem.nodes[problem_nodes[node]];
    bytes.push_back(from.bytes);
    workspace_bytes.push_back(from.workspace_bytes);
    ticks.push_back(std::llround(from.seconds / tick_seconds));
    recomputable.push_back(from.recomputable);
    std::vector<int> node_inputs;
    int64_t sum = 0;
    for (const int input : from.inputs) {
      node_inputs.push_back(position[input]);
      sum += problem.nodes[input].bytes;
      Set(input_words.data() + static_cast<size_t>(node) * num_words,
          position[input]);
    }
    inputs.push_back(std::move(node_inputs));
    inputs_bytes.push_back(sum);
  }
  for (int node = num_nodes - 1; node >= 0; --node) {
    const uint64_t* const own =
        descendant_words.data() + static_cast<size_t>(node) * num_words;
    for (const int input : inputs[node]) {
      uint64_t* const above =
          descendant_words.data() + static_cast<size_t>(input) * num_words;
      for (int i = 0; i < num_words; ++i) above[i] |= own[i];
      Set(above, node);
    }
  }
}

int SearchGraph::CountAncestors(const NodeSet& set) const {
  NodeSet all = set;
  for (int node = num_nodes - 1; node >= 0; --node) {
    if (!Has(all.data(), node)) continue;
    for (int i = 0; i < num_words; ++i) {
      all[i] |= input_words[static_cast<size_t>(node) * num_words + i];
    }
  }
  int count = 0;
  for (const uint64_t word : all) count += std::popcount(word);
  return count;
}

SearchResult SearchBestFirst(const SearchTask& task) {
  return Search(task).BestFirst();
}

SearchResult SearchBeam(const SearchTask& task, const BeamShape& shape) {
  return Search(task).Beam(shape);
}

}  // namespace ebb
