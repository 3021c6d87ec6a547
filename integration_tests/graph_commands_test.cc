// `ebb plan --graph` and `ebb plan --check` through the real programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "integration_tests/harness.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

constexpr char kExample[] = EBB_SOURCE_DIR "/client/examples/graph.json";

// 2 * num_layers + 1 nodes, of which the second half reads the first backwards.
nlohmann::json Chain(int num_layers) {
  nlohmann::json nodes = nlohmann::json::array();
  for (int i = 0; i <= 2 * num_layers; ++i) {
    nlohmann::json inputs = nlohmann::json::array();
    if (i > 0) inputs.push_back(absl::StrCat("n", i - 1));
    if (i > num_layers) inputs.push_back(absl::StrCat("n", 2 * num_layers - i));
    nodes.push_back({{"name", absl::StrCat("n", i)},
                     {"seconds", 1},
                     {"bytes", 1},
                     {"inputs", inputs}});
  }
  return {{"nodes", nodes}, {"outputs", {absl::StrCat("n", 2 * num_layers)}}};
}

// Begun so far.
int NumSearches(Service& service) {
  const std::string page = service.Metrics();
  const std::string series =
      "grpc_server_started_total{grpc_type=\"unary\",grpc_service="
      "\"ebb.v1.JobService\",grpc_method=\"PlanGraph\"} ";
  const size_t at = page.find(series);
  return at == std::string::npos ? -1
                                 : std::stoi(page.substr(at + series.size()));
}

TEST(PlanGraph, PlansTheExampleWithinEveryBudget) {
  Service service;
  // Roomy, tight, too small.
  const nlohmann::json roomy =
      service.EbbJson({"plan", "--graph", kExample, "--budget", "1GiB"});
  EXPECT_EQ(roomy["optimal"], true);
  EXPECT_EQ(roomy["schedule"].size(), 14u + 11u);
  const CommandResult none =
      service.Ebb({"plan", "--graph", kExample, "--budget", "1MiB"});
  EXPECT_EQ(none.exit_code, 9);
  EXPECT_EQ(none.out, "");
  const std::string needle = "the least feasible budget is ";
  const size_t at = none.err.find(needle);
  ASSERT_NE(at, std::string::npos) << none.err;
  const long least = std::stol(none.err.substr(at + needle.size()));
  const nlohmann::json tight = service.EbbJson(
      {"plan", "--graph", kExample, "--budget", absl::StrCat(least)});
  EXPECT_EQ(tight["optimal"], true);
  EXPECT_EQ(tight["peak_bytes"], absl::StrCat(least));
  EXPECT_GT(tight["total_seconds"], roomy["total_seconds"]);
  EXPECT_EQ(service
                .Ebb({"plan", "--graph", kExample, "--budget",
                      absl::StrCat(least - 1)})
                .exit_code,
            9);

  // What was printed is checked as it is, and not if it is tampered with.
  const std::string file = service.Write("schedule.json", tight.dump());
  const CommandResult checked = service.Ebb({"plan", "--check", file});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("keeps every rule"));
  nlohmann::json tampered = tight;
  tampered["schedule"].erase(0);
  const std::string wrong = service.Write("tampered.json", tampered.dump());
  const CommandResult refused = service.Ebb({"plan", "--check", wrong});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("is not resident: it was never computed"));
  EXPECT_EQ(
      service
          .Ebb({"plan", "--check", file, "--budget", absl::StrCat(least - 1)})
          .exit_code,
      2);
}

TEST(PlanGraph, NamesEveryMistakeOfAFile) {
  Service service;
  nlohmann::json graph = Chain(2);
  graph["nodes"][1]["seconds"] = -1;
  graph["nodes"][3]["inputs"][0] = "n9";
  const std::string file = service.Write("graph.json", graph.dump());
  const CommandResult result =
      service.Ebb({"plan", "--graph", file, "--budget", "4"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              HasSubstr(file + ": nodes[1] (n1).seconds: got -1: "));
  EXPECT_THAT(result.err,
              HasSubstr(file + ": nodes[3] (n3).inputs[0]: got \"n9\": "));
}

TEST(PlanGraph, ASearchEndsWithItsTimeOrItsClient) {
  Service service;
  // No search ends this one soon.
  const std::string file = service.Write("graph.json", Chain(80).dump());
  const std::vector<std::string> plan = {"plan",     "--graph", file,
                                         "--budget", "25",      "--time-limit"};
  std::vector<std::string> hour = plan;
  hour.push_back("1h");
  std::vector<std::string> second = plan;
  second.push_back("1s");
  const CommandResult timed = service.Ebb(second);
  EXPECT_EQ(timed.exit_code, 0) << timed.err;
  EXPECT_THAT(timed.out, HasSubstr("not proven optimal: at least"));
  {
    // As many as there may be: another one is refused until they leave.
    const auto first = service.StartEbb(hour);
    ASSERT_TRUE(WaitUntil([&] { return NumSearches(service) == 2; }, 60));
    const auto other = service.StartEbb(hour);
    ASSERT_TRUE(WaitUntil([&] { return NumSearches(service) == 3; }, 60));
    EXPECT_TRUE(WaitUntil(
        [&] {
          const CommandResult full = service.Ebb(second);
          return full.exit_code == 9 &&
                 full.err.find("too many searches") != std::string::npos;
        },
        60));
    first->Signal(SIGKILL);
    other->Signal(SIGKILL);
  }
  EXPECT_TRUE(
      WaitUntil([&] { return service.Ebb(second).exit_code == 0; }, 60));
}

}  // namespace
}  // namespace ebb
