// A file without a name: what comes back, what is left, what goes wrong.
#include "worker/runtime/disk_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> Pattern(int64_t size, int seed) {
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  for (size_t n = 0; n < bytes.size(); ++n) {
    bytes[n] = static_cast<std::byte>(n * 13 + n / 251 + seed);
  }
  return bytes;
}

// A fresh directory under `parent`, removed at the end.
class Directory {
 public:
  explicit Directory(const std::string& parent)
      : path_(absl::StrCat(parent, "/disk_file_test-", getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Directory() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

void ExpectHoldsWhatIsWritten(const std::string& directory) {
  // No multiple of a block, of the buffer, of anything.
  const int64_t sizes[] = {1, 511, 4096, 4097, (1 << 20) + 3, 3 << 20};
  int64_t end = 0;
  for (const int64_t size : sizes) {
    end += (size + kDiskBlockBytes - 1) / kDiskBlockBytes * kDiskBlockBytes;
  }
  auto file = DiskFile::Create(directory, end);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  for (const bool reads : {false, true}) {
    int64_t offset = 0;
    for (const int64_t size : sizes) {
      const auto data = Pattern(size, static_cast<int>(size % 100));
      if (reads) {
        std::vector<std::byte> back(data.size());
        const absl::Status status = (*file)->Read(offset, back.data(), size);
        EXPECT_TRUE(status.ok()) << status;
        EXPECT_EQ(back, data) << size;
      } else {
        const absl::Status status = (*file)->Write(offset, data.data(), size);
        EXPECT_TRUE(status.ok()) << status;
      }
      offset +=
          (size + kDiskBlockBytes - 1) / kDiskBlockBytes * kDiskBlockBytes;
    }
  }
}

TEST(DiskFile, HoldsWhatIsWritten) {
  ExpectHoldsWhatIsWritten(Directory(testing::TempDir()).path());
}

// A file system in memory, most of which cannot go around the page cache.
TEST(DiskFile, HoldsWhatIsWrittenInMemoryToo) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP();
  ExpectHoldsWhatIsWritten(Directory("/dev/shm").path());
}

TEST(DiskFile, NamesTheFullDisk) {
  const Directory own(testing::TempDir());
  // A petabyte.
  const absl::Status status =
      DiskFile::Create(own.path(), int64_t{1} << 50).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(own.path()));
  EXPECT_TRUE(std::filesystem::is_empty(own.path()));
}

TEST(DiskFile, NamesADirectoryThatIsNotThereOrTakesNoFiles) {
  for (const std::string directory : {"/proc", "/dev/null", "/no/such"}) {
    const absl::Status status = DiskFile::Create(directory, 4096).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("offload directory ", directory, ":")));
  }
}

// Ends the process; 0: a file in `directory` can be made and holds what is
// written although the kernel refuses O_TMPFILE or fallocate, as it does on
// file systems that lack them.
[[noreturn]] void HoldWithout(bool refuses_nameless, bool refuses_allocation,
                              const std::string& directory) {
  const auto field = [](size_t offset) {
    return static_cast<uint32_t>(offset);
  };
  const uint32_t refused = SECCOMP_RET_ERRNO | EOPNOTSUPP;
  const uint32_t of_open =
      refuses_nameless ? refused : uint32_t{SECCOMP_RET_ALLOW};
  const uint32_t of_allocate =
      refuses_allocation ? refused : uint32_t{SECCOMP_RET_ALLOW};
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, field(offsetof(seccomp_data, nr))),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fallocate, 4, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_openat, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
               field(offsetof(seccomp_data, args[2]))),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 2, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, of_allocate),
      BPF_STMT(BPF_RET | BPF_K, of_open),
  };
  const sock_fprog program = {std::size(code), code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    _exit(99);
  }
  // It does so.
  const int descriptor =
      open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if ((descriptor < 0) != refuses_nameless) _exit(2);
  if (descriptor >= 0 &&
      (fallocate(descriptor, 0, 0, 1) != 0) != refuses_allocation) {
    _exit(3);
  }
  ExpectHoldsWhatIsWritten(directory);
  _exit(testing::Test::HasFailure() ? 1 : 0);
}

TEST(DiskFile, NeedsNoFileSystemThatCanMakeOrFillFilesAtOnce) {
  for (const std::string& parent : {testing::TempDir(), std::string("/tmp")}) {
    for (const bool refuses_nameless : {false, true}) {
      for (const bool refuses_allocation : {false, true}) {
        const Directory own(parent);
        EXPECT_EXIT(
            HoldWithout(refuses_nameless, refuses_allocation, own.path()),
            testing::ExitedWithCode(0), "");
      }
    }
  }
}

// In two containers that share a directory processes may have one number.
TEST(DiskFile, LeavesTheFilesOfOthersAlone) {
  const Directory own(testing::TempDir());
  const std::string other = absl::StrCat(own.path(), "/ebb-values-", getpid());
  std::filesystem::create_directory(other);
  auto file = DiskFile::Create(own.path(), 4096);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(std::filesystem::exists(other));
}

TEST(DiskFile, OutlivesItsDirectory) {
  const Directory own(testing::TempDir());
  auto file = DiskFile::Create(own.path(), 4096);
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::remove_all(own.path());
  const auto data = Pattern(5000, 1);
  ASSERT_TRUE((*file)->Grow(5000).ok());
  ASSERT_TRUE((*file)->Write(0, data.data(), 5000).ok());
  std::vector<std::byte> back(data.size());
  ASSERT_TRUE((*file)->Read(0, back.data(), 5000).ok());
  EXPECT_EQ(back, data);
}

TEST(DiskFile, GrowsAndShrinksWithWhatItHolds) {
  const Directory own(testing::TempDir());
  auto file = DiskFile::Create(own.path(), 3000);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto data = Pattern(3000, 7);
  ASSERT_TRUE((*file)->Write(0, data.data(), 3000).ok());
  ASSERT_TRUE((*file)->Grow(9000).ok());
  EXPECT_EQ((*file)->bytes(), 9000);
  ASSERT_TRUE((*file)->Write(8192, data.data(), 808).ok());

  // What it has stays its own where it cannot have more.
  const absl::Status status = (*file)->Grow(int64_t{1} << 50);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ((*file)->bytes(), 9000);

  (*file)->Shrink(3000);
  EXPECT_EQ((*file)->bytes(), 3000);
  std::vector<std::byte> back(data.size());
  ASSERT_TRUE((*file)->Read(0, back.data(), 3000).ok());
  EXPECT_EQ(back, data);
  // Beyond its end there is nothing.
  EXPECT_FALSE((*file)->Read(8192, back.data(), 808).ok());
}

}  // namespace
}  // namespace ebb
