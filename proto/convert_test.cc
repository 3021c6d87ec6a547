// Messages to structs and back.
#include "proto/convert.h"

#include <google/protobuf/util/message_differencer.h>
#include <google/protobuf/util/time_util.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "proto/effective_spec.h"
#include "proto/spec_reader.h"
#include "proto/testing/spec_texts.h"
#include "worker/program/job_programs.h"
#include "worker/program/memory_class.h"

namespace ebb {
namespace {

// Korthikanti et al. 2022, table 3; parameters by equation 2 of Narayanan et
// al. 2021, which leaves the final norm out.
TEST(Convert, PresetsOfTheLiteratureHaveTheirParameters) {
  struct Shape {
    const char* preset;
    int64_t layers, hidden;
    double billions;
  };
  for (const Shape& shape : {Shape{"gpt-22b", 48, 6144, 22.07},
                             Shape{"gpt3-175b", 96, 12288, 174.62},
                             Shape{"mt-nlg-530b", 105, 20480, 529.60},
                             Shape{"gpt-1t", 128, 25600, 1008.04}}) {
    SCOPED_TRACE(shape.preset);
    const auto spec = ReadSpec(
        absl::StrCat("model: {preset: ", shape.preset,
                     "}\ndata: {train: /t}\nbatch: {global: 512, micro: 1}\n"
                     "steps: 1\n"),
        "spec.yaml", {});
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto effective = EffectiveSpec(
        *spec, {.threads = 1, .budget_bytes = 1, .host_budget_bytes = 1});
    ASSERT_TRUE(effective.ok()) << effective.status();
    const auto job = JobSpecFromMessage(*effective);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->num_microbatches(), 512);
    const auto graph = BuildTrainingGraph(*job);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const int64_t h = shape.hidden;
    const int64_t formula =
        shape.layers * (12 * h * h + 13 * h) + (51200 + 2048) * h;
    EXPECT_EQ(graph->num_parameters(), formula + 2 * h);
    EXPECT_NEAR(static_cast<double>(formula) * 1e-9, shape.billions, 0.005);
  }
}

TEST(Convert, EffectiveSpecToStruct) {
  const std::vector<std::string> sets = {"model.attention=unfused",
                                         "model.bias=false",
                                         "model.dropout=0.25",
                                         "data.format=text",
                                         "data.validation=/v",
                                         "data.shuffle=false",
                                         "lr_schedule.decay=linear",
                                         "memory.policy=custom",
                                         "memory.recompute=[gelu]",
                                         "memory.encode.values=[L*.qkv.y]",
                                         "memory.encode.format=bf16",
                                         "eval.every=5",
                                         "checkpoint.init_from=/c",
                                         "resources.timeout=1500ms",
                                         "seed=99",
                                         "precision=fp32",
                                         "optimizer.clip=0",
                                         "model.tied_embeddings=false"};
  const auto spec = ReadSpec(kShortYaml, "spec.yaml", sets);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto effective = EffectiveSpec(
      *spec, {.threads = 3, .budget_bytes = 77, .host_budget_bytes = 88});
  ASSERT_TRUE(effective.ok()) << effective.status();
  const auto job = JobSpecFromMessage(*effective);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->model.layers, 4);
  EXPECT_EQ(job->model.hidden, 128);
  EXPECT_EQ(job->model.heads, 4);
  EXPECT_EQ(job->model.kv_heads, 4);
  EXPECT_EQ(job->model.ffn, 512);
  EXPECT_EQ(job->model.vocab, 257);
  EXPECT_EQ(job->model.seq_len, 128);
  EXPECT_EQ(job->model.norm, Norm::kLayerNorm);
  EXPECT_EQ(job->model.norm_eps, 1e-5);
  EXPECT_EQ(job->model.activation, Activation::kGelu);
  EXPECT_EQ(job->model.positions, Positions::kLearned);
  EXPECT_EQ(job->model.attention, AttentionKind::kUnfused);
  EXPECT_FALSE(job->model.bias);
  EXPECT_FALSE(job->model.tied_embeddings);
  EXPECT_EQ(job->model.dropout, 0.25);
  EXPECT_EQ(job->data.train, "/corpus.txt");
  EXPECT_EQ(job->data.validation, "/v");
  EXPECT_EQ(job->data.format, DataFormat::kText);
  EXPECT_FALSE(job->data.shuffle);
  EXPECT_EQ(job->global_batch, 8);
  EXPECT_EQ(job->micro_batch, 2);
  EXPECT_EQ(job->num_microbatches(), 4);
  EXPECT_EQ(job->steps, 200);
  EXPECT_EQ(job->seed, 99u);
  EXPECT_EQ(job->precision, DType::kF32);
  EXPECT_EQ(job->optimizer.lr, 1e-3);
  EXPECT_EQ(job->optimizer.clip, 0);
  EXPECT_EQ(job->lr_schedule.warmup, 10);
  EXPECT_EQ(job->lr_schedule.decay, LrDecay::kLinear);
  EXPECT_EQ(job->lr_schedule.min_lr, 1e-4);
  EXPECT_EQ(job->memory.policy, Policy::kCustom);
  EXPECT_EQ(job->memory.recompute, std::vector<std::string>{"gelu"});
  EXPECT_EQ(job->memory.encode.values, std::vector<std::string>{"L*.qkv.y"});
  EXPECT_EQ(job->memory.encode.format, DType::kBf16);
  EXPECT_EQ(job->memory.budget_bytes, 77);
  EXPECT_EQ(job->memory.host_budget_bytes, 88);
  EXPECT_EQ(job->checkpoint.init_from, "/c");
  EXPECT_EQ(job->checkpoint.keep, 2);
  EXPECT_EQ(job->eval.every, 5);
  EXPECT_EQ(job->eval.micro, 2);
  EXPECT_EQ(job->eval.seq_len, 128);
  EXPECT_EQ(job->threads, 3);
  EXPECT_EQ(job->start_timeout_seconds, 1.5);

