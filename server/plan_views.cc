#include "server/plan_views.h"

#include "kernels/status.h"
#include "server/planner/paper_accounting.h"
#include "worker/program/job_programs.h"
#include "worker/program/lower.h"
#include "worker/program/timeline.h"

namespace ebb {
namespace {

v1::AccountedSums SumsToMessage(const AccountedBytes& bytes, double model_flops,
                                double recompute_flops) {
  v1::AccountedSums message;
  message.set_layer_bytes(bytes.layer_bytes);
  message.set_layers_bytes(bytes.layers_bytes);
  message.set_outside_bytes(bytes.outside_bytes);
  message.set_recompute_flops(recompute_flops);
  message.set_hardware_flops(model_flops + recompute_flops);
  return message;
}

}  // namespace

absl::StatusOr<v1::Timeline> TimelineOfPlan(const JobSpec& spec,
                                            const Plan& plan, int max_points) {
  EBB_ASSIGN_OR_RETURN(const Graph graph, BuildTrainingGraph(spec));
  EBB_ASSIGN_OR_RETURN(const Program program,
                       LowerTraining(graph, plan, spec.optimizer,
                                     spec.num_microbatches(), plan.backend));
  EBB_ASSIGN_OR_RETURN(const Timeline timeline,
                       MakeTimeline(program, max_points));
  v1::Timeline message;
  message.set_num_instructions(timeline.num_instructions);
  message.set_num_microbatches(timeline.num_microbatches);
  const int64_t runtime_bytes =
      plan.ranks.empty() ? 0 : plan.ranks[0].memory[MemoryClass::kRuntime];
  for (const TimelinePoint& point : timeline.points) {
    v1::TimelinePoint& copy = *message.add_points();
    copy.set_first_instruction(point.first_instruction);
    copy.set_num_instructions(point.num_instructions);
    copy.set_num_recompute(point.num_recompute);
    for (int i = 0; i < kNumMemoryClasses; ++i) {
      const auto memory_class = static_cast<MemoryClass>(i);
      (*copy.mutable_memory())[MemoryClassName(memory_class)] =
          point.memory[memory_class];
    }
    (*copy.mutable_memory())[MemoryClassName(MemoryClass::kRuntime)] =
        runtime_bytes;
  }
  for (const TimelineBlock& block : timeline.blocks) {
    v1::TimelineBlock& copy = *message.add_blocks();
    copy.set_name(block.name);
    copy.set_first_instruction(block.first_instruction);
    copy.set_num_instructions(block.num_instructions);
    copy.set_first_layer(block.first_layer);
    copy.set_last_layer(block.last_layer);
    copy.set_in_microbatch(block.in_microbatch);
  }
  return message;
}

absl::StatusOr<v1::PaperAccounting> PaperAccountingOfPlan(const JobSpec& spec,
                                                          const Plan& plan) {
  EBB_ASSIGN_OR_RETURN(const PaperAccounting paper,
                       AccountAsPaper(spec, plan.backend));
  v1::PaperAccounting message;
  for (const AccountedTensor& tensor : paper.tensors) {
    v1::AccountedTensor& copy = *message.add_tensors();
    copy.set_value(tensor.value);
    for (size_t p = 0; p < kPaperPolicies.size(); ++p) {
      const std::string policy = PolicyName(kPaperPolicies[p]);
      (*copy.mutable_paper_bytes())[policy] = tensor.paper_bytes[p];
      (*copy.mutable_ebb_bytes())[policy] = tensor.ebb_bytes[p];
    }
  }
  for (const AccountedPolicy& policy : paper.policies) {
    v1::AccountedPolicy& copy = *message.add_policies();
    copy.set_policy(PolicyName(policy.policy));
    *copy.mutable_paper() = SumsToMessage(policy.paper, paper.model_flops,
                                          policy.paper_recompute_flops);
    *copy.mutable_ebb() = SumsToMessage(policy.ebb, paper.model_flops,
                                        policy.ebb_recompute_flops);
  }
  message.set_model_flops(paper.model_flops);
  message.set_layers_model_flops(paper.layers_model_flops);
  for (const TokenFlops& token : paper.token_flops) {
    v1::FlopConvention& copy = *message.add_conventions();
    copy.set_name(FlopConventionName(token.convention));
    copy.set_text(FlopConventionText(token.convention));
    copy.set_flops_per_token(token.flops);
  }
  return message;
}

}  // namespace ebb
