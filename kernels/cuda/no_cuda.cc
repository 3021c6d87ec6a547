// The CUDA backend of a build without CUDA: no kernels, no device.
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/kernel_table.h"

namespace ebb {

const KernelTable& CudaKernelTable() {
  static constexpr KernelTable kTable = {};
  return kTable;
}

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const Backend&) {
  return absl::UnimplementedError("this build has no CUDA backend");
}

}  // namespace ebb
