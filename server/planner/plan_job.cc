#include "server/planner/plan_job.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/status.h"
#include "server/planner/auto_plan.h"
#include "server/planner/plan_reasons.h"
#include "server/planner/quantity_text.h"
#include "worker/program/dump.h"
#include "worker/program/job_programs.h"
#include "worker/program/policy.h"

namespace ebb {
namespace {

// What planning works with.
struct Inputs {
  const Backend& backend;
  const CostProfile& profile;
};

struct Priced {
  Plan plan;
  RankPlan rank;
  JobPrograms programs;

  const ProgramAccount& account() const { return programs.training.account; }
};

absl::StatusOr<Priced> PricePlan(const JobSpec& spec, Plan plan,
                                 const Inputs& inputs) {
  Priced priced;
  priced.plan = std::move(plan);
  EBB_ASSIGN_OR_RETURN(priced.programs,
                       LowerJob(spec, priced.plan, inputs.backend, 1));
  priced.rank = PredictRank(priced.programs, inputs.backend);
  priced.plan.step_seconds =
      SecondsOf(priced.programs.training, inputs.profile).total;
  priced.plan.model_flops = priced.account().model_flops;
  priced.plan.recompute_flops = priced.account().recompute_flops;
  return priced;
}

absl::StatusOr<Priced> Price(const JobSpec& spec, const Graph& graph,
                             const MemorySpec& memory, const Inputs& inputs) {
  EBB_ASSIGN_OR_RETURN(Plan plan, MakePolicyPlan(graph, memory));
  return PricePlan(spec, std::move(plan), inputs);
}

// `effort`: what is only said of a job that does not fit need not be exact.
absl::StatusOr<AutoPlan> ChooseAuto(const JobSpec& spec, const Graph& graph,
                                    const Inputs& inputs,
                                    AutoEffort effort = AutoEffort::kCoarse) {
  EBB_ASSIGN_OR_RETURN(
      const AutoPlanner planner,
      AutoPlanner::Create(spec, graph, inputs.backend, inputs.profile, effort));
  return planner.Choose(spec.memory.budget_bytes);
}

std::string PolicyLabel(const Plan& plan) {
  if (plan.policy == Policy::kFull && plan.group > 1) {
    return absl::StrCat("full, group ", plan.group);
  }
  return PolicyName(plan.policy);
}

bool Fits(const RankPlan& rank, const MemorySpec& memory) {
  return rank.peak_bytes <= memory.budget_bytes &&
         rank.host_bytes <= memory.host_budget_bytes;
}

PlanCandidate Candidate(const Priced& priced, const MemorySpec& memory) {
  PlanCandidate candidate;
  candidate.policy = PolicyLabel(priced.plan);
  candidate.peak_bytes = priced.rank.peak_bytes;
  candidate.saved_bytes = priced.rank.saved_bytes;
  candidate.step_seconds = priced.plan.step_seconds;
  candidate.model_flops = priced.plan.model_flops;
  candidate.recompute_flops = priced.plan.recompute_flops;
  candidate.fits = Fits(priced.rank, memory);
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

// Seconds of a step, and how many more they are than another's.
std::string CostText(double seconds, double others) {
  return absl::StrFormat("%s a step (%+.1f %%)", SecondsText(seconds),
                         100 * (seconds / others - 1));
}

// All classes, largest first.
std::string ClassesText(const RankPlan& rank) {
  std::vector<std::pair<int64_t, std::string>> classes;
  for (int c = 0; c < kNumMemoryClasses; ++c) {
    if (rank.memory.bytes[c] == 0) continue;
    classes.emplace_back(rank.memory.bytes[c],
                         MemoryClassName(static_cast<MemoryClass>(c)));
  }
  std::stable_sort(
      classes.begin(), classes.end(),
      [](const auto& a, const auto& b) { return a.first > b.first; });
  return absl::StrJoin(classes, ", ", [](std::string* out, const auto& own) {
    absl::StrAppend(out, own.second, " ", ExactBytesText(own.first));
  });
}

// What may wait in host memory, by field of the spec's memory section.
constexpr std::pair<const char*, Offload MemorySpec::*> kOffloads[] = {
    {"offload", &MemorySpec::offload},
    {"offload_optimizer", &MemorySpec::offload_optimizer},
    {"offload_parameters", &MemorySpec::offload_parameters},
};

// Says by how much the offloaded values miss their budget, and what would fit.
absl::Status ExplainHostMisfit(const JobSpec& spec, const Graph& graph,
                               const Inputs& inputs, Plan& plan) {
  const RankPlan& rank = plan.ranks[0];
  const int64_t budget = spec.memory.host_budget_bytes;
  std::vector<std::string> ways;
  const PlanCandidate* policy = nullptr;  // the fastest that fits
  for (const PlanCandidate& candidate : plan.pareto) {
    if (candidate.fits &&
        (policy == nullptr || candidate.step_seconds < policy->step_seconds)) {
      policy = &candidate;
    }
  }
  if (policy != nullptr) {
    ways.push_back(
        absl::StrCat("memory.policy ", policy->policy, " fits, with ",
                     CostText(policy->step_seconds, plan.step_seconds)));
  }
  for (const auto& [field, member] : kOffloads) {
    if (spec.memory.*member != Offload::kHost) continue;
    JobSpec kept = spec;
    kept.memory.*member = Offload::kNone;
    AutoPlan found;
    if (kept.memory.policy == Policy::kAuto) {
      EBB_ASSIGN_OR_RETURN(found, ChooseAuto(kept, graph, inputs));
    } else {
      EBB_ASSIGN_OR_RETURN(found.plan, MakePolicyPlan(graph, kept.memory));
    }
    EBB_ASSIGN_OR_RETURN(const Priced priced,
                         PricePlan(kept, std::move(found.plan), inputs));
    ways.push_back(absl::StrCat(
        "memory.", field, " none ",
        Fits(priced.rank, kept.memory) ? "fits, with " : "needs ",
        ExactBytesText(priced.rank.peak_bytes), " of device memory and ",
        ExactBytesText(priced.rank.host_bytes), " of host memory"));
  }
  ways.push_back(
      absl::StrCat("memory.host_budget ", rank.host_bytes, " would do"));
  plan.shortfall =
      absl::StrCat("need ", ExactBytesText(rank.host_bytes),
                   " of host memory, have ", ExactBytesText(budget),
                   ", short of ", ExactBytesText(rank.host_bytes - budget),
                   " on rank ", rank.rank, ": ", absl::StrJoin(ways, "; "));
  return absl::OkStatus();
}

// What the job would need with memory.FIELD host; empty if that does not fit
// either.
absl::StatusOr<std::string> OffloadThatFits(JobSpec spec, const char* field,
                                            Offload MemorySpec::*member,
                                            const Graph& graph,
                                            const Inputs& inputs,
                                            const Plan& plan) {
  if (spec.memory.*member != Offload::kNone) return std::string();
  spec.memory.*member = Offload::kHost;
  Plan offloaded;
  if (spec.memory.policy == Policy::kAuto) {
    EBB_ASSIGN_OR_RETURN(AutoPlan found, ChooseAuto(spec, graph, inputs));
    offloaded = std::move(found.plan);
  } else {
    EBB_ASSIGN_OR_RETURN(offloaded, MakePolicyPlan(graph, spec.memory));
  }
  EBB_ASSIGN_OR_RETURN(const Priced priced,
                       PricePlan(spec, std::move(offloaded), inputs));
  if (!Fits(priced.rank, spec.memory)) return std::string();
  return absl::StrCat("memory.", field, " host fits, with ",
                      ExactBytesText(priced.rank.peak_bytes), ", ",
                      ExactBytesText(priced.rank.host_bytes),
                      " of host memory and ",
                      CostText(priced.plan.step_seconds, plan.step_seconds));
}

// What `auto` would need with the optimizer's state, or parameters too, in host
// memory; empty if neither fits.
absl::StatusOr<std::string> StateOffThatFits(JobSpec spec, const Graph& graph,
                                             const Inputs& inputs,
                                             const Plan& plan) {
  spec.memory.policy = Policy::kAuto;
  spec.memory.group = 1;
  spec.memory.recompute.clear();
  std::string fields = "memory.policy auto";
  for (const auto& [field, member] : kOffloads) {
    if (member == &MemorySpec::offload) continue;
    if (spec.memory.*member == Offload::kNone) {
      spec.memory.*member = Offload::kHost;
      absl::StrAppend(&fields, " with memory.", field, " host");
    }
    EBB_ASSIGN_OR_RETURN(const AutoPlan found, ChooseAuto(spec, graph, inputs));
    if (const PlanCandidate* fits = found.chosen()) {
      return absl::StrCat(fields, " fits, with ",
                          ExactBytesText(fits->peak_bytes), " and ",
                          CostText(fits->step_seconds, plan.step_seconds));
    }
  }
  return std::string();
}

// Says by how much the job misses its budget, and the changes that are nearest
// to what was asked for: the plan of `auto`, the policy that computes least
// again, the largest micro batch. If none does, what the smallest plan needs.
absl::Status ExplainMisfit(const JobSpec& spec, const Graph& graph,
                           const Inputs& inputs, Plan& plan) {
  const RankPlan& rank = plan.ranks[0];
  plan.shortfall =
      absl::StrCat("need ", ExactBytesText(rank.peak_bytes), ", have ",
                   ExactBytesText(plan.budget_bytes), ", short of ",
                   ExactBytesText(rank.peak_bytes - plan.budget_bytes),
                   " on rank ", rank.rank, " (", ClassesText(rank), ")");
  std::vector<std::string> ways;
  EBB_ASSIGN_OR_RETURN(const AutoPlan best, ChooseAuto(spec, graph, inputs));
  if (const PlanCandidate* fits = best.chosen()) {
    ways.push_back(absl::StrCat(
        "memory.policy auto fits, with ", ExactBytesText(fits->peak_bytes),
        " and ", CostText(fits->step_seconds, plan.step_seconds)));
  }
  const PlanCandidate* policy = nullptr;  // the fastest named one that fits
  for (const PlanCandidate& candidate : plan.pareto) {
    if (candidate.policy == PolicyName(Policy::kAuto)) continue;
    if (candidate.fits &&
        (policy == nullptr || candidate.step_seconds < policy->step_seconds)) {
      policy = &candidate;
    }
  }
  if (policy != nullptr) {
    ways.push_back(
        absl::StrCat("memory.policy ", policy->policy, " fits, with ",
                     ExactBytesText(policy->peak_bytes), " and ",
                     CostText(policy->step_seconds, plan.step_seconds)));
  }
  // Ops of other shapes may not have been measured: a roofline tells how much
  // longer they take than those of the plan.
  const CostProfile roofline = RooflineProfile(inputs.backend);
  const Inputs alike = {inputs.backend, roofline};
  EBB_ASSIGN_OR_RETURN(const Priced of_plan, PricePlan(spec, plan, alike));
  const auto cost_of_others = [&](double seconds) {
    return CostText(plan.step_seconds * seconds / of_plan.plan.step_seconds,
                    plan.step_seconds);
  };
  for (int micro = spec.micro_batch - 1; micro >= 1; --micro) {
    if (spec.global_batch % micro != 0) continue;
    JobSpec smaller = spec;
    smaller.micro_batch = micro;
    EBB_ASSIGN_OR_RETURN(const Graph own, BuildTrainingGraph(smaller));
    if (spec.memory.policy == Policy::kAuto) {
      EBB_ASSIGN_OR_RETURN(const AutoPlan found,
                           ChooseAuto(smaller, own, alike));
      const PlanCandidate* fits = found.chosen();
      if (fits == nullptr) continue;
      ways.push_back(absl::StrCat("batch.micro ", micro, " fits, with ",
                                  ExactBytesText(fits->peak_bytes), " and ",
                                  cost_of_others(fits->step_seconds)));
      break;
    }
    EBB_ASSIGN_OR_RETURN(const Priced priced,
                         Price(smaller, own, spec.memory, alike));
    if (!Fits(priced.rank, spec.memory)) continue;
    ways.push_back(absl::StrCat("batch.micro ", micro, " fits, with ",
                                ExactBytesText(priced.rank.peak_bytes), " and ",
                                cost_of_others(priced.plan.step_seconds)));
    break;
  }
  for (const auto& [field, member] : kOffloads) {
    EBB_ASSIGN_OR_RETURN(
        const std::string way,
        OffloadThatFits(spec, field, member, graph, inputs, plan));
    if (!way.empty()) ways.push_back(way);
  }
  if (ways.empty()) {
    EBB_ASSIGN_OR_RETURN(const std::string way,
                         StateOffThatFits(spec, graph, inputs, plan));
    if (!way.empty()) ways.push_back(way);
  }
  if (ways.empty()) {
    PlanCandidate least = best.pareto.front();
    ways.push_back(
        absl::StrCat("the smallest plan (memory.policy auto) needs ",
                     ExactBytesText(least.peak_bytes), " and takes ",
                     CostText(least.step_seconds, plan.step_seconds)));
    std::string set;
    const auto add_smallest = [&](const JobSpec& smaller,
                                  const std::string& with) -> absl::Status {
      EBB_ASSIGN_OR_RETURN(const Graph own, BuildTrainingGraph(smaller));
      EBB_ASSIGN_OR_RETURN(const AutoPlan found,
                           ChooseAuto(smaller, own, alike));
      // Host memory may not hold the state.
      if (found.chosen() == nullptr) return absl::OkStatus();
      least = found.pareto.front();
      set = with;
      ways.push_back(absl::StrCat(
          "with ", with, " it needs ", ExactBytesText(least.peak_bytes),
          " and takes ", cost_of_others(least.step_seconds)));
      return absl::OkStatus();
    };
    JobSpec smaller = spec;
    smaller.memory.policy = Policy::kAuto;
    smaller.memory.group = 1;
    smaller.memory.recompute.clear();
    smaller.memory.budget_bytes = std::numeric_limits<int64_t>::max();
    std::string with;
    if (spec.micro_batch > 1) {
      smaller.micro_batch = 1;
      with = "batch.micro 1";
      EBB_RETURN_IF_ERROR(add_smallest(smaller, with));
    }
    bool moves_state = false;
    for (const auto& [field, member] : kOffloads) {
      if (member == &MemorySpec::offload ||
          spec.memory.*member != Offload::kNone) {
        continue;
      }
      smaller.memory.*member = Offload::kHost;
      moves_state = true;
      absl::StrAppend(&with, with.empty() ? "" : " and ", "memory.", field,
                      " host");
    }
    if (moves_state && least.peak_bytes > plan.budget_bytes) {
      EBB_RETURN_IF_ERROR(add_smallest(smaller, with));
    }
    ways.push_back(least.peak_bytes <= plan.budget_bytes
                       ? absl::StrCat("set memory.policy auto and ", set)
                       : "set memory.budget to one of these or take a smaller "
                         "model");
  }
  absl::StrAppend(&plan.shortfall, ": ", absl::StrJoin(ways, "; "));
  return absl::OkStatus();
}

// The named policies' costs, smallest peak first.
absl::StatusOr<std::vector<PlanCandidate>> PriceNamedPolicies(
    const JobSpec& spec, const Graph& graph, const Inputs& inputs) {
  std::vector<PlanCandidate> candidates;
  for (const MemorySpec& alternative : Alternatives(spec.memory)) {
    EBB_ASSIGN_OR_RETURN(const Priced priced,
                         Price(spec, graph, alternative, inputs));
    candidates.push_back(Candidate(priced, spec.memory));
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const PlanCandidate& a, const PlanCandidate& b) {
                     return a.peak_bytes < b.peak_bytes;
                   });
  return candidates;
}

// What stays of the saved values, or that all of them do.
std::string OffloadNote(const JobSpec& spec, const Plan& plan) {
  int first_kept = spec.model.layers;
  bool moves = false;
  for (const Decision& decision : plan.decisions) {
    if (IsOnState(decision.value)) continue;
    if (decision.decision == ActivationDecision::kKeep) {
      first_kept = std::min(first_kept, decision.first_layer);
    }
    moves = moves || IsOffload(decision.decision);
  }
  if (!moves) {
    return "memory.offload moves nothing here: there is one group of layers, "
           "and it is read again as soon as it is made";
  }
  const int last = spec.model.layers - 1;
  return absl::StrCat(
      "not offloaded: what the last group of layers (L", first_kept,
      first_kept < last ? absl::StrCat("-L", last) : std::string(),
      ") keeps, which is read again as soon as it is made");
}

// That bits are no longer exact, and what is not encoded although it is named.
std::vector<std::string> EncodeNotes(const JobSpec& spec, const Graph& graph,
                                     const Encoding& encoding,
                                     const Plan& plan) {
  std::vector<std::string> encoded, left;
  for (const Decision& decision : encoding.Apply(graph, plan.decisions)) {
    int v = 0;
    while (graph.values[v].name != decision.value) ++v;
    bool is_named = false;
    for (int l = decision.first_layer; l <= decision.last_layer; ++l) {
      is_named = is_named || encoding.FormatOf(v, l) != DType::kNone;
    }
    if (!is_named) continue;
    std::vector<std::string>& list =
        decision.encoded == DType::kNone ? left : encoded;
    if (list.empty() || list.back() != decision.value) {
      list.push_back(decision.value);
    }
  }
  // Of what some layers keep and others compute again the first is said.
  std::erase_if(left, [&](const std::string& name) {
    return std::find(encoded.begin(), encoded.end(), name) != encoded.end();
  });
  const char* format = DTypeName(spec.memory.encode.format);
  std::vector<std::string> notes;
  if (encoded.empty()) {
    notes.push_back(absl::StrCat("memory.encode ", format,
                                 " encodes nothing here: what it names is not "
                                 "kept between forward and backward"));
    return notes;
  }
  notes.push_back(absl::StrCat(
      "memory.encode ", format,
      " is lossy: gradients and weights are not those of an exact run, nor the "
      "same under other policies; the same plan gives the same bits"));
  if (!left.empty()) {
    notes.push_back(absl::StrCat(
        "not encoded, since backward does not read it as forward left it: ",
        absl::StrJoin(left, ", ")));
  }
  return notes;
}

std::vector<std::string> NotesOn(const Plan& plan, const StepSeconds& seconds,
                                 const Inputs& inputs) {
  std::vector<std::string> notes;
  const Backend& backend = inputs.backend;
  if (backend.built_in) {
    notes.push_back(absl::StrCat("planned for a built-in backend (",
                                 backend.kind, ", ", backend.instruction_set,
                                 ", ", backend.threads,
                                 " threads), not for a probed machine"));
  }
  const double measured = seconds.measured / seconds.total;
  if (measured > 0.9995) {
    notes.push_back("seconds are from times measured on this machine");
  } else {
    notes.push_back(absl::StrCat(
        measured < 0.0005
            ? "seconds are those of a "
            : absl::StrFormat(
                  "%.0f %% of the seconds are from times measured on this "
                  "machine, the others those of a ",
                  std::min(99.0, 100 * measured)),
        inputs.profile.source, "; `ebb plan --profile` measures"));
  }
  if (plan.policy == Policy::kSelective) {
    for (const PlanCandidate& candidate : plan.pareto) {
      if (candidate.policy == PolicyName(Policy::kNone) &&
          candidate.saved_bytes == plan.ranks[0].saved_bytes) {
        notes.push_back(
            "selective saves nothing here: fused attention never stores scores "
            "or softmax, so there is nothing to drop and nothing is "
            "recomputed");
      }
    }
  }
  if (plan.bound_seconds > 0) {
    notes.push_back(absl::StrFormat(
        "no plan within the budget takes less than %s a step: this one takes "
        "at most %.2f %% more",
        SecondsText(plan.bound_seconds),
        100 * (plan.step_seconds / plan.bound_seconds - 1)));
  }
  return notes;
}

}  // namespace

absl::StatusOr<Plan> PlanJob(const JobSpec& spec, const Backend& backend,
                             const CostProfile& profile) {
  const Inputs inputs = {backend, profile};
  EBB_ASSIGN_OR_RETURN(const Graph graph, BuildTrainingGraph(spec));
  Priced chosen;
  std::vector<PlanCandidate> pareto;
  double bound_seconds = 0;
  if (spec.memory.policy == Policy::kAuto) {
    EBB_ASSIGN_OR_RETURN(AutoPlan found,
                         ChooseAuto(spec, graph, inputs, AutoEffort::kWhole));
    pareto = std::move(found.pareto);
    bound_seconds = found.bound_seconds;
    EBB_ASSIGN_OR_RETURN(chosen,
                         PricePlan(spec, std::move(found.plan), inputs));
  } else {
    EBB_ASSIGN_OR_RETURN(chosen, Price(spec, graph, spec.memory, inputs));
    EBB_ASSIGN_OR_RETURN(pareto, PriceNamedPolicies(spec, graph, inputs));
  }
  Plan plan = std::move(chosen.plan);
  plan.budget_bytes = spec.memory.budget_bytes;
  plan.backend = backend;
  plan.bound_seconds = bound_seconds;
  plan.fits = Fits(chosen.rank, spec.memory);
  plan.ranks = {chosen.rank};
  plan.pareto = std::move(pareto);
  EBB_ASSIGN_OR_RETURN(const Encoding encoding,
                       Encoding::Create(graph, spec.memory.encode));
  std::vector<std::string> encode_notes;
  if (encoding.encodes()) {
    encode_notes = EncodeNotes(spec, graph, encoding, plan);
  }
  ExplainDecisions(spec, chosen.programs, profile, encoding, plan);
  plan.notes =
      NotesOn(plan, SecondsOf(chosen.programs.training, profile), inputs);
  plan.notes.insert(plan.notes.begin(), encode_notes.begin(),
                    encode_notes.end());
  if (spec.memory.offload != Offload::kNone) {
    plan.notes.push_back(OffloadNote(spec, plan));
  }
  if (chosen.rank.peak_bytes > plan.budget_bytes) {
    EBB_RETURN_IF_ERROR(ExplainMisfit(spec, graph, inputs, plan));
  } else if (!plan.fits) {
    EBB_RETURN_IF_ERROR(ExplainHostMisfit(spec, graph, inputs, plan));
  }
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
