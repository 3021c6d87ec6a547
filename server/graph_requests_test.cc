// Requests about graphs: every answer and every refusal.
#include "server/graph_requests.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/violations.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// n0 -> n1 -> ... as in training: the second half reads the first backwards.
std::string ChainText(int num_layers) {
  std::vector<std::string> nodes;
  for (int i = 0; i <= 2 * num_layers; ++i) {
    std::string inputs = i == 0 ? "" : absl::StrCat("\"n", i - 1, "\"");
    if (i > num_layers) {
      absl::StrAppend(&inputs, ", \"n", 2 * num_layers - i, "\"");
    }
    nodes.push_back(absl::StrCat("{\"name\": \"n", i,
                                 "\", \"seconds\": 1, \"bytes\": 1, "
                                 "\"inputs\": [",
                                 inputs, "]}"));
  }
  return absl::StrCat("{\"nodes\": [", absl::StrJoin(nodes, ", "),
                      "], \"outputs\": [\"n", 2 * num_layers, "\"]}");
}

class GraphRequestsTest : public ::testing::Test {
 protected:
  absl::StatusOr<v1::PlanGraphResponse> Plan(const std::string& graph,
                                             int64_t budget_bytes) {
    v1::PlanGraphRequest request;
    request.set_graph(graph);
    request.set_budget_bytes(budget_bytes);
    return requests_.Plan(request, [] { return false; });
  }

  absl::StatusOr<v1::CheckScheduleResponse> Check(const std::string& schedule,
                                                  const std::string& graph,
                                                  int64_t budget_bytes) {
    v1::CheckScheduleRequest request;
    request.set_schedule(schedule);
    request.set_graph(graph);
    request.set_budget_bytes(budget_bytes);
    return requests_.Check(request);
  }

  static std::vector<std::string> Fields(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    std::vector<std::string> fields;
    for (const v1::Violation& violation : GetViolations(status)) {
      fields.push_back(violation.field());
    }
    return fields;
  }

  GraphRequests requests_;
};

TEST_F(GraphRequestsTest, PlansAGraph) {
  const auto plan = Plan(ChainText(2), 3);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->total_seconds(), 6);
  EXPECT_EQ(plan->lower_bound_seconds(), 6);
  EXPECT_EQ(plan->peak_bytes(), 3);
  EXPECT_TRUE(plan->optimal());
  EXPECT_EQ(plan->schedule(0), "compute n0");
  EXPECT_EQ(plan->schedule(1), "compute n1");
}

TEST_F(GraphRequestsTest, NamesTheLeastFeasibleBudget) {
  const absl::Status status = Plan(ChainText(4), 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "does not fit: the budget is 2 B, the least feasible budget is 3 "
            "B");
}

TEST_F(GraphRequestsTest, GivesAllMistakesAtOnce) {
  v1::PlanGraphRequest request;
  request.set_graph(R"({"nodes": [{"name": "a", "seconds": -1, "bytes": 1,
                                   "inputs": ["b"]}], "outputs": ["c"]})");
  request.set_budget_bytes(0);
  request.mutable_time_limit()->set_seconds(-5);
  EXPECT_THAT(
      Fields(requests_.Plan(request, [] { return false; }).status()),
      UnorderedElementsAre("budget_bytes", "time_limit", "nodes[0] (a).seconds",
                           "nodes[0] (a).inputs[0]", "outputs[0]"));
  request.mutable_time_limit()->set_seconds(3601);
  request.set_budget_bytes(int64_t{1} << 62);
  request.set_graph(std::string((4 << 20) + 1, ' '));
  EXPECT_THAT(Fields(requests_.Plan(request, [] { return false; }).status()),
              UnorderedElementsAre("graph", "time_limit"));
}

