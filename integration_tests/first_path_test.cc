// A spec in, a trained model out, through the real programs: what a user sees,
// what /metrics says, and what survives kills.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "integration_tests/harness.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Value of one series of a metrics page, e.g. `ebb_jobs{state="running"}`.
double Metric(const std::string& page, const std::string& series) {
  for (absl::string_view line : absl::StrSplit(page, '\n')) {
    if (line.substr(0, series.size()) != series ||
        line.size() <= series.size() || line[series.size()] != ' ') {
      continue;
    }
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(series.size() + 1), &value));
    return value;
  }
  return -1;
}

int64_t Int(const nlohmann::json& value) {
  int64_t number = -1;
  EXPECT_TRUE(value.is_string()) << value;
  EXPECT_TRUE(absl::SimpleAtoi(value.get<std::string>(), &number)) << value;
  return number;
}

TEST(FirstPath, TrainsAndReportsEveryStep) {
  Service service;
  const std::string job = service.Submit(
      BaseSpec(service), {"model.dropout=0.1", "memory.policy=cheap"});
  const nlohmann::json ended = service.WaitForEnd(job);
  ASSERT_EQ(ended["state"], "STATE_SUCCEEDED") << ended.dump(1);
  EXPECT_EQ(ended["attempt"], 1);
  EXPECT_EQ(ended["spec"]["memory"]["policy"], "cheap");
  EXPECT_EQ(ended["spec"]["precision"], "fp32");
  const auto steps = service.Steps(job);
  ASSERT_EQ(steps.size(), 6u);
  for (size_t i = 0; i < steps.size(); ++i) {
    const nlohmann::json& step = steps[i];
    EXPECT_EQ(step["step"], i + 1);
    EXPECT_EQ(step["attempt"], 1);
    EXPECT_GT(step["loss"], 0);
    EXPECT_GT(step["gradient_norm"], 0);
    EXPECT_EQ(Int(step["tokens"]), 8 * 32);
    EXPECT_GT(step["model_flops"], 0);
    EXPECT_GT(step["recompute_flops"], 0);
    EXPECT_EQ(step["recompute_flops"], ended["plan"]["recompute_flops"]);
    EXPECT_EQ(step["model_flops"], ended["plan"]["model_flops"]);
    EXPECT_EQ(step["policy"], "cheap");
    int64_t peak = 0;
    for (const auto& [name, bytes] : step["ranks"][0]["memory"].items()) {
      EXPECT_EQ(Int(bytes["predicted_bytes"]), Int(bytes["peak_bytes"]))
          << name;
      peak += Int(bytes["peak_bytes"]);
    }
    EXPECT_EQ(peak, Int(ended["plan"]["ranks"][0]["peak_bytes"]));
  }
  // ln 257 at the start, lower at the end.
  EXPECT_NEAR(steps[0]["loss"], 5.55, 0.2);
  EXPECT_LT(steps[5]["loss"], steps[0]["loss"]);
}

TEST(FirstPath, PoliciesGiveTheSameBitsThroughTheService) {
  Service service;
  const std::string spec = BaseSpec(service);
  std::set<std::string> hashes;
  std::set<std::vector<double>> losses;
  for (const char* policy : {"none", "cheap", "full", "sqrt"}) {
    const std::string job =
        service.Submit(spec, {"model.dropout=0.1", "steps=3",
                              absl::StrCat("memory.policy=", policy)});
    const nlohmann::json ended = service.WaitForEnd(job);
    ASSERT_EQ(ended["state"], "STATE_SUCCEEDED") << ended.dump(1);
    hashes.insert(ended["weights_hash"].get<std::string>());
    std::vector<double> of_job;
    for (const auto& step : service.Steps(job)) {
      of_job.push_back(step["loss"]);
      of_job.push_back(step["gradient_norm"]);
    }
    EXPECT_EQ(of_job.size(), 6u);
    losses.insert(of_job);
  }
  EXPECT_EQ(hashes.size(), 1u);
  EXPECT_EQ(losses.size(), 1u);
}

