// What machines there are: their backends and how much they hold. For now this
// machine alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "kernels/backend.h"

namespace ebb {

// Thread-safe.
class Inventory {
 public:
  virtual ~Inventory() = default;

  // The backend of a rank with so many threads; slow the first time.
  // Errors: UNIMPLEMENTED for a device that is not there; UNAVAILABLE if it
  // could not be asked.
  virtual absl::StatusOr<Backend> Describe(const std::string& device,
                                           int threads) = 0;

  // Cores that jobs may use, at least 1.
  virtual int cores() const = 0;

  // Device memory that all jobs together may use, fixed at the start.
  virtual int64_t memory_bytes() const = 0;

  // Memory that one job would find now: default budgets.
  virtual int64_t available_bytes() const = 0;

  // Backends that Describe has found so far.
  virtual std::vector<Backend> known() const = 0;
};

// The smaller of the kernel's estimate of available memory and the limits of
// this process's cgroup and those above it. `root` is "" but in tests.
int64_t AvailableMemoryBytes(const std::string& root);

// Reads what `ebb-worker --describe` prints: the member `backend` of a JSON
// object. Errors: INTERNAL with the field that is missing or wrong.
absl::StatusOr<Backend> ParseDescription(absl::string_view json);

// This machine, asked through `WORKER --describe --threads N`, once for each N.
class LocalInventory final : public Inventory {
 public:
  explicit LocalInventory(std::string worker_program);

  absl::StatusOr<Backend> Describe(const std::string& device,
                                   int threads) override;
  int cores() const override { return cores_; }
  int64_t memory_bytes() const override { return memory_bytes_; }
  int64_t available_bytes() const override;
  std::vector<Backend> known() const override;

 private:
  const std::string worker_program_;
  const int cores_;
  const int64_t memory_bytes_;
  mutable absl::Mutex mutex_;  // one question at a time
  std::map<int, Backend> backends_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ebb
