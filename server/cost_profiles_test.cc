// Measured times outlive the coordinator, and bad ones do no harm.
#include "server/cost_profiles.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

namespace ebb {
namespace {

class CostProfilesTest : public ::testing::Test {
 protected:
  CostProfilesTest()
      : directory_(
            ::testing::TempDir() + "/profiles-" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(directory_);
  }
  ~CostProfilesTest() override { std::filesystem::remove_all(directory_); }

  const std::string directory_;
};

TEST_F(CostProfilesTest, KeepsTimesByBackendAcrossRestarts) {
  const Backend backend = BuiltInCpuBackend();
  Backend other = backend;
  other.threads = 1;
  {
    CostProfiles profiles(directory_);
    EXPECT_EQ(profiles.ProfileOf(backend), RooflineProfile(backend));
    EXPECT_FALSE(std::filesystem::exists(directory_));
    profiles.Keep(backend, {{"a", 1}, {"b", 2}});
    profiles.Keep(backend, {{"b", 3}, {"c", 4}});
  }
  CostProfiles profiles(directory_);
  // Bytes that differ from probe to probe make no other backend.
  Backend same = backend;
  same.runtime_bytes += 4096;
  const std::map<std::string, double> want = {{"a", 1}, {"b", 3}, {"c", 4}};
  EXPECT_EQ(profiles.ProfileOf(same).measured, want);
  EXPECT_TRUE(profiles.ProfileOf(other).measured.empty());
}

// Copies to disk have the rate of the directory that the job names.
TEST_F(CostProfilesTest, CopiesHaveTheirMeasuredRates) {
  const Backend backend = BuiltInCpuBackend();
  CostProfiles profiles(directory_);
  profiles.Keep(backend, {{CopyKey(kHostPlace), 0.25},
                          {CopyLossKey(kHostPlace), 0.125},
                          {CopyKey(DiskPlace("/slow")), 1},
                          {CopyLossKey(DiskPlace("/slow")), 0.25}});
  const CopyRate host = {.bytes_per_second = 4 << 20, .share = 0.5};
  EXPECT_EQ(profiles.ProfileOf(backend).host, host);
  EXPECT_EQ(profiles.ProfileOf(backend).disk, RooflineProfile(backend).disk);
  const CopyRate slow = {.bytes_per_second = 1 << 20, .share = 0.25};
  EXPECT_EQ(profiles.ProfileOf(backend, "/slow").disk, slow);
}

TEST_F(CostProfilesTest, LeavesOutWhatIsNoTime) {
  CostProfiles profiles(directory_);
  profiles.Keep(BuiltInCpuBackend(),
                {{"zero", 0},
                 {"below", -1},
                 {"nan", std::numeric_limits<double>::quiet_NaN()},
                 {"infinite", std::numeric_limits<double>::infinity()},
                 {"good", 1e-6}});
  const std::map<std::string, double> want = {{"good", 1e-6}};
  EXPECT_EQ(profiles.ProfileOf(BuiltInCpuBackend()).measured, want);
}

TEST_F(CostProfilesTest, AFileThatIsNoneCountsAsNotMeasured) {
  CostProfiles(directory_).Keep(BuiltInCpuBackend(), {{"a", 1}});
  for (const char* text : {"", "[]", "{\"a\": -1}", "{\"a\": \"x\"}", "{"}) {
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      std::ofstream(entry.path()) << text;
    }
    CostProfiles profiles(directory_);
    EXPECT_TRUE(profiles.ProfileOf(BuiltInCpuBackend()).measured.empty())
        << text;
    // And is written anew.
    profiles.Keep(BuiltInCpuBackend(), {{"b", 2}});
    EXPECT_EQ(CostProfiles(directory_)
                  .ProfileOf(BuiltInCpuBackend())
                  .measured.at("b"),
              2);
  }
}

TEST_F(CostProfilesTest, AnUnwritableDirectoryLosesNothingElse) {
  std::ofstream(directory_) << "a file";
  CostProfiles profiles(directory_);
  profiles.Keep(BuiltInCpuBackend(), {{"a", 1}});
  EXPECT_EQ(profiles.ProfileOf(BuiltInCpuBackend()).measured.at("a"), 1);
}

}  // namespace
}  // namespace ebb
