// The ring of copies and the thread that makes them.
#include "worker/runtime/offload.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/philox.h"
#include "kernels/status.h"
#include "worker/checkpoint/crc32c.h"

namespace ebb {
namespace {

using Clock = std::chrono::steady_clock;

// Copies that may be on their way before the owner has to wait: more than a
// program has within one iteration of a block, fewer than would take memory.
constexpr int64_t kMostCopies = 1024;

}  // namespace

CopyStream::CopyStream(Device& device, std::vector<CopySlot> slots,
                       OffloadOptions options)
    : device_(device),
      options_(options),
      slows_copies_(options.check || options.longest_delay_microseconds > 0),
      slots_(std::move(slots)),
      last_copy_(slots_.size(), 0),
      contents_(slots_.size()),
      ring_(kMostCopies) {
  for (size_t n = 0; n < slots_.size(); ++n) {
    if (slots_[n].holds_state) contents_[n].generation = 0;
  }
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

CopyStream::Made CopyStream::made(bool on_disk) {
  absl::MutexLock lock(&mutex_);
  return on_disk ? made_to_disk_ : made_to_host_;
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
    const Clock::time_point start = Clock::now();
    absl::Status status = failed ? absl::OkStatus() : Make(copy);
    const double seconds =
        std::chrono::duration<double>(Clock::now() - start).count();
    absl::MutexLock lock(&mutex_);
    ++num_done_;
    if (!failed) {
      Made& made =
          slots_[copy.slot].host == nullptr ? made_to_disk_ : made_to_host_;
      (copy.is_offload ? made.bytes_out : made.bytes_back) += copy.bytes;
      if (!slows_copies_) made.seconds += seconds;
    }
    if (!status.ok()) failure_ = std::move(status);
  }
}

absl::Status CopyStream::Write(const CopySlot& slot, const std::byte* data,
                               int64_t bytes) {
  if (slot.host == nullptr)
    return slot.disk->Write(slot.disk_offset, data, bytes);
  device_.CopyToHost(slot.host, data, bytes, nullptr);
  return absl::OkStatus();
}

absl::Status CopyStream::Read(const CopySlot& slot, std::byte* data,
                              int64_t bytes) {
  if (slot.host == nullptr)
    return slot.disk->Read(slot.disk_offset, data, bytes);
  device_.CopyToDevice(data, slot.host, bytes, nullptr);
  return absl::OkStatus();
}

absl::Status CopyStream::Make(const Copy& copy) {
  const CopySlot& slot = slots_[copy.slot];
  Contents& contents = contents_[copy.slot];
  if (options_.longest_delay_microseconds > 0) {
    const uint64_t draw = philox::Mix(
        static_cast<uint64_t>(copy.generation * 1000003 + copy.slot * 2) +
        (copy.is_offload ? 1 : 0));
    absl::SleepFor(absl::Microseconds(
        draw % static_cast<uint64_t>(options_.longest_delay_microseconds)));
  }
  if (copy.is_offload) {
    if (options_.check) contents.checksum = Crc32c(0, copy.device, copy.bytes);
    EBB_RETURN_IF_ERROR(Write(slot, copy.device, copy.bytes));
    contents.generation = copy.generation;
    if (num_offloads_++ == options_.spoiled_copy) {
      const std::vector<std::byte> zeros(static_cast<size_t>(copy.bytes));
      EBB_RETURN_IF_ERROR(Write(slot, zeros.data(), copy.bytes));
    }
    return absl::OkStatus();
  }
  if (contents.generation != copy.generation) {
    return absl::InternalError(
        absl::StrCat("offloaded value ", slot.name,
                     ": its place holds generation ", contents.generation,
                     ", generation ", copy.generation, " is asked for"));
  }
  EBB_RETURN_IF_ERROR(Read(slot, copy.device, copy.bytes));
  if (!contents.checksum.has_value()) return absl::OkStatus();
  const uint32_t checksum = Crc32c(0, copy.device, copy.bytes);
  if (checksum == contents.checksum) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("offloaded value ", slot.name, " came back from ",
                   slot.host == nullptr ? "disk" : "host memory",
                   " as other bytes than went out: checksum ",
                   absl::Hex(checksum, absl::kZeroPad8), ", was ",
                   absl::Hex(*contents.checksum, absl::kZeroPad8)));
}

}  // namespace ebb
