// The page against its rules: catalogue and exporter agree both ways, the page
// passes promtool, series of a job come and go.
#include "server/exporter.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "monitoring/fake_clock.h"
#include "server/metrics_endpoint.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::Job LiveJob(const std::string& id, const std::string& name) {
  v1::Job job;
  job.set_id(id);
  job.set_name(name);
  job.set_state(v1::STATE_STARTING);
  job.set_attempt(1);
  job.mutable_spec()->set_steps(200);
  job.mutable_plan()->set_policy("full");
  job.mutable_plan()->set_budget_bytes(1 << 30);
  v1::RankPlan& rank = *job.mutable_plan()->add_ranks();
  (*rank.mutable_memory())["saved"] = 1000;
  return job;
}

v1::Step Step(int64_t number) {
  v1::Step step;
  step.set_step(number);
  step.set_loss(1e-9);
  step.set_gradient_norm(123456789.123);
  step.set_learning_rate(1e-3);
  step.set_tokens(1024);
  step.set_duration_seconds(0.02);
  step.set_model_flops(1e15);
  step.set_recompute_flops(2e14);
  (*step.mutable_phase_seconds())["forward"] = 0.01;
  (*step.mutable_phase_seconds())["nonsense"] = 5;
  v1::RankStep& rank = *step.add_ranks();
  (*rank.mutable_memory())["saved"].set_peak_bytes(1000);
  (*rank.mutable_memory())["nonsense"].set_peak_bytes(7);
  rank.set_host_bytes(300);
  (*rank.mutable_copied_bytes())["to_host"] = 4096;
  (*rank.mutable_copied_bytes())["nonsense"] = 8;
  v1::EncodeError& error = *rank.add_encode_errors();
  error.set_value("L*.mlp.act.y");
  error.set_relative_error(0.02);
  error.set_largest_error(0.25);
  step.mutable_time()->set_seconds(1700000000);
  return step;
}

class ExporterTest : public ::testing::Test {
 protected:
  ExporterTest()
      : table_(ParseCatalogue(BuiltInCatalogue()).value(), 10000),
        exporter_(&table_, &clock_) {}

  // Fills every family, as a run does.
  void FillAll() {
    exporter_.SetBuild("0.1.0", "c0ffee");
    exporter_.SetDeviceMemory("cpu", 1 << 30);
    exporter_.SetStoreSize(4096);
    exporter_.RpcKnown("unary", "ebb.v1.JobService", "GetJob");
    exporter_.QueueWaited(absl::Seconds(1));
    exporter_.StartTook(absl::Seconds(1));
    exporter_.CancelTook(absl::Seconds(1));
    exporter_.AttemptStarted(
        LiveJob("aaaaaaaa", "a\"b\\c\nd {} \xF0\x9F\x99\x82"), 1);
    exporter_.Heard("aaaaaaaa", 0);
    exporter_.StepStored("aaaaaaaa", 0, Step(1), false);
  }

  // promtool's exit code on the page.
  int CheckPage(std::string* complaint) {
    std::string pattern = ::testing::TempDir() + "/pageXXXXXX";
    const int fd = mkstemp(pattern.data());
    close(fd);
    std::ofstream(pattern) << table_.Text();
    FILE* pipe = popen(
        absl::StrCat("promtool check metrics < ", pattern, " 2>&1").c_str(),
        "r");
    char block[4096];
    while (size_t n = fread(block, 1, sizeof(block), pipe)) {
      complaint->append(block, n);
    }
    const int status = pclose(pipe);
    std::filesystem::remove(pattern);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  FakeClock clock_;
  MetricTable table_;
  Exporter exporter_;
};

TEST_F(ExporterTest, BuiltInCatalogueIsTheFile) {
  std::ifstream file(std::string(EBB_SOURCE_DIR) + "/monitoring/metrics.yaml");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(std::string(BuiltInCatalogue()), text.str());
}

TEST_F(ExporterTest, EveryEntryOfTheCatalogueIsFilled) {
  FillAll();
  const std::string page = table_.Text();
  const auto catalogue = ParseCatalogue(BuiltInCatalogue());
  for (const MetricEntry& entry : *catalogue) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("# TYPE ", entry.name, " ")))
        << "no series";
    if (entry.unit == "seconds" || entry.unit == "bytes") {
      EXPECT_THAT(entry.name, HasSubstr(entry.unit));
    }
    EXPECT_EQ(entry.type == MetricType::kCounter,
              entry.name.ends_with("_total"))
        << entry.name;
  }
}