// What is predicted of host memory is what is counted, and nothing else shows.
TEST(FirstPath, OffloadedJobsGiveTheSameBitsFromHostMemory) {
  Service service;
  const std::string spec = BaseSpec(service);
  const std::vector<std::string> changes = {"model.dropout=0.1", "steps=3"};
  const std::string kept = service.Submit(spec, changes);
  service.WaitForEnd(kept);
  const auto base = service.Steps(kept);
  ASSERT_EQ(base.size(), 3u);
  for (const auto& [policy, field] : {std::pair("none", "offload"),
                                      {"full", "offload"},
                                      {"full", "offload_optimizer"},
                                      {"none", "offload_parameters"}}) {
    SCOPED_TRACE(absl::StrCat(policy, " ", field));
    std::vector<std::string> own = changes;
    own.push_back(absl::StrCat("memory.policy=", policy));
    own.push_back(absl::StrCat("memory.", field, "=host"));
    const std::string job = service.Submit(spec, own);
    const nlohmann::json ended = service.WaitForEnd(job);
    ASSERT_EQ(ended["state"], "STATE_SUCCEEDED") << ended.dump(1);
    const int64_t host = Int(ended["plan"]["ranks"][0]["host_bytes"]);
    EXPECT_GT(host, 0);
    const auto steps = service.Steps(job);
    ASSERT_EQ(steps.size(), base.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(steps[i]["loss"], base[i]["loss"]);
      EXPECT_EQ(steps[i]["gradient_norm"], base[i]["gradient_norm"]);
      EXPECT_EQ(Int(steps[i]["ranks"][0]["host_bytes"]), host);
      EXPECT_TRUE(steps[i]["phase_seconds"].contains("offload_wait"));
    }
    const std::string page = service.Metrics();
    for (const char* direction :
         {"to_host", "from_host", "to_disk", "from_disk"}) {
      int64_t copied = 0;
      for (const auto& step : steps) {
        copied += Int(step["ranks"][0]["copied_bytes"][direction]);
      }
      EXPECT_EQ(copied > 0, absl::EndsWith(direction, "host"));
      EXPECT_EQ(
          Metric(page, absl::StrCat("ebb_train_offload_bytes_total{job_id=\"",
                                    job, "\",direction=\"", direction, "\"}")),
          static_cast<double>(copied));
    }
    EXPECT_EQ(Metric(page, absl::StrCat("ebb_train_host_memory_bytes{job_id=\"",
                                        job, "\",rank=\"0\"}")),
              static_cast<double>(host));
    own.push_back(absl::StrCat("memory.host_budget=", host - 1));
    const CommandResult refused = service.Ebb(
        {"submit", service.Write("offload.yaml", spec), "--set", own[0],
         "--set", own[1], "--set", own[2], "--set", own[3], "--set", own[4]});
    EXPECT_EQ(refused.exit_code, 9);
    EXPECT_THAT(refused.err, HasSubstr("of host memory"));
  }
}

TEST(FirstPath, EffectiveSpecCanBeSubmittedAgain) {
  Service service;
  const std::string job = service.Submit(BaseSpec(service), {"steps=2"});
  const nlohmann::json first = service.WaitForEnd(job);
  const std::string again = service.Submit(first["spec"].dump());
  const nlohmann::json second = service.WaitForEnd(again);
  EXPECT_EQ(first["spec"], second["spec"]);
  EXPECT_EQ(first["weights_hash"], second["weights_hash"]);
  EXPECT_EQ(second["state"], "STATE_SUCCEEDED");
}

