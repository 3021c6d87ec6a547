#include "server/planner/group_options.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "kernels/ops/op_def.h"
#include "kernels/status.h"
#include "worker/program/lower.h"
#include "worker/program/policy.h"

namespace ebb {
namespace {

// Seconds of recompute, as a share of all that could be, that are too few for a
// choice of its own.
constexpr double kSameSeconds = 0.005;

// Nodes of a layer that are looked at for offloading.
constexpr size_t kMostOffloaded = 6;

// One node of the layer as keeping and recomputing see it. Sets of nodes are
// bits.
struct LayerNode {
  double seconds = 0;
  int64_t bytes = 0;          // of the results that may be kept
  int64_t read_bytes = 0;     // of these, what backward reads
  bool makes_stream = false;  // the next layer's input
  uint32_t inputs = 0;        // nodes whose results it reads
};

class Layer {
 public:
  Layer(const Graph& graph, const CostProfile& profile) {
    maker_.assign(graph.values.size(), -1);
    std::vector<bool> read(graph.values.size(), false);
    for (const int value : SavedValues(graph)) read[value] = true;
    for (size_t n = 0; n < graph.layer.size(); ++n) {
      const Node& node = graph.layer[n];
      const OpDef& def = GetOpDef(node.op);
      LayerNode own;
      own.seconds = NodeSeconds(graph, node, profile);
      for (int slot = 0; slot < def.num_slots(); ++slot) {
        const ValueRef& ref = node.slots[slot];
        if (ref.value < 0) continue;
        const int value = graph.Storage(ref.value);
        const Role role = def.slots[slot].role;
        if (role != Role::kOutput && role != Role::kAux) {
          if (maker_[value] >= 0 && value != graph.stream) {
            own.inputs |= uint32_t{1} << maker_[value];
          }
          continue;
        }
        maker_[value] = static_cast<int>(n);
        if (value == graph.stream) {
          own.makes_stream = true;
          continue;
        }
        const int64_t bytes = AlignUp(graph.values[value].type.bytes());
        own.bytes += bytes;
        if (read[value]) own.read_bytes += bytes;
      }
      nodes_.push_back(own);
    }
    stream_bytes_ = AlignUp(graph.values[graph.stream].type.bytes());
  }

  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  int64_t stream_bytes() const { return stream_bytes_; }
  int maker(int value) const { return maker_[value]; }
  bool MakesStream(int node) const { return nodes_[node].makes_stream; }

  struct Cost {
    double seconds = 0;
    int64_t bytes = 0;
    uint32_t used = 0;    // kept nodes that somebody reads
    uint32_t wanted = 0;  // nodes that a running one reads
  };

  // Of a layer that keeps the results of the nodes `kept`, for its own backward
  // pass and, `next_input`, to make the next layer's input.
  Cost CostOf(uint32_t kept, bool backward, bool next_input) const {
    Cost cost;
    uint32_t wanted = 0;
    for (int n = num_nodes() - 1; n >= 0; --n) {
      const LayerNode& node = nodes_[n];
      const uint32_t bit = uint32_t{1} << n;
      const bool read_back = backward && node.read_bytes > 0;
      if ((wanted & bit) == 0 && !read_back &&
          !(next_input && node.makes_stream)) {
        continue;
      }
      if ((kept & bit) != 0 && !node.makes_stream) {
        cost.used |= bit;
        cost.bytes += HeldBytes(n, wanted);
        continue;
      }
      cost.seconds += node.seconds;
      wanted |= node.inputs;
    }
    cost.wanted = wanted;
    return cost;
  }

  // Of cost.bytes, those of these nodes' results.
  int64_t BytesOf(const Cost& cost, uint32_t nodes) const {
    int64_t bytes = 0;
    for (int n = 0; n < num_nodes(); ++n) {
      if ((nodes >> n & 1) != 0) bytes += HeldBytes(n, cost.wanted);
    }
    return bytes;
  }

  // The nodes with the most seconds a byte, at most kMostOffloaded, that take
  // longer than their copies do: what offloading could pay for.
  uint32_t DearestNodes(const CostProfile& profile) const {
    std::vector<int> order;
    for (int n = 0; n < num_nodes(); ++n) {
      const LayerNode& node = nodes_[n];
      if (node.bytes > 0 &&
          node.seconds >
              2 * profile.copy_share * profile.CopySeconds(node.bytes)) {
        order.push_back(n);
      }
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return nodes_[a].seconds * static_cast<double>(nodes_[b].bytes) >
             nodes_[b].seconds * static_cast<double>(nodes_[a].bytes);
    });
    if (order.size() > kMostOffloaded) order.resize(kMostOffloaded);
    uint32_t nodes = 0;
    for (const int n : order) nodes |= uint32_t{1} << n;
    return nodes;
  }

