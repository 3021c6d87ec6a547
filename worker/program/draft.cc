#include "worker/program/draft.h"

#include <utility>

#include "kernels/status.h"

namespace ebb {

int Draft::Add(Storage storage) {
  const int id = static_cast<int>(storages.size());
  const bool added = storage_of.emplace(storage.key, id).second;
  EBB_CHECK(added);
  storages.push_back(std::move(storage));
  return id;
}

}  // namespace ebb
