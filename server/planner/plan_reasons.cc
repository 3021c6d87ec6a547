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
#include "kernels/ops/decode.h"
#include "kernels/ops/encode.h"
#include "kernels/ops/op_def.h"
#include "server/planner/layer_costs.h"
#include "server/planner/quantity_text.h"
#include "worker/program/policy.h"

namespace ebb {
namespace {

// What one value of a layer is.
struct ValueFacts {
  int64_t bytes = 0;      // of one layer and microbatch
  const char* op = "";    // the op that makes it
  bool is_first = false;  // result of it: the others come with this one
  std::string readers;    // nodes whose backward reads it
};

class Values {
 public:
  explicit Values(const Graph& graph) : graph_(graph) {
    facts_.resize(graph.values.size());
    for (size_t v = 0; v < graph.values.size(); ++v) {
      facts_[v].bytes = AlignUp(graph.values[v].type.bytes());
    }
    for (const Node& node : graph.layer) AddNode(node);
    for (size_t v = 0; v < graph.values.size(); ++v) {
      facts_[v].readers = absl::StrJoin(readers_[static_cast<int>(v)], ", ");
    }
    for (int v : SavedValues(graph)) saved_.insert(v);
  }

  const ValueFacts& operator[](int value) const { return facts_[value]; }
  bool IsReadByBackward(int value) const { return saved_.count(value) != 0; }
  int IndexOf(const std::string& name) const {
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (graph_.values[v].name == name) return static_cast<int>(v);
    }
    return -1;
  }

 private:
  void AddNode(const Node& node) {
    const OpDef& def = GetOpDef(node.op);
    const std::string short_name = node.name.substr(node.name.find('.') + 1);
    bool is_first = true;
    for (int slot = 0; slot < def.num_slots(); ++slot) {
      if (node.slots[slot].value < 0) continue;
      const Role role = def.slots[slot].role;
      if (role == Role::kOutput || role == Role::kAux) {
        ValueFacts& facts = facts_[node.slots[slot].value];
        facts.op = def.name;
        facts.is_first = std::exchange(is_first, false);
      }
      for (int read = 0; read < def.num_slots(); ++read) {
        if ((def.slots[slot].grad_reads & Reads(read)) == 0) continue;
        if (node.slots[read].value < 0) continue;
        readers_[graph_.Storage(node.slots[read].value)].insert(short_name);
      }
    }
  }

  const Graph& graph_;
  std::vector<ValueFacts> facts_;
  std::map<int, std::set<std::string>> readers_;
  std::set<int> saved_;
};

// What is done for a value beside the exact step's work, of one microbatch.
struct AddedCost {
  double flops = 0;
  double seconds = 0;
};
using RecomputeCosts = std::map<std::pair<std::string, int>, AddedCost>;

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

// A value, by its index (-1: none), and what keeping it saves and takes.
struct Rival {
  int value = -1;
  LayerCosts::Price price;
};

// The value of a layer that would save the most seconds a byte among those that
// the plan makes again, and the one that saves the least among those that it
// keeps: what the next decision would have been.
struct Rivals {
  Rival dropped;
  Rival kept;
};

class Explainer {
 public:
  Explainer(const Graph& graph, const CostProfile& profile,
            const Encoding& encoding, const Plan& plan)
      : graph_(graph),
        values_(graph),
        layer_(graph, profile, encoding),
        profile_(profile),
        plan_(plan),
        held_(graph.num_layers) {
    for (const Decision& decision : plan.decisions) {
      if (IsRecompute(decision.decision) || IsOnState(decision.value)) continue;
      const NodeSet node = NodeSet{1}
                           << layer_.maker(values_.IndexOf(decision.value));
      for (int l = decision.first_layer; l <= decision.last_layer; ++l) {
        held_[l] |= node;
      }
    }
  }

  const Values& values() const { return values_; }

  std::string ReasonToKeep(int value, const Decision& decision) const {
    const ValueFacts& facts = values_[value];
    if (value == graph_.stream) {
      return absl::StrCat(
          "input of the layers: everything recomputed starts from it; read by ",
          facts.readers);
    }
    if (facts.readers.empty()) {
      return absl::StrCat("output of ", facts.op,
                          ": kept if what is recomputed starts from it");
    }
    std::string reason =
        absl::StrCat("read by the backward pass of ", facts.readers);
    if (!facts.is_first) return reason;
    const LayerCosts::Price price = PriceAt(value, decision.first_layer);
    absl::StrAppend(&reason, "; keeping it saves ", SecondsText(price.seconds),
                    " and ", FlopsText(price.flops), " a layer and microbatch");
    if (plan_.policy != Policy::kAuto) return reason;
    absl::StrAppend(&reason, PriceText(price));
    const Rivals& rivals = RivalsIn(decision.first_layer);
    if (rivals.dropped.value >= 0) {
      absl::StrAppend(&reason,
                      "; recomputed instead: ", NamedPrice(rivals.dropped));
    } else {
      absl::StrAppend(&reason, "; it fits the budget");
    }
    return reason;
  }

