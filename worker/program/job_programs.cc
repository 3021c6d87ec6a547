#include "worker/program/job_programs.h"

#include <algorithm>
#include <utility>

#include "kernels/status.h"
#include "worker/model/transformer.h"
#include "worker/program/lower.h"

namespace ebb {

absl::StatusOr<Graph> BuildTrainingGraph(const JobSpec& spec) {
  return BuildTransformer(spec.model, spec.micro_batch, spec.model.seq_len,
                          spec.global_batch * spec.model.seq_len,
                          /*training=*/true, spec.precision);
}

absl::StatusOr<JobPrograms> LowerJob(const JobSpec& spec, const Plan& plan,
                                     const Backend& backend,
                                     int64_t evaluation_sequences) {
  JobPrograms programs;
  EBB_ASSIGN_OR_RETURN(programs.graph, BuildTrainingGraph(spec));
  EBB_ASSIGN_OR_RETURN(programs.training,
                       LowerTraining(programs.graph, plan, spec.optimizer,
                                     spec.num_microbatches(), backend));
  programs.step_bytes = programs.training.step_bytes;
  programs.host_bytes = programs.training.host_bytes;
  programs.disk_bytes = programs.training.disk_bytes;
  if (spec.eval.every == 0) return programs;

  const int64_t micro = spec.eval.micro;
  EBB_ASSIGN_OR_RETURN(
      const Graph graph,
      BuildTransformer(spec.model, micro, spec.eval.seq_len,
                       evaluation_sequences * spec.eval.seq_len,
                       /*training=*/false, spec.precision));
  const int64_t num_microbatches = (evaluation_sequences + micro - 1) / micro;
  EBB_ASSIGN_OR_RETURN(
      programs.evaluation,
      LowerEvaluation(graph, programs.training,
                      static_cast<int>(num_microbatches), backend));
  programs.step_bytes =
      std::max(programs.step_bytes, programs.evaluation->step_bytes);
  return programs;
}

absl::StatusOr<SamplePrograms> LowerSample(const JobSpec& spec, int64_t context,
                                           const Backend& backend) {
  SamplePrograms sample;
  EBB_ASSIGN_OR_RETURN(sample.graph,
                       BuildTransformer(spec.model, /*micro_batch=*/1, context,
                                        /*loss_tokens=*/context,
                                        /*training=*/false, spec.precision));
  EBB_ASSIGN_OR_RETURN(sample.program, LowerSampling(sample.graph, backend));
  return sample;
}

RankPlan PredictRank(const JobPrograms& programs, const Backend& backend) {
  const Program& training = programs.training;
  RankPlan rank;
  rank.memory = training.account.memory;
  rank.memory[MemoryClass::kRuntime] = backend.runtime_bytes;
  rank.memory[MemoryClass::kFragmentation] +=
      programs.step_bytes - training.step_bytes;
  rank.peak_bytes = rank.memory.Sum();
  rank.state_arena_bytes = training.state_bytes;
  rank.step_arena_bytes = programs.step_bytes;
  rank.saved_bytes = training.account.saved_bytes;
  rank.host_bytes = programs.host_bytes + training.host_state_bytes;
  rank.disk_bytes = programs.disk_bytes + training.disk_state_bytes;
  return rank;
}

}  // namespace ebb
