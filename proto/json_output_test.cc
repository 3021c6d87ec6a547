// What `--output json` looks like.
#include "proto/json_output.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "proto/job_service.pb.h"
#include "proto/spec_reader.h"
#include "proto/testing/spec_texts.h"

namespace ebb {
namespace {

using nlohmann::ordered_json;

TEST(JsonOutput, StepsInFull) {
  v1::Step step;
  step.set_step(7);
  step.set_loss(0.1);
  step.set_gradient_norm(std::numeric_limits<double>::quiet_NaN());
  step.set_learning_rate(123456789.123);
  step.set_tokens(1 << 20);
  step.set_model_flops(1e-9);
  v1::RankStep& rank = *step.add_ranks();
  (*rank.mutable_memory())["saved"].set_peak_bytes(int64_t{1} << 60);
  (*rank.mutable_memory())["live"];
  (*rank.mutable_copied_bytes())["to_host"] = 4096;
  (*rank.mutable_copied_bytes())["from_disk"];
  step.mutable_time()->set_seconds(0);
  EXPECT_EQ(
      MessageToJson(step),
      R"({"step":7,"attempt":0,"loss":0.1,"gradient_norm":"NaN",)"
      R"("learning_rate":123456789.123,"tokens":"1048576",)"
      R"("duration_seconds":0.0,"model_flops":1e-09,"recompute_flops":0.0,)"
      R"("policy":"","ranks":[{"rank":0,"memory":{)"
      R"("live":{"predicted_bytes":"0","peak_bytes":"0"},)"
      R"("saved":{"predicted_bytes":"0","peak_bytes":"1152921504606846976"}},)"
      R"("host_bytes":"0","disk_bytes":"0","saved_bytes":"0",)"
      R"("resident_bytes":"0","encode_errors":[],)"
      R"("copied_bytes":{"from_disk":"0","to_host":"4096"}}],"skipped":false,)"
      R"("time":"1970-01-01T00:00:00Z","phase_seconds":{}})");
}

TEST(JsonOutput, DoublesReadBackExactly) {
  for (double value : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, 1e21,
                       123456789.123, -0.0, 9007199254740993.0}) {
    v1::Step step;
    step.set_loss(value);
    EXPECT_EQ(ordered_json::parse(MessageToJson(step))["loss"].get<double>(),
              value);
  }
  v1::Step step;
  step.set_loss(-std::numeric_limits<double>::infinity());
  EXPECT_EQ(ordered_json::parse(MessageToJson(step))["loss"], "-Infinity");
}

TEST(JsonOutput, JobShowsItsSpecInTheLanguageOfSpecs) {
  v1::Job job;
  job.set_id("abcd1234");
  job.set_name("a\"b\\c\xff");
  job.set_state(v1::STATE_RUNNING);
  job.set_last_step(5);
  job.set_weights_hash(std::numeric_limits<uint64_t>::max());
  const auto spec = ReadSpec(kGoodYaml, "spec.yaml", {});
  ASSERT_TRUE(spec.ok());
  *job.mutable_spec() = *spec;
  const ordered_json json = ordered_json::parse(JobToJson(job, 2));
  for (const char* name :
       {"id", "name", "state", "reason", "attempt", "spec", "plan", "directory",
        "create_time", "start_time", "end_time"}) {
    EXPECT_TRUE(json.contains(name)) << name;
  }
  EXPECT_EQ(json["state"], "STATE_RUNNING");
  EXPECT_EQ(json["reason"], "REASON_UNSPECIFIED");
  EXPECT_EQ(json["last_step"], 5);
  EXPECT_EQ(json["weights_hash"], "18446744073709551615");
  EXPECT_TRUE(json["end_time"].is_null());
  EXPECT_EQ(json["spec"]["memory"]["budget"], int64_t{2} << 30);
  EXPECT_EQ(json["spec"]["parallel"]["schedule"], "1f1b");
  EXPECT_EQ(json["spec"]["resources"]["timeout"], "5m");
  const auto again = ReadSpec(json["spec"].dump(), "job.json", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->SerializeAsString(), spec->SerializeAsString());
}

TEST(JsonOutput, OneofsShowTheirCaseAlone) {
  v1::JobEvent event;
  event.mutable_eval()->set_step(3);
  const ordered_json json = ordered_json::parse(MessageToJson(event));
  EXPECT_TRUE(json.contains("eval"));
  EXPECT_FALSE(json.contains("job"));
  EXPECT_EQ(json["sequence"], "0");
}

}  // namespace
}  // namespace ebb
