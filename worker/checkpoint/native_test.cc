// Checkpoints survive what disks and crashes do to them.
#include "worker/checkpoint/native.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/philox.h"
#include "worker/checkpoint/crc32c.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class Checkpoint : public testing::Test {
 protected:
  Checkpoint() {
    // In memory where there is such a directory: syncing takes milliseconds on
    // a disk, and these tests do it thousands of times.
    const fs::path memory = "/dev/shm";
    const fs::path base =
        fs::is_directory(memory) ? memory : fs::temp_directory_path();
    std::string pattern = (base / "ebb-checkpoint.XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    parent_ = pattern;
    for (int i = 0; i < 100; ++i) weight_.push_back(0.5f * i);
    for (int i = 0; i < 7; ++i) bias_.push_back(-1.0f * i);
  }
  ~Checkpoint() override { fs::remove_all(parent_); }

  std::vector<CheckpointTensor> Tensors() const {
    const TensorType matrix(DType::kF32, 10, 10);
    const TensorType vector(DType::kF32, 7);
    return {
        {"L0.qkv.weight", CheckpointRole::kParameter, matrix, weight_.data()},
        {"L0.qkv.bias", CheckpointRole::kParameter, vector, bias_.data()},
        {"L0.qkv.weight", CheckpointRole::kFirstMoment, matrix,
         weight_.data()}};
  }

  absl::Status Write(int64_t step, FileSystem& files = PosixFileSystem()) {
    CheckpointMeta meta;
    meta.step = step;
    meta.attempt = 2;
    meta.seed = 1234;
    meta.sequences = 8 * step;
    meta.graph_fingerprint = 0xfedcba9876543210;
    meta.spec = "{\"steps\": 6}";
    return WriteCheckpoint(parent_, meta, Tensors(), files).status();
  }

  std::string Path(const std::string& name) const {
    return absl::StrCat(parent_, "/", name);
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(parent_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  static std::string Content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  static void Put(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  }
  // Opens and reads every tensor.
  absl::Status ReadAll(const std::string& name) const {
    auto reader = CheckpointReader::Open(Path(name));
    if (!reader.ok()) return reader.status();
    for (const CheckpointEntry& entry : reader->entries()) {
      std::vector<char> out(entry.type.bytes());
      const absl::Status status =
          reader->Read(entry.name, entry.role, entry.type, out.data());
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  std::string parent_;
  std::vector<float> weight_;
  std::vector<float> bias_;
};

TEST(Crc32c, KnownAnswer) {
  EXPECT_EQ(Crc32c(0, "123456789", 9), 0xE3069283u);  // RFC 3720, B.4
}

// A job that trains prunes what someone else reads.
TEST_F(Checkpoint, CanBeReadOnAfterItIsPruned) {
  ASSERT_TRUE(Write(3).ok());
  const auto reader = CheckpointReader::Open(Path("step-3"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::filesystem::remove_all(Path("step-3"));
  for (const CheckpointTensor& tensor : Tensors()) {
    std::vector<float> out(tensor.type.num_elements());
    ASSERT_TRUE(
        reader->Read(tensor.name, tensor.role, tensor.type, out.data()).ok());
    EXPECT_EQ(memcmp(out.data(), tensor.data, tensor.type.bytes()), 0);
  }
}

// A job that writes at every step and keeps one prunes what was just listed.
TEST_F(Checkpoint, TheNewestIsFoundWhileOlderOnesArePruned) {
  constexpr int kNumCheckpoints = 60;
  ASSERT_TRUE(Write(1).ok());
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int step = 2; step <= kNumCheckpoints; ++step) {
      EXPECT_TRUE(Write(step).ok());
      EXPECT_TRUE(PruneCheckpoints(parent_, 1).ok());
    }
    done = true;
  });
  while (!done) {
    const auto found = FindNewestComplete(parent_);
    ASSERT_TRUE(found.ok()) << found.status();
    for (const CheckpointTensor& tensor : Tensors()) {
      std::vector<float> out(tensor.type.num_elements());
      EXPECT_EQ(
          found->reader.Read(tensor.name, tensor.role, tensor.type, out.data()),
          absl::OkStatus());
    }
  }
  writer.join();
}

// One that is pruned while it is opened is gone, not broken.
TEST_F(Checkpoint, IsGoneWhileItIsPruned) {
  constexpr int kNumCheckpoints = 60;
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int step = 1; step <= kNumCheckpoints; ++step) {
      EXPECT_TRUE(Write(step).ok());
      EXPECT_TRUE(PruneCheckpoints(parent_, 1).ok());
    }
    done = true;
  });
  while (!done) {
    for (int step = 1; step <= kNumCheckpoints; ++step) {
      const std::string path = Path(absl::StrCat("step-", step));
      const absl::Status status = CheckpointReader::Open(path).status();
      EXPECT_TRUE(status.ok() || absl::IsNotFound(status)) << status;
    }
  }
  writer.join();
}

