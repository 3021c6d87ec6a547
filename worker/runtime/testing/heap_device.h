// A device on the heap with kernels that a test chooses.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/row_loop.h"
#include "kernels/device.h"
#include "kernels/kernel_table.h"

namespace ebb {

// `available_bytes` is what AvailableBytes says, whatever is allocated; nothing
// limits Allocate.
class HeapDevice final : public Device {
 public:
  explicit HeapDevice(const KernelTable& kernels,
                      int64_t available_bytes = int64_t{1} << 40,
                      const Backend& backend = BuiltInCpuBackend())
      : backend_(backend),
        kernels_(kernels),
        available_bytes_(available_bytes) {}

  const Backend& backend() const override { return backend_; }
  const KernelTable& kernels() const override { return kernels_; }
  int64_t AvailableBytes() const override { return available_bytes_; }
  void set_available_bytes(int64_t bytes) { available_bytes_ = bytes; }
  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    void* const memory = std::aligned_alloc(kAlignment, AlignUp(bytes));
    std::memset(memory, 0, static_cast<size_t>(bytes));
    return memory;
  }
  void Free(void* memory, int64_t) override { std::free(memory); }
  void Shrink(void*, int64_t, int64_t) override {}
  void CopyToDevice(void* device, const void* host, int64_t bytes,
                    Stream) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void CopyToHost(void* host, const void* device, int64_t bytes,
                  Stream) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  void Fill(void* device, int byte, int64_t bytes, Stream) override {
    std::memset(device, byte, static_cast<size_t>(bytes));
  }
  absl::Status Launch(Kernel kernel, const OpCall& call,
                      Stream stream) override {
    kernel(call, stream);
    return absl::OkStatus();
  }
  absl::Status LaunchRows(const RowLoop& loop, Stream stream) override {
    cpu::RunRowLoop(loop, stream);
    return absl::OkStatus();
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  const Backend backend_;
  const KernelTable& kernels_;
  int64_t available_bytes_;
};

}  // namespace ebb
