// `ebb policy` through the real programs: what a job does while it lives, that
// no bit changes, and what kills in between leave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <fstream>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "integration_tests/harness.h"

namespace ebb {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Steps of some milliseconds, so that a switch lands between many.
std::string LongJob(Service& service, int steps) {
  return service.Submit(BaseSpec(service),
                        {absl::StrCat("steps=", steps), "model.dropout=0.1",
                         "data.shuffle=true"});
}

bool ReachesStep(Service& service, const std::string& job, int64_t step) {
  return WaitUntil(
      [&] { return service.Get(job)["last_step"].get<int64_t>() >= step; }, 60);
}

// Losses and gradient norms, and the policy of every step.
struct Course {
  std::vector<double> numbers;
  std::vector<std::string> policies;
};

Course CourseOf(Service& service, const std::string& job) {
  Course course;
  for (const nlohmann::json& step : service.Steps(job)) {
    course.numbers.push_back(step["loss"]);
    course.numbers.push_back(step["gradient_norm"]);
    course.policies.push_back(step["policy"]);
    for (const auto& [name, bytes] : step["ranks"][0]["memory"].items()) {
      EXPECT_EQ(bytes["predicted_bytes"], bytes["peak_bytes"])
          << name << " in step " << step["step"];
    }
  }
  return course;
}

// Bytes of address space of a process.
int64_t AddressSpace(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/statm"));
  int64_t pages = 0;
  file >> pages;
  return pages * 4096;
}

TEST(PolicySwitch, ChangesMemoryAndNoBit) {
  Service service;
  constexpr int kSteps = 800;
  const std::string job = LongJob(service, kSteps);
  ASSERT_TRUE(ReachesStep(service, job, 5));
  const std::vector<pid_t> ranks = service.Processes("EBB_RANK=");
  ASSERT_EQ(ranks.size(), 1u);

  // Each returns when it is in force, and names the step.
  std::vector<std::pair<int64_t, std::string>> from = {{1, "none"}};
  for (const char* policy : {"full", "cheap", "sqrt", "none", "selective"}) {
    const nlohmann::json done = service.EbbJson({"policy", job, policy});
    EXPECT_EQ(done["id"], job);
    EXPECT_EQ(done["state"], "STATE_DONE");
    EXPECT_EQ(done["before"]["policy"], from.back().second);
    EXPECT_EQ(done["after"]["policy"], policy);
    EXPECT_GT(done["step"], from.back().first);
    from.push_back({done["step"], policy});
    EXPECT_EQ(service.Get(job)["plan"]["policy"], policy);
    EXPECT_EQ(service.Get(job)["spec"]["memory"]["policy"], policy);
  }
  EXPECT_THAT(
      service.Metrics(),
      HasSubstr(absl::StrCat("ebb_train_policy_switches_total{job_id=\"", job,
                             "\"} 5\n")));
  EXPECT_THAT(service.Ebb({"describe", job}).out,
              HasSubstr("policy none to selective from step "));
  const nlohmann::json ended = service.WaitForEnd(job);
  ASSERT_EQ(ended["state"], "STATE_SUCCEEDED") << ended.dump(1);
  EXPECT_EQ(ended["attempt"], 1);
  EXPECT_EQ(ended["num_switches"], "5");

  const std::string plain = LongJob(service, kSteps);
  const nlohmann::json other = service.WaitForEnd(plain);
  EXPECT_EQ(ended["weights_hash"], other["weights_hash"]);
  const Course course = CourseOf(service, job);
  EXPECT_EQ(course.numbers, CourseOf(service, plain).numbers);
  ASSERT_EQ(course.policies.size(), size_t{kSteps});
  from.push_back({kSteps + 1, ""});
  for (size_t n = 0; n + 1 < from.size(); ++n) {
    for (int64_t step = from[n].first; step < from[n + 1].first; ++step) {
      ASSERT_EQ(course.policies[step - 1], from[n].second) << "step " << step;
    }
  }
}

TEST(PolicySwitch, AtANamedStepThoughTheCoordinatorIsKilled) {
  Service service;
  const std::string job = LongJob(service, 3000);
  ASSERT_TRUE(ReachesStep(service, job, 5));
  const int64_t at = service.Get(job)["last_step"].get<int64_t>() + 100;
  const auto client = service.StartEbb({"policy", job, "full", "--at-step",
                                        absl::StrCat(at), "--output", "json"});
  ASSERT_TRUE(WaitUntil(
      [&] { return !service.Get(job)["pending_switches"].empty(); }, 30));
  kill(service.CoordinatorPid(), SIGKILL);
  // The next command starts another coordinator, which the client finds.
  service.Get(job);
  const CommandResult result = client->Wait(120);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["step"], at);
  // The switch is told before the first step under its plan has run.
  ASSERT_TRUE(ReachesStep(service, job, at));
  EXPECT_EQ(service.Ebb({"policy", job, "none", "--at-step", absl::StrCat(at)})
                .exit_code,
            5);
  const std::vector<std::string> policies = CourseOf(service, job).policies;
  ASSERT_GE(policies.size(), static_cast<size_t>(at));
  EXPECT_EQ(policies[at - 2], "none");
  EXPECT_EQ(policies[at - 1], "full");
  EXPECT_EQ(service.Ebb({"cancel", job}).exit_code, 0);
  EXPECT_EQ(service.WaitForEnd(job)["state"], "STATE_CANCELLED");
  EXPECT_EQ(service.Ebb({"policy", job, "cheap"}).exit_code, 5);
}