TEST_F(GraphRequestsTest, ACancelledSearchEnds) {
  v1::PlanGraphRequest request;
  request.set_graph(ChainText(60));
  request.set_budget_bytes(14);
  request.mutable_time_limit()->set_seconds(3600);
  int num_looks = 0;
  const absl::Status status =
      requests_.Plan(request, [&] { return ++num_looks > 20; }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST_F(GraphRequestsTest, TheTimeLimitEndsTheSearch) {
  v1::PlanGraphRequest request;
  request.set_graph(ChainText(60));
  request.set_budget_bytes(14);
  request.mutable_time_limit()->set_nanos(200'000'000);
  const auto plan = requests_.Plan(request, [] { return false; });
  if (plan.ok()) {
    EXPECT_LE(plan->lower_bound_seconds(), plan->total_seconds());
  } else {
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kDeadlineExceeded);
  }
}

TEST_F(GraphRequestsTest, SearchesAreBounded) {
  v1::PlanGraphRequest request;
  request.set_graph(ChainText(60));
  request.set_budget_bytes(14);
  // Searches within searches: the innermost finds no place.
  absl::Status refused;
  int depth = 0;
  std::function<bool()> nest = [&] {
    if (depth < kMaxGraphSearches) {
      ++depth;
      const absl::Status status = requests_.Plan(request, nest).status();
      if (absl::IsResourceExhausted(status)) refused = status;
    }
    return true;
  };
  EXPECT_EQ(requests_.Plan(request, nest).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_THAT(refused.message(), HasSubstr("too many searches"));
  EXPECT_TRUE(Plan(ChainText(2), 5).ok());
}

TEST_F(GraphRequestsTest, WhatItPlansChecks) {
  const std::string graph = ChainText(8);
  const auto plan = Plan(graph, 4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<std::string> steps(plan->schedule().begin(),
                                       plan->schedule().end());
  const std::string text = absl::StrCat(
      "{\"total_seconds\": 26, \"peak_bytes\": \"4\", \"graph\": ", graph,
      ", \"budget_bytes\": \"4\", \"schedule\": [\"",
      absl::StrJoin(steps, "\", \""), "\"]}");
  const auto checked = Check(text, "", 0);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->total_seconds(), 26);
  EXPECT_EQ(checked->peak_bytes(), 4);
  EXPECT_EQ(checked->budget_bytes(), 4);
  EXPECT_EQ(checked->num_computations(), 26);
  EXPECT_EQ(checked->num_recomputations(), 9);
  // A smaller budget over the file's own.
  const absl::Status status = Check(text, "", 3).status();
  EXPECT_THAT(Fields(status), ElementsAre(HasSubstr("schedule[")));
  EXPECT_THAT(status.message(), HasSubstr("the budget is 3"));
}

TEST_F(GraphRequestsTest, NamesTheFirstStepThatBreaksARule) {
  const absl::Status status =
      Check(R"({"schedule": ["compute n0", "compute n2"], "budget_bytes": 9})",
            ChainText(2), 0)
          .status();
  EXPECT_EQ(status.message(),
            "schedule[1]: got compute n2: its input n1 is not resident: it was "
            "never computed");
  EXPECT_EQ(Check(R"({"schedule": ["compute n0"]})", ChainText(2), 9)
                .status()
                .message(),
            "schedule: got its end: the output n4 is not resident at the end: "
            "it was never computed");
}

TEST_F(GraphRequestsTest, FiguresMustBeTrue) {
  const std::string graph =
      R"({"nodes": [{"name": "a", "seconds": 2, "bytes": 3, "inputs": []}],
          "outputs": ["a"]})";
  const auto text = [](double seconds, int peak) {
    return absl::StrCat("{\"schedule\": [\"compute a\"], \"total_seconds\": ",
                        seconds, ", \"peak_bytes\": ", peak, "}");
  };
  EXPECT_TRUE(Check(text(2, 3), graph, 9).ok());
  EXPECT_THAT(Fields(Check(text(2.1, 4), graph, 9).status()),
              ElementsAre("total_seconds", "peak_bytes"));
}

TEST_F(GraphRequestsTest, ChecksNeedAGraphAndABudget) {
  EXPECT_THAT(Fields(Check(R"({"schedule": []})", "", 5).status()),
              ElementsAre("graph"));
  EXPECT_THAT(Fields(Check(R"({"schedule": []})", ChainText(2), 0).status()),
              ElementsAre("budget_bytes"));
  EXPECT_THAT(Fields(Check("", ChainText(2), -1).status()),
              ElementsAre("budget_bytes"));
  EXPECT_THAT(Fields(Check(std::string((7 << 20) + 1, ' '), "", 0).status()),
              ElementsAre("schedule"));
}

}  // namespace
}  // namespace ebb
