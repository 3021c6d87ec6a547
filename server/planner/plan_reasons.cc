#include "server/planner/plan_reasons.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/ops/op_def.h"
#include "server/planner/quantity_text.h"
#include "worker/program/policy.h"

namespace ebb {
namespace {

constexpr double kMiB = 1 << 20;

// What one value of a layer is and costs.
struct ValueCost {
  int64_t bytes = 0;         // of one layer and microbatch
  double forward_flops = 0;  // of the node that makes it
  double seconds = 0;        // of that
  const char* op = "";       // the op that makes it
  bool is_first = false;     // result of it: the others come with this one
  std::string readers;       // nodes whose backward reads it

  // What a byte costs that is freed by making the value again.
  double seconds_per_mib() const {
    return seconds / static_cast<double>(bytes) * kMiB;
  }
};

class ValueCosts {
 public:
  ValueCosts(const Graph& graph, const CostProfile& profile) : graph_(graph) {
    costs_.resize(graph.values.size());
    for (size_t v = 0; v < graph.values.size(); ++v) {
      costs_[v].bytes = AlignUp(graph.values[v].type.bytes());
    }
    for (const Node& node : graph.layer) AddNode(node, profile);
    for (size_t v = 0; v < graph.values.size(); ++v) {
      costs_[v].readers = absl::StrJoin(readers_[static_cast<int>(v)], ", ");
    }
    for (int v : SavedValues(graph)) saved_.insert(v);
  }

  const ValueCost& operator[](int value) const { return costs_[value]; }
  bool IsReadByBackward(int value) const { return saved_.count(value) != 0; }
  int IndexOf(const std::string& name) const {
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (graph_.values[v].name == name) return static_cast<int>(v);
    }
    return -1;
  }

 private:
  void AddNode(const Node& node, const CostProfile& profile) {
    const OpDef& def = GetOpDef(node.op);
    std::vector<TensorType> types;
    for (const ValueRef& ref : node.slots) {
      types.push_back(ref.value < 0 ? TensorType()
                                    : graph_.values[ref.value].type);
    }
    const std::string short_name = node.name.substr(node.name.find('.') + 1);
    bool is_first = true;
    for (int slot = 0; slot < def.num_slots(); ++slot) {
      if (node.slots[slot].value < 0) continue;
      const Role role = def.slots[slot].role;
      if (role == Role::kOutput || role == Role::kAux) {
        ValueCost& cost = costs_[node.slots[slot].value];
        cost.op = def.name;
        cost.is_first = std::exchange(is_first, false);
        cost.forward_flops =
            static_cast<double>(def.forward_flops(node.attrs, types));
        cost.seconds = NodeSeconds(graph_, node, profile);
      }
      for (int read = 0; read < def.num_slots(); ++read) {
        if ((def.slots[slot].grad_reads & Reads(read)) == 0) continue;
        if (node.slots[read].value < 0) continue;
        readers_[graph_.Storage(node.slots[read].value)].insert(short_name);
      }
    }
  }

  const Graph& graph_;
  std::vector<ValueCost> costs_;
  std::map<int, std::set<std::string>> readers_;
  std::set<int> saved_;
};

// What is computed again for a value, of one microbatch.
struct RecomputeCost {
  double flops = 0;
  double seconds = 0;
};
using RecomputeCosts = std::map<std::pair<std::string, int>, RecomputeCost>;

// By (name, layer). A node with several outputs counts at the first that the
// plan drops.
RecomputeCosts FindRecomputeCosts(const JobPrograms& programs, const Plan& plan,
                                  const CostProfile& profile) {
  std::set<std::pair<std::string, int>> dropped;
  for (const Decision& decision : plan.decisions) {
    if (!IsRecompute(decision.decision)) continue;
    for (int l = decision.first_layer; l <= decision.last_layer; ++l) {
      dropped.insert({decision.value, l});
    }
  }
  std::map<std::string, double> seconds;  // by node
  for (const Node& node : programs.graph.layer) {
    seconds[node.name] = NodeSeconds(programs.graph, node, profile);
  }
  RecomputeCosts costs;
  for (const Block& block : programs.training.blocks) {
    for (const Instruction& instruction : block.instructions) {
      if (instruction.phase != Phase::kRecompute) continue;
      for (int64_t i = 0; i < block.count; ++i) {
        for (const Operand& operand : instruction.operands) {
          const ValueName name = NameOf(block, instruction, operand);
          const std::pair<std::string, int> value = {
              name.name, block.LayerOf(i, name.layer_offset)};
          if (!operand.written || dropped.count(value) == 0) continue;
          costs[value].flops += instruction.recompute_flops;
          costs[value].seconds += seconds[instruction.name];
          break;
        }
      }
    }
  }
  return costs;
}

// The value of the layers that is dearest among those that the plan makes
// again, and the cheapest among those that it keeps, by seconds a byte, in one
// layer: what the next decision would have been. -1: there is none.
struct Rivals {
  int dropped = -1;
  int kept = -1;
};

class Explainer {
 public:
  Explainer(const Graph& graph, const CostProfile& profile, const Plan& plan)
      : graph_(graph), costs_(graph, profile), plan_(plan) {}

  const ValueCosts& costs() const { return costs_; }

