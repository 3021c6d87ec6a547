// A CPU of which so many bytes may be allocated in all.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/device.h"

namespace ebb {

// What is freed is unmapped, as on a CPU that trains: touching it crashes.
// Nothing is set aside for the runtime.
class CappedDevice final : public Device {
 public:
  CappedDevice(std::unique_ptr<Device> device, int64_t capacity_bytes)
      : device_(std::move(device)),
        backend_(device_->backend()),
        capacity_bytes_(capacity_bytes) {
    backend_.runtime_bytes = 0;
  }

  // May be less than what is allocated: then nothing more is.
  void set_capacity_bytes(int64_t bytes) { capacity_bytes_ = bytes; }
  int64_t allocated_bytes() const { return allocated_bytes_; }

  const Backend& backend() const override { return backend_; }
  const KernelTable& kernels() const override { return device_->kernels(); }
  int64_t AvailableBytes() const override {
    return capacity_bytes_ - allocated_bytes_;
  }
  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    if (bytes > AvailableBytes()) {
      return absl::ResourceExhaustedError("no memory");
    }
    allocated_bytes_ += bytes;
    return device_->Allocate(bytes);
  }
  void Free(void* memory, int64_t bytes) override {
    allocated_bytes_ -= bytes;
    device_->Free(memory, bytes);
  }
  void Shrink(void* memory, int64_t allocated, int64_t bytes) override {
    allocated_bytes_ -= allocated - bytes;
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
                      Stream stream) override {
    return device_->Launch(kernel, call, stream);
  }
  absl::Status LaunchRows(const RowLoop& loop, Stream stream) override {
    return device_->LaunchRows(loop, stream);
  }
  absl::Status Synchronize() override { return device_->Synchronize(); }

 private:
  const std::unique_ptr<Device> device_;
  Backend backend_;
  int64_t capacity_bytes_;
  int64_t allocated_bytes_ = 0;
};

}  // namespace ebb
