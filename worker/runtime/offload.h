// The stream of copies between the device and host memory or disk: one thread
// that makes them, one after the other in the order in which they were begun,
// beside the thread that runs the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "kernels/device.h"
#include "worker/runtime/disk_file.h"

namespace ebb {

struct OffloadOptions {
  // Checksum mode: what comes back is compared with what went out.
  bool check = false;
  // Stress mode: every copy begins late, by a random time up to this.
  int64_t longest_delay_microseconds = 0;
  // For tests: the copy out of this number, counted from 0, leaves zeros where
  // it goes.
  int64_t spoiled_copy = -1;
};

// A place off the device, for one value of one layer.
struct CopySlot {
  std::string name;           // of the value, for errors
  std::byte* host = nullptr;  // in host memory; null: on disk
  DiskFile* disk = nullptr;
  int64_t disk_offset = 0;
  // What lies there from the start is its generation 0, of unknown checksum.
  bool holds_state = false;
};

// All methods are called by the thread that made the stream. A copy allocates
// nothing.
class CopyStream {
 public:
  // Starts the thread, which takes no signals. The device and the files of the
  // slots must outlive the stream.
  CopyStream(Device& device, std::vector<CopySlot> slots,
             OffloadOptions options);
  // Waits for all copies.
  ~CopyStream();
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  // Begins a copy to or from a slot. Both ends must stay as they are until the
  // copy was awaited. `generation` says which of the contents that a slot has
  // one after the other is meant.
  void BeginOffload(int slot, const std::byte* device, int64_t bytes,
                    int64_t generation) {
    Begin({slot, /*is_offload=*/true, const_cast<std::byte*>(device), bytes,
           generation});
  }
  void BeginPrefetch(int slot, std::byte* device, int64_t bytes,
                     int64_t generation) {
    Begin({slot, /*is_offload=*/false, device, bytes, generation});
  }

  // Waits until the copies last begun on these slots are done.
  // Errors, of any copy so far: INTERNAL if a slot held another generation than
  // the one that was to come back; DATA_LOSS, in checksum mode, if other bytes
  // came back than went out; those of DiskFile.
  absl::Status Await(std::span<const int32_t> slots);

  // Copies made so far, to and from one place off the device.
  struct Made {
    int64_t bytes_out = 0;
    int64_t bytes_back = 0;
    // 0 in checksum and stress mode, which say nothing of the machine.
    double seconds = 0;

    int64_t bytes() const { return bytes_out + bytes_back; }
  };
  Made made(bool on_disk);

  // Waits until no copy is on its way, whatever became of them.
  void Drain();

 private:
  struct Copy {
    int slot = 0;
    bool is_offload = false;
    std::byte* device = nullptr;
    int64_t bytes = 0;
    int64_t generation = 0;
  };

  // What the thread knows of a slot's contents.
  struct Contents {
    int64_t generation = -1;
    std::optional<uint32_t> checksum;  // in checksum mode, once something came
  };

  void Begin(const Copy& copy);
  void Run();
  absl::Status Make(const Copy& copy);
  absl::Status Write(const CopySlot& slot, const std::byte* data,
                     int64_t bytes);
  absl::Status Read(const CopySlot& slot, std::byte* data, int64_t bytes);

  Device& device_;
  const OffloadOptions options_;
  const bool slows_copies_;
  const std::vector<CopySlot> slots_;
  std::vector<int64_t> last_copy_;  // by slot; of the owner's thread

  // Of the copying thread.
  std::vector<Contents> contents_;  // by slot
  int64_t num_offloads_ = 0;

  absl::Mutex mutex_;
  std::vector<Copy> ring_ ABSL_GUARDED_BY(mutex_);  // copy n at n mod its size
  int64_t num_begun_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_done_ ABSL_GUARDED_BY(mutex_) = 0;
  Made made_to_host_ ABSL_GUARDED_BY(mutex_);
  Made made_to_disk_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the first
  std::thread thread_;
};

}  // namespace ebb
