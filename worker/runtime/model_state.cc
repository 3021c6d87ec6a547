// Every parameter instance by name, and what is done to all of them.
#include "worker/runtime/model_state.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/philox.h"
#include "kernels/status.h"
#include "worker/checkpoint/initial_weights.h"
#include "worker/optimizer/initialize.h"

namespace ebb {
namespace {

const Value& FindValue(const Graph& graph, absl::string_view name) {
  const auto found = std::find_if(
      graph.values.begin(), graph.values.end(), [&](const Value& value) {
        return absl::string_view(value.name) == name;
      });
  EBB_CHECK(found != graph.values.end());
  return *found;
}

// Continues `hash` over the bytes, eight at a time; a shorter rest is padded
// with zeros.
uint64_t HashBytes(uint64_t hash, const void* data, int64_t bytes) {
  const char* const begin = static_cast<const char*>(data);
  for (int64_t n = 0; n < bytes; n += 8) {
    uint64_t word = 0;
    std::memcpy(&word, begin + n, std::min<int64_t>(8, bytes - n));
    hash = philox::Mix(hash ^ word);
  }
  return hash;
}

}  // namespace

ModelState::ModelState(const Graph& graph, const Program& program,
                       const ArenaView& arenas) {
  const auto at = [&](const Address& address, int layer) {
    return arenas.At(address.arena) + address.At(layer);
  };
  const auto floats = [&](const Address& address, int layer) {
    return reinterpret_cast<float*>(at(address, layer));
  };
  for (const ParameterLayout& layout : program.parameters) {
    const Value& value = FindValue(graph, layout.name);
    EBB_CHECK(!layout.has_master() || layout.type.dtype == DType::kBf16);
    for (int layer = 0; layer < std::max(1, layout.num_layers); ++layer) {
      instances_.push_back(
          {.name = InstanceName(layout.name, layer),
           .layer = layer,
           .value = &value,
           .type = layout.fp32_type(),
           .weight = layout.has_master()
                         ? reinterpret_cast<Bf16*>(at(layout.parameter, layer))
                         : nullptr,
           .master = floats(layout.master, layer),
           .first_moment = floats(layout.first_moment, layer),
           .second_moment = floats(layout.second_moment, layer)});
    }
  }
  std::sort(
      instances_.begin(), instances_.end(),
      [](const Instance& a, const Instance& b) { return a.name < b.name; });
}

void ModelState::Initialize(uint64_t seed) {
  for (const Instance& instance : instances_) {
    const Value& value = *instance.value;
    InitializeParameter(
        seed, ValueKey(value.name, instance.layer), value.init, value.init_std,
        0,
        std::span<float>(instance.master,
                         static_cast<size_t>(value.type.num_elements())));
  }
  RoundWeights();
  ClearMoments();
}

std::vector<WantedWeight> ModelState::Wanted() const {
  std::vector<WantedWeight> wanted;
  for (const Instance& instance : instances_) {
    wanted.push_back({instance.name, instance.type, instance.master});
  }
  return wanted;
}

absl::StatusOr<std::vector<std::string>> ModelState::ReadWeights(
    absl::string_view directory, const ModelSpec& model) {
  EBB_ASSIGN_OR_RETURN(std::vector<std::string> unused,
                       ReadInitialWeights(directory, model, Wanted()));
  RoundWeights();
  return unused;
}

absl::Status ModelState::ReadWeights(const CheckpointReader& reader) {
  EBB_RETURN_IF_ERROR(ebb::ReadWeights(reader, Wanted()).status());
  RoundWeights();
  return absl::OkStatus();
}

absl::Status ModelState::ReadAll(const CheckpointReader& reader) {
  for (const Instance& instance : instances_) {
    const TensorType& type = instance.type;
    EBB_RETURN_IF_ERROR(reader.Read(instance.name, CheckpointRole::kParameter,
                                    type, instance.master));
    EBB_RETURN_IF_ERROR(reader.Read(instance.name, CheckpointRole::kFirstMoment,
                                    type, instance.first_moment));
    EBB_RETURN_IF_ERROR(reader.Read(instance.name,
                                    CheckpointRole::kSecondMoment, type,
                                    instance.second_moment));
  }
  RoundWeights();
  return absl::OkStatus();
}

std::vector<CheckpointTensor> ModelState::Tensors() const {
  std::vector<CheckpointTensor> tensors;
  for (const Instance& instance : instances_) {
    const TensorType& type = instance.type;
    tensors.push_back(
        {instance.name, CheckpointRole::kParameter, type, instance.master});
    tensors.push_back({instance.name, CheckpointRole::kFirstMoment, type,
                       instance.first_moment});
    tensors.push_back({instance.name, CheckpointRole::kSecondMoment, type,
                       instance.second_moment});
  }
  return tensors;
}

uint64_t ModelState::Hash() const {
  uint64_t hash = 0;
  for (const Instance& instance : instances_) {
    hash = HashBytes(hash, instance.name.data(),
                     static_cast<int64_t>(instance.name.size()));
    hash = HashBytes(hash, instance.master, instance.type.bytes());
  }
  return hash;
}

void ModelState::RoundWeights() {
  for (const Instance& instance : instances_) {
    if (instance.weight == nullptr) continue;
    std::transform(instance.master,
                   instance.master + instance.type.num_elements(),
                   instance.weight, RoundToBf16);
  }
}

void ModelState::ClearMoments() {
  for (const Instance& instance : instances_) {
    const size_t bytes = static_cast<size_t>(instance.type.bytes());
    std::memset(instance.first_moment, 0, bytes);
    std::memset(instance.second_moment, 0, bytes);
  }
}

}  // namespace ebb