TEST_F(ExporterTest, AFamilyOutsideTheCatalogueEndsTheProgram) {
  EXPECT_DEATH(table_.Set("ebb_unknown", {}, 1), "check failed");
  EXPECT_DEATH(table_.Set("ebb_jobs", {}, 1), "check failed");
  EXPECT_DEATH(table_.Add("ebb_jobs", {"queued"}, 1), "check failed");
}

TEST_F(ExporterTest, ThePagePassesPromtool) {
  FillAll();
  std::string complaint;
  EXPECT_EQ(CheckPage(&complaint), 0) << complaint;
}

// The page has what the newest step of each rank says.
TEST_F(ExporterTest, EncodeErrorsAreTheNewestStepsAlone) {
  FillAll();
  const std::string series =
      "ebb_train_encode_relative_error{job_id=\"aaaaaaaa\",rank=\"0\","
      "value=\"mlp.act.y\"} 0.02";
  EXPECT_THAT(table_.Text(), HasSubstr(series));
  v1::Step exact = Step(2);
  exact.mutable_ranks(0)->clear_encode_errors();
  exact.mutable_ranks(0)->set_rank(1);
  exporter_.StepStored("aaaaaaaa", 1, exact, false);
  EXPECT_THAT(table_.Text(), HasSubstr(series));
  exact.mutable_ranks(0)->set_rank(0);
  exporter_.StepStored("aaaaaaaa", 0, exact, false);
  EXPECT_THAT(table_.Text(),
              Not(HasSubstr("ebb_train_encode_relative_error{")));
  EXPECT_THAT(table_.Text(), Not(HasSubstr("ebb_train_encode_largest_error{")));
}

TEST_F(ExporterTest, TheBuildIsToldWithItsRevision) {
  FillAll();
  EXPECT_THAT(table_.Text(),
              HasSubstr("ebb_build_info{version=\"0.1.0\",revision=\"c0ffee\","
                        "cuda=\"none\",nccl=\"none\"} 1\n"));
}

TEST_F(ExporterTest, KnownLabelSetsStartAtZero) {
  const std::string page = table_.Text();
  EXPECT_THAT(page, HasSubstr("ebb_jobs{state=\"queued\"} 0"));
  EXPECT_THAT(page, HasSubstr("ebb_steps_total 0"));
  EXPECT_THAT(page, HasSubstr("ebb_jobs_finished_total{result=\"failed\","
                              "reason=\"start_timeout\"} 0"));
}

TEST_F(ExporterTest, JobSeriesBeginAtZeroWithTheAttempt) {
  EXPECT_THAT(table_.Text(), Not(HasSubstr("aaaaaaaa")));
  exporter_.AttemptStarted(LiveJob("aaaaaaaa", "n"), 1);
  const std::string page = table_.Text();
  EXPECT_THAT(page, HasSubstr("ebb_train_tokens_total{job_id=\"aaaaaaaa\"} 0"));
  EXPECT_THAT(page, HasSubstr("ebb_train_predicted_memory_peak_bytes{job_id="
                              "\"aaaaaaaa\",rank=\"0\",category=\"saved\"} "
                              "1000"));
  EXPECT_THAT(page, HasSubstr("ebb_train_planned_steps{job_id=\"aaaaaaaa\"} "
                              "200"));
}

TEST_F(ExporterTest, StepsCountOnceInBothPlaces) {
  exporter_.AttemptStarted(LiveJob("aaaaaaaa", "n"), 1);
  exporter_.StepStored("aaaaaaaa", 0, Step(1), false);
  exporter_.StepStored("aaaaaaaa", 0, Step(2), false);
  EXPECT_THAT(table_.Text(),
              HasSubstr("ebb_train_host_memory_bytes{job_id=\"aaaaaaaa\","
                        "rank=\"0\"} 300"));
  std::string page = table_.Text();
  EXPECT_THAT(page,
              HasSubstr("ebb_train_tokens_total{job_id=\"aaaaaaaa\"} 2048"));
  EXPECT_THAT(page, HasSubstr("ebb_tokens_total 2048"));
  EXPECT_THAT(page, HasSubstr("ebb_train_step{job_id=\"aaaaaaaa\"} 2"));
  EXPECT_THAT(page, HasSubstr("123456789.123"));
  EXPECT_THAT(page, Not(HasSubstr("nonsense")));
  // Found again after a restart: the job's own series alone.
  exporter_.StepStored("aaaaaaaa", 0, Step(3), true);
  page = table_.Text();
  EXPECT_THAT(page,
              HasSubstr("ebb_train_tokens_total{job_id=\"aaaaaaaa\"} 3072"));
  EXPECT_THAT(page, HasSubstr("ebb_tokens_total 2048"));
}

