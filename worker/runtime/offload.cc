// The ring of copies and the thread that makes them.
#include "worker/runtime/offload.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/philox.h"
#include "kernels/status.h"
#include "worker/checkpoint/crc32c.h"

namespace ebb {
namespace {

// Copies that may be on their way before the owner has to wait: more than a
// program has within one iteration of a block, fewer than would take memory.
constexpr int64_t kMostCopies = 1024;

}  // namespace

CopyStream::CopyStream(Device& device, std::vector<std::string> slot_names,
                       OffloadOptions options)
    : device_(device),
      options_(options),
      slot_names_(std::move(slot_names)),
      last_copy_(slot_names_.size(), 0),
      slots_(slot_names_.size()),
      ring_(kMostCopies) {
  // A thread begins with the mask of the one that starts it.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  EBB_CHECK(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
  thread_ = std::thread([this] { Run(); });
  EBB_CHECK(pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
}

CopyStream::~CopyStream() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  thread_.join();
}

void CopyStream::Begin(const Copy& copy) {
  absl::MutexLock lock(&mutex_);
  const auto has_room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return num_begun_ - num_done_ < kMostCopies;
  };
  mutex_.Await(absl::Condition(&has_room));
  ring_[num_begun_ % kMostCopies] = copy;
  last_copy_[copy.slot] = ++num_begun_;
}

absl::Status CopyStream::Await(std::span<const int32_t> slots) {
  int64_t last = 0;
  for (const int32_t slot : slots) last = std::max(last, last_copy_[slot]);
  absl::MutexLock lock(&mutex_);
  const auto is_done = [this, last]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return num_done_ >= last;
  };
  mutex_.Await(absl::Condition(&is_done));
  return failure_;
}

void CopyStream::Drain() {
  absl::MutexLock lock(&mutex_);
  const auto is_done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return num_done_ == num_begun_;
  };
  mutex_.Await(absl::Condition(&is_done));
}

void CopyStream::Run() {
  pthread_setname_np(pthread_self(), "ebb-copy");
  while (true) {
    Copy copy;
    bool failed = false;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return num_done_ < num_begun_ || closing_;
      };
      mutex_.Await(absl::Condition(&has_work));
      if (num_done_ == num_begun_) return;
      copy = ring_[num_done_ % kMostCopies];
      failed = !failure_.ok();
    }
    // Behind a failure the step is lost; its copies are only counted.
    absl::Status status = failed ? absl::OkStatus() : Make(copy);
    absl::MutexLock lock(&mutex_);
    ++num_done_;
    if (!status.ok()) failure_ = std::move(status);
  }
}

absl::Status CopyStream::Make(const Copy& copy) {
  Slot& slot = slots_[copy.slot];
  if (options_.longest_delay_microseconds > 0) {
    const uint64_t draw = philox::Mix(
        static_cast<uint64_t>(copy.generation * 1000003 + copy.slot * 2) +
        (copy.is_offload ? 1 : 0));
    absl::SleepFor(absl::Microseconds(
        draw % static_cast<uint64_t>(options_.longest_delay_microseconds)));
  }
  if (copy.is_offload) {
    if (options_.check) slot.checksum = Crc32c(0, copy.device, copy.bytes);
    device_.CopyToHost(copy.host, copy.device, copy.bytes, nullptr);
    slot.generation = copy.generation;
    if (num_offloads_++ == options_.spoiled_copy) {
      std::memset(copy.host, 0, static_cast<size_t>(copy.bytes));
    }
    return absl::OkStatus();
  }
  if (slot.generation != copy.generation) {
    return absl::InternalError(
        absl::StrCat("offloaded value ", slot_names_[copy.slot],
                     ": host memory holds generation ", slot.generation,
                     ", generation ", copy.generation, " is asked for"));
  }
  device_.CopyToDevice(copy.device, copy.host, copy.bytes, nullptr);
  if (!options_.check) return absl::OkStatus();
  const uint32_t checksum = Crc32c(0, copy.device, copy.bytes);
  if (checksum == slot.checksum) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "offloaded value ", slot_names_[copy.slot],
      " came back from host memory as other bytes than went out: checksum ",
      absl::Hex(checksum, absl::kZeroPad8), ", was ",
      absl::Hex(slot.checksum, absl::kZeroPad8)));
}

}  // namespace ebb
