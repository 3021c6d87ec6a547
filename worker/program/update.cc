// What a step does once: totals and gradients to zero before the microbatches;
// gradient norm, clip and AdamW after them.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/ops/adamw.h"
#include "kernels/ops/clip_scale.h"
#include "kernels/ops/fill_zero.h"
#include "kernels/ops/squared_norm.h"
#include "kernels/status.h"
#include "worker/program/drafter.h"

namespace ebb {
namespace {

const TensorType kTotalType(DType::kF64, 1);

}  // namespace

DraftInstruction Drafter::StartUpdate(Op op, std::string name) const {
  DraftInstruction instruction;
  instruction.phase = Phase::kUpdate;
  instruction.name = std::move(name);
  instruction.op = op;
  return instruction;
}

int Drafter::TotalStorage(const char* name, int index) {
  Storage storage;
  storage.key.content = Content::kTotal;
  storage.key.version = index;
  storage.name = name;
  storage.bytes = kAlignment;
  storage.home = Home::kScalar;
  storage.address = {Arena::kStep, index * kAlignment, 0};
  return draft_.Add(std::move(storage));
}

DraftOperand Drafter::BindWhole(int slot, int storage, const TensorType& type,
                                bool written) const {
  DraftOperand operand;
  operand.slot = static_cast<int8_t>(slot);
  operand.storage = storage;
  operand.type = type;
  operand.row_stride = type.row_elements();
  operand.written = written;
  return operand;
}

template <typename Write>
void Drafter::WriteParameterBlocks(std::vector<DraftBlock>& blocks,
                                   const char* name, const Write& write) {
  DraftBlock outside;
  outside.name = name;
  DraftBlock layers;
  layers.name = absl::StrCat(name, "_layer");
  layers.segment = kAllLayers;
  layers.period = 1;
  layers.count = graph_.num_layers;
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    const Value& value = graph_.values[v];
    if (value.kind != ValueKind::kParameter) continue;
    StorageKey key;
    key.value = static_cast<int>(v);
    key.segment = value.per_layer ? kAllLayers : kOutsideLayers;
    write(value.per_layer ? layers : outside, key);
  }
  if (!outside.instructions.empty()) blocks.push_back(std::move(outside));
  if (!layers.instructions.empty()) blocks.push_back(std::move(layers));
}

void Drafter::WriteBegin(bool gradients) {
  draft_.loss_total = TotalStorage("loss_total", 0);
  draft_.norm_total = TotalStorage("norm_total", 1);
  draft_.gradient_norm = TotalStorage("gradient_norm", 2);
  draft_.clip_scale = TotalStorage("clip_scale", 3);
  DraftBlock totals;
  totals.name = "zero_totals";
  for (int storage : {draft_.loss_total, draft_.norm_total,
                      draft_.gradient_norm, draft_.clip_scale}) {
    DraftInstruction zero =
        StartUpdate(Op::kFillZero, draft_.storages[storage].name);
    zero.operands = {BindWhole(fill_zero::kX, storage, kTotalType, true)};
    zero.allocates = {storage};
    totals.instructions.push_back(std::move(zero));
  }
  draft_.begin.push_back(std::move(totals));
  if (!gradients) return;
  WriteParameterBlocks(
      draft_.begin, "zero", [this](DraftBlock& block, StorageKey key) {
        key.content = Content::kGradient;
        const int gradient = StorageOf(key);
        const Value& value = graph_.values[key.value];
        DraftInstruction zero =
            StartUpdate(Op::kFillZero, absl::StrCat(value.name, ".grad"));
        zero.operands = {BindWhole(fill_zero::kX, gradient,
                                   GradientType(Role::kParam, value.type),
                                   true)};
        zero.allocates = {gradient};
        block.instructions.push_back(std::move(zero));
      });
}

void Drafter::WriteUpdate(const OptimizerSpec& optimizer) {
  WriteParameterBlocks(
      draft_.end, "norm", [this](DraftBlock& block, StorageKey key) {
        key.content = Content::kGradient;
        const Value& value = graph_.values[key.value];
        const TensorType type = GradientType(Role::kParam, value.type);
        DraftInstruction norm =
            StartUpdate(Op::kSquaredNorm, absl::StrCat(value.name, ".grad"));
        norm.operands = {
            BindWhole(squared_norm::kX, StorageOf(key), type, false),
            BindWhole(squared_norm::kTotal, draft_.norm_total, kTotalType,
                      true)};
        const TensorType types[] = {type, kTotalType};
        SetCosts(norm, types, 0);
        block.instructions.push_back(std::move(norm));
      });

  DraftBlock clip;
  clip.name = "clip";
  DraftInstruction scale = StartUpdate(Op::kClipScale, "clip");
  scale.attrs.clip = static_cast<float>(optimizer.clip);
  scale.operands = {
      BindWhole(clip_scale::kTotal, draft_.norm_total, kTotalType, false),
      BindWhole(clip_scale::kNorm, draft_.gradient_norm, kTotalType, true),
      BindWhole(clip_scale::kScale, draft_.clip_scale, kTotalType, true)};
  clip.instructions.push_back(std::move(scale));
  draft_.end.push_back(std::move(clip));

  WriteParameterBlocks(
      draft_.end, "update",
      [this, &optimizer](DraftBlock& block, const StorageKey& key) {
        const Value& value = graph_.values[key.value];
        const auto storage = [this, &key](Content content) {
          StorageKey k = key;
          k.content = content;
          return StorageOf(k);
        };
        DraftInstruction update = StartUpdate(Op::kAdamw, value.name);
        update.attrs.beta1 = static_cast<float>(optimizer.beta1);
        update.attrs.beta2 = static_cast<float>(optimizer.beta2);
        update.attrs.epsilon = static_cast<float>(optimizer.eps);
        update.attrs.weight_decay =
            value.decays ? static_cast<float>(optimizer.weight_decay) : 0.0f;
        const TensorType type = GradientType(Role::kParam, value.type);
        const bool has_master = type != value.type;
        const int gradient = storage(Content::kGradient);
        update.operands = {
            BindWhole(adamw::kParam,
                      storage(has_master ? Content::kMaster : Content::kValue),
                      type, true),
            BindWhole(adamw::kGrad, gradient, type, false),
            BindWhole(adamw::kM, storage(Content::kFirstMoment), type, true),
            BindWhole(adamw::kV, storage(Content::kSecondMoment), type, true),
            BindWhole(adamw::kScale, draft_.clip_scale, kTotalType, false)};
        if (has_master) {
          update.operands.push_back(BindWhole(
              adamw::kWeight, storage(Content::kValue), value.type, true));
        }
        update.frees = {gradient};
        std::vector<TensorType> types(adamw::kNumSlots, type);
        types[adamw::kScale] = kTotalType;
        types[adamw::kWeight] = has_master ? value.type : TensorType();
        SetCosts(update, types, 0);
        block.instructions.push_back(std::move(update));
      });
}

}  // namespace ebb
