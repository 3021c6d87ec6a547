// Reopening, all or nothing, newer schemas, damage.
#include "server/store.h"

#include <sqlite3.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/storeXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    path_ = directory_ + "/ebbd.db";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Store> Open() {
    auto store = Store::Open(path_);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  static v1::Job Job(const std::string& id, v1::State state) {
    v1::Job job;
    job.set_id(id);
    job.set_state(state);
    job.set_name("name \"of\" \\ " + id);
    job.mutable_spec()->set_steps(100);
    job.mutable_plan()->set_policy("none");
    job.mutable_plan()->add_decisions()->set_value("x");
    return job;
  }

  static Change NewJob(const std::string& id, int64_t sequence = 1) {
    Change change;
    change.new_jobs.push_back(Job(id, v1::STATE_QUEUED));
    EventRow event;
    event.job_id = id;
    event.event.set_sequence(sequence);
    *event.event.mutable_job() = change.new_jobs[0];
    change.events.push_back(event);
    return change;
  }

  static StepRow Step(int64_t step, int attempt, int rank, double loss) {
    StepRow row;
    row.job_id = "aaaaaaaa";
    row.rank = rank;
    row.step.set_step(step);
    row.step.set_attempt(attempt);
    row.step.set_loss(loss);
    row.step.add_ranks()->set_rank(rank);
    return row;
  }

  std::string directory_;
  std::string path_;
};