TEST(FirstPath, MetricsSayWhatTheStepsSay) {
  Service service;
  const std::string job =
      service.Submit(BaseSpec(service), {"memory.policy=full"});
  const nlohmann::json ended = service.WaitForEnd(job);
  ASSERT_EQ(ended["state"], "STATE_SUCCEEDED");
  const std::string page = service.Metrics();
  const std::string of_job = absl::StrCat("{job_id=\"", job, "\"}");
  EXPECT_EQ(Metric(page, absl::StrCat("ebb_train_steps_total", of_job)), 6);
  EXPECT_EQ(Metric(page, absl::StrCat("ebb_train_tokens_total", of_job)),
            6 * 8 * 32);
  EXPECT_EQ(Metric(page, "ebb_steps_total"), 6);
  const nlohmann::json build = service.EbbJson({"version"});
  EXPECT_EQ(Metric(page, absl::StrCat("ebb_build_info{version=\"",
                                      build["version"].get<std::string>(),
                                      "\",revision=\"",
                                      build["revision"].get<std::string>(),
                                      "\",cuda=\"none\",nccl=\"none\"}")),
            1);
  double flops = 0;
  double recompute_seconds = 0;
  double peak = 0;
  const auto steps = service.Steps(job);
  for (const auto& step : steps) {
    flops += step["model_flops"].get<double>();
    recompute_seconds += step["phase_seconds"]["recompute"].get<double>();
  }
  EXPECT_GT(recompute_seconds, 0);
  for (const auto& [visibility, seconds] :
       {std::pair("exposed", recompute_seconds), {"hidden", 0}}) {
    EXPECT_DOUBLE_EQ(
        Metric(page, absl::StrCat("ebb_train_recompute_seconds_total{job_id=\"",
                                  job, "\",visibility=\"", visibility, "\"}")),
        seconds);
  }
  EXPECT_EQ(Metric(page, absl::StrCat("ebb_train_offload_bytes_total{job_id=\"",
                                      job, "\",direction=\"to_host\"}")),
            0);
  EXPECT_EQ(Metric(page, absl::StrCat(
                             "ebb_train_floating_point_operations_total{job_id="
                             "\"",
                             job, "\",kind=\"model\"}")),
            flops);
  for (const auto& [name, bytes] : steps.back()["ranks"][0]["memory"].items()) {
    const std::string labels = absl::StrCat(
        "{job_id=\"", job, "\",rank=\"0\",category=\"", name, "\"}");
    const double measured =
        Metric(page, absl::StrCat("ebb_train_step_memory_peak_bytes", labels));
    EXPECT_EQ(measured, Int(bytes["peak_bytes"])) << name;
    EXPECT_EQ(Metric(page, absl::StrCat("ebb_train_predicted_memory_peak_bytes",
                                        labels)),
              measured);
    peak += measured;
  }
  EXPECT_EQ(peak, Int(ended["plan"]["ranks"][0]["peak_bytes"]));
  // The whole page is what Prometheus wants.
  const std::string file = service.Write("metrics.txt", page);
  EXPECT_EQ(
      std::system(absl::StrCat("promtool check metrics < ", file).c_str()), 0);
}

TEST(FirstPath, KilledCoordinatorLosesNothing) {
  Service service;
  const std::string job =
      service.Submit(BaseSpec(service), {"steps=400", "model.seq_len=32"});
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(WaitUntil(
        [&] {
          const nlohmann::json now = service.Get(job);
          return now["state"] == "STATE_SUCCEEDED" ||
                 now["last_step"].get<int64_t>() > 20 * (round + 1);
        },
        60));
    kill(service.CoordinatorPid(), SIGKILL);
  }
  const nlohmann::json ended = service.WaitForEnd(job);
  ASSERT_EQ(ended["state"], "STATE_SUCCEEDED") << ended.dump(1);
  EXPECT_EQ(ended["attempt"], 1);
  const auto steps = service.Steps(job);
  ASSERT_EQ(steps.size(), 400u);
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i]["step"], i + 1);
}

TEST(FirstPath, StopLeavesJobsRunningAndTheNextStartFindsThem) {
  Service service;
  const std::string job = service.Submit(BaseSpec(service), {"steps=300"});
  ASSERT_TRUE(WaitUntil(
      [&] { return service.Get(job)["last_step"].get<int64_t>() > 5; }, 60));
  EXPECT_EQ(service.Ebb({"stop"}).exit_code, 0);
  EXPECT_EQ(service.CoordinatorPid(), 0);
  // It trains to its end without a coordinator.
  ASSERT_TRUE(
      WaitUntil([&] { return service.Processes("EBB_JOB=").empty(); }, 120));
  const nlohmann::json ended = service.WaitForEnd(job);
  EXPECT_EQ(ended["state"], "STATE_SUCCEEDED") << ended.dump(1);
  EXPECT_EQ(service.Steps(job).size(), 300u);
}

