// The stream of copies by itself.
#include "worker/runtime/offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "kernels/kernel_table.h"
#include "worker/runtime/testing/heap_device.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;

// Bytes that tell the copies of a test apart.
Bytes Pattern(int64_t size, int seed) {
  Bytes bytes(static_cast<size_t>(size));
  for (size_t n = 0; n < bytes.size(); ++n) {
    bytes[n] = static_cast<std::byte>(n * 31 + seed * 7 + 1);
  }
  return bytes;
}

class CopyStreamTest : public testing::Test {
 protected:
  absl::Status AwaitOne(CopyStream& stream, int slot) {
    const std::array<int32_t, 1> slots = {slot};
    return stream.Await(slots);
  }

  const KernelTable kernels_;
  HeapDevice device_{kernels_};
};

TEST_F(CopyStreamTest, BringsBackWhatWentOut) {
  // No multiple of anything.
  for (const int64_t size : {1, 511, 4097, 100003}) {
    const Bytes sent = Pattern(size, 3);
    Bytes host(sent.size());
    CopyStream stream(device_, {{"L0.x", host.data()}}, {.check = true});
    Bytes back(sent.size());
    stream.BeginOffload(0, sent.data(), size, 1);
    EXPECT_TRUE(AwaitOne(stream, 0).ok());
    stream.BeginPrefetch(0, back.data(), size, 1);
    EXPECT_TRUE(AwaitOne(stream, 0).ok());
    EXPECT_EQ(back, sent);
  }
}

// More copies than the ring holds, through one place: only the order in which
// they begin keeps them apart.
TEST_F(CopyStreamTest, MakesCopiesInTheOrderInWhichTheyBegin) {
  constexpr int kNumCopies = 5000;
  const Bytes sent = Pattern(kNumCopies, 1);
  Bytes host(1);
  CopyStream stream(device_, {{"L0.x", host.data()}}, {.check = true});
  Bytes back(kNumCopies);
  for (int n = 0; n < kNumCopies; ++n) {
    stream.BeginOffload(0, &sent[n], 1, n);
    stream.BeginPrefetch(0, &back[n], 1, n);
  }
  EXPECT_TRUE(AwaitOne(stream, 0).ok());
  EXPECT_EQ(back, sent);
}

TEST_F(CopyStreamTest, AwaitsOnlyWhatItIsAskedFor) {
  const Bytes sent = Pattern(64, 1);
  Bytes host(64);
  CopyStream stream(device_, {{"L0.x", host.data()}, {"L0.y", host.data()}},
                    {});
  // Nothing began: nothing to wait for.
  EXPECT_TRUE(AwaitOne(stream, 1).ok());
  stream.BeginOffload(0, sent.data(), 64, 1);
  EXPECT_TRUE(AwaitOne(stream, 1).ok());
  EXPECT_TRUE(AwaitOne(stream, 0).ok());
  EXPECT_EQ(host, sent);
}

TEST_F(CopyStreamTest, RefusesAnotherGeneration) {
  const Bytes sent = Pattern(64, 1);
  Bytes host(64);
  CopyStream stream(device_,
                    {{"L0.x", host.data()}, {"L7.mlp.act.y", host.data()}}, {});
  Bytes back(64);
  stream.BeginOffload(1, sent.data(), 64, 4);
  stream.BeginPrefetch(1, back.data(), 64, 5);
  const absl::Status status = AwaitOne(stream, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("L7.mlp.act.y"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("generation 4"));
  // What never went out has none.
  stream.BeginPrefetch(0, back.data(), 64, 5);
  EXPECT_FALSE(AwaitOne(stream, 0).ok());
}

TEST_F(CopyStreamTest, ChecksumFindsAnAlteredCopy) {
  for (const bool check : {false, true}) {
    const Bytes sent = Pattern(1000, 1);
    Bytes host(1000);
    CopyStream stream(device_, {{"L3.x", host.data()}}, {.check = check});
    Bytes back(1000);
    stream.BeginOffload(0, sent.data(), 1000, 1);
    EXPECT_TRUE(AwaitOne(stream, 0).ok());
    host[999] ^= std::byte{1};
    stream.BeginPrefetch(0, back.data(), 1000, 1);
    const absl::Status status = AwaitOne(stream, 0);
    EXPECT_EQ(status.ok(), !check);
    if (!check) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("L3.x"));
  }
}

TEST_F(CopyStreamTest, FailureStaysAndCopiesBehindItAreNotMade) {
  const Bytes sent = Pattern(64, 1);
  Bytes host(64);
  CopyStream stream(device_, {{"L0.x", host.data()}, {"L1.x", host.data()}},
                    {});
  Bytes back(64);
  stream.BeginPrefetch(0, back.data(), 64, 1);
  stream.BeginOffload(1, sent.data(), 64, 1);
  EXPECT_FALSE(AwaitOne(stream, 1).ok());
  stream.Drain();
  EXPECT_NE(host, sent);
  EXPECT_FALSE(AwaitOne(stream, 1).ok());
}

TEST_F(CopyStreamTest, EndsWithCopiesOnTheirWay) {
  const Bytes sent = Pattern(4096, 1);
  std::vector<Bytes> hosts(200, Bytes(4096));
  std::vector<CopySlot> slots;
  for (Bytes& host : hosts) slots.push_back({"L0.x", host.data()});
  {
    CopyStream stream(device_, slots, {.longest_delay_microseconds = 50});
    for (int n = 0; n < 200; ++n) stream.BeginOffload(n, sent.data(), 4096, 1);
  }
  for (const Bytes& host : hosts) EXPECT_EQ(host, sent);
}

TEST_F(CopyStreamTest, CountsCopiesAndTimesThoseThatTakeNoLongerThanTheyMust) {
  const Bytes sent = Pattern(4096, 1);
  Bytes host(4096);
  for (const OffloadOptions& options :
       {OffloadOptions{}, OffloadOptions{.check = true},
        OffloadOptions{.longest_delay_microseconds = 1}}) {
    CopyStream stream(device_, {{"L0.x", host.data()}}, options);
    stream.BeginOffload(0, sent.data(), 4096, 1);
    EXPECT_TRUE(AwaitOne(stream, 0).ok());
    const CopyStream::Made made = stream.made(/*on_disk=*/false);
    EXPECT_EQ(made.bytes_out, 4096);
    const bool is_timed =
        !options.check && options.longest_delay_microseconds == 0;
    EXPECT_EQ(made.seconds > 0, is_timed);
  }
}

// The same through a file, of which slots have blocks of their own.
TEST_F(CopyStreamTest, BringsBackWhatWentToDisk) {
  for (const int64_t size : {1, 4096, 100003}) {
    auto disk = DiskFile::Create(testing::TempDir(), 2 * 102400);
    ASSERT_TRUE(disk.ok()) << disk.status();
    CopyStream stream(device_,
                      {{"L0.x", nullptr, disk->get(), 0},
                       {"L1.x", nullptr, disk->get(), 102400}},
                      {.check = true});
    const Bytes sent[] = {Pattern(size, 1), Pattern(size, 2)};
    for (const int slot : {0, 1}) {
      stream.BeginOffload(slot, sent[slot].data(), size, 1);
    }
    for (const int slot : {0, 1}) {
      Bytes back(sent[slot].size());
      stream.BeginPrefetch(slot, back.data(), size, 1);
      EXPECT_TRUE(AwaitOne(stream, slot).ok());
      EXPECT_EQ(back, sent[slot]);
    }
  }
}

}  // namespace
}  // namespace ebb
