// What `ebb compare` says of jobs side by side. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "proto/job_service.pb.h"

namespace ebb {

// One job with all its steps, in order.
struct ComparedJob {
  v1::Job job;
  std::vector<v1::Step> steps;
};

// What is compared of a job. Measured values are zero before its first step.
struct JobSummary {
  // Of the rank and step with the largest peak, predicted and measured.
  std::map<std::string, v1::ClassBytes> memory;
  int64_t predicted_peak_bytes = 0;
  int64_t peak_bytes = 0;
  // Largest that `saved` was at any instruction of any rank.
  int64_t saved_bytes = 0;
  // Of a step: the newest one, or the plan's before the first.
  double model_flops = 0;
  double recompute_flops = 0;
  // Of all steps together, without the first one, which warms up, where there
  // are more.
  double tokens_per_second = 0;
  double last_loss = 0;
  double mean_loss = 0;
  // Steps that the mean is of: the last 20, or all that there are.
  int64_t mean_steps = 0;
};
JobSummary Summarize(const ComparedJob& job);

// The losses of the steps that both jobs have done, bit by bit.
struct LossComparison {
  int64_t common_steps = 0;
  // 0: all are equal.
  int64_t first_difference = 0;
};
LossComparison CompareLosses(const ComparedJob& a, const ComparedJob& b);

// A column a job; losses against the first one's.
std::string CompareTable(const std::vector<ComparedJob>& jobs);
nlohmann::ordered_json CompareJson(const std::vector<ComparedJob>& jobs);

}  // namespace ebb