// All of it is exposed, and the series are there before the first step.
TEST_F(ExporterTest, RecomputeSecondsAreThePhases) {
  exporter_.AttemptStarted(LiveJob("aaaaaaaa", "n"), 1);
  const std::string series =
      "ebb_train_recompute_seconds_total{job_id=\"aaaaaaaa\",visibility=";
  for (const char* visibility : {"\"hidden\"} 0\n", "\"exposed\"} 0\n"}) {
    EXPECT_THAT(table_.Text(), HasSubstr(series + visibility));
  }
  v1::Step step = Step(1);
  exporter_.StepStored("aaaaaaaa", 0, step, false);
  (*step.mutable_phase_seconds())["recompute"] = 0.25;
  exporter_.StepStored("aaaaaaaa", 0, step, false);
  // Another rank's time is the same time.
  exporter_.StepStored("aaaaaaaa", 1, step, false);
  exporter_.StepStored("aaaaaaaa", 0, step, true);
  EXPECT_THAT(table_.Text(), HasSubstr(series + "\"hidden\"} 0\n"));
  EXPECT_THAT(table_.Text(), HasSubstr(series + "\"exposed\"} 0.5\n"));
  (*step.mutable_phase_seconds())["recompute"] = -1;
  exporter_.StepStored("aaaaaaaa", 0, step, false);
  EXPECT_THAT(table_.Text(), HasSubstr(series + "\"exposed\"} 0.5\n"));
}

TEST_F(ExporterTest, OffloadBytesAreTheSumOverRanks) {
  exporter_.AttemptStarted(LiveJob("aaaaaaaa", "n"), 2);
  const std::string series =
      "ebb_train_offload_bytes_total{job_id=\"aaaaaaaa\",direction=";
  for (const char* direction :
       {"to_host", "from_host", "to_disk", "from_disk"}) {
    EXPECT_THAT(table_.Text(),
                HasSubstr(absl::StrCat(series, "\"", direction, "\"} 0\n")));
  }
  v1::Step step = Step(1);
  (*step.mutable_ranks(0)->mutable_copied_bytes())["from_disk"] = 3;
  exporter_.StepStored("aaaaaaaa", 0, step, false);
  step.mutable_ranks(0)->set_rank(1);
  exporter_.StepStored("aaaaaaaa", 1, step, false);
  // Found again after a restart.
  exporter_.StepStored("aaaaaaaa", 1, step, true);
  // Of a program that did not count them.
  step.mutable_ranks(0)->clear_copied_bytes();
  exporter_.StepStored("aaaaaaaa", 1, step, false);
  const std::string page = table_.Text();
  EXPECT_THAT(page, HasSubstr(series + "\"to_host\"} 12288\n"));
  EXPECT_THAT(page, HasSubstr(series + "\"from_host\"} 0\n"));
  EXPECT_THAT(page, HasSubstr(series + "\"from_disk\"} 9\n"));
  EXPECT_THAT(page, Not(HasSubstr("nonsense")));
}

TEST_F(ExporterTest, CallsAreTimedFromTheirBeginToTheirEnd) {
  const auto of_method = [](const char* suffix, const char* le = "") {
    return absl::StrCat(
        "grpc_server_handling_seconds", suffix,
        "{grpc_type=\"unary\",grpc_service=\"s\",grpc_method=\"m\"", le, "} ");
  };
  exporter_.RpcKnown("unary", "s", "m");
  EXPECT_THAT(table_.Text(), HasSubstr(of_method("_count") + "0\n"));
  const absl::Duration start = exporter_.RpcStarted("unary", "s", "m");
  clock_.JumpWallTime(absl::Hours(5));
  clock_.Advance(absl::Milliseconds(375));
  EXPECT_THAT(table_.Text(), HasSubstr(of_method("_count") + "0\n"));
  exporter_.RpcHandled("unary", "s", "m", absl::StatusCode::kNotFound, start);
  const std::string page = table_.Text();
  EXPECT_THAT(page, HasSubstr(of_method("_count") + "1\n"));
  EXPECT_THAT(page, HasSubstr(of_method("_sum") + "0.375\n"));
  EXPECT_THAT(page, HasSubstr(of_method("_bucket", ",le=\"0.25\"") + "0\n"));
  EXPECT_THAT(page, HasSubstr(of_method("_bucket", ",le=\"0.5\"") + "1\n"));
}