// Kills at any moment around the call: the switch is never lost once it is
// stored, and never half done.
TEST(PolicySwitch, SurvivesKillsAroundTheCall) {
  Service service;
  const std::string job = LongJob(service, 100000);
  ASSERT_TRUE(ReachesStep(service, job, 5));
  for (int round = 0; round < 6; ++round) {
    const std::string policy = round % 2 == 0 ? "full" : "none";
    const auto client = service.StartEbb({"policy", job, policy});
    const int64_t before = service.Get(job)["last_step"];
    WaitUntil([&] { return service.Get(job)["last_step"] > before; }, 10);
    kill(service.CoordinatorPid(), SIGKILL);
    service.Get(job);
    client->Wait(120);
    // Asked again it is done, whatever became of the first call.
    const CommandResult again = service.Ebb({"policy", job, policy});
    EXPECT_EQ(again.exit_code, 0) << again.err;
    const nlohmann::json now = service.Get(job);
    EXPECT_EQ(now["plan"]["policy"], policy);
    EXPECT_TRUE(now["pending_switches"].empty());
    EXPECT_EQ(now["attempt"], 1);
  }
  EXPECT_EQ(service.Ebb({"cancel", job, "--now"}).exit_code, 0);
  service.WaitForEnd(job);
}

TEST(PolicySwitch, ALowerBudgetTakesTheNextPlanThatFits) {
  Service service;
  const std::string job = LongJob(service, 100000);
  ASSERT_TRUE(ReachesStep(service, job, 5));
  const nlohmann::json plan = service.Get(job)["plan"];
  std::map<std::string, int64_t> peaks;
  for (const nlohmann::json& candidate : plan["pareto"]) {
    int64_t peak = 0;
    ASSERT_TRUE(
        absl::SimpleAtoi(candidate["peak_bytes"].get<std::string>(), &peak));
    peaks[candidate["policy"]] = peak;
  }
  ASSERT_LT(peaks["cheap"], peaks["none"]);
  const auto with_budget = [&](const char* policy, int64_t budget) {
    return service.Ebb(
        {"policy", job, policy, "--budget", absl::StrCat(budget)});
  };
  const CommandResult lower = with_budget("none", peaks["cheap"]);
  EXPECT_EQ(lower.exit_code, 0) << lower.err;
  EXPECT_THAT(lower.out, AllOf(HasSubstr("policy none to cheap from step "),
                               HasSubstr("does not fit the budget")));
  EXPECT_EQ(service.Get(job)["spec"]["memory"]["budget"], peaks["cheap"]);
  const CommandResult other = with_budget("none", peaks["none"] - 1);
  EXPECT_EQ(other.exit_code, 9) << other.out;
  EXPECT_EQ(other.out, "");
  EXPECT_THAT(other.err, HasSubstr("would not fit: need "));
  EXPECT_EQ(with_budget("cheap", 1000).exit_code, 9);
  EXPECT_EQ(service.Ebb({"cancel", job, "--now"}).exit_code, 0);
  service.WaitForEnd(job);
}