TEST_F(Checkpoint, ComesBackAsItWas) {
  ASSERT_TRUE(Write(3).ok());
  EXPECT_THAT(Names(), ElementsAre("step-3"));
  auto reader = CheckpointReader::Open(Path("step-3"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->meta().step, 3);
  EXPECT_EQ(reader->meta().attempt, 2);
  EXPECT_EQ(reader->meta().seed, 1234u);
  EXPECT_EQ(reader->meta().sequences, 24);
  EXPECT_EQ(reader->meta().graph_fingerprint, 0xfedcba9876543210);
  EXPECT_EQ(reader->meta().spec, "{\"steps\": 6}");
  for (const CheckpointTensor& tensor : Tensors()) {
    std::vector<float> out(tensor.type.num_elements());
    ASSERT_TRUE(
        reader->Read(tensor.name, tensor.role, tensor.type, out.data()).ok());
    EXPECT_EQ(memcmp(out.data(), tensor.data, tensor.type.bytes()), 0);
  }
  float unused;
  EXPECT_EQ(reader
                ->Read("L1.qkv.bias", CheckpointRole::kParameter,
                       TensorType(DType::kF32, 1), &unused)
                .code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(reader
                ->Read("L0.qkv.bias", CheckpointRole::kParameter,
                       TensorType(DType::kF32, 1), &unused)
                .code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(Checkpoint, EveryFlippedByteIsFound) {
  ASSERT_TRUE(Write(1).ok());
  for (const char* name : {"manifest.json", "rank-0.bin"}) {
    const std::string path = Path(absl::StrCat("step-1/", name));
    const std::string good = Content(path);
    for (size_t i = 0; i < good.size(); i += 3) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 0x10);
      Put(path, bad);
      const absl::Status status = ReadAll("step-1");
      EXPECT_TRUE(absl::IsDataLoss(status) ||
                  absl::IsFailedPrecondition(status))
          << name << " byte " << i << ": " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(parent_));
    }
    Put(path, good);
  }
  EXPECT_TRUE(ReadAll("step-1").ok());
}

TEST_F(Checkpoint, EveryCutIsFound) {
  ASSERT_TRUE(Write(1).ok());
  for (const char* name : {"manifest.json", "rank-0.bin"}) {
    const std::string path = Path(absl::StrCat("step-1/", name));
    const std::string good = Content(path);
    for (size_t size = 0; size < good.size(); size += 13) {
      Put(path, good.substr(0, size));
      EXPECT_TRUE(absl::IsDataLoss(ReadAll("step-1"))) << name << " " << size;
    }
    Put(path, good + "x");
    EXPECT_TRUE(absl::IsDataLoss(ReadAll("step-1"))) << name;
    Put(path, good);
  }
  fs::remove(Path("step-1/rank-0.bin"));
  EXPECT_TRUE(absl::IsDataLoss(ReadAll("step-1")));
  fs::remove(Path("step-1/manifest.json"));
  EXPECT_TRUE(absl::IsNotFound(ReadAll("step-1")));
}

TEST_F(Checkpoint, HostileManifestsNeverCrash) {
  ASSERT_TRUE(Write(1).ok());
  const std::string path = Path("step-1/manifest.json");
  const std::string good = Content(path);
  uint64_t state = 5;
  for (int round = 0; round < 500; ++round) {
    std::string bad = good;
    state = philox::Mix(state);
    for (uint64_t edits = 1 + state % 4; edits > 0; --edits) {
      state = philox::Mix(state);
      const size_t at = state % bad.size();
      switch ((state >> 40) % 3) {
        case 0:
          bad[at] = static_cast<char>(state >> 48);
          break;
        case 1:
          bad.erase(at, 1 + (state >> 50) % 9);
          break;
        case 2:
          bad.insert(at, bad.substr(bad.size() / 2, 5));
          break;
      }
      if (bad.empty()) bad = "{";
    }
    Put(path, bad);
    if (bad != good) {
      EXPECT_FALSE(ReadAll("step-1").ok());
    }
  }
}

TEST_F(Checkpoint, ReplacesOneOfTheSameStep) {
  ASSERT_TRUE(Write(2).ok());
  weight_[0] = 42;
  ASSERT_TRUE(Write(2).ok());
  EXPECT_THAT(Names(), ElementsAre("step-2"));
  auto reader = CheckpointReader::Open(Path("step-2"));
  ASSERT_TRUE(reader.ok());
  std::vector<float> out(100);
  ASSERT_TRUE(reader
                  ->Read("L0.qkv.weight", CheckpointRole::kParameter,
                         TensorType(DType::kF32, 10, 10), out.data())
                  .ok());
  EXPECT_EQ(out[0], 42);
}

TEST_F(Checkpoint, TwoTensorsOfOneNameAreRefused) {
  std::vector<CheckpointTensor> tensors = Tensors();
  tensors.push_back(tensors[0]);
  EXPECT_EQ(WriteCheckpoint(parent_, CheckpointMeta(), tensors).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(Checkpoint, NewestCompleteIsFoundAndDamagedOnesAreNamed) {
  for (int64_t step : {2, 4, 10}) ASSERT_TRUE(Write(step).ok());
  fs::create_directory(Path(".step-12.partial-0"));
  fs::create_directory(Path("step-011"));
  Put(Path("step-10/rank-0.bin"), "short");
  auto found = FindNewestComplete(parent_);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->step, 4);
  EXPECT_EQ(found->directory, Path("step-4"));
  ASSERT_EQ(found->skipped.size(), 1u);
  EXPECT_THAT(found->skipped[0], HasSubstr("step-10"));
  found = FindNewestComplete(parent_, 4);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->step, 2);
  EXPECT_TRUE(absl::IsNotFound(FindNewestComplete(parent_, 2).status()));
  EXPECT_TRUE(absl::IsNotFound(FindNewestComplete(Path("none")).status()));
}

TEST_F(Checkpoint, PruningKeepsTheNewestComplete) {
  for (int64_t step : {1, 2, 3, 4}) ASSERT_TRUE(Write(step).ok());
  Put(Path("step-4/rank-0.bin"), "short");
  fs::create_directory(Path(".step-9.partial-0"));
  auto removed = PruneCheckpoints(parent_, 2);
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(*removed, UnorderedElementsAre("step-1", ".step-9.partial-0"));
  EXPECT_THAT(Names(), UnorderedElementsAre("step-2", "step-3", "step-4"));
}

TEST_F(Checkpoint, WeightsOfAnotherModelListEverything) {
  ASSERT_TRUE(Write(1).ok());
  const auto reader = CheckpointReader::Open(Path("step-1"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  const WeightsMatch match = MatchWeights(
      *reader, std::vector<WantedWeight>{
                   {"L0.qkv.weight", TensorType(DType::kF32, 100), nullptr},
                   {"L0.mlp.fc.weight", TensorType(DType::kF32, 4), nullptr}});
  const absl::Status status = match.ToStatus("somewhere");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const char* text :
       {"somewhere", "L0.qkv.weight", "L0.mlp.fc.weight", "[10, 10]"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
  EXPECT_THAT(match.unused, ElementsAre("L0.qkv.bias"));
}

// What happens at the n-th operation.
enum class Fault {
  kFails,  // it fails, the next ones work: the writer tidies up
  kDies,   // nothing has any effect from here on: the process was killed
};

// A file system with one fault, with or without the exchange of names.
class FaultyFileSystem final : public FileSystem {
 public:
  FaultyFileSystem(int fail_at, int error, Fault fault = Fault::kFails,
                   bool exchanges = true)
      : fail_at_(fail_at),
        error_(error),
        fault_(fault),
        exchanges_(exchanges) {}

  bool failed() const { return count_ > fail_at_; }
  // Operations in their order, runs of one kind as one.
  const std::vector<std::string>& log() const { return log_; }

  int MakeDirectory(const std::string& path) override {
    Log("make");
    return Fails() ? error_ : real_.MakeDirectory(path);
  }
  int Create(const std::string& path, int* descriptor) override {
    Log("create");
    return Fails() ? error_ : real_.Create(path, descriptor);
  }
  int Write(int descriptor, const void* data, int64_t bytes) override {
    Log("write");
    if (!Fails()) return real_.Write(descriptor, data, bytes);
    if (count_ == fail_at_ + 1) real_.Write(descriptor, data, bytes / 2);
    return error_;
  }
  int Sync(int descriptor) override {
    Log("sync");
    return Fails() ? error_ : real_.Sync(descriptor);
  }
  int Close(int descriptor) override {
    const int result = real_.Close(descriptor);
    return Fails() ? error_ : result;
  }
  int SyncDirectory(const std::string& path) override {
    Log("sync_directory");
    return Fails() ? error_ : real_.SyncDirectory(path);
  }
  int Rename(const std::string& from, const std::string& to) override {
    Log("rename");
    return Fails() ? error_ : real_.Rename(from, to);
  }
  int Exchange(const std::string& a, const std::string& b) override {
    Log("exchange");
    if (Fails()) return error_;
    return exchanges_ ? real_.Exchange(a, b) : EINVAL;
  }
  int List(const std::string& path, std::vector<std::string>* names) override {
    return FailsInRemoval() ? error_ : real_.List(path, names);
  }
  int RemoveFile(const std::string& path) override {
    Log("remove");
    return FailsInRemoval() ? error_ : real_.RemoveFile(path);
  }
  int RemoveDirectory(const std::string& path) override {
    return FailsInRemoval() ? error_ : real_.RemoveDirectory(path);
  }

 private:
  void Log(const char* operation) {
    if (log_.empty() || log_.back() != operation) log_.push_back(operation);
  }
  bool Fails() {
    const int at = count_++;
    return fault_ == Fault::kDies ? at >= fail_at_ : at == fail_at_;
  }
  // Removals count as operations only where the process may die in one.
  bool FailsInRemoval() { return fault_ == Fault::kDies && Fails(); }

  FileSystem& real_ = PosixFileSystem();
  const int fail_at_;
  const int error_;
  const Fault fault_;
  const bool exchanges_;
  int count_ = 0;
  std::vector<std::string> log_;
};

// What a crash of the machine leaves is a matter of order: contents before the
// directory, the directory before its name, the name before the old one goes.
TEST_F(Checkpoint, SyncsBeforeAnythingDependsOnIt) {
  constexpr int kNever = 1 << 30;
  FaultyFileSystem first(kNever, 0);
  ASSERT_TRUE(Write(1, first).ok());
  EXPECT_THAT(
      first.log(),
      ElementsAre("make", "create", "write", "sync", "create", "write", "sync",
                  "sync_directory", "rename", "sync_directory"));
  FaultyFileSystem second(kNever, 0);
  ASSERT_TRUE(Write(1, second).ok());
  EXPECT_THAT(second.log(),
              ElementsAre("make", "create", "write", "sync", "create", "write",
                          "sync", "sync_directory", "rename", "exchange",
                          "sync_directory", "remove"));
  FaultyFileSystem third(kNever, 0, Fault::kFails, /*exchanges=*/false);
  ASSERT_TRUE(Write(1, third).ok());
  EXPECT_THAT(third.log(),
              ElementsAre("make", "create", "write", "sync", "create", "write",
                          "sync", "sync_directory", "rename", "exchange",
                          "make", "rename", "sync_directory", "remove"));
}

TEST_F(Checkpoint, AFailureAtAnyOperationLeavesTheOthersWhole) {
  ASSERT_TRUE(Write(1).ok());
  int num_operations = 0;
  for (int fail_at = 0;; ++fail_at) {
    FaultyFileSystem files(fail_at, ENOSPC);
    const absl::Status status = Write(2, files);
    if (!files.failed()) {
      EXPECT_TRUE(status.ok());
      break;
    }
    ++num_operations;
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << fail_at << status;
    EXPECT_TRUE(ReadAll("step-1").ok());
    // Whatever has its final name is complete.
    if (fs::exists(Path("step-2"))) {
      EXPECT_TRUE(ReadAll("step-2").ok());
      fs::remove_all(Path("step-2"));
    }
    EXPECT_THAT(Names(), ElementsAre("step-1")) << fail_at;
  }
  EXPECT_GT(num_operations, 10);
}

TEST_F(Checkpoint, AFailureWhileReplacingLeavesOneOfTheTwo) {
  for (const bool exchanges : {true, false}) {
    ASSERT_TRUE(Write(1).ok());
    for (int fail_at = 0;; ++fail_at) {
      FaultyFileSystem files(fail_at, EIO, Fault::kFails, exchanges);
      const absl::Status status = Write(1, files);
      EXPECT_TRUE(ReadAll("step-1").ok()) << fail_at;
      if (!files.failed()) {
        EXPECT_TRUE(status.ok()) << status;
        break;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << fail_at;
      // An old one that could not be let go waits for this.
      ASSERT_TRUE(PruneCheckpoints(parent_, 1).ok());
      ASSERT_THAT(Names(), ElementsAre("step-1"));
    }
  }
}

// Killed before any operation: a complete checkpoint is found, no older one is
// touched, and the next run writes and tidies up as if nothing had been.
TEST_F(Checkpoint, DeathAtAnyOperationLeavesTheNewestComplete) {
  int num_deaths = 0;
  for (int die_at = 0;; ++die_at) {
    ASSERT_TRUE(Write(1).ok());
    FaultyFileSystem files(die_at, EIO, Fault::kDies);
    const absl::Status status = Write(2, files);
    EXPECT_EQ(status.ok(), !files.failed()) << die_at << status;
    auto found = FindNewestComplete(parent_);
    ASSERT_TRUE(found.ok()) << die_at << found.status();
    EXPECT_EQ(ReadAll(fs::path(found->directory).filename()), absl::OkStatus());
    EXPECT_EQ(ReadAll("step-1"), absl::OkStatus());
    if (!files.failed()) {
      EXPECT_EQ(found->step, 2);
      break;
    }
    ++num_deaths;
    EXPECT_EQ(Write(2), absl::OkStatus());
    EXPECT_TRUE(PruneCheckpoints(parent_, 2).ok());
    EXPECT_THAT(Names(), UnorderedElementsAre("step-1", "step-2"));
    fs::remove_all(Path("step-2"));
  }
  EXPECT_GT(num_deaths, 10);
}

TEST_F(Checkpoint, DeathWhileReplacingLeavesOneOfTheTwo) {
  for (const bool exchanges : {true, false}) {
    int num_deaths = 0;
    for (int die_at = 0;; ++die_at) {
      weight_[0] = 1;
      ASSERT_TRUE(Write(1).ok());
      weight_[0] = 2;
      FaultyFileSystem files(die_at, EIO, Fault::kDies, exchanges);
      const absl::Status status = Write(1, files);
      auto found = FindNewestComplete(parent_);
      ASSERT_TRUE(found.ok()) << die_at << found.status();
      EXPECT_EQ(found->step, 1);
      EXPECT_EQ(ReadAll(fs::path(found->directory).filename()),
                absl::OkStatus());
      auto reader = CheckpointReader::Open(found->directory);
      std::vector<float> out(100);
      ASSERT_TRUE(reader
                      ->Read("L0.qkv.weight", CheckpointRole::kParameter,
                             TensorType(DType::kF32, 10, 10), out.data())
                      .ok());
      EXPECT_TRUE(out[0] == 1 || out[0] == 2) << out[0];
      if (status.ok()) {
        EXPECT_EQ(out[0], 2) << die_at;
      }
      // Pruning never takes the one that is complete.
      ASSERT_TRUE(PruneCheckpoints(parent_, 1).ok());
      ASSERT_TRUE(FindNewestComplete(parent_).ok()) << die_at;
      if (!files.failed()) break;
      ++num_deaths;
    }
    EXPECT_GT(num_deaths, 12);
    EXPECT_THAT(Names(), ElementsAre("step-1"));
  }
}

// A killed prune may leave half a directory, never one that looks complete.
TEST_F(Checkpoint, DeathWhilePruningLeavesNoHalfCheckpoint) {
  for (int die_at = 0;; ++die_at) {
    for (int64_t step : {1, 2, 3}) ASSERT_TRUE(Write(step).ok());
    FaultyFileSystem files(die_at, EIO, Fault::kDies);
    const bool pruned = PruneCheckpoints(parent_, 1, files).ok();
    EXPECT_EQ(ReadAll("step-3"), absl::OkStatus());
    for (const char* name : {"step-1", "step-2"}) {
      if (CheckpointReader::Open(Path(name)).ok()) {
        EXPECT_EQ(ReadAll(name), absl::OkStatus());
      }
    }
    EXPECT_TRUE(PruneCheckpoints(parent_, 1).ok());
    EXPECT_THAT(Names(), ElementsAre("step-3"));
    if (!files.failed()) {
      EXPECT_TRUE(pruned);
      break;
    }
  }
}

TEST_F(Checkpoint, MakesTheDirectoriesOnTheWay) {
  parent_ = Path("a/b/checkpoints");
  EXPECT_EQ(Write(1), absl::OkStatus());
  EXPECT_EQ(ReadAll("step-1"), absl::OkStatus());
  parent_ = fs::path(parent_).parent_path().parent_path().parent_path();
}

TEST_F(Checkpoint, OneUnderAnotherStepsNameIsPassedOver) {
  ASSERT_TRUE(Write(1).ok());
  ASSERT_TRUE(Write(2).ok());
  fs::rename(Path("step-2"), Path("step-7"));
  auto found = FindNewestComplete(parent_);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->step, 1);
  EXPECT_THAT(found->skipped, ElementsAre(HasSubstr("of step 2")));
}

}  // namespace
}  // namespace ebb