  std::string ReasonToKeep(int value, const Decision& decision) const {
    const ValueCost& cost = costs_[value];
    if (value == graph_.stream) {
      return absl::StrCat(
          "input of the layers: everything recomputed starts from it; read by ",
          cost.readers);
    }
    if (cost.readers.empty()) {
      return absl::StrCat("output of ", cost.op,
                          ": kept if what is recomputed starts from it");
    }
    std::string reason =
        absl::StrCat("read by the backward pass of ", cost.readers,
                     "; keeping it saves ", SecondsText(cost.seconds), " and ",
                     FlopsText(cost.forward_flops), " a layer and microbatch");
    if (plan_.policy != Policy::kAuto || !cost.is_first) return reason;
    const Rivals rivals = RivalsIn(decision.first_layer);
    absl::StrAppend(&reason, ", ", PriceText(cost));
    if (rivals.dropped >= 0) {
      absl::StrAppend(&reason,
                      "; recomputed instead: ", NamedPrice(rivals.dropped));
    } else {
      absl::StrAppend(&reason, "; it fits the budget");
    }
    return reason;
  }

  std::string ReasonToOffload(int value, const Decision& decision) const {
    const ValueCost& cost = costs_[value];
    return absl::StrCat(
        "waits in host memory between the passes; frees ",
        BytesText(cost.bytes), " in each of ",
        decision.last_layer - decision.first_layer + 1, " layers",
        cost.readers.empty()
            ? std::string()
            : absl::StrCat(" until the backward pass of ", cost.readers));
  }

  std::string ReasonToRecompute(int value, const Decision& decision) const {
    const ValueCost& cost = costs_[value];
    std::string reason;
    if (plan_.policy == Policy::kFull || plan_.policy == Policy::kSqrt) {
      reason =
          absl::StrCat(PolicyName(plan_.policy), " keeps the input of every ",
                       plan_.group, " layers only; ");
    } else if (plan_.policy != Policy::kAuto) {
      reason =
          absl::StrCat(PolicyName(plan_.policy), " recomputes ", cost.op, "; ");
    }
    if (value == graph_.stream) {
      return absl::StrCat(reason, "frees ", BytesText(cost.bytes),
                          " a layer: made again from the input of its group");
    }
    if (cost.readers.empty()) {
      return absl::StrCat(reason, "made again only on the way to others");
    }
    absl::StrAppend(&reason, "frees ", BytesText(cost.bytes),
                    " a layer until the backward pass of ", cost.readers);
    if (decision.decision == ActivationDecision::kRecomputeTwice) {
      absl::StrAppend(&reason,
                      "; made again for the inputs of its group, and once more "
                      "for its own layer, so that one layer's values lie in "
                      "memory at a time");
    }
    if (plan_.policy != Policy::kAuto || !cost.is_first) return reason;
    absl::StrAppend(&reason, ", ", PriceText(cost));
    const Rivals rivals = RivalsIn(decision.first_layer);
    if (rivals.kept >= 0) {
      absl::StrAppend(&reason, "; kept instead: ", NamedPrice(rivals.kept));
    }
    return reason;
  }

 private:
  static std::string PriceText(const ValueCost& cost) {
    return absl::StrCat(SecondsText(cost.seconds_per_mib()), " a MiB");
  }

  std::string NamedPrice(int value) const {
    return absl::StrCat(graph_.values[value].name, " at ",
                        PriceText(costs_[value]));
  }

  Rivals RivalsIn(int layer) const {
    Rivals rivals;
    for (const Decision& decision : plan_.decisions) {
      if (layer < decision.first_layer || layer > decision.last_layer) continue;
      const int value = costs_.IndexOf(decision.value);
      const ValueCost& cost = costs_[value];
      if (value == graph_.stream || !costs_.IsReadByBackward(value) ||
          !cost.is_first) {
        continue;
      }
      const bool kept = decision.decision == ActivationDecision::kKeep;
      int& rival = kept ? rivals.kept : rivals.dropped;
      const bool nearer =
          rival < 0 ||
          (kept ? cost.seconds_per_mib() < costs_[rival].seconds_per_mib()
                : cost.seconds_per_mib() > costs_[rival].seconds_per_mib());
      if (nearer) rival = value;
    }
    return rivals;
  }

  const Graph& graph_;
  const ValueCosts costs_;
  const Plan& plan_;
};

}  // namespace

void ExplainDecisions(const JobSpec& spec, const JobPrograms& programs,
                      const CostProfile& profile, Plan& plan) {
  const Graph& graph = programs.graph;
  const Explainer explainer(graph, profile, plan);
  const RecomputeCosts recompute = FindRecomputeCosts(programs, plan, profile);
  std::vector<Decision> explained;
  for (Decision decision : plan.decisions) {
    const int value = explainer.costs().IndexOf(decision.value);
    decision.bytes = explainer.costs()[value].bytes *
                     (decision.last_layer - decision.first_layer + 1);
    if (decision.decision == ActivationDecision::kKeep) {
      if (!explainer.costs().IsReadByBackward(value)) continue;
      decision.reason = explainer.ReasonToKeep(value, decision);
    } else if (IsOffload(decision.decision)) {
      decision.reason = explainer.ReasonToOffload(value, decision);
    } else {
      for (int l = decision.first_layer; l <= decision.last_layer; ++l) {
        const auto it = recompute.find({decision.value, l});
        if (it == recompute.end()) continue;
        decision.flops += it->second.flops * spec.num_microbatches();
        decision.seconds += it->second.seconds * spec.num_microbatches();
      }
      if (!explainer.costs().IsReadByBackward(value) && decision.seconds == 0) {
        continue;
      }
      decision.reason = explainer.ReasonToRecompute(value, decision);
    }
    explained.push_back(std::move(decision));
  }
  plan.decisions = std::move(explained);
}

}  // namespace ebb
