// Saved values and optimizer state that wait on disk, through the real
// programs: the same bits, clear words for directories that do not do, and
// nothing left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "integration_tests/harness.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// No value's size is a multiple of a disk's block.
const std::vector<std::string> kOddSizes = {
    "model.hidden=66", "model.heads=3", "model.ffn=130", "model.dropout=0.1"};

std::vector<std::string> With(std::vector<std::string> sets,
                              const std::vector<std::string>& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

// What waits on disk, as fields of `memory`.
constexpr char kSavedValues[] = "offload=disk";
constexpr char kOptimizer[] = "offload_optimizer=disk";
constexpr char kBoth[] = "offload_optimizer=disk,offload=disk";

std::vector<std::string> OnDisk(const std::string& directory = "",
                                const std::string& policy = "none",
                                const std::string& what = kSavedValues) {
  std::vector<std::string> sets = {"memory.policy=" + policy,
                                   "memory.offload_dir=\"" + directory + "\""};
  for (const absl::string_view field : absl::StrSplit(what, ',')) {
    sets.push_back(absl::StrCat("memory.", field));
  }
  return sets;
}

std::string MakeDirectory(Service& service, const std::string& name) {
  fs::create_directories(service.Path(name));
  return service.Path(name);
}

int64_t Int(const nlohmann::json& value) {
  int64_t number = -1;
  EXPECT_TRUE(absl::SimpleAtoi(value.get<std::string>(), &number)) << value;
  return number;
}

int64_t DiskBytes(const nlohmann::json& step) {
  return Int(step["ranks"][0]["disk_bytes"]);
}

// Losses and gradient norms, step by step.
std::vector<double> Numbers(const std::vector<nlohmann::json>& steps) {
  std::vector<double> numbers;
  for (const nlohmann::json& step : steps) {
    numbers.push_back(step["loss"]);
    numbers.push_back(step["gradient_norm"]);
  }
  return numbers;
}

// Files of values, whatever their name, among the files of a job.
void ExpectNoValuesIn(const std::string& directory) {
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("ebb-")));
  }
}

bool ReachesStep(Service& service, const std::string& job, int64_t step) {
  return WaitUntil(
      [&] { return service.Get(job)["last_step"].get<int64_t>() >= step; }, 60);
}

CommandResult TrySubmit(Service& service, const std::string& spec,
                        const std::vector<std::string>& sets) {
  std::vector<std::string> arguments = {"submit",
                                        service.Write("refused.yaml", spec)};
  for (const std::string& set : sets) {
    arguments.push_back("--set");
    arguments.push_back(set);
  }
  return service.Ebb(arguments);
}

