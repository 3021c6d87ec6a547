#include "proto/convert.h"

#include <google/protobuf/util/time_util.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "proto/field_rules.h"
#include "proto/validator.h"
#include "worker/program/memory_class.h"

namespace ebb {

namespace {

// Message enums count from 1 (0 is "not set"), ours from 0, in one order: the
// static_asserts hold first and last together.
template <typename Enum>
constexpr Enum FromChoice(int number) {
  return static_cast<Enum>(number - 1);
}

static_assert(FromChoice<Norm>(v1::NORM_LAYERNORM) == Norm::kLayerNorm);
static_assert(FromChoice<Norm>(v1::NORM_RMSNORM) == Norm::kRmsNorm);
static_assert(FromChoice<Activation>(v1::ACTIVATION_GELU) == Activation::kGelu);
static_assert(FromChoice<Activation>(v1::ACTIVATION_SWIGLU) ==
              Activation::kSwiglu);
static_assert(FromChoice<Positions>(v1::POSITIONS_LEARNED) ==
              Positions::kLearned);
static_assert(FromChoice<Positions>(v1::POSITIONS_ROPE) == Positions::kRope);
static_assert(FromChoice<AttentionKind>(v1::ATTENTION_FUSED) ==
              AttentionKind::kFused);
static_assert(FromChoice<AttentionKind>(v1::ATTENTION_UNFUSED) ==
              AttentionKind::kUnfused);
static_assert(FromChoice<DataFormat>(v1::DATA_FORMAT_AUTO) ==
              DataFormat::kAuto);
static_assert(FromChoice<DataFormat>(v1::DATA_FORMAT_MEGATRON) ==
              DataFormat::kMegatron);
static_assert(FromChoice<LrDecay>(v1::LR_DECAY_CONSTANT) == LrDecay::kConstant);
static_assert(FromChoice<LrDecay>(v1::LR_DECAY_COSINE) == LrDecay::kCosine);
static_assert(FromChoice<Policy>(v1::POLICY_NONE) == Policy::kNone);
static_assert(FromChoice<Policy>(v1::POLICY_CUSTOM) == Policy::kCustom);
static_assert(FromChoice<Policy>(v1::POLICY_AUTO) == Policy::kAuto);
static_assert(FromChoice<Offload>(v1::OFFLOAD_NONE) == Offload::kNone);
static_assert(FromChoice<Offload>(v1::OFFLOAD_DISK) == Offload::kDisk);

DType EncodeType(v1::EncodeFormat format) {
  switch (format) {
    case v1::ENCODE_FORMAT_BF16:
      return DType::kBf16;
    case v1::ENCODE_FORMAT_FP8_E4M3:
      return DType::kF8E4M3;
    default:
      return DType::kNone;
  }
}

DType PrecisionType(v1::Precision precision) {
  switch (precision) {
    case v1::PRECISION_BF16:
      return DType::kBf16;
    case v1::PRECISION_FP16:
      return DType::kF16;
    default:
      return DType::kF32;
  }
}

std::string PolicyWord(Policy policy) {
  return ChoiceWord(*v1::Policy_descriptor()->FindValueByNumber(
      static_cast<int>(policy) + 1));
}

absl::StatusOr<MemoryBytes> MemoryFromMessage(
    const google::protobuf::Map<std::string, int64_t>& message) {
  MemoryBytes memory;
  for (const auto& [name, bytes] : message) {
    bool known = false;
    for (int i = 0; i < kNumMemoryClasses; ++i) {
      const auto memory_class = static_cast<MemoryClass>(i);
      if (name != MemoryClassName(memory_class)) continue;
      memory[memory_class] = bytes;
      known = true;
    }
    if (!known) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown memory class: ", name));
    }
  }
  return memory;
}

absl::StatusOr<Decision> DecisionFromMessage(const v1::Decision& message) {
  Decision decision;
  decision.value = message.value_name();
  decision.first_layer = message.first_layer();
  decision.last_layer = message.last_layer();
  decision.bytes = message.bytes();
  decision.seconds = message.seconds();
  decision.flops = message.flops();
  decision.reason = message.reason();
  const bool is_encoded = message.decision() == kEncodeName;
  for (const DType format : {DType::kBf16, DType::kF8E4M3}) {
    if (message.encode_format() == DTypeName(format)) decision.encoded = format;
  }
  if (is_encoded != (decision.encoded != DType::kNone)) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown encode format: ", message.encode_format(), ": ",
                     message.value()));
  }
  for (const ActivationDecision known : kActivationDecisions) {
    const bool has_name =
        is_encoded ? !IsRecompute(known)
                   : message.decision() == ActivationDecisionName(known);
    if (has_name && message.offload_place() == OffloadPlaceName(known)) {
      decision.decision = known;
      return decision;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown decision: ", message.decision(), " ",
                   message.offload_place(), ": ", message.value()));
}