TEST(FirstPath, KilledWorkerIsNamed) {
  Service service;
  const std::string job = service.Submit(BaseSpec(service), {"steps=100000"});
  ASSERT_TRUE(WaitUntil(
      [&] { return service.Get(job)["last_step"].get<int64_t>() > 5; }, 60));
  const std::vector<pid_t> ranks = service.Processes("EBB_RANK=");
  ASSERT_EQ(ranks.size(), 1u);
  kill(ranks[0], SIGKILL);
  const nlohmann::json ended = service.WaitForEnd(job, 30);
  EXPECT_EQ(ended["state"], "STATE_FAILED");
  EXPECT_EQ(ended["reason"], "REASON_WORKER_EXITED");
  EXPECT_THAT(ended["message"].get<std::string>(),
              HasSubstr("rank 0: signal 9 (possible out-of-memory)"));
  EXPECT_TRUE(
      WaitUntil([&] { return service.Processes("EBB_JOB=").empty(); }, 10));
  EXPECT_EQ(service.Ebb({"watch", job}).exit_code, 100);
}

TEST(FirstPath, CancelEndsTheJobAndItsProcesses) {
  Service service;
  const std::string spec = BaseSpec(service);
  for (const bool now : {false, true}) {
    const std::string job = service.Submit(spec, {"steps=1000000"});
    ASSERT_TRUE(WaitUntil(
        [&] { return service.Get(job)["last_step"].get<int64_t>() > 3; }, 60));
    std::vector<std::string> command = {"cancel", job};
    if (now) command.push_back("--now");
    EXPECT_EQ(service.Ebb(command).exit_code, 0);
    EXPECT_EQ(service.WaitForEnd(job, 30)["state"], "STATE_CANCELLED");
    EXPECT_TRUE(
        WaitUntil([&] { return service.Processes("EBB_JOB=").empty(); }, 10));
    EXPECT_EQ(service.Ebb({"watch", job}).exit_code, 103);
    EXPECT_EQ(service.Ebb({"cancel", job}).exit_code, 5);
    EXPECT_EQ(service.Ebb({"delete", job}).exit_code, 0);
    EXPECT_EQ(service.Ebb({"get", job}).exit_code, 3);
  }
}

