#include "worker/program/apply_plan.h"

#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ebb {
namespace {

// [layer][value]: kept.
absl::StatusOr<std::vector<std::vector<bool>>> ReadDecisions(const Graph& graph,
                                                             const Plan& plan) {
  std::unordered_map<std::string, int> activations;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (value.kind == ValueKind::kActivation && value.view_of < 0) {
      activations[value.name] = static_cast<int>(v);
    }
  }
  std::vector<std::vector<bool>> kept(
      graph.num_layers, std::vector<bool>(graph.values.size(), true));
  for (const Decision& decision : plan.decisions) {
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
    for (int l = decision.first_layer; l <= decision.last_layer; ++l) {
      kept[l][it->second] = decision.decision == ActivationDecision::kKeep;
    }
  }
  kept[0][graph.stream] = true;
  return kept;
}

}  // namespace

// Layers that a program spells out one by one: what does not repeat. Placing
// them takes time that grows with the square, and a plan should take seconds.
constexpr int kMaxSpelledLayers = 256;

absl::StatusOr<std::vector<LayerSegment>> MakeSegments(const Graph& graph,
                                                       const Plan& plan) {
  auto decisions = ReadDecisions(graph, plan);
  if (!decisions.ok()) return decisions.status();
  std::vector<std::vector<bool>>& kept = *decisions;
  std::vector<LayerSegment> segments;
  for (int start = 0; start < graph.num_layers;) {
    int end = start + 1;
    while (end < graph.num_layers && !kept[end][graph.stream]) ++end;
    std::vector<std::vector<bool>> group(kept.begin() + start,
                                         kept.begin() + end);
    if (!segments.empty() && segments.back().kept == group) {
      ++segments.back().count;
    } else {
      LayerSegment segment;
      segment.first_layer = start;
      segment.period = end - start;
      segment.count = 1;
      segment.kept = std::move(group);
      segments.push_back(std::move(segment));
    }
    start = end;
  }
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