// "L*.mlp.act.y" in layers 0..95 -> "L0-L95.mlp.act.y", in one layer
// "L3.mlp.act.y".
std::string RangeName(const Decision& decision) {
  if (decision.first_layer < 0 || decision.value.substr(0, 2) != "L*") {
    return decision.value;
  }
  const std::string rest = decision.value.substr(2);
  if (decision.first_layer == decision.last_layer) {
    return absl::StrCat("L", decision.first_layer, rest);
  }
  return absl::StrCat("L", decision.first_layer, "-L", decision.last_layer,
                      rest);
}

}  // namespace

absl::StatusOr<JobSpec> JobSpecFromMessage(const v1::JobSpec& spec) {
  EBB_RETURN_IF_ERROR(ValidateSpec(spec));
  JobSpec job;
  job.name = spec.name();
  const v1::ModelSpec& model = spec.model();
  job.model.layers = model.layers();
  job.model.hidden = model.hidden();
  job.model.heads = model.heads();
  job.model.kv_heads = model.kv_heads();
  job.model.ffn = model.ffn();
  job.model.vocab = model.vocab();
  job.model.seq_len = model.seq_len();
  job.model.norm = FromChoice<Norm>(model.norm());
  job.model.norm_eps = model.norm_eps();
  job.model.activation = FromChoice<Activation>(model.activation());
  job.model.positions = FromChoice<Positions>(model.positions());
  job.model.rope_theta = model.rope_theta();
  job.model.attention = FromChoice<AttentionKind>(model.attention());
  job.model.bias = model.bias();
  job.model.tied_embeddings = model.tied_embeddings();
  job.model.dropout = model.dropout();
  job.data.train = spec.data().train();
  job.data.validation = spec.data().validation();
  job.data.format = FromChoice<DataFormat>(spec.data().format());
  job.data.shuffle = spec.data().shuffle();
  job.global_batch = spec.batch().global();
  job.micro_batch = spec.batch().micro();
  job.steps = spec.steps();
  job.seed = spec.seed();
  job.precision = PrecisionType(spec.precision());
  const v1::OptimizerSpec& optimizer = spec.optimizer();
  job.optimizer.lr = optimizer.lr();
  job.optimizer.beta1 = optimizer.beta1();
  job.optimizer.beta2 = optimizer.beta2();
  job.optimizer.eps = optimizer.eps();
  job.optimizer.weight_decay = optimizer.weight_decay();
  job.optimizer.clip = optimizer.clip();
  job.lr_schedule.warmup = spec.lr_schedule().warmup();
  job.lr_schedule.decay = FromChoice<LrDecay>(spec.lr_schedule().decay());
  job.lr_schedule.min_lr = spec.lr_schedule().min_lr();
  const v1::MemorySpec& memory = spec.memory();
  job.memory.policy = FromChoice<Policy>(memory.policy());
  job.memory.group = memory.group();
  job.memory.recompute = {memory.recompute().begin(), memory.recompute().end()};
  job.memory.budget_bytes = memory.budget();
  job.memory.host_budget_bytes = memory.host_budget();
  job.memory.offload = FromChoice<Offload>(memory.offload());
  job.memory.offload_optimizer =
      FromChoice<Offload>(memory.offload_optimizer());
  job.memory.offload_parameters =
      FromChoice<Offload>(memory.offload_parameters());
  job.memory.offload_dir = memory.offload_dir();
  job.memory.encode = {
      {memory.encode().values().begin(), memory.encode().values().end()},
      EncodeType(memory.encode().format())};
  job.checkpoint.every = spec.checkpoint().every();
  job.checkpoint.keep = spec.checkpoint().keep();
  job.checkpoint.init_from = spec.checkpoint().init_from();
  job.eval.every = spec.eval().every();
  job.eval.batches = spec.eval().batches();
  job.eval.micro = spec.eval().micro();
  job.eval.seq_len = spec.eval().seq_len();
  job.threads = spec.resources().threads();
  const google::protobuf::Duration& timeout = spec.resources().timeout();
  job.start_timeout_seconds =
      static_cast<double>(timeout.seconds()) + timeout.nanos() * 1e-9;
  return job;
}

Backend BackendFromMessage(const v1::Backend& message) {
  Backend backend;
  backend.kind = message.kind();
  backend.device_model = message.device_model();
  backend.instruction_set = message.instruction_set();
  backend.threads = message.threads();
  backend.libraries = message.libraries();
  backend.runtime_bytes = message.runtime_bytes();
  backend.built_in = message.built_in();
  return backend;
}