TEST(FirstPath, ClientsThatStartTheCoordinatorTogetherShareIt) {
  Service service;
  std::vector<std::unique_ptr<Process>> clients;
  for (int i = 0; i < 6; ++i) clients.push_back(service.StartEbb({"list"}));
  for (auto& client : clients) {
    const CommandResult result = client->Wait(60);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  int coordinators = 0;
  for (pid_t pid : service.Processes()) {
    std::error_code ignored;
    const std::string program = std::filesystem::read_symlink(
        absl::StrCat("/proc/", pid, "/exe"), ignored);
    coordinators += program.ends_with("/ebbd");
  }
  EXPECT_EQ(coordinators, 1);
}

TEST(FirstPath, AllMistakesOfASpecInOneAnswer) {
  Service service;
  const std::string spec = service.Write(
      "bad.yaml",
      "model: {layers: 0, hidden: 66, heads: 4, vocab: 257, seq_len: 32}\n"
      "data: {train: missing.txt}\n"
      "batch: {global: 8, micro: 3}\n"
      "steps: 2.7\n"
      "optimiser: {lr: 1e-3}\n");
  const CommandResult result = service.Ebb({"submit", spec});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  for (const char* text :
       {"model.layers", "66", "batch", "steps", "optimiser", "optimizer",
        "bad.yaml:4", "bad.yaml:2: data.train: got "}) {
    EXPECT_THAT(result.err, HasSubstr(text));
  }
  EXPECT_EQ(service.EbbJson({"list"})["jobs"].size(), 0u);
}

TEST(FirstPath, TrainingThatDivergesIsSaid) {
  Service service;
  const std::string job =
      service.Submit(BaseSpec(service),
                     {"optimizer.lr=1000", "optimizer.clip=0",
                      "lr_schedule.warmup=0", "lr_schedule.decay=constant"});
  const nlohmann::json ended = service.WaitForEnd(job);
  ASSERT_EQ(ended["state"], "STATE_SUCCEEDED") << ended.dump(1);
  EXPECT_GT(ended["warning"]["step"], 1);
  for (const char* command : {"watch", "describe"}) {
    const CommandResult result = service.Ebb({command, job});
    EXPECT_THAT(result.out + result.err, HasSubstr("optimizer.lr"));
  }
  EXPECT_THAT(service.Ebb({"list"}).out,
              MatchesRegex(".*completed, (diverging|not_finite).*"));
}

TEST(FirstPath, AJobThatDoesNotFitIsRefusedWithWhatFits) {
  Service service;
  const std::string path = service.Write("spec.yaml", BaseSpec(service));
  const CommandResult result =
      service.Ebb({"submit", path, "--set", "memory.budget=5MiB"});
  EXPECT_EQ(result.exit_code, 9) << result.err;
  EXPECT_THAT(result.err, HasSubstr("does not fit"));
  EXPECT_EQ(result.out, "");
}

TEST(FirstPath, CheckpointsAreKeptAndStartAnotherJob) {
  Service service;
  const std::string spec = BaseSpec(service);
  const std::string job = service.Submit(
      spec, {"steps=6", "checkpoint.every=2", "checkpoint.keep=2"});
  const nlohmann::json ended = service.WaitForEnd(job);
  ASSERT_EQ(ended["state"], "STATE_SUCCEEDED") << ended.dump(1);
  const std::string checkpoints =
      absl::StrCat(ended["directory"].get<std::string>(), "/checkpoints");
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints)) {
    names.insert(entry.path().filename().string());
  }
  EXPECT_EQ(names, (std::set<std::string>{"step-4", "step-6"}));
  // With lr 0 nothing moves: the weights are the checkpoint's, which are the
  // masters of a job in bf16.
  const std::string next = service.Submit(
      spec, {"steps=1", "optimizer.lr=0", "precision=bf16",
             absl::StrCat("checkpoint.init_from=", checkpoints, "/step-6")});
  const nlohmann::json second = service.WaitForEnd(next);
  ASSERT_EQ(second["state"], "STATE_SUCCEEDED") << second.dump(1);
  EXPECT_EQ(second["weights_hash"], ended["weights_hash"]);

  // A job's directory stands for its newest checkpoint.
  const CommandResult third =
      service.Ebb({"submit", service.Write("third.yaml", spec), "--wait",
                   "--set", "steps=1", "--set", "optimizer.lr=0", "--set",
                   absl::StrCat("checkpoint.init_from=",
                                ended["directory"].get<std::string>())});
  EXPECT_EQ(third.exit_code, 0) << third.err;
  EXPECT_THAT(third.err,
              HasSubstr(absl::StrCat("is taken: ", checkpoints, "/step-6\n")));
  const nlohmann::json third_job =
      service.Get(std::string(absl::StripAsciiWhitespace(third.out)));
  EXPECT_EQ(third_job["spec"]["checkpoint"]["init_from"],
            checkpoints + "/step-6");
  EXPECT_EQ(third_job["weights_hash"], ended["weights_hash"]);
}