TEST_F(ExporterTest, HostileNumbersNeverMoveACounterBack) {
  exporter_.AttemptStarted(LiveJob("aaaaaaaa", "n"), 1);
  exporter_.StepStored("aaaaaaaa", 0, Step(1), false);
  v1::Step step = Step(2);
  step.set_tokens(-5000);
  step.set_model_flops(std::nan(""));
  step.set_recompute_flops(INFINITY);
  step.set_duration_seconds(-1);
  step.set_loss(std::nan(""));
  exporter_.StepStored("aaaaaaaa", 0, step, false);
  EXPECT_THAT(table_.Text(),
              HasSubstr("ebb_train_tokens_total{job_id=\"aaaaaaaa\"} 1024"));
  std::string complaint;
  EXPECT_EQ(CheckPage(&complaint), 0) << complaint;
}

TEST_F(ExporterTest, SeriesGoSixtySecondsAfterTheEnd) {
  FillAll();
  exporter_.JobEnded("aaaaaaaa");
  clock_.JumpWallTime(absl::Hours(5));
  clock_.Advance(absl::Seconds(59));
  exporter_.Expire();
  EXPECT_THAT(table_.Text(), HasSubstr("aaaaaaaa"));
  clock_.Advance(absl::Seconds(1));
  exporter_.Expire();
  EXPECT_THAT(table_.Text(), Not(HasSubstr("aaaaaaaa")));
  EXPECT_THAT(table_.Text(), HasSubstr("ebb_tokens_total 1024"));
}

TEST_F(ExporterTest, ThePageIsAsLargeAfterAThousandJobsAsBefore) {
  const size_t before = table_.Text().size();
  for (int i = 0; i < 1000; ++i) {
    const std::string id = absl::StrCat("job", 10000 + i);
    exporter_.AttemptStarted(LiveJob(id, absl::StrCat("name ", i)), 4);
    exporter_.StepStored(id, 0, Step(1), false);
    exporter_.JobEnded(id);
    clock_.Advance(absl::Seconds(1));
    exporter_.Expire();
  }
  clock_.Advance(absl::Minutes(1));
  exporter_.Expire();
  const size_t after = table_.Text().size();
  EXPECT_LT(after, before * 1.05);
}

TEST_F(ExporterTest, ExactlyOneInfoForAJob) {
  v1::Job job = LiveJob("aaaaaaaa", "n");
  exporter_.AttemptStarted(job, 1);
  job.set_attempt(2);
  job.mutable_plan()->set_policy("none");
  exporter_.AttemptStarted(job, 1);
  const std::string page = table_.Text();
  const std::string series = "ebb_job_info{job_id=\"aaaaaaaa\"";
  const size_t first = page.find(series);
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(page.find(series, first + 1), std::string::npos);
  EXPECT_THAT(page, HasSubstr("policy=\"none\",attempt=\"2\"} 1"));
}

TEST_F(ExporterTest, JobsByStateFollowTheChanges) {
  exporter_.SetJobCounts({0, 1, 0, 0, 0, 5, 0, 0});
  v1::Job job = LiveJob("aaaaaaaa", "n");
  exporter_.JobChanged(v1::STATE_QUEUED, job);
  std::string page = table_.Text();
  EXPECT_THAT(page, HasSubstr("ebb_jobs{state=\"queued\"} 0"));
  EXPECT_THAT(page, HasSubstr("ebb_jobs{state=\"starting\"} 1"));
  EXPECT_THAT(page, HasSubstr("ebb_jobs{state=\"succeeded\"} 5"));
  EXPECT_THAT(page, HasSubstr("ebb_job_transitions_total{from=\"queued\",to="
                              "\"starting\"} 1"));
  exporter_.JobDeleted(v1::STATE_SUCCEEDED);
  EXPECT_THAT(table_.Text(), HasSubstr("ebb_jobs{state=\"succeeded\"} 4"));
}

