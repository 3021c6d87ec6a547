#include "worker/program/apply_plan.h"

#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace ebb {
namespace {

// Of one layer, by value.
struct LayerDecisions {
  std::vector<ActivationDecision> decisions;
  std::vector<DType> formats;
};

// Whether encode takes elements of this type to `format`.
bool CanEncode(DType type, DType format) {
  return (type == DType::kF32 && format == DType::kBf16) ||
         ((type == DType::kF32 || type == DType::kBf16) &&
          format == DType::kF8E4M3);
}

// By layer.
absl::StatusOr<std::vector<LayerDecisions>> ReadDecisions(const Graph& graph,
                                                          const Plan& plan) {
  std::unordered_map<std::string, int> activations;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (value.kind == ValueKind::kActivation && value.view_of < 0) {
      activations[value.name] = static_cast<int>(v);
    }
  }
  const size_t num_values = graph.values.size();
  std::vector<LayerDecisions> layers(
      graph.num_layers,
      {std::vector<ActivationDecision>(num_values, ActivationDecision::kKeep),
       std::vector<DType>(num_values, DType::kNone)});
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
    if (decision.encoded != DType::kNone &&
        (IsRecompute(decision.decision) ||
         !CanEncode(graph.values[it->second].type.dtype, decision.encoded))) {
      return absl::InvalidArgumentError(
          absl::StrCat("decision on ", decision.value, ": ",
                       ActivationDecisionName(decision.decision),
                       ", encoded as ", DTypeName(decision.encoded)));
    }
    for (int l = decision.first_layer; l <= decision.last_layer; ++l) {
      layers[l].decisions[it->second] = decision.decision;
      layers[l].formats[it->second] = decision.encoded;
    }
  }
  if (ActivationDecision& first = layers[0].decisions[graph.stream];
      IsRecompute(first)) {
    first = ActivationDecision::kKeep;
  }
  return layers;
}

// Gives the last group of a segment its own where the next segment's inputs
// are elsewhere; the one behind the last, the layers' output, is kept.
std::vector<LayerSegment> SplitWhereInputsMove(
    const Graph& graph, std::vector<LayerSegment> segments) {
  std::vector<LayerSegment> split;
  for (size_t s = 0; s < segments.size(); ++s) {
    const bool has_next = s + 1 < segments.size();
    const ActivationDecision next = has_next
                                        ? segments[s + 1].input_decision(graph)
                                        : ActivationDecision::kKeep;
    const DType next_format =
        has_next ? segments[s + 1].input_format(graph) : DType::kNone;
    LayerSegment segment = std::move(segments[s]);
    // An encoded input has its own place wherever its codes are.
    const bool goes_on =
        segment.input_format(graph) == next_format &&
        (next_format != DType::kNone || segment.input_decision(graph) == next);
    if (segment.count == 1 || goes_on) {
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
constexpr int kMaxSpelledLayers = 512;

absl::StatusOr<std::vector<LayerSegment>> MakeSegments(const Graph& graph,
                                                       const Plan& plan) {
  EBB_ASSIGN_OR_RETURN(const std::vector<LayerDecisions> layers,
                       ReadDecisions(graph, plan));
  std::vector<LayerSegment> segments;
  for (int start = 0; start < graph.num_layers;) {
    int end = start + 1;
    while (end < graph.num_layers &&
           IsRecompute(layers[end].decisions[graph.stream])) {
      ++end;
    }
    LayerSegment segment;
    segment.first_layer = start;
    segment.period = end - start;
    segment.count = 1;
    for (int layer = start; layer < end; ++layer) {
      segment.decisions.push_back(layers[layer].decisions);
      segment.formats.push_back(layers[layer].formats);
    }
    if (!segments.empty() && segments.back().decisions == segment.decisions &&
        segments.back().formats == segment.formats) {
      ++segments.back().count;
    } else {
      segments.push_back(std::move(segment));
    }
    start = end;
  }
  // Without what is split below, so that a plan is not refused for where its
  // groups' inputs wait.
  int spelled = 0;
  for (const LayerSegment& segment : segments) spelled += segment.period;
  if (spelled > kMaxSpelledLayers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory: the plan differs from layer to layer in ", spelled,
        " layers, at most ", kMaxSpelledLayers,
        " are taken: use smaller groups, or names that take all layers alike "
        "(L*)"));
  }
  return SplitWhereInputsMove(graph, std::move(segments));
}

}  // namespace ebb
