#include "server/planner/plan_job.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/ops/op_def.h"
#include "kernels/status.h"
#include "worker/program/dump.h"
#include "worker/program/job_programs.h"
#include "worker/program/policy.h"

namespace ebb {
namespace {

// What one value of a layer is and costs.
struct ValueCost {
  int64_t bytes = 0;         // of one layer and microbatch
  double forward_flops = 0;  // of the node that makes it
  const char* op = "";       // the op that makes it
  std::string readers;       // nodes whose backward reads it
};

class ValueCosts {
 public:
  explicit ValueCosts(const Graph& graph) : graph_(graph) {
    costs_.resize(graph.values.size());
    for (size_t v = 0; v < graph.values.size(); ++v) {
      costs_[v].bytes = AlignUp(graph.values[v].type.bytes());
    }
    for (const Node& node : graph.layer) AddNode(node);
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
  void AddNode(const Node& node) {
    const OpDef& def = GetOpDef(node.op);
    std::vector<TensorType> types;
    for (const ValueRef& ref : node.slots) {
      types.push_back(ref.value < 0 ? TensorType()
                                    : graph_.values[ref.value].type);
    }
    const std::string short_name = node.name.substr(node.name.find('.') + 1);
    for (int slot = 0; slot < def.num_slots(); ++slot) {
      if (node.slots[slot].value < 0) continue;
      const Role role = def.slots[slot].role;
      if (role == Role::kOutput || role == Role::kAux) {
        ValueCost& cost = costs_[node.slots[slot].value];
        cost.op = def.name;
        cost.forward_flops =
            static_cast<double>(def.forward_flops(node.attrs, types));
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

// "12 B", "1.5 KiB", "64.0 MiB".
std::string BytesText(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double size = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* larger : {"KiB", "MiB", "GiB"}) {
    if (size < 1024) break;
    size /= 1024;
    unit = larger;
  }
  return absl::StrFormat("%.1f %s", size, unit);
}

std::string ReasonToKeep(const ValueCost& cost, bool is_input) {
  if (is_input) {
    return absl::StrCat("input of the layers: everything recomputed starts ",
                        "from it; read by ", cost.readers);
  }
  if (cost.readers.empty()) {
    return absl::StrCat("output of ", cost.op,
                        ": kept if what is recomputed starts from it");
  }
  return absl::StrCat("read by the backward pass of ", cost.readers,
                      "; keeping it saves ",
                      absl::StrFormat("%.3g", cost.forward_flops),
                      " FLOPs a layer and microbatch");
}

std::string ReasonToRecompute(const Plan& plan, const ValueCost& cost) {
  const std::string rule =
      plan.policy == Policy::kFull || plan.policy == Policy::kSqrt
          ? absl::StrCat(PolicyName(plan.policy), " keeps the input of every ",
                         plan.group, " layers only")
          : absl::StrCat(PolicyName(plan.policy), " recomputes ", cost.op);
  if (cost.readers.empty()) {
    return absl::StrCat(rule, "; made again only on the way to others");
  }
  return absl::StrCat(rule, "; frees ", BytesText(cost.bytes),
                      " a layer until the backward pass of ", cost.readers);
}

// FLOPs that the program spends on making each value again, by (name, layer),
// of one microbatch. A node with several outputs counts at the first that the
// plan drops.
std::map<std::pair<std::string, int>, double> RecomputeFlops(
    const Program& program, const Plan& plan) {
  std::set<std::pair<std::string, int>> dropped;
  for (const Decision& decision : plan.decisions) {
    if (decision.decision == ActivationDecision::kKeep) continue;
    for (int l = decision.first_layer; l <= decision.last_layer; ++l) {
      dropped.insert({decision.value, l});
    }
  }
  std::map<std::pair<std::string, int>, double> flops;
  for (const Block& block : program.blocks) {
    for (const Instruction& instruction : block.instructions) {
      if (instruction.phase != Phase::kRecompute) continue;
      for (int64_t i = 0; i < block.count; ++i) {
        for (const Operand& operand : instruction.operands) {
          const ValueName name = NameOf(block, instruction, operand);
          const std::pair<std::string, int> value = {
              name.name, block.LayerOf(i, name.layer_offset)};
          if (!operand.written || dropped.count(value) == 0) continue;
          flops[value] += instruction.recompute_flops;
          break;
        }
      }
    }
  }
  return flops;
}

// Fills in what the decisions of a named policy mean, and leaves out those that
// say nothing: keeping a value that nobody reads later.
void Explain(const JobSpec& spec, const JobPrograms& programs, Plan& plan) {
  const Graph& graph = programs.graph;
  const ValueCosts costs(graph);
  const auto flops = RecomputeFlops(programs.training, plan);
  std::vector<Decision> explained;
  for (Decision& decision : plan.decisions) {
    const int value = costs.IndexOf(decision.value);
    const ValueCost& cost = costs[value];
    decision.bytes =
        cost.bytes * (decision.last_layer - decision.first_layer + 1);
    if (decision.decision == ActivationDecision::kKeep) {
      if (!costs.IsReadByBackward(value)) continue;
      decision.reason = ReasonToKeep(cost, value == graph.stream);
    } else {
      for (int l = decision.first_layer; l <= decision.last_layer; ++l) {
        const auto it = flops.find({decision.value, l});
        if (it != flops.end()) {
          decision.flops += it->second * spec.num_microbatches();
        }
      }
      decision.reason = ReasonToRecompute(plan, cost);
    }
    explained.push_back(std::move(decision));
  }
  plan.decisions = std::move(explained);
}

struct Priced {
  Plan plan;
  RankPlan rank;
  JobPrograms programs;

  const ProgramAccount& account() const { return programs.training.account; }
};

absl::StatusOr<Priced> Price(const JobSpec& spec, const Graph& graph,
                             const MemorySpec& memory, const Backend& backend) {
  Priced priced;
  EBB_ASSIGN_OR_RETURN(priced.plan, MakePolicyPlan(graph, memory));
  EBB_ASSIGN_OR_RETURN(priced.programs,
                       LowerJob(spec, priced.plan, backend, 1));
  priced.rank = PredictRank(priced.programs, backend);
  return priced;
}

std::string PolicyLabel(const Plan& plan) {
  if (plan.policy == Policy::kFull && plan.group > 1) {
    return absl::StrCat("full, group ", plan.group);
  }
  return PolicyName(plan.policy);
}

PlanCandidate Candidate(const Priced& priced, int64_t budget_bytes) {
  PlanCandidate candidate;
  candidate.policy = PolicyLabel(priced.plan);
  candidate.peak_bytes = priced.rank.peak_bytes;
  candidate.saved_bytes = priced.rank.saved_bytes;
  candidate.model_flops = priced.account().model_flops;
  candidate.recompute_flops = priced.account().recompute_flops;
  candidate.fits = candidate.peak_bytes <= budget_bytes;
  return candidate;
}

// The named policies, with the spec's own group and list where it has them.
std::vector<MemorySpec> Alternatives(const MemorySpec& memory) {
  std::vector<MemorySpec> all;
  for (Policy policy : {Policy::kNone, Policy::kSelective, Policy::kCheap,
                        Policy::kFull, Policy::kSqrt, Policy::kCustom}) {
    MemorySpec alternative = memory;
    alternative.policy = policy;
    if (policy == Policy::kCustom && memory.policy != Policy::kCustom) continue;
    if (policy != memory.policy) alternative.group = 1;
    all.push_back(std::move(alternative));
  }
  return all;
}

// "52.9 MiB (55429376 B)".
std::string ExactBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B")
                   : absl::StrFormat("%.*f %s (%d B)",
                                     value < 10    ? 2
                                     : value < 100 ? 1
                                                   : 0,
                                     value, kUnits[unit], bytes);
}

// Says by how much the job misses its budget and what would fit: of the
// policies the one that computes least again, and the largest micro batch.
absl::Status ExplainMisfit(const JobSpec& spec, const Backend& backend,
                           Plan& plan) {
  const RankPlan& rank = plan.ranks[0];
  const auto largest =
      std::max_element(rank.memory.bytes.begin(), rank.memory.bytes.end());
  plan.shortfall = absl::StrCat("need ", ExactBytes(rank.peak_bytes), ", have ",
                                ExactBytes(plan.budget_bytes), ", short of ",
                                ExactBytes(rank.peak_bytes - plan.budget_bytes),
                                " on rank ", rank.rank, ", most of it ",
                                MemoryClassName(static_cast<MemoryClass>(
                                    largest - rank.memory.bytes.begin())),
                                " with ", ExactBytes(*largest));
  std::vector<std::string> ways;
  const PlanCandidate* policy = nullptr;    // least recompute of those that fit
  const PlanCandidate* smallest = nullptr;  // of all
  for (const PlanCandidate& candidate : plan.pareto) {
    if (smallest == nullptr || candidate.peak_bytes < smallest->peak_bytes) {
      smallest = &candidate;
    }
    if (candidate.fits && (policy == nullptr || candidate.recompute_flops <
                                                    policy->recompute_flops)) {
      policy = &candidate;
    }
  }
  if (policy != nullptr) {
    ways.push_back(absl::StrCat(
        "memory.policy ", policy->policy, " fits, with ",
        ExactBytes(policy->peak_bytes), " and ",
        absl::StrFormat("%.1f %%",
                        100 * policy->recompute_flops /
                            (policy->model_flops + policy->recompute_flops)),
        " of all FLOPs recompute"));
  }
  for (int micro = spec.micro_batch - 1; micro >= 1; --micro) {
    if (spec.global_batch % micro != 0) continue;
    JobSpec smaller = spec;
    smaller.micro_batch = micro;
    EBB_ASSIGN_OR_RETURN(const Graph graph, BuildTrainingGraph(smaller));
    EBB_ASSIGN_OR_RETURN(const Priced priced,
                         Price(smaller, graph, spec.memory, backend));
    if (priced.rank.peak_bytes > plan.budget_bytes) continue;
    ways.push_back(absl::StrCat("batch.micro ", micro, " fits, with ",
                                ExactBytes(priced.rank.peak_bytes)));
    break;
  }
  if (ways.empty()) {
    JobSpec least = spec;
    least.micro_batch = 1;
    least.memory.policy = Policy::kFull;
    least.memory.group = 1;
    EBB_ASSIGN_OR_RETURN(const Graph graph, BuildTrainingGraph(least));
    EBB_ASSIGN_OR_RETURN(const Priced priced,
                         Price(least, graph, least.memory, backend));
    ways.push_back(absl::StrCat("the smallest policy, ", smallest->policy,
                                ", needs ", ExactBytes(smallest->peak_bytes)));
    if (spec.micro_batch > 1) {
      ways.push_back(absl::StrCat("full with batch.micro 1 needs ",
                                  ExactBytes(priced.rank.peak_bytes)));
    }
    ways.push_back(priced.rank.peak_bytes <= plan.budget_bytes
                       ? "set both"
                       : "set memory.budget to one of these or take a smaller "
                         "model");
  }
  absl::StrAppend(&plan.shortfall, ": ", absl::StrJoin(ways, "; "));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> PlanJob(const JobSpec& spec, const Backend& backend) {
  EBB_ASSIGN_OR_RETURN(const Graph graph, BuildTrainingGraph(spec));
  EBB_ASSIGN_OR_RETURN(Priced chosen, Price(spec, graph, spec.memory, backend));
  Plan plan = std::move(chosen.plan);
  plan.budget_bytes = spec.memory.budget_bytes;
  plan.backend = backend;
  plan.model_flops = chosen.account().model_flops;
  plan.recompute_flops = chosen.account().recompute_flops;
  plan.fits = chosen.rank.peak_bytes <= plan.budget_bytes;
  plan.ranks = {chosen.rank};
  Explain(spec, chosen.programs, plan);

  int64_t saved_without_policy = 0;
  for (const MemorySpec& alternative : Alternatives(spec.memory)) {
    EBB_ASSIGN_OR_RETURN(const Priced priced,
                         Price(spec, graph, alternative, backend));
    if (alternative.policy == Policy::kNone) {
      saved_without_policy = priced.rank.saved_bytes;
    }
    plan.pareto.push_back(Candidate(priced, plan.budget_bytes));
  }
  std::stable_sort(plan.pareto.begin(), plan.pareto.end(),
                   [](const PlanCandidate& a, const PlanCandidate& b) {
                     return a.peak_bytes < b.peak_bytes;
                   });

  if (backend.built_in) {
    plan.notes.push_back(
        absl::StrCat("planned for a built-in backend (", backend.kind, ", ",
                     backend.instruction_set, ", ", backend.threads,
                     " threads), not for a probed machine"));
  }
  if (plan.policy == Policy::kSelective &&
      chosen.rank.saved_bytes == saved_without_policy) {
    plan.notes.push_back(
        "selective saves nothing here: fused attention never stores scores or "
        "softmax, so there is nothing to drop and nothing is recomputed");
  }
  if (!plan.fits) EBB_RETURN_IF_ERROR(ExplainMisfit(spec, backend, plan));
  return plan;
}

absl::StatusOr<std::string> DumpJob(const JobSpec& spec, const Plan& plan,
                                    const Backend& backend) {
  EBB_ASSIGN_OR_RETURN(const JobPrograms programs,
                       LowerJob(spec, plan, backend, 1));
  std::string text = Dump(programs.training);
  if (programs.evaluation.has_value()) {
    absl::StrAppend(&text, "\n# evaluation\n", Dump(*programs.evaluation));
  }
  return text;
}

}  // namespace ebb
