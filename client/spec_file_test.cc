// Specs as users name them; every example reads without an error.
#include "client/spec_file.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/spec.pb.h"
#include "proto/violations.h"

namespace ebb {
namespace {

constexpr char kSpec[] = R"(name: small
model: {layers: 2, hidden: 64, heads: 4, vocab: 257, seq_len: 32}
data: {train: corpus.txt}
batch: {global: 4, micro: 2}
steps: 10
)";

class SpecFile : public testing::Test {
 protected:
  SpecFile() {
    std::string name = testing::TempDir() + "spec_file_test.XXXXXX";
    directory_ = mkdtemp(name.data());
    environment_.working_directory = "/home/ada";
    environment_.in = &in_;
  }
  ~SpecFile() override { std::filesystem::remove_all(directory_); }

  std::string Write(const std::string& text) {
    const std::string path = directory_ + "/spec.yaml";
    std::ofstream(path) << text;
    return path;
  }

  std::string directory_;
  std::istringstream in_;
  Environment environment_;
};

TEST_F(SpecFile, RelativePathsStandBesideTheSpec) {
  const auto spec = LoadSpec(environment_, Write(kSpec), {});
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_TRUE(spec->status.ok()) << spec->status;
  EXPECT_EQ(spec->spec.data().train(), directory_ + "/corpus.txt");
  EXPECT_EQ(spec->spec.name(), "small");
}

TEST_F(SpecFile, StandardInputAndSetsStandInTheWorkingDirectory) {
  in_.str(kSpec);
  const auto spec = LoadSpec(environment_, "-", {"data.validation=v.txt"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_TRUE(spec->status.ok()) << spec->status;
  EXPECT_EQ(spec->spec.data().train(), "/home/ada/corpus.txt");
  EXPECT_EQ(spec->spec.data().validation(), "/home/ada/v.txt");
}

TEST_F(SpecFile, MistakesNameFileLineAndSet) {
  const std::string path = Write(absl::StrCat(kSpec, "stepz: 3\n"));
  const auto spec = LoadSpec(environment_, path, {"optimizer.lr=fast"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(absl::IsInvalidArgument(spec->status));
  const auto violations = GetViolations(spec->status);
  ASSERT_EQ(violations.size(), 2u) << spec->status;
  const std::string lines = absl::StrCat(FormatViolation(violations[0]), "\n",
                                         FormatViolation(violations[1]));
  EXPECT_THAT(lines, testing::HasSubstr(path + ":6: "));
  EXPECT_THAT(lines, testing::HasSubstr("--set optimizer.lr: "));
  EXPECT_THAT(lines, testing::HasSubstr("got fast"));
}

TEST_F(SpecFile, MistakesInStandardInputSaySo) {
  in_.str("steps: nine\n");
  const auto spec = LoadSpec(environment_, "-", {});
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_FALSE(spec->status.ok());
  EXPECT_THAT(FormatViolation(GetViolations(spec->status)[0]),
              testing::StartsWith("<stdin>:1: steps: got nine: "));
}

TEST_F(SpecFile, FilesThatCannotBeReadAreNoCrash) {
  EXPECT_TRUE(absl::IsNotFound(
      LoadSpec(environment_, directory_ + "/none.yaml", {}).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(LoadSpec(environment_, directory_, {}).status()));
  const auto large =
      LoadSpec(environment_, Write(std::string(2 << 20, ' ')), {});
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_TRUE(absl::IsInvalidArgument(large->status));
}

TEST_F(SpecFile, EveryExampleReads) {
  int num_examples = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(EBB_SOURCE_DIR "/client/examples")) {
    if (entry.path().extension() != ".yaml") continue;
    ++num_examples;
    const auto spec = LoadSpec(environment_, entry.path().string(), {});
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_TRUE(spec->status.ok()) << spec->status;
  }
  EXPECT_GE(num_examples, 3);
}

}  // namespace
}  // namespace ebb