  v1::JobSpec wrong = *effective;
  wrong.mutable_batch()->set_micro(0);
  EXPECT_EQ(JobSpecFromMessage(wrong).status().code(),
            absl::StatusCode::kInvalidArgument);
}

Plan MakePlan() {
  Plan plan;
  plan.decisions = {
      {.value = "L*.mlp_act.y",
       .first_layer = 0,
       .last_layer = 3,
       .decision = ActivationDecision::kRecompute,
       .bytes = 4096,
       .seconds = 0.5,
       .flops = 1e9,
       .reason = "cheap to compute"},
      {.value = "L*.qkv.y", .first_layer = 2, .last_layer = 2, .reason = ""},
      {.value = "L*.mlp.fc.y",
       .first_layer = 0,
       .last_layer = 2,
       .decision = ActivationDecision::kOffloadDisk,
       .reason = "slow to compute"},
      {.value = "embedding.y", .reason = ""},
      {.value = "L*.attention.y",
       .first_layer = 0,
       .last_layer = 3,
       .encoded = DType::kF8E4M3,
       .reason = "small"},
      {.value = "L*.attention.lse",
       .first_layer = 0,
       .last_layer = 2,
       .decision = ActivationDecision::kOffloadHost,
       .encoded = DType::kBf16,
       .reason = "small"}};
  plan.graph_fingerprint = 0xfedcba9876543210;
  plan.policy = Policy::kSqrt;
  plan.group = 2;
  plan.fits = false;
  plan.budget_bytes = 123;
  plan.step_seconds = 0.1;
  plan.bound_seconds = 0.05;
  plan.model_flops = 1e20;
  plan.recompute_flops = 3e18;
  RankPlan rank;
  for (int i = 0; i < kNumMemoryClasses; ++i) rank.memory.bytes[i] = 100 + i;
  rank.peak_bytes = rank.memory.Sum();
  rank.state_arena_bytes = 7;
  rank.step_arena_bytes = 8;
  rank.saved_bytes = 9;
  rank.host_bytes = 10;
  rank.disk_bytes = 11;
  plan.ranks = {rank};
  plan.pareto = {{.policy = "full",
                  .peak_bytes = 5,
                  .saved_bytes = 4,
                  .step_seconds = 3,
                  .model_flops = 2,
                  .recompute_flops = 1,
                  .fits = true}};
  plan.notes = {"a note"};
  plan.backend = {.kind = "cpu",
                  .device_model = "a model",
                  .instruction_set = "avx2",
                  .threads = 2,
                  .libraries = "onednn",
                  .runtime_bytes = 55,
                  .built_in = true};
  return plan;
}

