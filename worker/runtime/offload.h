// The stream of copies between the device and host memory: one thread that
// makes them, one after the other in the order in which they were begun, beside
// the thread that runs the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "kernels/device.h"

namespace ebb {

struct OffloadOptions {
  // Checksum mode: what comes back is compared with what went out.
  bool check = false;
  // Stress mode: every copy begins late, by a random time up to this.
  int64_t longest_delay_microseconds = 0;
  // For tests: the copy out of this number, counted from 0, leaves zeros in
  // host memory.
  int64_t spoiled_copy = -1;
};

// A slot is a place in host memory, for one value of one layer. All methods are
// called by the thread that made the stream. A copy allocates nothing.
class CopyStream {
 public:
  // `slot_names` are the values, for errors. Starts the thread, which takes no
  // signals. The device must outlive the stream.
  CopyStream(Device& device, std::vector<std::string> slot_names,
             OffloadOptions options);
  // Waits for all copies.
  ~CopyStream();
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  // Begins a copy to or from host memory. Both ends must stay as they are until
  // the copy was awaited. `generation` says which of the contents that a slot
  // has one after the other is meant.
  void BeginOffload(int slot, std::byte* host, const std::byte* device,
                    int64_t bytes, int64_t generation) {
    Begin({slot, /*is_offload=*/true, host, const_cast<std::byte*>(device),
           bytes, generation});
  }
  void BeginPrefetch(int slot, std::byte* device, std::byte* host,
                     int64_t bytes, int64_t generation) {
    Begin({slot, /*is_offload=*/false, host, device, bytes, generation});
  }

  // Waits until the copies last begun on these slots are done.
  // Errors, of any copy so far: INTERNAL if a slot held another generation than
  // the one that was to come back; DATA_LOSS, in checksum mode, if other bytes
  // came back than went out.
  absl::Status Await(std::span<const int32_t> slots);

  // Waits until no copy is on its way, whatever became of them.
  void Drain();

 private:
  struct Copy {
    int slot = 0;
    bool is_offload = false;
    std::byte* host = nullptr;
    std::byte* device = nullptr;
    int64_t bytes = 0;
    int64_t generation = 0;
  };

  // What the thread knows of a slot.
  struct Slot {
    int64_t generation = -1;
    uint32_t checksum = 0;
  };

  void Begin(const Copy& copy);
  void Run();
  absl::Status Make(const Copy& copy);

  Device& device_;
  const OffloadOptions options_;
  const std::vector<std::string> slot_names_;
  std::vector<int64_t> last_copy_;  // by slot; of the owner's thread

  // Of the copying thread.
  std::vector<Slot> slots_;
  int64_t num_offloads_ = 0;

  absl::Mutex mutex_;
  std::vector<Copy> ring_ ABSL_GUARDED_BY(mutex_);  // copy n at n mod its size
  int64_t num_begun_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the first
  std::thread thread_;
};

}  // namespace ebb
