// The one virtual interface of kernels: a place with memory where kernels run.
// On CPU streams run in order at once, so everything above is testable without
// a GPU.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/kernel_table.h"
#include "kernels/op_call.h"
#include "kernels/row_loop.h"

namespace ebb {

class Device {
 public:
  virtual ~Device() = default;

  virtual const Backend& backend() const = 0;
  virtual const KernelTable& kernels() const = 0;
  // Bytes that a job may hope for now: on CPU the smaller of available memory
  // and what the cgroup leaves.
  virtual int64_t AvailableBytes() const = 0;
  // Returns zeroed, kAlignment-aligned memory in which every page is populated.
  // Errors: RESOURCE_EXHAUSTED with need and have, nothing taken.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes) = 0;
  virtual void Free(void* memory, int64_t bytes) = 0;
  // Gives back what an allocation of `allocated` bytes has beyond the first
  // `bytes`, at least 1; the rest stays where it is and what it is. Free takes
  // `bytes` then.
  virtual void Shrink(void* memory, int64_t allocated, int64_t bytes) = 0;
  virtual void CopyToDevice(void* device, const void* host, int64_t bytes,
                            Stream stream) = 0;
  virtual void CopyToHost(void* host, const void* device, int64_t bytes,
                          Stream stream) = 0;
  // Sets every byte (poison).
  virtual void Fill(void* device, int byte, int64_t bytes, Stream stream) = 0;
  // Runs a kernel. Errors: INTERNAL if the launch failed.
  virtual absl::Status Launch(Kernel kernel, const OpCall& call,
                              Stream stream) = 0;
  // Runs several ops row by row. Errors: INTERNAL if the launch failed.
  virtual absl::Status LaunchRows(const RowLoop& loop, Stream stream) = 0;
  // Waits for all work. Errors: INTERNAL for asynchronous failures.
  virtual absl::Status Synchronize() = 0;
};

// Describes this machine's CPU with `threads` threads (0: all that the process
// may run on). Equal in every process of one environment.
Backend DescribeCpu(int threads);

// Sets the thread team's size for the process and returns the device.
absl::StatusOr<std::unique_ptr<Device>> MakeCpuDevice(const Backend& backend);

// Errors: UNIMPLEMENTED in a build without CUDA.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const Backend& backend);

}  // namespace ebb
