#include "worker/runtime/timing_device.h"

#include <chrono>

namespace ebb {
namespace {

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void TimingDevice::StartTiming(size_t num_launches) {
  timing_ = true;
  seconds_.clear();
  seconds_.reserve(num_launches);
}

std::vector<double> TimingDevice::StopTiming() {
  timing_ = false;
  return std::exchange(seconds_, {});
}

absl::Status TimingDevice::Launch(Kernel kernel, const OpCall& call,
                                  Stream stream) {
  if (!timing_) return device_->Launch(kernel, call, stream);
  const double start = Now();
  absl::Status status = device_->Launch(kernel, call, stream);
  seconds_.push_back(Now() - start);
  return status;
}

absl::Status TimingDevice::LaunchRows(const RowLoop& loop, Stream stream) {
  if (!timing_) return device_->LaunchRows(loop, stream);
  const double start = Now();
  absl::Status status = device_->LaunchRows(loop, stream);
  seconds_.push_back(Now() - start);
  return status;
}

}  // namespace ebb
