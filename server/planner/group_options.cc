#include "server/planner/group_options.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "kernels/ops/op_def.h"
#include "kernels/status.h"
#include "server/planner/layer_costs.h"
#include "worker/program/lower.h"

namespace ebb {
namespace {

// Seconds of recompute, as a share of all that could be, that are too few for a
// choice of its own.
constexpr double kSameSeconds = 0.005;

std::vector<ActivationDecision> DecideLayer(const Graph& graph,
                                            const LayerCosts& layer,
                                            NodeSet kept,
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
// the nodes whose results may be offloaded, to where copies have this rate.
std::vector<GroupOption> LayerChoices(const Graph& graph,
                                      const LayerCosts& layer,
                                      const LayerSeconds& seconds,
                                      ActivationDecision offload,
                                      const CopyRate& rate, NodeSet may_go) {
  struct Choice {
    int64_t bytes;
    double seconds;
    NodeSet held;  // kept or offloaded
    NodeSet offloaded;
  };
  std::vector<Choice> choices;
  const NodeSet choosable = layer.Choosable();
  for (NodeSet held = choosable;; held = (held - 1) & choosable) {
    const LayerCosts::Cost cost = layer.CostOf(held, true, false);
    // Of equal ones, that which names only what is used.
    if (cost.used == held) {
      const NodeSet goes = held & may_go;
      for (NodeSet offloaded = goes;; offloaded = (offloaded - 1) & goes) {
        const int64_t moved = layer.BytesOf(cost, offloaded);
        CopyTime copy;
        copy.Add(rate, static_cast<double>(moved));
        const double copies = copy.Beside(seconds.forward) +
                              copy.Beside(seconds.backward + cost.seconds);
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
        option.decisions[0][v] = offload;
      }
    }
    option.seconds = choice.seconds;
    option.saved_bytes = layer.stream_bytes() + choice.bytes;
    options.push_back(std::move(option));
  }
  return options;
}

// Groups of which the first input alone is kept.
GroupOption WholeGroup(const Graph& graph, const LayerCosts& layer,
                       int num_layers, bool input_by_input) {
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

// On the device.
LargestUse LargestUseOf(const Program& program) {
  LargestUse largest;
  int64_t use = 0;
  const auto bytes_on_device = [](const Buffer& buffer) {
    return IsOffDevice(buffer.address.arena) ? 0 : buffer.bytes;
  };
  for (int b = program.begin_microbatch; b < program.end_microbatch; ++b) {
    const Block& block = program.blocks[b];
    int64_t own = 0;
    for (int n = 0; n < block.count; ++n) {
      const int i = block.descending ? block.count - 1 - n : n;
      for (const Instruction& instruction : block.instructions) {
        if (!block.Runs(instruction, i)) continue;
        for (const int32_t buffer : instruction.allocates) {
          use += bytes_on_device(block.buffers[buffer]);
        }
        own = std::max(own, use);
        for (const int32_t buffer : instruction.frees) {
          use -= bytes_on_device(block.buffers[buffer]);
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
                                              const Encoding& encoding,
                                              const Backend& backend,
                                              const CostProfile& profile) {
  if (graph.layer.size() > 24) {
    return absl::InternalError("a layer has more than 24 nodes");
  }
  const LayerCosts layer(graph, profile, encoding);
  // A program of groups of so many layers alone.
  const auto lower = [&](int num_layers, const auto& decide) {
    Graph alone = graph;
    alone.num_layers = num_layers;
    Plan plan;
    plan.graph_fingerprint = alone.Fingerprint();
    plan.decisions = DecideEach(alone, decide);
    if (encoding.encodes()) {
      plan.decisions = encoding.Apply(alone, plan.decisions);
    }
    DecideState(spec.memory, plan.decisions);
    return LowerTraining(alone, plan, spec.optimizer, 1, backend);
  };
  EBB_ASSIGN_OR_RETURN(const Program keeps_all, lower(1, [](int, int) {
                         return ActivationDecision::kKeep;
                       }));
  const LayerSeconds seconds = {
      .forward = layer.forward_seconds(),
      .backward = BackwardSeconds(keeps_all, profile)};
  GroupOptions found;
  const Offload place = spec.memory.offload;
  const CopyRate& rate = profile.RateTo(place);
  found.options = LayerChoices(
      graph, layer, seconds,
      place == Offload::kDisk ? ActivationDecision::kOffloadDisk
                              : ActivationDecision::kOffloadHost,
      rate, place == Offload::kNone ? 0 : layer.DearestNodes(rate));
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
