// Candidates of policy `auto`: for a ladder of sizes, the fastest way to put a
// job together from group options. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "server/planner/group_options.h"
#include "worker/model/graph.h"
#include "worker/program/plan.h"

namespace ebb {

// Consecutive groups of layers that all take one option.
struct OptionRun {
  int option = 0;  // index in GroupOptions::options
  int num_groups = 0;
  bool operator==(const OptionRun&) const = default;
};

// Ways to cover all layers, from the first layer on, of which each is the
// fastest for one of `num_sizes` sizes between the smallest that any fits and
// that of keeping everything. They depend on no budget, so a plan that is
// chosen among them for a larger budget is never slower. Without duplicates,
// smallest size first.
//
// Groups that need more to work on come first: when the first layers run
// backward, the saved values of all others are gone. That this order is as good
// as any is Jackson's rule (1955) for jobs with due dates: a group may begin
// until the saved bytes before it reach what its work leaves of the size. So
// one pass over the options in that order, with for every number of layers and
// (rounded) sum of saved bytes the least seconds, finds the best of all.
// Cost: sizes x options x layers x 2048; in deep models x 512.
std::vector<std::vector<OptionRun>> FindCandidates(const GroupOptions& options,
                                                   int num_layers,
                                                   int num_sizes);

// The decisions on every value of every layer.
std::vector<Decision> DecisionsOf(const Graph& graph,
                                  const GroupOptions& options,
                                  const std::vector<OptionRun>& runs);

}  // namespace ebb
