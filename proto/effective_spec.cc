#include "proto/effective_spec.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <limits>

#include "kernels/status.h"
#include "proto/field_rules.h"
#include "proto/presets.h"
#include "proto/validator.h"

namespace ebb {

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Every default that is a constant.
constexpr char kConstantDefaults[] = R"(
  name: ""
  priority: 0
  model {
    preset: ""
    norm: NORM_LAYERNORM
    norm_eps: 1e-5
    activation: ACTIVATION_GELU
    positions: POSITIONS_LEARNED
    rope_theta: 10000
    attention: ATTENTION_FUSED
    bias: true
    tied_embeddings: true
    dropout: 0
    experts: 0
    top_k: 2
    capacity_factor: 1.25
    aux_loss: 0.01
  }
  data { validation: "" format: DATA_FORMAT_AUTO shuffle: true }
  batch {}
  seed: 1234
  precision: PRECISION_BF16
  optimizer {
    name: OPTIMIZER_NAME_ADAMW
    lr: 1e-3
    beta1: 0.9
    beta2: 0.95
    eps: 1e-8
    weight_decay: 0.1
    clip: 1
  }
  lr_schedule { decay: LR_DECAY_COSINE }
  parallel {
    data: 1
    tensor: 1
    sequence: false
    sequence_chunks: 1
    pipeline: 1
    schedule: PIPELINE_SCHEDULE_1F1B
    virtual_stages: 1
    expert: 1
    zero: 0
  }
  memory {
    policy: POLICY_NONE
    group: 1
    offload: OFFLOAD_NONE
    offload_optimizer: OFFLOAD_NONE
    offload_parameters: OFFLOAD_NONE
    offload_dir: ""
    encode { format: ENCODE_FORMAT_NONE }
  }
  checkpoint { every: 0 keep: 2 init_from: "" }
  eval { every: 0 batches: 8 }
  resources {
    device: DEVICE_KIND_AUTO
    device_model: ""
    threads: 0
    timeout { seconds: 300 }
  }
  restart { max: 3 }
)";

const v1::JobSpec& ConstantDefaults() {
  static const v1::JobSpec& defaults = *[] {
    auto* spec = new v1::JobSpec;
    EBB_CHECK(
        google::protobuf::TextFormat::ParseFromString(kConstantDefaults, spec));
    return spec;
  }();
  return defaults;
}

// Choices that are UNSPECIFIED count as not set: takes them out, so that they
// do not hide a default.
void ClearUnspecified(Message* message) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (IsSection(*field)) {
      ClearUnspecified(reflection.MutableMessage(message, field));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM &&
               reflection.GetEnumValue(*message, field) == 0) {
      reflection.ClearField(message, field);
    }
  }
}

int32_t ClampToInt32(int64_t value) {
  return static_cast<int32_t>(
      std::clamp<int64_t>(value, std::numeric_limits<int32_t>::min(),
                          std::numeric_limits<int32_t>::max()));
}

// Feed-forward width: 4 * hidden; gated activations have three matrices instead
// of two and take 8/3 of hidden, rounded up to a multiple of 64.
int32_t DefaultFfn(const v1::ModelSpec& model) {
  const int64_t hidden = model.hidden();
  return ClampToInt32(model.activation() == v1::ACTIVATION_SWIGLU
                          ? ((8 * hidden + 2) / 3 + 63) / 64 * 64
                          : 4 * hidden);
}

}  // namespace

v1::JobSpec WithDefaults(const v1::JobSpec& spec) {
  v1::JobSpec given = spec;
  ClearUnspecified(&given);
  v1::JobSpec full = ConstantDefaults();
  if (const v1::ModelSpec* preset = FindPreset(spec.model().preset())) {
    full.mutable_model()->MergeFrom(*preset);
  }
  full.MergeFrom(given);
  // A duration is one value: merging would join the default's seconds with the
  // given fraction.
  if (given.resources().has_timeout()) {
    *full.mutable_resources()->mutable_timeout() = given.resources().timeout();
  }

  v1::ModelSpec* model = full.mutable_model();
  if (!model->has_kv_heads() && model->has_heads()) {
    model->set_kv_heads(model->heads());
  }
  if (!model->has_ffn() && model->has_hidden()) {
    model->set_ffn(DefaultFfn(*model));
  }
  v1::LrScheduleSpec* schedule = full.mutable_lr_schedule();
  if (!schedule->has_warmup()) {
    schedule->set_warmup(std::min<int64_t>(10, full.steps()));
  }
  if (!schedule->has_min_lr()) {
    schedule->set_min_lr(std::min(1e-4, full.optimizer().lr()));
  }
  v1::EvalSpec* eval = full.mutable_eval();
  if (eval->micro() == 0) eval->set_micro(full.batch().micro());
  if (eval->seq_len() == 0) eval->set_seq_len(model->seq_len());
  return full;
}

absl::StatusOr<v1::JobSpec> EffectiveSpec(const v1::JobSpec& spec,
                                          const MachineDefaults& machine) {
  EBB_RETURN_IF_ERROR(ValidateSpec(spec));
  v1::JobSpec full = WithDefaults(spec);
  v1::ResourceSpec* resources = full.mutable_resources();
  if (resources->threads() == 0) resources->set_threads(machine.threads);
  if (resources->device() == v1::DEVICE_KIND_AUTO) {
    const auto* device =
        FindChoice(*v1::DeviceKind_descriptor(), machine.device);
    EBB_CHECK(device != nullptr);
    resources->set_device(static_cast<v1::DeviceKind>(device->number()));
  }
  v1::MemorySpec* memory = full.mutable_memory();
  if (!memory->has_budget()) memory->set_budget(machine.budget_bytes);
  if (!memory->has_host_budget()) {
    memory->set_host_budget(machine.host_budget_bytes);
  }
  return full;
}

}  // namespace ebb