TEST_F(StoreTest, KeepsEverythingOverReopening) {
  {
    auto store = Open();
    Change change = NewJob("aaaaaaaa");
    change.requests.push_back({"request", "aaaaaaaa", "spec bytes"});
    change.attempts.push_back(
        {"aaaaaaaa", 1, absl::FromUnixMicros(1234567), false});
    RankRow rank;
    rank.job_id = "aaaaaaaa";
    rank.attempt = 1;
    rank.rank = 0;
    rank.sequence = 7;
    rank.started = true;
    rank.finished.emplace().set_message("done");
    change.ranks.push_back(rank);
    ASSERT_TRUE(store->Apply(change).ok());
  }
  auto store = Open();
  const auto job = store->GetJob("aaaaaaaa");
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->job.name(), "name \"of\" \\ aaaaaaaa");
  EXPECT_EQ(job->job.spec().steps(), 100);
  EXPECT_EQ(job->job.plan().decisions_size(), 1);
  EXPECT_EQ(store->GetRequest("request").value()->spec, "spec bytes");
  EXPECT_FALSE(store->GetRequest("other").value().has_value());
  EXPECT_EQ(
      absl::ToUnixMicros(store->GetAttempt("aaaaaaaa", 1).value()->launch_time),
      1234567);
  const auto ranks = store->Ranks("aaaaaaaa", 1);
  ASSERT_EQ(ranks->size(), 1u);
  EXPECT_EQ((*ranks)[0].sequence, 7);
  EXPECT_EQ((*ranks)[0].finished->message(), "done");
  EXPECT_EQ(store->LastEvent("aaaaaaaa").value(), 1);
  EXPECT_EQ(store->Events("aaaaaaaa", 0, 10)->size(), 1u);
  EXPECT_EQ(store->GetJob("bbbbbbbb").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(StoreTest, AChangeIsAllOrNothing) {
  auto store = Open();
  ASSERT_TRUE(store->Apply(NewJob("aaaaaaaa")).ok());
  // The second job's event number is taken by its own first event.
  Change change = NewJob("bbbbbbbb");
  change.events.push_back(change.events[0]);
  EXPECT_EQ(store->Apply(change).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_FALSE(store->GetJob("bbbbbbbb").ok());
  EXPECT_EQ(store->Events("bbbbbbbb", 0, 10)->size(), 0u);
  // And the connection is usable afterwards.
  EXPECT_TRUE(store->Apply(NewJob("bbbbbbbb")).ok());
}

TEST_F(StoreTest, ARequestIdIsTakenOnce) {
  auto store = Open();
  Change first = NewJob("aaaaaaaa");
  first.requests.push_back({"r", "aaaaaaaa", ""});
  ASSERT_TRUE(store->Apply(first).ok());
  Change second = NewJob("bbbbbbbb");
  second.requests.push_back({"r", "bbbbbbbb", ""});
  EXPECT_EQ(store->Apply(second).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_FALSE(store->GetJob("bbbbbbbb").ok());
}

TEST_F(StoreTest, ACrashBeforeTheCommitLeavesTheOldState) {
  {
    auto store = Open();
    ASSERT_TRUE(store->Apply(NewJob("aaaaaaaa")).ok());
  }
  // A writer that dies inside its transaction.
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
  sqlite3_exec(db, "BEGIN; UPDATE jobs SET state = 6", nullptr, nullptr,
               nullptr);
  std::filesystem::copy(directory_, directory_ + "-copy");
  sqlite3_close(db);
  path_ = directory_ + "-copy/ebbd.db";
  EXPECT_EQ(Open()->GetJob("aaaaaaaa")->job.state(), v1::STATE_QUEUED);
  EXPECT_EQ(Open()->CountJobs()->at(v1::STATE_FAILED), 0);
  std::filesystem::remove_all(directory_ + "-copy");
}

TEST_F(StoreTest, ListsNewestFirstByStateAndBytes) {
  auto store = Open();
  for (const char* id : {"aaaaaaaa", "bbbbbbbb", "cccccccc"}) {
    ASSERT_TRUE(store->Apply(NewJob(id)).ok());
  }
  Change change;
  change.jobs.push_back(Job("bbbbbbbb", v1::STATE_FAILED));
  ASSERT_TRUE(store->Apply(change).ok());
  const auto all = store->ListJobs({}, 0, 10, 1 << 20);
  ASSERT_EQ(all->size(), 3u);
  EXPECT_EQ((*all)[0].job.id(), "cccccccc");
  EXPECT_EQ((*all)[0].job.plan().decisions_size(), 0);
  EXPECT_EQ((*all)[0].job.spec().steps(), 100);
  EXPECT_EQ(store->ListJobs({}, (*all)[0].number, 1, 1 << 20)->at(0).job.id(),
            "bbbbbbbb");
  const auto failed = store->ListJobs({v1::STATE_FAILED}, 0, 10, 1 << 20);
  ASSERT_EQ(failed->size(), 1u);
  EXPECT_EQ((*failed)[0].job.id(), "bbbbbbbb");
  EXPECT_EQ(store->ListJobs({}, 0, 10, 1)->size(), 1u) << "at least one";
  EXPECT_EQ(store->LiveJobs()->size(), 2u);
  EXPECT_EQ(store->CountJobs()->at(v1::STATE_QUEUED), 2);
}

TEST_F(StoreTest, StepsComeFromTheNewestAttemptAndWhole) {
  auto store = Open();
  Change change;
  change.steps = {Step(1, 1, 0, 5), Step(1, 1, 1, 5), Step(2, 1, 0, 4),
                  Step(2, 1, 1, 4), Step(3, 1, 0, 3)};
  ASSERT_TRUE(store->Apply(change).ok());
  auto steps = store->Steps("aaaaaaaa", 2, 0, 10);
  ASSERT_EQ(steps->size(), 2u) << "step 3 lacks a rank";
  EXPECT_EQ((*steps)[0].ranks_size(), 2);
  // The second attempt repeats step 2; a late report of the first changes
  // nothing.
  Change again;
  again.steps = {Step(2, 2, 0, 4.5), Step(2, 2, 1, 4.5), Step(2, 1, 0, 9)};
  ASSERT_TRUE(store->Apply(again).ok());
  steps = store->Steps("aaaaaaaa", 2, 1, 10);
  ASSERT_EQ(steps->size(), 1u);
  EXPECT_EQ((*steps)[0].loss(), 4.5);
  EXPECT_EQ((*steps)[0].attempt(), 2);
  EXPECT_EQ(store->Steps("aaaaaaaa", 2, 0, 1)->size(), 1u);
}

TEST_F(StoreTest, DeletesAllRowsOfAJob) {
  auto store = Open();
  Change change = NewJob("aaaaaaaa");
  change.requests.push_back({"r", "aaaaaaaa", ""});
  change.steps = {Step(1, 1, 0, 5)};
  ASSERT_TRUE(store->Apply(change).ok());
  ASSERT_TRUE(store->DeleteJob("aaaaaaaa").ok());
  EXPECT_FALSE(store->GetJob("aaaaaaaa").ok());
  EXPECT_FALSE(store->GetRequest("r").value().has_value());
  EXPECT_TRUE(store->Steps("aaaaaaaa", 1, 0, 10)->empty());
  EXPECT_TRUE(store->Events("aaaaaaaa", 0, 10)->empty());
}

TEST_F(StoreTest, PlansChangeWithTheirJob) {
  auto store = Open();
  Change change = NewJob("aaaaaaaa");
  PlansRow row = {"aaaaaaaa", {}};
  row.plans.set_last_switch(1);
  change.plans.push_back(row);
  ASSERT_TRUE(store->Apply(change).ok());
  EXPECT_EQ(store->GetPlans("aaaaaaaa")->last_switch(), 1);
  EXPECT_EQ(store->GetPlans("bbbbbbbb")->last_switch(), 0);

  Change again;
  again.replanned_jobs.push_back(Job("aaaaaaaa", v1::STATE_RUNNING));
  again.replanned_jobs[0].mutable_plan()->set_policy("full");
  again.replanned_jobs[0].mutable_spec()->mutable_memory()->set_policy(
      v1::POLICY_FULL);
  row.plans.set_last_switch(2);
  again.plans.push_back(row);
  ASSERT_TRUE(store->Apply(again).ok());
  store = Open();
  const auto job = store->GetJob("aaaaaaaa");
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->job.state(), v1::STATE_RUNNING);
  EXPECT_EQ(job->job.plan().policy(), "full");
  EXPECT_EQ(job->job.spec().memory().policy(), v1::POLICY_FULL);
  EXPECT_EQ(store->GetPlans("aaaaaaaa")->last_switch(), 2);
  ASSERT_TRUE(store->DeleteJob("aaaaaaaa").ok());
  EXPECT_EQ(store->GetPlans("aaaaaaaa")->last_switch(), 0);
}

TEST_F(StoreTest, TakesOverAnOlderSchema) {
  ASSERT_TRUE(Open()->Apply(NewJob("aaaaaaaa")).ok());
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
  for (const char* sql : {"DROP TABLE job_plans", "PRAGMA user_version=1"}) {
    ASSERT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), SQLITE_OK);
  }
  sqlite3_close(db);
  auto store = Open();
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(store->GetJob("aaaaaaaa").ok());
  Change change;
  change.plans.push_back({"aaaaaaaa", {}});
  change.plans[0].plans.set_last_switch(3);
  ASSERT_TRUE(store->Apply(change).ok());
  store.reset();
  EXPECT_EQ(Open()->GetPlans("aaaaaaaa")->last_switch(), 3);
}