v1::Backend BackendToMessage(const Backend& backend) {
  v1::Backend message;
  message.set_kind(backend.kind);
  message.set_device_model(backend.device_model);
  message.set_instruction_set(backend.instruction_set);
  message.set_threads(backend.threads);
  message.set_libraries(backend.libraries);
  message.set_runtime_bytes(backend.runtime_bytes);
  message.set_built_in(backend.built_in);
  return message;
}

absl::StatusOr<Plan> PlanFromMessage(const v1::Plan& message) {
  Plan plan;
  const auto* policy = FindChoice(*v1::Policy_descriptor(), message.policy());
  if (policy == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown policy: ", message.policy()));
  }
  plan.policy = FromChoice<Policy>(policy->number());
  plan.group = message.group();
  plan.graph_fingerprint = message.graph_fingerprint();
  plan.fits = message.fits();
  plan.budget_bytes = message.budget_bytes();
  plan.step_seconds = message.step_seconds();
  plan.bound_seconds = message.bound_seconds();
  plan.model_flops = message.model_flops();
  plan.recompute_flops = message.recompute_flops();
  plan.notes = {message.notes().begin(), message.notes().end()};
  plan.shortfall = message.shortfall();
  plan.backend = BackendFromMessage(message.backend());
  for (const v1::Decision& decision : message.decisions()) {
    EBB_ASSIGN_OR_RETURN(plan.decisions.emplace_back(),
                         DecisionFromMessage(decision));
  }
  for (const v1::RankPlan& rank : message.ranks()) {
    RankPlan& copy = plan.ranks.emplace_back();
    copy.rank = rank.rank();
    EBB_ASSIGN_OR_RETURN(copy.memory, MemoryFromMessage(rank.memory()));
    copy.peak_bytes = rank.peak_bytes();
    copy.state_arena_bytes = rank.state_arena_bytes();
    copy.step_arena_bytes = rank.step_arena_bytes();
    copy.saved_bytes = rank.saved_bytes();
    copy.host_bytes = rank.host_bytes();
    copy.disk_bytes = rank.disk_bytes();
  }
  for (const v1::PlanCandidate& candidate : message.pareto()) {
    plan.pareto.push_back({.policy = candidate.policy(),
                           .peak_bytes = candidate.peak_bytes(),
                           .saved_bytes = candidate.saved_bytes(),
                           .step_seconds = candidate.step_seconds(),
                           .model_flops = candidate.model_flops(),
                           .recompute_flops = candidate.recompute_flops(),
                           .fits = candidate.fits()});
  }
  return plan;
}

v1::Plan PlanToMessage(const Plan& plan) {
  v1::Plan message;
  message.set_policy(PolicyWord(plan.policy));
  message.set_group(plan.group);
  message.set_graph_fingerprint(plan.graph_fingerprint);
  message.set_fits(plan.fits);
  message.set_budget_bytes(plan.budget_bytes);
  message.set_step_seconds(plan.step_seconds);
  message.set_bound_seconds(plan.bound_seconds);
  message.set_model_flops(plan.model_flops);
  message.set_recompute_flops(plan.recompute_flops);
  for (const std::string& note : plan.notes) message.add_notes(note);
  message.set_shortfall(plan.shortfall);
  *message.mutable_backend() = BackendToMessage(plan.backend);
  for (const Decision& decision : plan.decisions) {
    v1::Decision& copy = *message.add_decisions();
    copy.set_value(RangeName(decision));
    const bool is_encoded = decision.encoded != DType::kNone;
    copy.set_decision(is_encoded ? kEncodeName
                                 : ActivationDecisionName(decision.decision));
    if (is_encoded) copy.set_encode_format(DTypeName(decision.encoded));
    copy.set_offload_place(OffloadPlaceName(decision.decision));
    copy.set_bytes(decision.bytes);
    copy.set_seconds(decision.seconds);
    copy.set_flops(decision.flops);
    copy.set_reason(decision.reason);
    copy.set_value_name(decision.value);
    copy.set_first_layer(decision.first_layer);
    copy.set_last_layer(decision.last_layer);
  }
  for (const RankPlan& rank : plan.ranks) {
    v1::RankPlan& copy = *message.add_ranks();
    copy.set_rank(rank.rank);
    for (int i = 0; i < kNumMemoryClasses; ++i) {
      const auto memory_class = static_cast<MemoryClass>(i);
      (*copy.mutable_memory())[MemoryClassName(memory_class)] =
          rank.memory[memory_class];
    }
    copy.set_peak_bytes(rank.peak_bytes);
    copy.set_state_arena_bytes(rank.state_arena_bytes);
    copy.set_step_arena_bytes(rank.step_arena_bytes);
    copy.set_saved_bytes(rank.saved_bytes);
    copy.set_host_bytes(rank.host_bytes);
    copy.set_disk_bytes(rank.disk_bytes);
  }
  for (const PlanCandidate& candidate : plan.pareto) {
    v1::PlanCandidate& copy = *message.add_pareto();
    copy.set_policy(candidate.policy);
    copy.set_peak_bytes(candidate.peak_bytes);
    copy.set_saved_bytes(candidate.saved_bytes);
    copy.set_step_seconds(candidate.step_seconds);
    copy.set_model_flops(candidate.model_flops);
    copy.set_recompute_flops(candidate.recompute_flops);
    copy.set_fits(candidate.fits);
  }
  return message;
}