  std::string ReasonToOffload(int value, const Decision& decision) const {
    const ValueFacts& facts = values_[value];
    return absl::StrCat(
        "waits ",
        decision.decision == ActivationDecision::kOffloadDisk
            ? "on disk"
            : "in host memory",
        " between the passes; frees ", BytesText(facts.bytes), " in each of ",
        decision.last_layer - decision.first_layer + 1, " layers",
        facts.readers.empty()
            ? std::string()
            : absl::StrCat(" until the backward pass of ", facts.readers));
  }

  // Frees bytes; and what it loses, as far as that is known.
  std::string ReasonToEncode(int value, const Decision& decision) const {
    const TensorType& type = graph_.values[value].type;
    const char* format = DTypeName(decision.encoded);
    std::string reason = absl::StrCat(
        IsOffload(decision.decision)
            ? absl::StrCat(decision.decision == ActivationDecision::kOffloadDisk
                               ? "waits on "
                               : "waits in ",
                           OffloadPlaceName(decision.decision))
            : std::string("kept"),
        " as ", format, " of ", BytesText(EncodedBytes(type, decision.encoded)),
        " instead of ", BytesText(AlignUp(type.bytes())),
        " a layer between its last reader in forward and its first in backward",
        value == graph_.stream || !values_[value].is_first
            ? std::string()
            : absl::StrCat(
                  "; making it again would take ",
                  SecondsText(PriceAt(value, decision.first_layer).seconds),
                  " a layer and microbatch"));
    const auto error =
        FindEncodeError(profile_, decision.value, type, decision.encoded);
    if (!error.has_value()) {
      return absl::StrCat(
          reason, "; error: ",
          absl::StrFormat("at most %.2g %%",
                          100 * EncodeErrorBound(decision.encoded)),
          " of an element that is not tiny beside its row's largest, not "
          "measured yet");
    }
    return absl::StrCat(
        reason, "; error: ",
        absl::StrFormat("%.3g %% root mean square, %.3g at most, measured ",
                        100 * error->relative_error, error->largest_error),
        error->is_of_a_job ? "while a job of this shape trained"
                           : "on random weights and tokens");
  }

  // What encoding and decoding a value of one layer takes.
  AddedCost CostToEncode(int value, DType format) const {
    AddedCost cost;
    const TensorType& type = graph_.values[value].type;
    const bool has_scale = format == DType::kF8E4M3;
    std::vector<TensorType> types(encode::kNumSlots);
    types[encode::kX] = type;
    types[encode::kCode] = type.WithDType(format);
    if (has_scale) types[encode::kScale] = encode::ScaleType(type);
    types[encode::kError] = {DType::kF64, encode::kNumErrors};
    Add(Op::kEncode, {.result = format}, types, cost);
    types.assign(decode::kNumSlots, {});
    types[decode::kX] = type;
    types[decode::kCode] = type.WithDType(format);
    if (has_scale) types[decode::kScale] = encode::ScaleType(type);
    Add(Op::kDecode, {.result = type.dtype}, types, cost);
    return cost;
  }

  std::string ReasonToRecompute(int value, const Decision& decision) const {
    const ValueFacts& facts = values_[value];
    std::string reason;
    if (plan_.policy == Policy::kFull || plan_.policy == Policy::kSqrt) {
      reason =
          absl::StrCat(PolicyName(plan_.policy), " keeps the input of every ",
                       plan_.group, " layers only; ");
    } else if (plan_.policy != Policy::kAuto) {
      reason = absl::StrCat(PolicyName(plan_.policy), " recomputes ", facts.op,
                            "; ");
    }
    if (value == graph_.stream) {
      return absl::StrCat(reason, "frees ", BytesText(facts.bytes),
                          " a layer: made again from the input of its group");
    }
    if (facts.readers.empty()) {
      return absl::StrCat(reason, "made again only on the way to others");
    }
    absl::StrAppend(&reason, "frees ", BytesText(facts.bytes),
                    " a layer until the backward pass of ", facts.readers);
    if (decision.decision == ActivationDecision::kRecomputeTwice) {
      absl::StrAppend(&reason,
                      "; made again for the inputs of its group, and once more "
                      "for its own layer, so that one layer's values lie in "
                      "memory at a time");
    }
    if (plan_.policy != Policy::kAuto || !facts.is_first) return reason;
    absl::StrAppend(&reason, PriceText(PriceAt(value, decision.first_layer)));
    const Rivals& rivals = RivalsIn(decision.first_layer);
    if (rivals.kept.value >= 0) {
      absl::StrAppend(&reason, "; kept instead: ", NamedPrice(rivals.kept));
    }
    return reason;
  }

 private:
  // Of what the layer's other decisions are, whatever this one is.
  LayerCosts::Price PriceAt(int value, int layer) const {
    return layer_.PriceOf(layer_.maker(value), held_[layer]);
  }

  // ", 12.3 ms a MiB"; nothing where keeping it would take no memory.
  static std::string PriceText(const LayerCosts::Price& price) {
    if (price.bytes <= 0) return "";
    return absl::StrCat(", ", SecondsText(price.seconds_per_mib()), " a MiB");
  }