TEST_F(StoreTest, RefusesANewerSchema) {
  Open().reset();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
  sqlite3_exec(db, "PRAGMA user_version=3", nullptr, nullptr, nullptr);
  sqlite3_close(db);
  const auto store = Store::Open(path_);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("newer"));
}

TEST_F(StoreTest, KeepsWhatIsReadableOfADamagedFile) {
  constexpr int kJobs = 300;
  {
    auto store = Open();
    for (int i = 0; i < kJobs; ++i) {
      ASSERT_TRUE(store->Apply(NewJob(absl::StrCat("job", 10000 + i))).ok());
    }
  }
  const auto size = std::filesystem::file_size(path_);
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(size - 8192));
    file << std::string(8192, '\0');
  }
  auto store = Open();
  ASSERT_NE(store, nullptr);
  EXPECT_THAT(store->recovery_note(), HasSubstr("damaged"));
  EXPECT_TRUE(std::filesystem::exists(path_ + ".damaged-1"));
  int kept = 0;
  for (int i = 0; i < kJobs; ++i) {
    kept += store->GetJob(absl::StrCat("job", 10000 + i)).ok();
  }
  EXPECT_GT(kept, kJobs / 2);
  ASSERT_TRUE(store->Apply(NewJob("zzzzzzzz")).ok());
  EXPECT_TRUE(store->GetJob("zzzzzzzz").ok());
  EXPECT_TRUE(Open()->recovery_note().empty());
}

TEST_F(StoreTest, ACutTailOfTheJournalCostsOnlyTheTail) {
  auto store = Open();
  ASSERT_TRUE(store->Apply(NewJob("aaaaaaaa")).ok());
  ASSERT_TRUE(store->Apply(NewJob("bbbbbbbb")).ok());
  // As a crash leaves it, the last bytes of the journal lost.
  const std::string copy = directory_ + "-copy";
  std::filesystem::copy(directory_, copy);
  const std::string wal = copy + "/ebbd.db-wal";
  std::filesystem::resize_file(wal, std::filesystem::file_size(wal) - 100);
  std::filesystem::remove(copy + "/ebbd.db-shm");
  auto reopened = Store::Open(copy + "/ebbd.db");
  ASSERT_TRUE(reopened.ok()) << reopened.status();
  EXPECT_TRUE((*reopened)->GetJob("aaaaaaaa").ok());
  std::filesystem::remove_all(copy);
}

TEST_F(StoreTest, ReportsOperationsToTheObserver) {
  auto store = Open();
  std::vector<std::string> seen;
  store->SetObserver([&](const char* operation, absl::Duration duration) {
    EXPECT_GE(duration, absl::ZeroDuration());
    seen.push_back(operation);
  });
  ASSERT_TRUE(store->Apply(NewJob("aaaaaaaa")).ok());
  ASSERT_TRUE(store->GetJob("aaaaaaaa").ok());
  EXPECT_THAT(seen, ::testing::ElementsAre("apply", "get_job"));
  EXPECT_GT(store->SizeBytes(), 0);
}

}  // namespace
}  // namespace ebb