TEST(Convert, PlanThereAndBack) {
  const Plan plan = MakePlan();
  const v1::Plan message = PlanToMessage(plan);
  EXPECT_EQ(message.policy(), "sqrt");
  EXPECT_EQ(message.decisions(0).value(), "L0-L3.mlp_act.y");
  EXPECT_EQ(message.decisions(0).decision(), "recompute");
  EXPECT_EQ(message.decisions(1).value(), "L2.qkv.y");
  EXPECT_EQ(message.decisions(2).decision(), "offload");
  EXPECT_EQ(message.decisions(2).offload_place(), "disk");
  EXPECT_EQ(message.decisions(3).value(), "embedding.y");
  EXPECT_EQ(message.decisions(4).decision(), "encode");
  EXPECT_EQ(message.decisions(4).encode_format(), "fp8_e4m3");
  EXPECT_EQ(message.decisions(4).offload_place(), "");
  EXPECT_EQ(message.decisions(5).decision(), "encode");
  EXPECT_EQ(message.decisions(5).encode_format(), "bf16");
  EXPECT_EQ(message.decisions(5).offload_place(), "host");
  EXPECT_EQ(message.ranks(0).host_bytes(), 10);
  EXPECT_EQ(message.ranks(0).disk_bytes(), 11);
  EXPECT_EQ(message.ranks(0).memory().size(), size_t{kNumMemoryClasses});

  const auto back = PlanFromMessage(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->graph_fingerprint, plan.graph_fingerprint);
  EXPECT_EQ(back->policy, plan.policy);
  EXPECT_EQ(back->backend, plan.backend);
  EXPECT_EQ(back->ranks[0].memory, plan.ranks[0].memory);
  EXPECT_EQ(back->decisions[0].value, "L*.mlp_act.y");
  EXPECT_EQ(back->decisions[0].last_layer, 3);
  EXPECT_EQ(back->decisions[0].decision, ActivationDecision::kRecompute);
  EXPECT_EQ(back->decisions[2].decision, ActivationDecision::kOffloadDisk);
  EXPECT_EQ(back->decisions[4].decision, ActivationDecision::kKeep);
  EXPECT_EQ(back->decisions[4].encoded, DType::kF8E4M3);
  EXPECT_EQ(back->decisions[5].decision, ActivationDecision::kOffloadHost);
  EXPECT_EQ(back->decisions[5].encoded, DType::kBf16);
  // Nothing is lost on the way.
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(
      message, PlanToMessage(*back)));
}

TEST(Convert, RefusesPlansItDoesNotKnow) {
  v1::Plan message = PlanToMessage(MakePlan());
  message.set_policy("clever");
  EXPECT_FALSE(PlanFromMessage(message).ok());
  message = PlanToMessage(MakePlan());
  message.mutable_decisions(0)->set_decision("forget");
  EXPECT_FALSE(PlanFromMessage(message).ok());
  message = PlanToMessage(MakePlan());
  message.mutable_decisions(2)->set_offload_place("moon");
  EXPECT_FALSE(PlanFromMessage(message).ok());
  message = PlanToMessage(MakePlan());
  message.mutable_decisions(0)->set_encode_format("int4");
  message.mutable_decisions(0)->set_decision("encode");
  EXPECT_FALSE(PlanFromMessage(message).ok());
  message = PlanToMessage(MakePlan());
  message.mutable_decisions(0)->set_encode_format("bf16");
  EXPECT_FALSE(PlanFromMessage(message).ok());
  message = PlanToMessage(MakePlan());
  (*message.mutable_ranks(0)->mutable_memory())["cache"] = 1;
  EXPECT_FALSE(PlanFromMessage(message).ok());
}

