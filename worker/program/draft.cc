#include "worker/program/draft.h"

#include <utility>

#include "kernels/ops/encode.h"
#include "kernels/status.h"

namespace ebb {

int Draft::Add(Storage storage) {
  const int id = static_cast<int>(storages.size());
  const bool added = storage_of.emplace(storage.key, id).second;
  EBB_CHECK(added);
  storages.push_back(std::move(storage));
  return id;
}

TensorType Draft::TypeOf(const StorageKey& key) const {
  const TensorType& type = graph->values[key.value].type;
  switch (key.part) {
    case EncodedPart::kNone:
      break;
    case EncodedPart::kCode:
      return type.WithDType(FormatOf(key));
    case EncodedPart::kScale:
      return encode::ScaleType(type);
  }
  return type;
}

}  // namespace ebb
