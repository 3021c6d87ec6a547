// A thread that copies while others compute.
#include "worker/runtime/copy_times.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "kernels/status.h"
#include "worker/program/cost_profile.h"
#include "worker/runtime/arena_memory.h"
#include "worker/runtime/disk_file.h"

namespace ebb {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kHostBytes = 64 * kMiB;  // more than caches hold
constexpr int64_t kDiskBytes = 32 * kMiB;
// Alone and beside copies take turns: what slows the machine down for a while
// slows both.
constexpr int kRounds = 3;
// Long beside the start of a thread.
constexpr double kLeastSeconds = 0.05;
// Long beside such spells: once is enough, and somebody waits.
constexpr double kLongSeconds = 2;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Copies the n-th MiB; false: it cannot be copied.
using CopyMiB = std::function<bool(int64_t n)>;

// Copies from its begin to its end.
class Copier {
 public:
  explicit Copier(const CopyMiB& copy) : copy_(copy) {
    thread_ = std::thread([this] {
      while (!stopping_ && copy_(num_copied_)) ++num_copied_;
    });
  }
  ~Copier() { Stop(); }

  // How many MiB were copied so far.
  int64_t num_copied() const { return num_copied_; }
  void Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  const CopyMiB& copy_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> num_copied_ = 0;
  std::thread thread_;
};

class Measurement {
 public:
  explicit Measurement(const std::function<absl::Status()>& run) : run_(run) {}

  // How often `run` has to run to last long enough.
  absl::Status Begin() {
    const Clock::time_point start = Clock::now();
    do {
      EBB_RETURN_IF_ERROR(run_());
      ++num_runs_;
    } while (SecondsSince(start) < kLeastSeconds);
    if (SecondsSince(start) > kLongSeconds) num_rounds_ = 1;
    return absl::OkStatus();
  }

  absl::Status Measure(const std::string& place, const CopyMiB& copy) {
    double alone = 0, beside = 0;
    int64_t num_copied = 0;
    for (int round = 0; round < num_rounds_; ++round) {
      EBB_ASSIGN_OR_RETURN(const double without, Run());
      Copier copier(copy);
      EBB_ASSIGN_OR_RETURN(const double with, Run());
      num_copied += copier.num_copied();
      copier.Stop();
      alone += without;
      beside += with;
    }
    if (num_copied == 0) return absl::OkStatus();
    const auto copied = static_cast<double>(num_copied);
    seconds_[CopyKey(place)] = beside / copied;
    // Never nothing: that reads as not measured.
    seconds_[CopyLossKey(place)] = std::max(1e-9, (beside - alone) / copied);
    return absl::OkStatus();
  }

  std::map<std::string, double> seconds() && { return std::move(seconds_); }

 private:
  absl::StatusOr<double> Run() {
    const Clock::time_point start = Clock::now();
    for (int n = 0; n < num_runs_; ++n) EBB_RETURN_IF_ERROR(run_());
    return SecondsSince(start);
  }

  const std::function<absl::Status()>& run_;
  int num_runs_ = 0;
  int num_rounds_ = kRounds;
  std::map<std::string, double> seconds_;
};

}  // namespace

absl::StatusOr<std::map<std::string, double>> MeasureCopies(
    Device& device, const std::string& directory, const std::string& place,
    const std::function<absl::Status()>& run) {
  EBB_ASSIGN_OR_RETURN(const ArenaMemory near,
                       ArenaMemory::Allocate(device, kHostBytes));
  EBB_ASSIGN_OR_RETURN(const ArenaMemory far,
                       ArenaMemory::Allocate(device, kHostBytes));
  Measurement measurement(run);
  EBB_RETURN_IF_ERROR(measurement.Begin());
  EBB_RETURN_IF_ERROR(measurement.Measure(kHostPlace, [&](int64_t n) {
    const int64_t at = n * kMiB % kHostBytes;
    device.CopyToHost(far.data() + at, near.data() + at, kMiB, nullptr);
    return true;
  }));
  absl::StatusOr<std::unique_ptr<DiskFile>> file =
      DiskFile::Create(directory, kDiskBytes);
  if (!file.ok()) return std::move(measurement).seconds();
  // All is written, then all is read, and so on.
  const CopyMiB copy = [&](int64_t n) {
    const int64_t at = n * kMiB % kDiskBytes;
    const bool writes = n * kMiB / kDiskBytes % 2 == 0;
    return (writes ? (*file)->Write(at, near.data() + at, kMiB)
                   : (*file)->Read(at, far.data() + at, kMiB))
        .ok();
  };
  // The first time blocks are written takes longer than all others.
  for (int64_t n = 0; n < kDiskBytes / kMiB; ++n) {
    if (!copy(n)) return std::move(measurement).seconds();
  }
  EBB_RETURN_IF_ERROR(measurement.Measure(place, copy));
  return std::move(measurement).seconds();
}

}  // namespace ebb
