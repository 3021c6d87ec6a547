#include "worker/program/apply_plan.h"

#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace ebb {
namespace {

using LayerDecisions = std::vector<ActivationDecision>;  // [value]

// [layer][value]
absl::StatusOr<std::vector<LayerDecisions>> ReadDecisions(const Graph& graph,
                                                          const Plan& plan) {
  std::unordered_map<std::string, int> activations;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (value.kind == ValueKind::kActivation && value.view_of < 0) {
      activations[value.name] = static_cast<int>(v);
    }
  }
  std::vector<LayerDecisions> decisions(
      graph.num_layers,
      LayerDecisions(graph.values.size(), ActivationDecision::kKeep));
  for (const Decision& decision : plan.decisions) {
    if (IsOnState(decision.value)) continue;
    auto it = activations.find(decision.value);
    if (it == activations.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("decision on a value that the graph does not have: ",
                       decision.value));
    }
    if (!graph.values[it->second].per_layer) {
      if (decision.decision == ActivationDecision::kKeep) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "values outside the layers are always kept: ", decision.value));
    }
    if (decision.first_layer < 0 || decision.last_layer >= graph.num_layers) {
      return absl::InvalidArgumentError(absl::StrCat(
          "decision on ", decision.value, ": layers ", decision.first_layer,
          "..", decision.last_layer, " of ", graph.num_layers));
    }
    if (decision.decision == ActivationDecision::kRecomputeTwice &&
        it->second == graph.stream) {
      return absl::InvalidArgumentError(absl::StrCat(
          "inputs of layers are not recomputed twice: ", decision.value));
    }
    for (int l = decision.first_layer; l <= decision.last_layer; ++l) {
      decisions[l][it->second] = decision.decision;
    }
  }
  if (ActivationDecision& first = decisions[0][graph.stream];
      IsRecompute(first)) {
    first = ActivationDecision::kKeep;
  }
  return decisions;
}

// Gives the last group of a segment its own where the next segment's inputs
// are elsewhere; the one behind the last, the layers' output, is kept.
std::vector<LayerSegment> SplitWhereInputsMove(
    const Graph& graph, std::vector<LayerSegment> segments) {
  std::vector<LayerSegment> split;
  for (size_t s = 0; s < segments.size(); ++s) {
    const ActivationDecision next = s + 1 < segments.size()
                                        ? segments[s + 1].input_decision(graph)
                                        : ActivationDecision::kKeep;
    LayerSegment segment = std::move(segments[s]);
    if (segment.count == 1 || segment.input_decision(graph) == next) {
      split.push_back(std::move(segment));
      continue;
    }
    LayerSegment last = segment;
    --segment.count;
    last.first_layer += segment.count * segment.period;
    last.count = 1;
    split.push_back(std::move(segment));
    split.push_back(std::move(last));
  }
  return split;
}

Arena StateArenaOf(ActivationDecision decision) {
  switch (decision) {
    case ActivationDecision::kOffloadHost:
      return Arena::kHostState;
    case ActivationDecision::kOffloadDisk:
      return Arena::kDiskState;
    default:
      return Arena::kState;
  }
}

}  // namespace

StatePlace StatePlaceOf(const Plan& plan) {
  StatePlace place;
  for (const Decision& decision : plan.decisions) {
    if (!IsOnState(decision.value)) continue;
    (decision.value == kOptimizerState ? place.optimizer : place.parameters) =
        StateArenaOf(decision.decision);
  }
  return place;
}

// Layers that a program spells out one by one: what does not repeat. Placing
// them takes time that grows with the square, and a plan should take seconds.
constexpr int kMaxSpelledLayers = 256;

absl::StatusOr<std::vector<LayerSegment>> MakeSegments(const Graph& graph,
                                                       const Plan& plan) {
  EBB_ASSIGN_OR_RETURN(const std::vector<LayerDecisions> decisions,
                       ReadDecisions(graph, plan));
  std::vector<LayerSegment> segments;
  for (int start = 0; start < graph.num_layers;) {
    int end = start + 1;
    while (end < graph.num_layers &&
           IsRecompute(decisions[end][graph.stream])) {
      ++end;
    }
    std::vector<LayerDecisions> group(decisions.begin() + start,
                                      decisions.begin() + end);
    if (!segments.empty() && segments.back().decisions == group) {
      ++segments.back().count;
    } else {
      LayerSegment segment;
      segment.first_layer = start;
      segment.period = end - start;
      segment.count = 1;
      segment.decisions = std::move(group);
      segments.push_back(std::move(segment));
    }
    start = end;
  }
  segments = SplitWhereInputsMove(graph, std::move(segments));
  int spelled = 0;
  for (const LayerSegment& segment : segments) spelled += segment.period;
  if (spelled > kMaxSpelledLayers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory: the plan differs from layer to layer in ", spelled,
        " layers, at most ", kMaxSpelledLayers,
        " are taken: use smaller groups, or names that take all layers alike "
        "(L*)"));
  }
  return segments;
}

}  // namespace ebb