// A file system in memory of so many bytes; gone with the object.
class MemoryFileSystem {
 public:
  MemoryFileSystem(std::string path, const std::string& options,
                   unsigned long flags = 0)
      : path_(std::move(path)) {
    fs::create_directories(path_);
    is_mounted_ =
        mount("tmpfs", path_.c_str(), "tmpfs", flags, options.c_str()) == 0;
  }
  ~MemoryFileSystem() {
    if (is_mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  MemoryFileSystem(const MemoryFileSystem&) = delete;
  MemoryFileSystem& operator=(const MemoryFileSystem&) = delete;

  // Mounting needs root, and may be forbidden to it.
  bool is_mounted() const { return is_mounted_; }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  bool is_mounted_ = false;
};

// Once for saved values and once for the optimizer's state.
class DiskOffloadOf : public ::testing::TestWithParam<std::string> {
 protected:
  static std::vector<std::string> InDirectory(const std::string& directory) {
    return OnDisk(directory, "none", GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(All, DiskOffloadOf,
                         ::testing::Values(kSavedValues, kOptimizer),
                         [](const auto& info) {
                           return info.param == kOptimizer ? "Optimizer"
                                                           : "SavedValues";
                         });

TEST(DiskOffload, GivesTheSameBitsAndLeavesNothing) {
  Service service;
  const std::string spec = BaseSpec(service);
  const std::string kept = service.Submit(spec, With(kOddSizes, {"steps=3"}));
  const nlohmann::json plain = service.WaitForEnd(kept);
  ASSERT_EQ(plain["state"], "STATE_SUCCEEDED") << plain.dump(1);
  const std::vector<double> base = Numbers(service.Steps(kept));
  ASSERT_EQ(base.size(), 6u);
  std::vector<std::vector<std::string>> variants = {
      OnDisk(), OnDisk("", "full"),
      OnDisk(MakeDirectory(service, "values"), "cheap"),
      OnDisk("", "full", kOptimizer), OnDisk("", "cheap", kBoth)};
  // A file system that may not go around the page cache.
  const std::string in_memory =
      absl::StrCat("/dev/shm", service.Path("values"));
  if (std::error_code error; fs::create_directories(in_memory, error)) {
    variants.push_back(OnDisk(in_memory));
  }
  for (const std::vector<std::string>& variant : variants) {
    SCOPED_TRACE(absl::StrJoin(variant, " "));
    const std::string job =
        service.Submit(spec, With(With(kOddSizes, {"steps=3"}), variant));
    const nlohmann::json ended = service.WaitForEnd(job);
    ASSERT_EQ(ended["state"], "STATE_SUCCEEDED") << ended.dump(1);
    const int64_t bytes = Int(ended["plan"]["ranks"][0]["disk_bytes"]);
    EXPECT_GT(bytes, 0);
    EXPECT_EQ(ended["weights_hash"], plain["weights_hash"]);
    const auto steps = service.Steps(job);
    EXPECT_EQ(Numbers(steps), base);
    for (const nlohmann::json& step : steps) {
      EXPECT_EQ(DiskBytes(step), bytes);
      EXPECT_EQ(Int(step["ranks"][0]["host_bytes"]), 0);
    }
    EXPECT_THAT(service.Metrics(),
                HasSubstr(absl::StrCat("ebb_train_disk_bytes{job_id=\"", job,
                                       "\",rank=\"0\"} ", bytes, "\n")));
    EXPECT_THAT(service.Ebb({"logs", job}).out,
                ContainsRegex("(values wait|state waits) in /"));
    ExpectNoValuesIn(ended["directory"]);
  }
  EXPECT_TRUE(fs::is_empty(service.Path("values")));
  if (fs::exists(in_memory)) {
    EXPECT_TRUE(fs::is_empty(in_memory));
    fs::remove_all(absl::StrCat("/dev/shm", service.directory()));
  }
}

TEST_P(DiskOffloadOf, DirectoriesThatDoNotDoAreToldAtSubmit) {
  Service service;
  const std::string spec = BaseSpec(service);
  const std::string file = service.Write("file", "x");
  struct Case {
    std::string directory;
    int exit_code;
    const char* rule;
  };
  for (const Case& wrong :
       {Case{service.Path("none"), 3, "there is no such directory"},
        Case{file, 5, "must be a directory"},
        // Takes files of nobody, root neither.
        Case{"/proc", 5, "takes no files"}}) {
    SCOPED_TRACE(wrong.directory);
    const CommandResult refused =
        TrySubmit(service, spec, InDirectory(wrong.directory));
    EXPECT_EQ(refused.exit_code, wrong.exit_code);
    EXPECT_EQ(refused.out, "");
    EXPECT_THAT(refused.err,
                AllOf(HasSubstr(absl::StrCat("memory.offload_dir: got ",
                                             wrong.directory)),
                      HasSubstr(wrong.rule)));
  }
  // Beside other mistakes, too.
  const CommandResult several =
      TrySubmit(service, spec, With(InDirectory(file), {"optimizer.lr=-1"}));
  EXPECT_EQ(several.exit_code, 2);
  EXPECT_THAT(several.err, AllOf(HasSubstr("memory.offload_dir"),
                                 HasSubstr("optimizer.lr")));
  EXPECT_EQ(service.EbbJson({"list"})["jobs"].size(), 0u);
}

TEST_P(DiskOffloadOf, FullAndReadOnlyFileSystemsAreTold) {
  Service service;
  const std::string spec = BaseSpec(service);
  const MemoryFileSystem small(service.Path("small"), "size=8m");
  if (!small.is_mounted()) GTEST_SKIP() << "file systems cannot be mounted";
  // Some 10 MiB of saved values, and more of moments.
  const std::vector<std::string> large = {"model.hidden=256", "model.ffn=1024",
                                          "batch.micro=8", "steps=2"};
  const CommandResult full =
      TrySubmit(service, spec, With(large, InDirectory(small.path())));
  EXPECT_EQ(full.exit_code, 9);
  EXPECT_THAT(full.err, AllOf(HasSubstr("memory.offload_dir: got "),
                              HasSubstr(small.path()), HasSubstr("no room"),
                              HasSubstr("have 8388608")));
  // A small job fits, and leaves it empty.
  const std::string job = service.Submit(spec, InDirectory(small.path()));
  EXPECT_EQ(service.WaitForEnd(job)["state"], "STATE_SUCCEEDED");
  EXPECT_TRUE(fs::is_empty(small.path()));

  const MemoryFileSystem fixed(service.Path("fixed"), "", MS_RDONLY);
  const CommandResult read_only =
      TrySubmit(service, spec, InDirectory(fixed.path()));
  EXPECT_EQ(read_only.exit_code, 5);
  EXPECT_THAT(read_only.err,
              AllOf(HasSubstr(fixed.path()),
                    HasSubstr("takes no files: Read-only file system")));
}

// The file has no name: it needs its directory for a moment only.
TEST_P(DiskOffloadOf, GoesOnWhereItsDirectoryVanishes) {
  Service service;
  const std::string spec = BaseSpec(service);
  const std::vector<std::string> sets = With(kOddSizes, {"steps=300"});
  const std::string directory = MakeDirectory(service, "values");
  const std::string job =
      service.Submit(spec, With(sets, InDirectory(directory)));
  ASSERT_TRUE(ReachesStep(service, job, 3));
  ASSERT_LT(service.Get(job)["last_step"], 300);
  fs::remove_all(directory);
  const nlohmann::json ended = service.WaitForEnd(job);
  ASSERT_EQ(ended["state"], "STATE_SUCCEEDED") << ended.dump(1);
  const nlohmann::json plain = service.WaitForEnd(service.Submit(spec, sets));
  EXPECT_EQ(ended["weights_hash"], plain["weights_hash"]);
  EXPECT_FALSE(fs::exists(directory));
}

TEST_P(DiskOffloadOf, NothingIsLeftAfterAKill) {
  Service service;
  const std::string directory = MakeDirectory(service, "values");
  const std::string job = service.Submit(
      BaseSpec(service), With(InDirectory(directory), {"steps=100000"}));
  ASSERT_TRUE(ReachesStep(service, job, 2));
  const std::vector<pid_t> ranks = service.Processes("EBB_RANK=");
  ASSERT_EQ(ranks.size(), 1u);
  kill(ranks[0], SIGKILL);
  const nlohmann::json ended = service.WaitForEnd(job);
  EXPECT_EQ(ended["state"], "STATE_FAILED");
  EXPECT_TRUE(fs::is_empty(directory));
  ExpectNoValuesIn(ended["directory"]);
}

// To disk, to another directory, to host memory and back: memory follows, the
// numbers do not move.
TEST(DiskOffload, SwitchesWhileItTrains) {
  Service service;
  const std::string spec = BaseSpec(service);
  constexpr int kSteps = 1500;
  const std::vector<std::string> sets =
      With(kOddSizes, {absl::StrCat("steps=", kSteps)});
  const std::string job = service.Submit(spec, sets);
  ASSERT_TRUE(ReachesStep(service, job, 3));
  const std::string first = MakeDirectory(service, "first");
  const std::string second = MakeDirectory(service, "second");
  const auto policy = [&](const std::vector<std::string>& memory) {
    std::vector<std::string> arguments = {"policy", job, "none"};
    for (const std::string& set : memory) {
      arguments.push_back("--set");
      arguments.push_back("memory." + set);
    }
    return arguments;
  };
  std::vector<std::pair<int64_t, bool>> on_disk;  // from a step on
  const auto change = [&](const std::vector<std::string>& memory, bool disk) {
    const nlohmann::json done = service.EbbJson(policy(memory));
    EXPECT_EQ(done["state"], "STATE_DONE") << done.dump(1);
    on_disk.push_back({done["step"].get<int64_t>(), disk});
  };
  const CommandResult refused = service.Ebb(
      policy({"offload=disk", "offload_dir=" + service.Path("none")}));
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_THAT(refused.err, HasSubstr(service.Path("none")));
  change({"offload=disk", "offload_dir=" + first}, true);
  change({"offload=disk", "offload_dir=" + second}, true);
  change({"offload=host"}, false);
  change({"offload=disk"}, true);
  change({"offload=none"}, false);
  EXPECT_TRUE(fs::is_empty(first));
  EXPECT_TRUE(fs::is_empty(second));
  const nlohmann::json ended = service.WaitForEnd(job);
  ASSERT_EQ(ended["state"], "STATE_SUCCEEDED") << ended.dump(1);
  EXPECT_EQ(ended["attempt"], 1);
  const std::string kept = service.Submit(spec, sets);
  EXPECT_EQ(ended["weights_hash"], service.WaitForEnd(kept)["weights_hash"]);
  const auto steps = service.Steps(job);
  EXPECT_EQ(Numbers(steps), Numbers(service.Steps(kept)));
  ASSERT_EQ(steps.size(), size_t{kSteps});
  on_disk.push_back({kSteps + 1, false});
  for (size_t n = 0; n + 1 < on_disk.size(); ++n) {
    for (int64_t s = on_disk[n].first; s < on_disk[n + 1].first; ++s) {
      ASSERT_EQ(DiskBytes(steps[s - 1]) > 0, on_disk[n].second) << "step " << s;
    }
  }
}

}  // namespace
}  // namespace ebb
