// Commands that look at jobs or work on what they left: compare, sample,
// completion, through the real programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "integration_tests/harness.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Its length has no divisor in common with seq_len, so that the model sees it
// begin at every position.
constexpr char kSentence[] = "This memory is real now. ";

// A model that knows one sentence by heart after 200 steps.
std::string TextSpec(Service& service) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += kSentence;
  const std::string corpus = service.Write("corpus.txt", text);
  return absl::StrCat(
      "name: sentence\n"
      "model: {layers: 2, hidden: 32, heads: 2, vocab: 257, seq_len: 24}\n"
      "data: {train: ",
      corpus,
      "}\n"
      "batch: {global: 8, micro: 8}\n"
      "optimizer: {lr: 1e-2}\n"
      "checkpoint: {every: 100}\n"
      "resources: {threads: 1}\n"
      "steps: 200\n");
}

// Workers that make tokens now.
int NumSamplers(Service& service) {
  int count = 0;
  for (const pid_t pid : service.Processes()) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/cmdline"));
    std::stringstream line;
    line << file.rdbuf();
    count += absl::StrContains(line.str(), "--sample");
  }
  return count;
}

TEST(Sample, GoesOnWithTheTextThatItLearned) {
  Service service;
  const std::string job = service.Submit(TextSpec(service));
  const nlohmann::json ended = service.WaitForEnd(job);
  ASSERT_EQ(ended["state"], "STATE_SUCCEEDED");
  EXPECT_EQ(ended["spec"]["precision"], "bf16") << "the default";
  const CommandResult result =
      service.Ebb({"sample", job, "--prompt", "This memory is", "--tokens",
                   "36", "--temperature", "0"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "This memory is real now. This memory is real now. \n");

  // Equal seeds, equal text; another seed or step, another.
  const auto draw = [&](const char* seed, const char* step) {
    return service.EbbJson({"sample", job, "--prompt", "The", "--temperature",
                            "3", "--seed", seed, "--step", step, "--tokens",
                            "40"});
  };
  const nlohmann::json first = draw("1", "200");
  EXPECT_EQ(first["step"], 200);
  EXPECT_EQ(first["prompt"], "The");
  EXPECT_EQ(draw("1", "200")["text"], first["text"]);
  EXPECT_NE(draw("2", "200")["text"], first["text"]);
  EXPECT_NE(draw("1", "100")["text"], first["text"]);

  const CommandResult none =
      service.Ebb({"sample", job, "--prompt", "The", "--step", "101"});
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_EQ(none.out, "");
  EXPECT_THAT(none.err, HasSubstr("no checkpoint of step 101: the newest is of "
                                  "step 200"));
  EXPECT_EQ(NumSamplers(service), 0);
}

TEST(Sample, TokenIdsForDataThatIsNoText) {
  Service service;
  const std::string spec = BaseSpec(service);
  const std::string job = service.Submit(spec, {"checkpoint.every=3"});
  ASSERT_EQ(service.WaitForEnd(job)["state"], "STATE_SUCCEEDED");
  const CommandResult ids =
      service.Ebb({"sample", job, "--prompt-tokens", "1,2,3", "--tokens", "4"});
  EXPECT_EQ(ids.exit_code, 0) << ids.err;
  EXPECT_THAT(ids.out, StartsWith("1,2,3,"));
  const std::vector<std::string> made = absl::StrSplit(ids.out, ',');
  EXPECT_EQ(made.size(), 7u);
  const CommandResult text = service.Ebb({"sample", job, "--prompt", "x"});
  EXPECT_EQ(text.exit_code, 5);
  EXPECT_THAT(text.err, HasSubstr("--prompt-tokens"));
  EXPECT_EQ(
      service.Ebb({"sample", job, "--prompt-tokens", "1,99999"}).exit_code, 2);
}

TEST(Sample, WithoutACheckpointItSaysWhatToSet) {
  Service service;
  const std::string job =
      service.Submit(TextSpec(service), {"steps=1", "checkpoint.every=0"});
  service.WaitForEnd(job);
  const CommandResult result = service.Ebb({"sample", job, "--prompt", "x"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("--set checkpoint.every=N"));
}

TEST(Sample, OfAJobThatTrainsAndEndsWithWhoeverAsked) {
  Service service;
  const std::string job = service.Submit(
      TextSpec(service), {"steps=1000000", "checkpoint.every=5"});
  ASSERT_TRUE(
      WaitUntil([&] { return service.Get(job)["checkpoint_step"] != 0; }, 60));
  const CommandResult result =
      service.Ebb({"sample", job, "--prompt", "The", "--tokens", "5"});
  EXPECT_EQ(result.exit_code, 0) << result.err;

  const auto start = [&] {
    auto client = service.StartEbb(
        {"sample", job, "--prompt-tokens", "1", "--tokens", "65536"});
    EXPECT_TRUE(WaitUntil([&] { return NumSamplers(service) == 1; }, 60));
    return client;
  };
  const auto client = start();
  client->Signal(SIGINT);
  client->Wait(20);
  EXPECT_TRUE(WaitUntil([&] { return NumSamplers(service) == 0; }, 20));
  const auto other = start();
  kill(service.CoordinatorPid(), SIGKILL);
  EXPECT_NE(other->Wait(60).exit_code, 0);
  EXPECT_TRUE(WaitUntil([&] { return NumSamplers(service) == 0; }, 20));
  EXPECT_EQ(service.Ebb({"cancel", job, "--now"}).exit_code, 0);
  service.WaitForEnd(job);
}

TEST(Compare, PoliciesSideBySide) {
  Service service;
  const std::string spec = BaseSpec(service);
  std::vector<std::string> jobs;
  for (const char* policy : {"none", "full"}) {
    jobs.push_back(
        service.Submit(spec, {absl::StrCat("memory.policy=", policy)}));
    ASSERT_EQ(service.WaitForEnd(jobs.back())["state"], "STATE_SUCCEEDED");
  }
  jobs.push_back(service.Submit(spec, {"seed=5", "steps=3"}));
  ASSERT_EQ(service.WaitForEnd(jobs.back())["state"], "STATE_SUCCEEDED");
  const nlohmann::json compared =
      service.EbbJson({"compare", jobs[0], jobs[1], jobs[2]})["jobs"];
  ASSERT_EQ(compared.size(), 3u);
  EXPECT_EQ(compared[1]["losses"]["common_steps"], 6);
  EXPECT_EQ(compared[1]["losses"]["same_bits"], true);
  EXPECT_EQ(compared[2]["losses"]["common_steps"], 3);
  EXPECT_EQ(compared[2]["losses"]["same_bits"], false);
  EXPECT_EQ(compared[2]["losses"]["first_difference"], 1);
  for (const nlohmann::json& job : compared) {
    EXPECT_EQ(job["predicted_peak_bytes"], job["peak_bytes"]);
    EXPECT_GT(job["tokens_per_second"], 0);
    EXPECT_NE(job["saved_bytes"], "0");
  }
  EXPECT_EQ(compared[0]["weights_hash"], compared[1]["weights_hash"]);
  EXPECT_NE(compared[0]["weights_hash"], compared[2]["weights_hash"]);
  EXPECT_GT(compared[1]["recompute_share"], compared[0]["recompute_share"]);
  const CommandResult table =
      service.Ebb({"compare", jobs[0], jobs[1], jobs[2]});
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_THAT(table.out, HasSubstr("same bits"));
  EXPECT_THAT(table.out, HasSubstr("differ at 1"));
}

TEST(Completion, BashOffersCommandsFieldsFilesAndJobs) {
  Service service;
  const std::string job = service.Submit(TextSpec(service), {"steps=1"});
  service.WaitForEnd(job);
  const std::string ebb = absl::StrCat(EBB_BINARY_DIR, "/ebb");
  const auto complete = [&](const std::string& line) {
    const std::string whole = absl::StrCat(ebb, " ", line);
    const std::string script = service.Write(
        "complete.bash",
        absl::StrCat("source <(", ebb, " completion bash)\ncd ",
                     service.directory(), "\nCOMP_LINE='", whole,
                     "'\nCOMP_POINT=", whole.size(),
                     "\n_ebb\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"));
    Process bash({"/bin/bash", script},
                 {absl::StrCat("EBB_STATE=", service.directory())},
                 service.Path("bash"));
    const CommandResult result = bash.Wait(20);
    EXPECT_EQ(result.err, "") << line;
    return absl::StrReplaceAll(result.out, {{"\n", " "}});
  };
  EXPECT_EQ(complete("sub"), "submit ");
  EXPECT_EQ(complete("get "), absl::StrCat(job, " "));
  EXPECT_EQ(complete("list --output j"), "json jsonl ");
  EXPECT_EQ(complete("plan corp"), "corpus.txt ");
  EXPECT_EQ(complete("plan x --set memory.po"), "memory.policy= ");
  EXPECT_EQ(complete("plan x --set memory.policy=s"), "selective sqrt ");
}

}  // namespace
}  // namespace ebb