  double forward_seconds() const {
    double seconds = 0;
    for (const LayerNode& node : nodes_) seconds += node.seconds;
    return seconds;
  }

  // The nodes that a choice may keep: all that make something but the stream.
  uint32_t Choosable() const {
    uint32_t nodes = 0;
    for (int n = 0; n < num_nodes(); ++n) {
      if (nodes_[n].bytes > 0) nodes |= uint32_t{1} << n;
    }
    return nodes;
  }

 private:
  // What holding the results takes: all of them where a node that runs again
  // reads them, else what backward reads.
  int64_t HeldBytes(int n, uint32_t wanted) const {
    return (wanted >> n & 1) != 0 ? nodes_[n].bytes : nodes_[n].read_bytes;
  }

  std::vector<int> maker_;  // [value]: node, or -1
  std::vector<LayerNode> nodes_;
  int64_t stream_bytes_ = 0;
};

std::vector<ActivationDecision> DecideLayer(const Graph& graph,
                                            const Layer& layer, uint32_t kept,
                                            ActivationDecision dropped) {
  std::vector<ActivationDecision> decisions(graph.values.size(),
                                            ActivationDecision::kKeep);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const int maker = layer.maker(static_cast<int>(v));
    if (maker < 0 || static_cast<int>(v) == graph.stream) continue;
    if ((kept >> maker & 1) == 0) decisions[v] = dropped;
  }
  return decisions;
}

// What the copies of a layer are measured against: seconds of its own ops.
struct LayerSeconds {
  double forward = 0;
  double backward = 0;
};

// Of one layer: no other choice has fewer bytes and fewer seconds. `may_go`:
// the nodes whose results may be offloaded.
std::vector<GroupOption> LayerChoices(const Graph& graph, const Layer& layer,
                                      const LayerSeconds& seconds,
                                      const CostProfile& profile,
                                      uint32_t may_go) {
  struct Choice {
    int64_t bytes;
    double seconds;
    uint32_t held;  // kept or offloaded
    uint32_t offloaded;
  };
  std::vector<Choice> choices;
  const uint32_t choosable = layer.Choosable();
  for (uint32_t held = choosable;; held = (held - 1) & choosable) {
    const Layer::Cost cost = layer.CostOf(held, true, false);
    // Of equal ones, that which names only what is used.
    if (cost.used == held) {
      const uint32_t goes = held & may_go;
      for (uint32_t offloaded = goes;; offloaded = (offloaded - 1) & goes) {
        const int64_t moved = layer.BytesOf(cost, offloaded);
        const double copy = profile.CopySeconds(moved);
        const double copies =
            profile.CopiesBeside(copy, seconds.forward) +
            profile.CopiesBeside(copy, seconds.backward + cost.seconds);
        choices.push_back({cost.bytes - moved,
                           cost.seconds + (moved > 0 ? copies : 0), held,
                           offloaded});
        if (offloaded == 0) break;
      }
    }
    if (held == 0) break;
  }
  std::sort(choices.begin(), choices.end(),
            [](const Choice& a, const Choice& b) {
              return std::tie(a.bytes, a.seconds, a.held, a.offloaded) <
                     std::tie(b.bytes, b.seconds, b.held, b.offloaded);
            });
  const double most = layer.CostOf(0, true, false).seconds;
  std::vector<GroupOption> options;
  for (const Choice& choice : choices) {
    if (!options.empty()) {
      const double least = options.back().seconds;
      const bool pays = choice.seconds < least - kSameSeconds * most ||
                        (choice.seconds == 0 && least > 0);
      if (!pays) continue;
    }
    GroupOption option;
    option.decisions = {
        DecideLayer(graph, layer, choice.held, ActivationDecision::kRecompute)};
    for (size_t v = 0; v < graph.values.size(); ++v) {
      const int maker = layer.maker(static_cast<int>(v));
      if (maker < 0 || static_cast<int>(v) == graph.stream) continue;
      if ((choice.offloaded >> maker & 1) != 0) {
        option.decisions[0][v] = ActivationDecision::kOffloadHost;
      }
    }
    option.seconds = choice.seconds;
    option.saved_bytes = layer.stream_bytes() + choice.bytes;
    options.push_back(std::move(option));
  }
  return options;
}

// Groups of which the first input alone is kept.
GroupOption WholeGroup(const Graph& graph, const Layer& layer, int num_layers,
                       bool input_by_input) {
  GroupOption option;
  std::vector<ActivationDecision> decisions =
      DecideLayer(graph, layer, 0,
                  input_by_input ? ActivationDecision::kRecomputeTwice
                                 : ActivationDecision::kRecompute);
  for (int l = 0; l < num_layers; ++l) {
    decisions[graph.stream] =
        l == 0 ? ActivationDecision::kKeep : ActivationDecision::kRecompute;
    option.decisions.push_back(decisions);
  }
  const double own = layer.CostOf(0, true, false).seconds;
  const double both = input_by_input
                          ? own + layer.CostOf(0, false, true).seconds
                          : layer.CostOf(0, true, true).seconds;
  option.seconds = own + (num_layers - 1) * both;
  option.saved_bytes = layer.stream_bytes();
  return option;
}

