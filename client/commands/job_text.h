// What tables and the display say of a job. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/progress.h"
#include "client/table.h"

namespace google::protobuf {
class Timestamp;
}

namespace ebb {

namespace v1 {
class Job;
class Plan;
class PolicySwitch;
class RankPlan;
class Step;
}  // namespace v1

// Memory classes in the order in which people see them.
std::vector<std::string> MemoryClasses();

// "running", "worker_error": an enum value without its prefix, lower case.
std::string StateWord(const v1::Job& job);
std::string ReasonWord(const v1::Job& job);
// All of the former.
std::vector<std::string> StateWords();

// The infinite past for a time that is not set.
absl::Time ToTime(const google::protobuf::Timestamp& time);

// The columns of `ebb list`, and a job's row.
Table JobTable();
std::vector<std::string> JobRow(const v1::Job& job, absl::TimeZone zone);

// The columns of `ebb steps`, and a step's row.
Table StepTable();
std::vector<std::string> StepRow(const v1::Step& step);

// Largest sum of the memory classes over the step's ranks.
int64_t PeakBytes(const v1::Step& step);
// Largest peak over the plan's ranks.
int64_t PeakBytes(const v1::Plan& plan);

ProgressStep ToProgressStep(const v1::Step& step);

// A share of all FLOPs; 0 if there are none.
double RecomputeShare(double model_flops, double recompute_flops);

// "policy none to full from step 51 on: ...": one line, whatever its state.
std::string SwitchText(const v1::PolicySwitch& policy_switch);

// How a final job ended, one line.
std::string EndText(const v1::Job& job);

// The lines of the job's message: what happened, then the last lines in the log
// of the rank that failed. At least one.
std::vector<std::string> MessageLines(const v1::Job& job);

// SUCCEEDED 0, FAILED 100, CANCELLED 103. REQUIRES: the job is final.
int JobExitCode(const v1::Job& job);

}  // namespace ebb
