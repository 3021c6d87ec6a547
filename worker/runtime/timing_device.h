// A device that hands everything on to another one and, while it is asked to,
// keeps the seconds of every launch.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/device.h"

namespace ebb {

// Single-threaded, as the device behind it.
class TimingDevice final : public Device {
 public:
  explicit TimingDevice(std::unique_ptr<Device> device)
      : device_(std::move(device)) {}

  // Keeps the seconds of the launches from here on, in order. `num_launches`:
  // how many will come; so many take no memory when they come.
  void StartTiming(size_t num_launches);
  std::vector<double> StopTiming();

  const Backend& backend() const override { return device_->backend(); }
  const KernelTable& kernels() const override { return device_->kernels(); }
  int64_t AvailableBytes() const override { return device_->AvailableBytes(); }
  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    return device_->Allocate(bytes);
  }
  void Free(void* memory, int64_t bytes) override {
    device_->Free(memory, bytes);
  }
  void Shrink(void* memory, int64_t allocated, int64_t bytes) override {
    device_->Shrink(memory, allocated, bytes);
  }
  void CopyToDevice(void* device, const void* host, int64_t bytes,
                    Stream stream) override {
    device_->CopyToDevice(device, host, bytes, stream);
  }
  void CopyToHost(void* host, const void* device, int64_t bytes,
                  Stream stream) override {
    device_->CopyToHost(host, device, bytes, stream);
  }
  void Fill(void* device, int byte, int64_t bytes, Stream stream) override {
    device_->Fill(device, byte, bytes, stream);
  }
  absl::Status Launch(Kernel kernel, const OpCall& call,
                      Stream stream) override;
  absl::Status LaunchRows(const RowLoop& loop, Stream stream) override;
  absl::Status Synchronize() override { return device_->Synchronize(); }

 private:
  std::unique_ptr<Device> device_;
  bool timing_ = false;
  std::vector<double> seconds_;
};

}  // namespace ebb