TEST(PolicySwitch, MistakesAllAtOnceAndTheirExitCodes) {
  Service service;
  const std::string job = LongJob(service, 100000);
  ASSERT_TRUE(ReachesStep(service, job, 1));
  const CommandResult words = service.Ebb(
      {"policy", job, "ful", "--budget", "2GB", "--set", "model.layers=2"});
  EXPECT_EQ(words.exit_code, 2);
  EXPECT_THAT(words.err, AllOf(HasSubstr("POLICY: memory.policy: got ful"),
                               HasSubstr("did you mean full?"),
                               HasSubstr("--budget: memory.budget: got 2GB"),
                               HasSubstr("must be a field of memory")));
  const CommandResult rules =
      service.Ebb({"policy", job, "cheap", "--set", "memory.group=2", "--set",
                   "memory.recompute=[gelu]"});
  EXPECT_EQ(rules.exit_code, 2);
  EXPECT_THAT(rules.err, AllOf(HasSubstr("--set memory.group: memory.group"),
                               HasSubstr("memory.recompute")));
  EXPECT_EQ(service.Ebb({"policy", "nothing1", "full"}).exit_code, 3);
  EXPECT_EQ(
      service.Ebb({"policy", job, "full", "--at-step", "100001"}).exit_code, 2);
  const CommandResult next = service.Ebb({"policy", job, "full", "--next-run"});
  EXPECT_EQ(next.exit_code, 0) << next.err;
  EXPECT_THAT(next.out, HasSubstr("ordered for the next attempt"));
  EXPECT_EQ(service.Get(job)["plan"]["policy"], "none");
  EXPECT_EQ(service.Ebb({"cancel", job, "--now"}).exit_code, 0);
  service.WaitForEnd(job);
}

// The step arena of the new plan cannot be had: the job trains on, and the
// command says why.
TEST(PolicySwitch, WithoutMemoryTheOldPlanStays) {
  Service service;
  const std::string corpus =
      service.Write("corpus.txt", std::string(1 << 18, 'a'));
  const std::string job = service.Submit(absl::StrCat(
      "model: {layers: 12, hidden: 128, heads: 4, vocab: 257, seq_len: 256}\n"
      "data: {train: ",
      corpus,
      "}\n"
      "batch: {global: 16, micro: 16}\n"
      "precision: fp32\n"
      "memory: {policy: full}\n"
      "resources: {threads: 1}\n"
      "steps: 100000\n"));
  ASSERT_TRUE(ReachesStep(service, job, 1));
  const std::vector<pid_t> ranks = service.Processes("EBB_RANK=");
  ASSERT_EQ(ranks.size(), 1u);
  // Room for threads and their heaps, not for another 250 MiB.
  rlimit limit;
  limit.rlim_cur = limit.rlim_max =
      static_cast<rlim_t>(AddressSpace(ranks[0]) + (int64_t{150} << 20));
  ASSERT_EQ(prlimit(ranks[0], RLIMIT_AS, &limit, nullptr), 0);
  const CommandResult refused =
      service.Ebb({"policy", job, "none"}, /*timeout_seconds=*/120);
  EXPECT_EQ(refused.exit_code, 9) << refused.out;
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, AllOf(HasSubstr("NOT taken"),
                                 HasSubstr("memory cannot be mapped")));
  const nlohmann::json now = service.Get(job);
  EXPECT_EQ(now["plan"]["policy"], "full");
  EXPECT_EQ(now["last_switch"]["state"], "STATE_REFUSED");
  const int64_t step = now["last_step"];
  EXPECT_TRUE(ReachesStep(service, job, step + 2)) << "it trains on";
  EXPECT_EQ(service.Ebb({"cancel", job, "--now"}).exit_code, 0);
  service.WaitForEnd(job);
}

}  // namespace
}  // namespace ebb