TEST(Convert, StepCarriesPredictedAndCountedBytes) {
  StepReport report;
  report.step = 12;
  report.loss = 2.5;
  report.gradient_norm = 1.25;
  report.learning_rate = 1e-4;
  report.tokens = 1024;
  report.duration_seconds = 0.5;
  report.model_flops = 1e12;
  report.recompute_flops = 1e11;
  report.skipped = true;
  report.memory[MemoryClass::kSaved] = 4000;
  report.saved_bytes = 4100;
  report.resident_bytes = 9000;
  report.host_bytes = 5000;
  report.disk_bytes = 6000;
  report.copied = {.to_host = 1,
                   .from_host = 2,
                   .to_disk = 3,
                   .from_disk = int64_t{1} << 60};
  report.encode_errors = {{"L*.qkv.y", 0.02, 0.5}};
  report.phases.backward = 0.25;
  report.phases.offload_wait = 0.125;
  const RankPlan predicted = MakePlan().ranks[0];
  const v1::Step step = StepToMessage(report, 3, "full", predicted,
                                      absl::FromUnixSeconds(1700000000));
  EXPECT_EQ(step.step(), 12);
  EXPECT_EQ(step.attempt(), 3);
  EXPECT_EQ(step.policy(), "full");
  EXPECT_EQ(step.loss(), 2.5);
  EXPECT_TRUE(step.skipped());
  EXPECT_EQ(step.time().seconds(), 1700000000);
  EXPECT_EQ(step.phase_seconds().at("backward"), 0.25);
  EXPECT_EQ(step.phase_seconds().at("offload_wait"), 0.125);
  EXPECT_EQ(step.ranks(0).host_bytes(), 5000);
  EXPECT_EQ(step.ranks(0).disk_bytes(), 6000);
  EXPECT_EQ(step.ranks(0).copied_bytes().size(), 4u);
  EXPECT_EQ(step.ranks(0).copied_bytes().at("to_host"), 1);
  EXPECT_EQ(step.ranks(0).copied_bytes().at("from_host"), 2);
  EXPECT_EQ(step.ranks(0).copied_bytes().at("to_disk"), 3);
  EXPECT_EQ(step.ranks(0).copied_bytes().at("from_disk"), int64_t{1} << 60);
  ASSERT_EQ(step.ranks_size(), 1);
  EXPECT_EQ(step.ranks(0).memory().size(), size_t{kNumMemoryClasses});
  EXPECT_EQ(step.ranks(0).memory().at("saved").peak_bytes(), 4000);
  EXPECT_EQ(step.ranks(0).memory().at("saved").predicted_bytes(),
            predicted.memory[MemoryClass::kSaved]);
  EXPECT_EQ(step.ranks(0).saved_bytes(), 4100);
  EXPECT_EQ(step.ranks(0).resident_bytes(), 9000);
  ASSERT_EQ(step.ranks(0).encode_errors_size(), 1);
  EXPECT_EQ(step.ranks(0).encode_errors(0).value(), "L*.qkv.y");
  EXPECT_EQ(step.ranks(0).encode_errors(0).relative_error(), 0.02);
  EXPECT_EQ(step.ranks(0).encode_errors(0).largest_error(), 0.5);
}

TEST(Convert, Evaluation) {
  const v1::EvalReport report = EvalToMessage(
      {.step = 5, .loss = 1.5, .tokens = 64, .duration_seconds = 2}, 2);
  EXPECT_EQ(report.step(), 5);
  EXPECT_EQ(report.attempt(), 2);
  EXPECT_EQ(report.loss(), 1.5);
  EXPECT_EQ(report.tokens(), 64);
  EXPECT_EQ(report.duration_seconds(), 2);
}

}  // namespace
}  // namespace ebb
