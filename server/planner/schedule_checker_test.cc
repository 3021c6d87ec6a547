// The checker accepts what keeps the rules and names the first rule broken.
#include "server/planner/schedule_checker.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ebb {
namespace {

// a (10) -> b (20) -> d (5), which reads a and c; c (3) reads nothing, has 4 of
// workspace, and runs once only. 2 are always resident.
GraphProblem Graph() {
  GraphProblem problem;
  problem.nodes = {{"a", 1, 10, {}, 0, true},
                   {"b", 2, 20, {0}, 0, true},
                   {"c", 4, 3, {}, 4, false},
                   {"d", 8, 5, {0, 1, 2}, 0, true}};
  problem.outputs = {3};
  problem.resident_bytes = 2;
  return problem;
}

// "+a -b": compute a, free b.
CheckedSchedule Check(const std::string& text, int64_t budget_bytes) {
  const GraphProblem problem = Graph();
  std::vector<ScheduleStep> steps;
  for (size_t i = 0; i + 1 < text.size(); i += 3) {
    steps.push_back({text[i] == '+' ? ScheduleStep::Action::kCompute
                                    : ScheduleStep::Action::kFree,
                     text[i + 1] - 'a'});
  }
  return CheckSchedule(problem, budget_bytes, steps);
}

TEST(ScheduleChecker, CountsWhatAGoodScheduleDoes) {
  const CheckedSchedule checked = Check("+a +b +c +d -a -b -c", 40);
  EXPECT_EQ(checked.violation, "");
  EXPECT_EQ(checked.step, 7);
  EXPECT_EQ(checked.total_seconds, 15);
  EXPECT_EQ(checked.peak_bytes, 40);
  EXPECT_EQ(checked.num_computations, 4);
  EXPECT_EQ(checked.num_recomputations, 0);
}

TEST(ScheduleChecker, WorkspaceCountsWhileANodeRuns) {
  EXPECT_EQ(Check("+a +b +c +d", 40).peak_bytes, 40);
  EXPECT_EQ(Check("+c", 8).violation,
            "c makes 9 bytes resident, and the budget is 8");
}

TEST(ScheduleChecker, CountsRecomputation) {
  const CheckedSchedule checked = Check("+c +a -a +a +b +d", 40);
  EXPECT_EQ(checked.violation, "");
  EXPECT_EQ(checked.total_seconds, 16);
  EXPECT_EQ(checked.num_computations, 5);
  EXPECT_EQ(checked.num_recomputations, 1);
}

TEST(ScheduleChecker, NamesTheFirstBrokenRule) {
  const struct {
    const char* steps;
    int64_t budget;
    int step;
    const char* violation;
  } kCases[] = {
      {"+b", 40, 0, "its input a is not resident: it was never computed"},
      {"+a -a +b", 40, 2, "its input a is not resident: schedule[1] freed it"},
      {"+a +a", 40, 1, "a is resident already: schedule[0] computed it"},
      {"-a", 40, 0, "a is not resident: it was never computed"},
      {"+a -a -a", 40, 2, "a is not resident: schedule[1] freed it"},
      {"+c -c +c", 40, 2,
       "c is not recomputable and has run: schedule[0] computed it"},
      {"+a +b +c +d", 39, 3, "d makes 40 bytes resident, and the budget is 39"},
      {"+a +b +c", 40, 3,
       "the output d is not resident at the end: it was never computed"},
      {"+a +b +c +d -d", 40, 5,
       "the output d is not resident at the end: schedule[4] freed it"},
      {"", 1, 0,
       "resident_bytes of the graph makes 2 bytes resident, and the budget is "
       "1"},
      // Two rules are broken: the first counts.
      {"+a -b +d", 40, 1, "b is not resident: it was never computed"},
  };
  for (const auto& test_case : kCases) {
    const CheckedSchedule checked = Check(test_case.steps, test_case.budget);
    EXPECT_EQ(checked.violation, test_case.violation) << test_case.steps;
    EXPECT_EQ(checked.step, test_case.step) << test_case.steps;
  }
}

TEST(ScheduleChecker, EmptyScheduleHasNoOutputs) {
  EXPECT_EQ(Check("", 40).violation,
            "the output d is not resident at the end: it was never computed");
  EXPECT_EQ(Check("", 40).peak_bytes, 2);
}

}  // namespace
}  // namespace ebb
