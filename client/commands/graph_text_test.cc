// What `ebb plan --graph` and `--check` print.
#include "client/commands/graph_text.h"

#include <gtest/gtest.h>

#include "proto/job_service.pb.h"

namespace ebb {
namespace {

v1::PlanGraphResponse Plan() {
  v1::PlanGraphResponse plan;
  plan.set_total_seconds(3.5);
  plan.set_lower_bound_seconds(3.5);
  plan.set_peak_bytes(2048);
  plan.set_optimal(true);
  for (const char* step :
       {"compute x", "compute y", "free x", "compute x", "compute z"}) {
    plan.add_schedule(step);
  }
  return plan;
}

TEST(GraphText, ShowsWhatAScheduleCostsAndItsSteps) {
  EXPECT_EQ(GraphPlanText(Plan(), "g.json", 4096),
            "schedule of g.json: 3.5 s, optimal\n"
            "peak 2.00 KiB (2048 B) of a budget of 4.00 KiB (4096 B)\n"
            "4 computations, 1 of them again\n"
            "\n"
            "compute x\n"
            "compute y\n"
            "free x\n"
            "compute x\n"
            "compute z\n");
}

TEST(GraphText, ShowsTheBoundOfWhatIsNotProven) {
  v1::PlanGraphResponse plan = Plan();
  plan.set_optimal(false);
  plan.set_lower_bound_seconds(2.8);
  EXPECT_TRUE(GraphPlanText(plan, "g.json", 4096)
                  .starts_with("schedule of g.json: 3.5 s, not proven optimal: "
                               "at least 2.8 s are needed (25.0 % above "
                               "that)\npeak 2.00 KiB"));
  plan.set_lower_bound_seconds(0);
  EXPECT_NE(GraphPlanText(plan, "g.json", 4096).find("(0.0 % above"),
            std::string::npos);
}

TEST(GraphText, ShowsWhatTheCheckerCounted) {
  v1::CheckScheduleResponse checked;
  checked.set_total_seconds(2);
  checked.set_num_computations(1);
  checked.set_peak_bytes(100);
  checked.set_budget_bytes(512);
  EXPECT_EQ(CheckedScheduleText(checked, "s.json"),
            "s.json keeps every rule: 2 s, 1 computation\n"
            "peak 100 B of a budget of 512 B\n");
}

}  // namespace
}  // namespace ebb
