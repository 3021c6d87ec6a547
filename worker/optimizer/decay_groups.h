// Which parameters weight decay applies to, as counted and printed in a job's
// log. The graph decides (Value::decays); nothing here looks at names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/model/graph.h"

namespace ebb {

struct DecayGroup {
  int64_t values = 0;  // every layer's counted
  int64_t elements = 0;
  std::vector<std::string> names;  // as in the graph: "L*.mlp_fc.weight"
};

struct DecayGroups {
  DecayGroup decayed;
  DecayGroup not_decayed;
};

DecayGroups FindDecayGroups(const Graph& graph);

// Two lines, one a group: count, elements, names.
std::string DescribeDecayGroups(const DecayGroups& groups, double weight_decay);

}  // namespace ebb