  std::string NamedPrice(const Rival& rival) const {
    return absl::StrCat(graph_.values[rival.value].name, " of ",
                        BytesText(rival.price.bytes), PriceText(rival.price));
  }

  const Rivals& RivalsIn(int layer) const {
    const auto [found, is_new] = rivals_.try_emplace(layer);
    Rivals& rivals = found->second;
    if (!is_new) return rivals;
    for (const Decision& decision : plan_.decisions) {
      if (layer < decision.first_layer || layer > decision.last_layer) continue;
      const int value = values_.IndexOf(decision.value);
      if (value == graph_.stream || !values_.IsReadByBackward(value) ||
          !values_[value].is_first) {
        continue;
      }
      const LayerCosts::Price price = PriceAt(value, layer);
      if (price.bytes <= 0) continue;
      const bool kept = decision.decision == ActivationDecision::kKeep;
      Rival& rival = kept ? rivals.kept : rivals.dropped;
      const bool nearer =
          rival.value < 0 ||
          (kept ? price.seconds_per_mib() < rival.price.seconds_per_mib()
                : price.seconds_per_mib() > rival.price.seconds_per_mib());
      if (nearer) rival = {value, price};
    }
    return rivals;
  }

  void Add(Op op, const OpAttrs& attrs, Types types, AddedCost& cost) const {
    cost.flops += static_cast<double>(GetOpDef(op).forward_flops(attrs, types));
    cost.seconds += OpSeconds(op, attrs, types, 0, profile_);
  }

  const Graph& graph_;
  const Values values_;
  const LayerCosts layer_;
  const CostProfile& profile_;
  const Plan& plan_;
  std::vector<NodeSet> held_;             // [layer]: kept or offloaded
  mutable std::map<int, Rivals> rivals_;  // by layer
};

// Fills in bytes, seconds and reason of a decision on state.
void ExplainState(const Program& program, const CostProfile& profile,
                  Decision& decision) {
  const MemoryClass memory_class = decision.value == kOptimizerState
                                       ? MemoryClass::kOptimizer
                                       : MemoryClass::kParameters;
  const bool on_disk = decision.decision == ActivationDecision::kOffloadDisk;
  decision.bytes = StateBytes(
      program, on_disk ? Arena::kDiskState : Arena::kHostState)[memory_class];
  // What a step takes less without its copies.
  Program without = program;
  int64_t largest = 0;
  for (Block& block : without.blocks) {
    std::erase_if(block.instructions, [&](const Instruction& instruction) {
      if (instruction.kind != InstructionKind::kOffload &&
          instruction.kind != InstructionKind::kPrefetch) {
        return false;
      }
      const bool is_offload = instruction.kind == InstructionKind::kOffload;
      const Operand& state = instruction.operands[is_offload ? 1 : 0];
      const Buffer& buffer = block.buffers[state.buffer];
      if (!HoldsState(buffer.address.arena) ||
          buffer.memory_class != memory_class) {
        return false;
      }
      largest = std::max(largest, state.type.bytes());
      return true;
    });
  }
  decision.seconds =
      SecondsOf(program, profile).total - SecondsOf(without, profile).total;
  decision.reason = absl::StrCat(
      "waits ", on_disk ? "on disk" : "in host memory",
      decision.value == kOptimizerState ? " from update to update"
                                        : " where no layer computes with it",
      "; what comes next is copied in and what is done with copied out beside "
      "the ops, at most ",
      BytesText(largest), " at a time");
}

}  // namespace

void ExplainDecisions(const JobSpec& spec, const JobPrograms& programs,
                      const CostProfile& profile, const Encoding& encoding,
                      Plan& plan) {
  const Graph& graph = programs.graph;
  const Explainer explainer(graph, profile, encoding, plan);
  const RecomputeCosts recompute = FindRecomputeCosts(programs, plan, profile);
  std::vector<Decision> explained;
  for (Decision decision : plan.decisions) {
    if (IsOnState(decision.value)) {
      ExplainState(programs.training, profile, decision);
      explained.push_back(std::move(decision));
      continue;
    }
    const int value = explainer.values().IndexOf(decision.value);
    decision.bytes = explainer.values()[value].bytes *
                     (decision.last_layer - decision.first_layer + 1);
    if (decision.encoded != DType::kNone) {
      const int layers = decision.last_layer - decision.first_layer + 1;
      const AddedCost cost = explainer.CostToEncode(value, decision.encoded);
      decision.bytes -=
          layers * EncodedBytes(graph.values[value].type, decision.encoded);
      decision.flops = cost.flops * layers * spec.num_microbatches();
      decision.seconds = cost.seconds * layers * spec.num_microbatches();
      decision.reason = explainer.ReasonToEncode(value, decision);
    } else if (decision.decision == ActivationDecision::kKeep) {
      if (!explainer.values().IsReadByBackward(value)) continue;
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
      if (!explainer.values().IsReadByBackward(value) &&
          decision.seconds == 0) {
        continue;
      }
      decision.reason = explainer.ReasonToRecompute(value, decision);
    }
    explained.push_back(std::move(decision));
  }
  plan.decisions = std::move(explained);
}

}  // namespace ebb
