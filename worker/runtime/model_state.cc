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

// What Hash reads from a disk at a time: whole blocks.
constexpr int64_t kHashBytes = 64 * kDiskBlockBytes;

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
  disk_ = arenas.disk_state;
  const auto at = [&](const Address& address, int layer) {
    return arenas.At(address.arena) + address.At(layer);
  };
  const auto place = [&](const ParameterLayout& layout, const Address& address,
                         int layer) {
    const bool on_disk = IsOnDisk(address.arena);
    const Address& memory = on_disk ? layout.gradient : address;
    return Place{reinterpret_cast<float*>(at(memory, layer)),
                 on_disk ? address.At(layer) : -1};
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
           .master = place(layout, layout.master, layer),
           .first_moment = place(layout, layout.first_moment, layer),
           .second_moment = place(layout, layout.second_moment, layer)});
    }
  }
  std::sort(
      instances_.begin(), instances_.end(),
      [](const Instance& a, const Instance& b) { return a.name < b.name; });
}

absl::Status ModelState::Fetch(const Instance& instance,
                               const Place& place) const {
  if (place.disk_offset < 0) return absl::OkStatus();
  return disk_->Read(place.disk_offset,
                     reinterpret_cast<std::byte*>(place.data),
                     instance.type.bytes());
}

absl::Status ModelState::Store(const Instance& instance,
                               const Place& place) const {
  if (place.disk_offset < 0) return absl::OkStatus();
  return disk_->Write(place.disk_offset,
                      reinterpret_cast<const std::byte*>(place.data),
                      instance.type.bytes());
}

absl::Status ModelState::Initialize(uint64_t seed) {
  for (const Instance& instance : instances_) {
    const Value& value = *instance.value;
    InitializeParameter(
        seed, ValueKey(value.name, instance.layer), value.init, value.init_std,
        0,
        std::span<float>(instance.master.data,
                         static_cast<size_t>(value.type.num_elements())));
    EBB_RETURN_IF_ERROR(TakeMaster(instance));
  }
  return ClearMoments();
}

std::vector<WantedWeight> ModelState::Wanted() const {
  std::vector<WantedWeight> wanted;
  for (const Instance& instance : instances_) {
    wanted.push_back({instance.name, instance.type, instance.master.data});
  }
  return wanted;
}

absl::StatusOr<std::vector<std::string>> ModelState::ReadWeights(
    absl::string_view directory, const ModelSpec& model) {
  EBB_ASSIGN_OR_RETURN(std::vector<std::string> unused,
                       ReadInitialWeights(directory, model, Wanted()));
  EBB_RETURN_IF_ERROR(TakeMasters());
  return unused;
}

absl::Status ModelState::ReadWeights(const CheckpointReader& reader) {
  EBB_RETURN_IF_ERROR(ebb::ReadWeights(reader, Wanted()).status());
  return TakeMasters();
}

absl::Status ModelState::ReadAll(const CheckpointReader& reader) {
  for (const Instance& instance : instances_) {
    const auto read = [&](CheckpointRole role, const Place& place) {
      return reader.Read(instance.name, role, instance.type, place.data);
    };
    EBB_RETURN_IF_ERROR(read(CheckpointRole::kParameter, instance.master));
    EBB_RETURN_IF_ERROR(TakeMaster(instance));
    EBB_RETURN_IF_ERROR(
        read(CheckpointRole::kFirstMoment, instance.first_moment));
    EBB_RETURN_IF_ERROR(Store(instance, instance.first_moment));
    EBB_RETURN_IF_ERROR(
        read(CheckpointRole::kSecondMoment, instance.second_moment));
    EBB_RETURN_IF_ERROR(Store(instance, instance.second_moment));
  }
  return absl::OkStatus();
}

std::vector<CheckpointTensor> ModelState::Tensors() const {
  std::vector<CheckpointTensor> tensors;
  for (const Instance& instance : instances_) {
    const auto add = [&](CheckpointRole role, const Place& place) {
      CheckpointTensor& tensor = tensors.emplace_back();
      tensor.name = instance.name;
      tensor.role = role;
      tensor.type = instance.type;
      tensor.data = place.data;
      if (place.disk_offset < 0) return;
      tensor.fetch = [this, &instance, &place] {
        return Fetch(instance, place);
      };
    };
    add(CheckpointRole::kParameter, instance.master);
    add(CheckpointRole::kFirstMoment, instance.first_moment);
    add(CheckpointRole::kSecondMoment, instance.second_moment);
  }
  return tensors;
}

absl::StatusOr<uint64_t> ModelState::Hash() const {
  uint64_t hash = 0;
  // Training may have ended because there is no step arena to bring it to.
  std::vector<std::byte> piece(disk_ == nullptr ? 0 : kHashBytes);
  for (const Instance& instance : instances_) {
    hash = HashBytes(hash, instance.name.data(),
                     static_cast<int64_t>(instance.name.size()));
    const Place& master = instance.master;
    const int64_t bytes = instance.type.bytes();
    if (master.disk_offset < 0) {
      hash = HashBytes(hash, master.data, bytes);
      continue;
    }
    for (int64_t first = 0; first < bytes; first += kHashBytes) {
      const int64_t part = std::min(kHashBytes, bytes - first);
      EBB_RETURN_IF_ERROR(
          disk_->Read(master.disk_offset + first, piece.data(), part));
      hash = HashBytes(hash, piece.data(), part);
    }
  }
  return hash;
}

absl::Status ModelState::TakeMasters() {
  for (const Instance& instance : instances_) {
    EBB_RETURN_IF_ERROR(TakeMaster(instance));
  }
  return absl::OkStatus();
}

absl::Status ModelState::TakeMaster(const Instance& instance) {
  if (instance.weight != nullptr) {
    std::transform(instance.master.data,
                   instance.master.data + instance.type.num_elements(),
                   instance.weight, RoundToBf16);
  }
  return Store(instance, instance.master);
}

absl::Status ModelState::ClearMoments() {
  for (const Instance& instance : instances_) {
    for (const Place& place : {instance.first_moment, instance.second_moment}) {
      std::memset(place.data, 0, static_cast<size_t>(instance.type.bytes()));
      EBB_RETURN_IF_ERROR(Store(instance, place));
    }
  }
  return absl::OkStatus();
}

}  // namespace ebb
