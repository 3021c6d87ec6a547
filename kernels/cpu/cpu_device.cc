// The CPU as a device: memory of the process, kernels that run at once on the
// calling thread's OpenMP team.
#include <omp.h>
#include <sched.h>
#include <sys/mman.h>

#include <cstring>
#include <exception>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_memory.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/row_loop.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/device.h"
#include "kernels/status.h"

namespace ebb {
namespace {

constexpr int64_t kPageBytes = 4096;
// Parts of an allocation that threads populate side by side; a multiple of
// what transparent huge pages use.
constexpr int64_t kPopulateGrain = int64_t{8} << 20;

int64_t PageUp(int64_t bytes) {
  return (std::max<int64_t>(bytes, 1) + kPageBytes - 1) / kPageBytes *
         kPageBytes;
}

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const Backend& backend) : backend_(backend) { PinTeam(); }

  const Backend& backend() const override { return backend_; }
  const KernelTable& kernels() const override { return CpuKernelTable(); }
  int64_t AvailableBytes() const override { return cpu::AvailableMemory(); }

  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    const int64_t mapped = PageUp(bytes);
    const int64_t available = AvailableBytes();
    if (mapped > available) {
      return absl::ResourceExhaustedError(
          absl::StrCat("memory does not fit: need ", mapped, " bytes, have ",
                       available, " bytes"));
    }
    void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "memory cannot be mapped: need ", mapped, " bytes, have ", available,
          " bytes: ", std::strerror(errno)));
    }
    // Huge pages lie within the mapping, all of which gets populated: resident
    // bytes are the same with and without.
    (void)madvise(memory, mapped, MADV_HUGEPAGE);
    Touch(static_cast<char*>(memory), mapped);
    return memory;
  }

  void Free(void* memory, int64_t bytes) override {
    EBB_CHECK(munmap(memory, PageUp(bytes)) == 0);
  }

  void Shrink(void* memory, int64_t allocated, int64_t bytes) override {
    const int64_t kept = PageUp(bytes);
    const int64_t rest = PageUp(allocated) - kept;
    if (rest == 0) return;
    EBB_CHECK(munmap(static_cast<char*>(memory) + kept, rest) == 0);
  }

  void CopyToDevice(void* device, const void* host, int64_t bytes,
                    Stream) override {
    std::memcpy(device, host, bytes);
  }
  void CopyToHost(void* host, const void* device, int64_t bytes,
                  Stream) override {
    std::memcpy(host, device, bytes);
  }
  void Fill(void* device, int byte, int64_t bytes, Stream) override {
    std::memset(device, byte, bytes);
  }

  absl::Status Launch(Kernel kernel, const OpCall& call,
                      Stream stream) override {
    // The team's size belongs to the calling thread.
    omp_set_num_threads(backend_.threads);
    try {
      kernel(call, stream);
    } catch (const std::exception& error) {
      return absl::InternalError(absl::StrCat("kernel failed: ", error.what()));
    }
    return absl::OkStatus();
  }

  absl::Status LaunchRows(const RowLoop& loop, Stream stream) override {
    omp_set_num_threads(backend_.threads);
    try {
      cpu::RunRowLoop(loop, stream);
    } catch (const std::exception& error) {
      return absl::InternalError(absl::StrCat("kernel failed: ", error.what()));
    }
    return absl::OkStatus();
  }

  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  // Binds every thread of the team but the calling one to a processor of its
  // own, if the team has as many threads as the process has processors. The
  // calling thread gets what is left by itself; bound, it would hand its one
  // processor on to all threads that it starts later.
  void PinTeam() const {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
    if (CPU_COUNT(&allowed) != backend_.threads) return;
    omp_set_num_threads(backend_.threads);
#pragma omp parallel num_threads(backend_.threads)
    {
      int before = omp_get_thread_num();  // processors of other threads
      for (int cpu = 0; before > 0 && cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed) || --before > 0) continue;
        cpu_set_t own;
        CPU_ZERO(&own);
        CPU_SET(cpu, &own);
        // Refused, it stays where the system puts it.
        (void)sched_setaffinity(0, sizeof(own), &own);
      }
    }
  }

  // Writes to every page, which makes it resident.
  void Touch(char* memory, int64_t bytes) const {
    cpu::ParallelFor(bytes, kPopulateGrain, backend_.threads,
                     [&](int64_t begin, int64_t end, int) {
                       for (int64_t at = begin; at < end; at += kPageBytes) {
                         *static_cast<volatile char*>(memory + at) = 0;
                       }
                     });
  }

  const Backend backend_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeCpuDevice(const Backend& backend) {
  if (backend.kind != "cpu" || backend.threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("not a CPU backend: kind '",
                                                   backend.kind, "', threads ",
                                                   backend.threads));
  }
  EBB_RETURN_IF_ERROR(cpu::UseInstructionSet(backend.instruction_set));
  omp_set_num_threads(backend.threads);
  return std::make_unique<CpuDevice>(backend);
}

}  // namespace ebb