// Group sizes to offer: every one while they are few, then growing by an
// eighth, to a little above the square root of the layers, where the sum of
// kept and held inputs is least (Chen et al. 2016).
std::vector<int> GroupSizes(int num_layers) {
  std::vector<int> sizes;
  const int most = std::min(num_layers, 2 * SqrtGroup(num_layers));
  for (int size = 2; size <= most; size += std::max(1, size / 8)) {
    sizes.push_back(size);
  }
  return sizes;
}
// As a whole a group holds the values of all its layers: more than a few cost
// more than they save.
constexpr int kMostWholeLayers = 4;

// Largest uses of the step arena beyond what lives through the whole step
// (totals and gradients).
struct LargestUse {
  int64_t layers = 0;
  int64_t head = 0;
};

bool Offloads(const GroupOption& option) {
  return std::any_of(
      option.decisions.begin(), option.decisions.end(), [](const auto& layer) {
        return std::any_of(layer.begin(), layer.end(), IsOffload);
      });
}

// Of the layers' backward pass, without what is computed again.
double BackwardSeconds(const Program& program, const CostProfile& profile) {
  Program layers = program;
  std::erase_if(layers.blocks, [](const Block& block) {
    return block.period == 0 || !block.descending;
  });
  layers.begin_microbatch = 0;
  layers.end_microbatch = static_cast<int>(layers.blocks.size());
  return SecondsOf(layers, profile).total;
}

LargestUse LargestUseOf(const Program& program) {
  LargestUse largest;
  int64_t use = 0;
  for (int b = program.begin_microbatch; b < program.end_microbatch; ++b) {
    const Block& block = program.blocks[b];
    int64_t own = 0;
    for (int n = 0; n < block.count; ++n) {
      const int i = block.descending ? block.count - 1 - n : n;
      for (const Instruction& instruction : block.instructions) {
        if (!block.Runs(instruction, i)) continue;
        for (const int32_t buffer : instruction.allocates) {
          use += block.buffers[buffer].bytes;
        }
        own = std::max(own, use);
        for (const int32_t buffer : instruction.frees) {
          use -= block.buffers[buffer].bytes;
        }
      }
    }
    if (block.period > 0) largest.layers = std::max(largest.layers, own);
    if (block.chunks) largest.head = std::max(largest.head, own);
  }
  return largest;
}

}  // namespace

absl::StatusOr<GroupOptions> FindGroupOptions(const Graph& graph,
                                              const JobSpec& spec,
                                              const Backend& backend,
                                              const CostProfile& profile) {
  const Layer layer(graph, profile);
  if (layer.num_nodes() > 24) {
    return absl::InternalError("a layer has more than 24 nodes");
  }
  // A program of groups of so many layers alone.
  const auto lower = [&](int num_layers, const auto& decide) {
    Graph alone = graph;
    alone.num_layers = num_layers;
    Plan plan;
    plan.graph_fingerprint = alone.Fingerprint();
    plan.decisions = DecideEach(alone, decide);
    return LowerTraining(alone, plan, spec.optimizer, 1, backend);
  };
  EBB_ASSIGN_OR_RETURN(const Program keeps_all, lower(1, [](int, int) {
                         return ActivationDecision::kKeep;
                       }));
  const LayerSeconds seconds = {
      .forward = layer.forward_seconds(),
      .backward = BackwardSeconds(keeps_all, profile)};
  GroupOptions found;
  found.options = LayerChoices(
      graph, layer, seconds, profile,
      spec.memory.offload == Offload::kNone ? 0 : layer.DearestNodes(profile));
  for (const int size : GroupSizes(graph.num_layers)) {
    if (size <= kMostWholeLayers) {
      found.options.push_back(WholeGroup(graph, layer, size, false));
    }
    found.options.push_back(WholeGroup(graph, layer, size, true));
  }
  for (GroupOption& option : found.options) {
    // What is offloaded takes the places of two groups at a time.
    const int num_groups = Offloads(option) ? 2 : 1;
    EBB_ASSIGN_OR_RETURN(
        const Program program,
        lower(num_groups * option.num_layers(), [&option](int value, int l) {
          return option.decisions[l % option.num_layers()][value];
        }));
    const LargestUse largest = LargestUseOf(program);
    const int64_t saved = num_groups * option.saved_bytes;
    option.working_bytes = largest.layers - saved;
    // Some of what is offloaded may still be on its way: not the head's.
    const int64_t head = largest.head - saved;
    found.head_bytes =
        found.head_bytes == 0 ? head : std::min(found.head_bytes, head);
  }
  return found;
}

}  // namespace ebb
