// Directories that take values, and all kinds that do not.
#include "server/offload_directory.h"

#include <stdlib.h>
#include <sys/statvfs.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/violations.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class OffloadDirectory : public testing::Test {
 protected:
  OffloadDirectory() {
    std::string name = testing::TempDir() + "offload_directory.XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  ~OffloadDirectory() override { std::filesystem::remove_all(directory_); }

  static v1::MemorySpec Named(const std::string& directory) {
    v1::MemorySpec memory;
    memory.set_offload(v1::OFFLOAD_DISK);
    memory.set_offload_dir(directory);
    return memory;
  }

  std::string directory_;
};

TEST_F(OffloadDirectory, TakesValuesAndKeepsNothing) {
  EXPECT_TRUE(CheckOffloadDirectory(directory_).ok());
  EXPECT_TRUE(CheckOffloadRoom(Named(directory_), "/none", 4096).ok());
  EXPECT_TRUE(CheckOffloadRoom(Named(""), directory_, 4096).ok());
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(OffloadDirectory, IsNotLookedAtWhereNothingGoesToDisk) {
  EXPECT_TRUE(CheckOffloadRoom(Named("/no/such"), "/none", 0).ok());
}

TEST_F(OffloadDirectory, SaysWhatIsWrongWithIt) {
  const std::string file = directory_ + "/file";
  std::ofstream(file) << "x";
  struct Case {
    std::string directory;
    absl::StatusCode code;
    const char* rule;
  };
  for (const Case& wrong : {
           Case{directory_ + "/none", absl::StatusCode::kNotFound,
                "no such directory"},
           Case{file, absl::StatusCode::kFailedPrecondition,
                "must be a directory"},
           Case{file + "/below", absl::StatusCode::kFailedPrecondition,
                "Not a directory"},
           // Takes files of nobody, whatever the user.
           Case{"/proc", absl::StatusCode::kFailedPrecondition,
                "takes no files"},
       }) {
    SCOPED_TRACE(wrong.directory);
    EXPECT_EQ(CheckOffloadDirectory(wrong.directory).code(), wrong.code);
    const absl::Status status =
        CheckOffloadRoom(Named(wrong.directory), directory_, 1);
    EXPECT_EQ(status.code(), wrong.code);
    const auto violations = GetViolations(status);
    ASSERT_THAT(violations, SizeIs(1));
    EXPECT_EQ(violations[0].field(), "memory.offload_dir");
    EXPECT_EQ(violations[0].value(), wrong.directory);
    EXPECT_THAT(violations[0].rule(), HasSubstr(wrong.rule));
  }
}

TEST_F(OffloadDirectory, SaysHowMuchRoomItHas) {
  constexpr int64_t kPetabyte = int64_t{1} << 50;
  const absl::Status status =
      CheckOffloadRoom(Named(""), directory_, kPetabyte);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const auto violations = GetViolations(status);
  ASSERT_THAT(violations, SizeIs(1));
  EXPECT_EQ(violations[0].value(), directory_);
  EXPECT_THAT(violations[0].rule(),
              HasSubstr(absl::StrCat("need ", kPetabyte, " bytes, have ")));
  EXPECT_THAT(violations[0].fix(), HasSubstr("set memory.offload_dir"));
}

}  // namespace
}  // namespace ebb