TEST(MetricTable, DropsAndCountsWhatIsBeyondItsSize) {
  MetricTable table(ParseCatalogue(BuiltInCatalogue()).value(), 20);
  for (int i = 0; i < 100; ++i) {
    table.Set("ebb_train_loss", {absl::StrCat(i)}, 1);
  }
  const std::string page = table.Text();
  EXPECT_THAT(page, Not(HasSubstr("ebb_metrics_series_dropped_total 0")));
  EXPECT_THAT(page, Not(HasSubstr("job_id=\"99\"")));
}

TEST(MetricTable, HistogramsAreCumulative) {
  MetricTable table(
      ParseCatalogue("- {name: a_seconds, type: histogram, help: h, bound: 1, "
                     "labels: [], buckets: [1, 2]}")
          .value(),
      10);
  table.Observe("a_seconds", {}, 0.5);
  table.Observe("a_seconds", {}, 1);
  table.Observe("a_seconds", {}, 1.5);
  table.Observe("a_seconds", {}, 9);
  const std::string page = table.Text();
  EXPECT_THAT(page, HasSubstr("a_seconds_bucket{le=\"1\"} 2"));
  EXPECT_THAT(page, HasSubstr("a_seconds_bucket{le=\"2\"} 3"));
  EXPECT_THAT(page, HasSubstr("a_seconds_bucket{le=\"+Inf\"} 4"));
  EXPECT_THAT(page, HasSubstr("a_seconds_sum 12"));
}

TEST(MetricTable, RefusesABadCatalogue) {
  EXPECT_FALSE(ParseCatalogue("- {type: gauge, help: h, bound: 1}").ok());
  EXPECT_FALSE(
      ParseCatalogue("- {name: a, type: text, help: h, bound: 1}").ok());
  EXPECT_FALSE(ParseCatalogue("- {name: a, type: gauge, bound: 1}").ok());
  EXPECT_FALSE(ParseCatalogue("- {name: a, type: gauge, help: h}").ok());
  EXPECT_FALSE(
      ParseCatalogue("- {name: a, type: histogram, help: h, bound: 1}").ok());
  EXPECT_FALSE(ParseCatalogue("- {name: a, type: gauge, help: h, bound: 1}\n"
                              "- {name: a, type: gauge, help: h, bound: 1}")
                   .ok());
  EXPECT_FALSE(ParseCatalogue("[[[").ok());
}

TEST(MetricsEndpoint, OnlyLoopback) {
  MetricTable table(ParseCatalogue(BuiltInCatalogue()).value(), 100);
  for (const char* address : {"0.0.0.0:0", "192.168.0.1:0", "[::]:0"}) {
    EXPECT_EQ(
        MetricsEndpoint::Open(address, table.collectable()).status().code(),
        absl::StatusCode::kFailedPrecondition)
        << address;
  }
  for (const char* address : {"example.org:1", "127.0.0.1", "127.0.0.1:x",
                              "127.0.0.1:70000", ":1", "$(id):1"}) {
    EXPECT_EQ(
        MetricsEndpoint::Open(address, table.collectable()).status().code(),
        absl::StatusCode::kInvalidArgument)
        << address;
  }
  EXPECT_EQ(MetricsEndpoint::Open("off", table.collectable()).value(), nullptr);
}

TEST(MetricsEndpoint, TheDefaultGivesWayWhereItIsBusy) {
  MetricTable table(ParseCatalogue(BuiltInCatalogue()).value(), 100);
  const auto first = MetricsEndpoint::Open(std::nullopt, table.collectable());
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = MetricsEndpoint::Open(std::nullopt, table.collectable());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE((*first)->address(), (*second)->address());
}

TEST(MetricsEndpoint, TakesAnyPortAndRefusesABusyOneThatIsNamed) {
  MetricTable table(ParseCatalogue(BuiltInCatalogue()).value(), 100);
  const auto first = MetricsEndpoint::Open("127.0.0.1:0", table.collectable());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT((*first)->address(), Not(HasSubstr(":0")));
  EXPECT_EQ(MetricsEndpoint::Open((*first)->address(), table.collectable())
                .status()
                .code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ebb