TEST(FirstPath, ExportedFilesAreWeightsToStartFrom) {
  Service service;
  const std::string spec = BaseSpec(service);
  const std::string job = service.Submit(
      spec,
      {"steps=4", "precision=bf16", "checkpoint.every=2", "checkpoint.keep=2"});
  const nlohmann::json ended = service.WaitForEnd(job);
  ASSERT_EQ(ended["state"], "STATE_SUCCEEDED") << ended.dump(1);
  const std::string files = service.Path("hf");
  const CommandResult exported = service.Ebb(
      {"export", job, files, "--shard-size", "64KiB", "--output", "json"});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  const auto answer = nlohmann::json::parse(exported.out);
  EXPECT_EQ(answer["step"], 4);
  EXPECT_EQ(answer["directory"], files);
  EXPECT_TRUE(std::filesystem::exists(files + "/model.safetensors.index.json"));
  // With lr 0 nothing moves: the weights are the job's, which are the fp32
  // masters in either precision.
  const std::string next =
      service.Submit(spec, {"steps=1", "optimizer.lr=0",
                            absl::StrCat("checkpoint.init_from=", files)});
  const nlohmann::json second = service.WaitForEnd(next);
  ASSERT_EQ(second["state"], "STATE_SUCCEEDED") << second.dump(1);
  EXPECT_EQ(second["weights_hash"], ended["weights_hash"]);

  EXPECT_EQ(service.Ebb({"export", job, files}).exit_code, 5);
  EXPECT_EQ(service.Ebb({"export", next, service.Path("b")}).exit_code, 5);
  EXPECT_EQ(
      service.Ebb({"export", job, service.Path("b"), "--step", "3"}).exit_code,
      3);
  EXPECT_EQ(service.Ebb({"export", "nosuchjb", files}).exit_code, 3);
  EXPECT_EQ(
      service.Ebb({"export", job, service.Path("b"), "--step", "2"}).exit_code,
      0);
  const CommandResult refused =
      service.Ebb({"submit", service.Write("other.yaml", spec), "--set",
                   absl::StrCat("checkpoint.init_from=", files), "--set",
                   "model.layers=6", "--set", "model.norm_eps=1e-6"});
  EXPECT_EQ(refused.exit_code, 2);
  for (const char* text : {"checkpoint.init_from", "n_layer is",
                           "layer_norm_epsilon is", "transformer.h.5.ln_1"}) {
    EXPECT_THAT(refused.err, HasSubstr(text));
  }
}

TEST(FirstPath, WeightsOfAnotherModelAreRefusedAtSubmit) {
  Service service;
  const std::string spec = BaseSpec(service);
  const std::string job =
      service.Submit(spec, {"steps=1", "checkpoint.every=1"});
  const nlohmann::json ended = service.WaitForEnd(job);
  ASSERT_EQ(ended["state"], "STATE_SUCCEEDED") << ended.dump(1);
  const std::string from = absl::StrCat(
      "checkpoint.init_from=", ended["directory"].get<std::string>(),
      "/checkpoints/step-1");
  const CommandResult result =
      service.Ebb({"submit", service.Write("other.yaml", spec), "--set", from,
                   "--set", "model.layers=5", "--set", "model.ffn=128"});
  EXPECT_EQ(result.exit_code, 2);
  for (const char* text :
       {"checkpoint.init_from", "L4.qkv.weight", "L0.mlp.fc.weight"}) {
    EXPECT_THAT(result.err, HasSubstr(text));
  }
}

TEST(FirstPath, EvaluatesDuringTraining) {
  Service service;
  const std::string spec = BaseSpec(service);
  const std::string job = service.Submit(
      spec,
      {absl::StrCat("data.validation=", service.Path("d0.bin")), "eval.every=3",
       "eval.micro=1", "eval.seq_len=17", "eval.batches=2"});
  const nlohmann::json ended = service.WaitForEnd(job);
  ASSERT_EQ(ended["state"], "STATE_SUCCEEDED") << ended.dump(1);
  EXPECT_EQ(ended["last_eval"]["step"], 6);
  EXPECT_EQ(Int(ended["last_eval"]["tokens"]), 2 * 8 * 17);
  EXPECT_GT(ended["last_eval"]["loss"], 0);
  // Evaluated tokens are not trained tokens.
  EXPECT_EQ(Metric(service.Metrics(), "ebb_tokens_total"), 6 * 8 * 32);
}

}  // namespace
}  // namespace ebb