absl::StatusOr<std::vector<Plan>> PlansFromMessages(
    const google::protobuf::RepeatedPtrField<v1::Plan>& messages) {
  std::vector<Plan> plans;
  for (const v1::Plan& message : messages) {
    EBB_ASSIGN_OR_RETURN(plans.emplace_back(), PlanFromMessage(message));
  }
  return plans;
}

void MemoryToMessage(const MemorySpec& memory, v1::MemorySpec* message) {
  const auto* policy =
      FindChoice(*v1::Policy_descriptor(), PolicyWord(memory.policy));
  EBB_CHECK(policy != nullptr);
  message->set_policy(static_cast<v1::Policy>(policy->number()));
  message->set_group(memory.group);
  message->clear_recompute();
  for (const std::string& name : memory.recompute) {
    message->add_recompute(name);
  }
  message->set_budget(memory.budget_bytes);
}

v1::Step StepToMessage(const StepReport& report, int attempt,
                       absl::string_view policy, const RankPlan& predicted,
                       absl::Time time) {
  v1::Step step;
  step.set_step(report.step);
  step.set_attempt(attempt);
  step.set_loss(report.loss);
  step.set_gradient_norm(report.gradient_norm);
  step.set_learning_rate(report.learning_rate);
  step.set_tokens(report.tokens);
  step.set_duration_seconds(report.duration_seconds);
  step.set_model_flops(report.model_flops);
  step.set_recompute_flops(report.recompute_flops);
  step.set_policy(std::string(policy));
  step.set_skipped(report.skipped);
  *step.mutable_time() =
      google::protobuf::util::TimeUtil::NanosecondsToTimestamp(
          absl::ToUnixNanos(time));
  auto& phases = *step.mutable_phase_seconds();
  phases["forward"] = report.phases.forward;
  phases["recompute"] = report.phases.recompute;
  phases["backward"] = report.phases.backward;
  phases["optimizer"] = report.phases.optimizer;
  phases["data_wait"] = report.phases.data_wait;
  phases["offload_wait"] = report.phases.offload_wait;
  phases["checkpoint"] = report.phases.checkpoint;
  v1::RankStep& rank = *step.add_ranks();
  rank.set_rank(predicted.rank);
  for (int i = 0; i < kNumMemoryClasses; ++i) {
    const auto memory_class = static_cast<MemoryClass>(i);
    v1::ClassBytes& bytes =
        (*rank.mutable_memory())[MemoryClassName(memory_class)];
    bytes.set_predicted_bytes(predicted.memory[memory_class]);
    bytes.set_peak_bytes(report.memory[memory_class]);
  }
  rank.set_saved_bytes(report.saved_bytes);
  rank.set_host_bytes(report.host_bytes);
  rank.set_disk_bytes(report.disk_bytes);
  auto& copied = *rank.mutable_copied_bytes();
  copied["to_host"] = report.copied.to_host;
  copied["from_host"] = report.copied.from_host;
  copied["to_disk"] = report.copied.to_disk;
  copied["from_disk"] = report.copied.from_disk;
  rank.set_resident_bytes(report.resident_bytes);
  for (const EncodeError& error : report.encode_errors) {
    v1::EncodeError& copy = *rank.add_encode_errors();
    copy.set_value(error.value);
    copy.set_relative_error(error.relative_error);
    copy.set_largest_error(error.largest_error);
  }
  return step;
}

v1::EvalReport EvalToMessage(const EvalResult& result, int attempt) {
  v1::EvalReport report;
  report.set_step(result.step);
  report.set_attempt(attempt);
  report.set_loss(result.loss);
  report.set_tokens(result.tokens);
  report.set_duration_seconds(result.duration_seconds);
  return report;
}

}  // namespace ebb
