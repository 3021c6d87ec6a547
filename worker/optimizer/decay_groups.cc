// Sums over a graph's parameters.
#include "worker/optimizer/decay_groups.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ebb {
namespace {

std::string DescribeGroup(const DecayGroup& group, double weight_decay) {
  return absl::StrCat("weight decay ", weight_decay, ": ", group.values,
                      " values, ", group.elements, " elements",
                      group.names.empty() ? "" : ": ",
                      absl::StrJoin(group.names, " "), "\n");
}

}  // namespace

DecayGroups FindDecayGroups(const Graph& graph) {
  DecayGroups groups;
  for (const Value& value : graph.values) {
    if (value.kind != ValueKind::kParameter || value.view_of >= 0) continue;
    DecayGroup& group = value.decays ? groups.decayed : groups.not_decayed;
    const int64_t instances = value.per_layer ? graph.num_layers : 1;
    group.values += instances;
    group.elements += instances * value.type.num_elements();
    group.names.push_back(value.name);
  }
  return groups;
}

std::string DescribeDecayGroups(const DecayGroups& groups,
                                double weight_decay) {
  return absl::StrCat(DescribeGroup(groups.decayed, weight_decay),
                      DescribeGroup(groups.not_decayed, 0));
}

}  // namespace ebb
