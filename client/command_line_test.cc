// `ebb` as a whole, in memory, against a service on a real socket.
#include "client/command_line.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/exit_code.h"
#include "client/testing/fake_job_service.h"
#include "client/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"
#include "proto/revision.h"
#include "proto/violations.h"

namespace ebb {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr char kSpec[] = R"(name: small
model: {layers: 2, hidden: 64, heads: 4, vocab: 257, seq_len: 32}
data: {train: corpus.txt}
batch: {global: 4, micro: 2}
steps: 3
)";

v1::Job MakeJob(const std::string& id, v1::State state) {
  v1::Job job;
  job.set_id(id);
  job.set_name("job " + id);
  job.set_state(state);
  job.mutable_spec()->set_steps(3);
  job.mutable_plan()->set_policy("none");
  return job;
}

class CommandLine : public testing::Test {
 protected:
  CommandLine() : service_(kVersion) {
    std::string name = testing::TempDir() + "command_line.XXXXXX";
    directory_ = mkdtemp(name.data());
    service_.Start(directory_ + "/socket");
    environment_.in = &in_;
    environment_.out = &out_;
    environment_.err = &err_;
    environment_.working_directory = directory_;
    environment_.program_directory = directory_;
    environment_.variables["EBB_SERVER"] = "unix:" + directory_ + "/socket";
    timing_.first_backoff = absl::Milliseconds(1);
    timing_.largest_backoff = absl::Milliseconds(4);
    std::ofstream(directory_ + "/spec.yaml") << kSpec;
  }
  ~CommandLine() override {
    service_.Stop();
    std::filesystem::remove_all(directory_);
  }

  int Run(const std::vector<std::string>& arguments) {
    out_.str("");
    err_.str("");
    return RunEbb(arguments, environment_, timing_);
  }

  void AddEvent(const std::string& id, v1::State state) {
    v1::JobEvent event;
    *event.mutable_job() = MakeJob(id, state);
    service_.AddEvent(id, event);
  }

  // A job that ran its three steps, with an evaluation and a checkpoint.
  void AddFinishedJob(const std::string& id, v1::State state) {
    AddEvent(id, v1::STATE_RUNNING);
    v1::JobEvent eval;
    eval.mutable_eval()->set_step(2);
    eval.mutable_eval()->set_loss(2.5);
    service_.AddEvent(id, eval);
    v1::JobEvent checkpoint;
    checkpoint.mutable_checkpoint()->set_step(2);
    checkpoint.mutable_checkpoint()->set_error("disk full");
    service_.AddEvent(id, checkpoint);
    for (int64_t number = 1; number <= 3; ++number) {
      v1::Step step;
      step.set_step(number);
      step.set_loss(5.0 - static_cast<double>(number));
      step.set_tokens(1000);
      step.set_duration_seconds(0.5);
      step.set_model_flops(3e9);
      step.set_recompute_flops(1e9);
      service_.AddStep(id, step);
    }
    AddEvent(id, state);
  }

  std::string directory_;
  FakeJobService service_;
  std::istringstream in_;
  std::ostringstream out_;
  std::ostringstream err_;
  Environment environment_;
  CallTiming timing_;
};

TEST_F(CommandLine, SurfaceIsFrozen) {
  EXPECT_EQ(CommandSurface(), R"(ebb --help --output --server
plan --help SPEC --set --dump --rank --profile --accounting --svg --graph --budget --time-limit --check
submit --help SPEC --set --watch --wait --request-id
list --help --state --all
get --help JOB
describe --help JOB
watch --help JOB
steps --help JOB --follow
logs --help JOB --rank --follow --tail
export --help JOB DIR --step --shard-size
compare --help JOB
sample --help JOB --prompt --prompt-tokens --tokens --temperature --top-k --seed --step
policy --help JOB POLICY --budget --set --at-step --next-run
cancel --help JOB --now
stop --help --cancel
delete --help JOB
completion --help SHELL
doctor --help
version --help
help --help TOPIC
)");
}

TEST_F(CommandLine, VersionAndHelp) {
  EXPECT_EQ(Run({"version"}), 0);
  EXPECT_EQ(out_.str(),
            absl::StrCat("ebb ", kVersion, "\nrevision ", kRevision, "\n"));
  EXPECT_EQ(Run({"version", "--output", "json"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["version"], kVersion);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["revision"], kRevision);
  EXPECT_EQ(Run({"help"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("submit"));
  EXPECT_EQ(Run({"help", "exit-codes"}), 0);
  EXPECT_EQ(out_.str(), ExitCodeHelp());
  EXPECT_EQ(Run({"help", "submit"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("--request-id"));
  EXPECT_EQ(Run({"submit", "--help"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("--request-id"));
  EXPECT_EQ(Run({"help", "nothing"}), 2);
}

TEST_F(CommandLine, UsageErrors) {
  EXPECT_EQ(Run({}), 2);
  EXPECT_EQ(out_.str(), "");
  EXPECT_EQ(Run({"lst"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("did you mean list?"));
  EXPECT_EQ(Run({"list", "--stat", "queued"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("did you mean --state?"));
  EXPECT_EQ(Run({"get"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("JOB"));
  EXPECT_EQ(Run({"logs", "a1b2c3d4", "--tail", "-1"}), 2);
  EXPECT_EQ(Run({"plan", "spec.yaml", "--rank", "1"}), 2);
  EXPECT_EQ(Run({"list", "--output", "yaml"}), 2);
  EXPECT_EQ(Run({"get", "\xff"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("JOB: must be UTF-8 text"));
  EXPECT_EQ(Run({"submit", "spec.yaml", "--request-id", "\xff"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("--request-id: must be UTF-8 text"));
  EXPECT_EQ(out_.str(), "");
  EXPECT_EQ(Run({"list", "--state", "ended"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("queued, starting, running"));
}

TEST_F(CommandLine, OutputThatCannotBeWrittenIsAnError) {
  out_.setstate(std::ios::badbit);  // as with a full disk
  EXPECT_EQ(Run({"version"}), 1);
  EXPECT_EQ(err_.str(), "ebb: cannot write the output\n");
  out_.clear();
  EXPECT_EQ(Run({"version"}), 0);
}

TEST_F(CommandLine, WhatIsNotBuiltSaysSo) {
  EXPECT_EQ(Run({"resume", "a1b2c3d4", "--prompt", "x"}), 2);
  EXPECT_EQ(err_.str(), "ebb: the command resume is not built yet\n");
  EXPECT_EQ(Run({"list", "--server", "example.org:9000"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("token"));
}

TEST_F(CommandLine, JsonErrorsGoToErrAlone) {
  EXPECT_EQ(Run({"get", "nonesuch", "--output", "json"}), 3);
  EXPECT_EQ(out_.str(), "");
  EXPECT_EQ(nlohmann::json::parse(err_.str())["error"]["code"], "NOT_FOUND");
  EXPECT_EQ(Run({"--output=json", "gte"}), 2);
  EXPECT_EQ(nlohmann::json::parse(err_.str())["error"]["code"],
            "INVALID_ARGUMENT");
}

TEST_F(CommandLine, ErrorsOfTheCoordinatorHaveTheirExitCode) {
  const std::pair<absl::StatusCode, int> cases[] = {
      {absl::StatusCode::kInternal, 1},
      {absl::StatusCode::kPermissionDenied, 4},
      {absl::StatusCode::kFailedPrecondition, 5},
      {absl::StatusCode::kDeadlineExceeded, 7},
      {absl::StatusCode::kResourceExhausted, 9}};
  for (const auto& [code, exit_code] : cases) {
    service_.FailNext("GetJob", absl::Status(code, "because"));
    EXPECT_EQ(Run({"get", "a1b2c3d4"}), exit_code);
    EXPECT_EQ(out_.str(), "");
    EXPECT_EQ(err_.str(), "ebb: because\n");
  }
}

TEST_F(CommandLine, NoCoordinatorIsUnavailable) {
  EXPECT_EQ(Run({"list", "--server", "unix:nothing-here"}), 6);
  EXPECT_EQ(out_.str(), "");
  EXPECT_THAT(err_.str(),
              StartsWith("ebb: no coordinator answers at unix:" + directory_ +
                         "/nothing-here: there is no such file; name "));
  EXPECT_THAT(err_.str(), EndsWith("started if none runs\n"));
  // Words of the transport say nothing to people.
  EXPECT_THAT(err_.str(), Not(HasSubstr("last error")));
  EXPECT_EQ(Run({"list", "--server", "unix:spec.yaml"}), 6);
  EXPECT_THAT(err_.str(), HasSubstr("it is not a socket"));
}

TEST_F(CommandLine, AnotherVersionIsSaid) {
  FakeJobService other("9.9.9");
  other.Start(directory_ + "/other");
  EXPECT_EQ(Run({"list", "--server", "unix:other"}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("version 9.9.9"));
  EXPECT_THAT(err_.str(), HasSubstr("`ebb stop`"));
}

TEST_F(CommandLine, UnknownJobsGetASuggestion) {
  service_.SetJob(MakeJob("a1b2c3d4", v1::STATE_RUNNING));
  EXPECT_EQ(Run({"get", "a1b2c3d5"}), 3);
  EXPECT_THAT(err_.str(), HasSubstr("did you mean a1b2c3d4?"));
  EXPECT_EQ(Run({"cancel", "job a1b2c3d4"}), 3);
  EXPECT_THAT(err_.str(), HasSubstr("did you mean a1b2c3d4?"));
  EXPECT_EQ(Run({"watch", "zzzzzzzz"}), 3);
  EXPECT_THAT(err_.str(), HasSubstr("`ebb list --all`"));
}

TEST_F(CommandLine, SubmitPrintsTheIdAlone) {
  EXPECT_EQ(Run({"submit", "spec.yaml", "--set", "steps=7", "--set",
                 "optimizer.lr=1e-4"}),
            0);
  EXPECT_EQ(out_.str(), "newjob01\n");
  EXPECT_EQ(err_.str(), "");
  ASSERT_EQ(service_.created().size(), 1u);
  const v1::CreateJobRequest request = service_.created()[0];
  EXPECT_EQ(request.spec().steps(), 7);
  EXPECT_EQ(request.spec().optimizer().lr(), 1e-4);
  EXPECT_EQ(request.spec().data().train(), directory_ + "/corpus.txt");
  EXPECT_EQ(request.request_id().size(), 32u);
}

TEST_F(CommandLine, SubmitReadsStandardInput) {
  in_.str(kSpec);
  EXPECT_EQ(Run({"submit", "-", "--output", "json"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["id"], "newjob01");
}

TEST_F(CommandLine, ARetriedSubmitHasOneRequestId) {
  service_.FailNext("CreateJob", absl::UnavailableError("lost"));
  EXPECT_EQ(Run({"submit", "spec.yaml"}), 0);
  ASSERT_EQ(service_.created().size(), 2u);
  EXPECT_EQ(service_.created()[0].request_id(),
            service_.created()[1].request_id());
  EXPECT_EQ(Run({"submit", "spec.yaml"}), 0);
  EXPECT_NE(service_.created()[2].request_id(),
            service_.created()[0].request_id());
}

TEST_F(CommandLine, ASubmitWithoutAnswerSaysHowToRepeatIt) {
  for (int i = 0; i < 5; ++i) {
    service_.FailNext("CreateJob", absl::UnavailableError("lost"));
  }
  EXPECT_EQ(Run({"submit", "spec.yaml", "--request-id", "mine"}), 6);
  EXPECT_THAT(err_.str(), HasSubstr("--request-id mine"));
}

TEST_F(CommandLine, MistakesOfFilesAreToldWithThoseOfFields) {
  std::ofstream(directory_ + "/bad.yaml") << kSpec << "optimizer: {lr: abc}\n";
  std::vector<v1::Violation> violations(3);
  violations[0].set_field("data.train");
  violations[0].set_value(directory_ + "/corpus.txt");
  violations[0].set_rule("no such file");
  // What the reader knows better, and what follows from it.
  violations[1].set_field("optimizer.lr");
  violations[2].set_field("optimizer.beta1");
  service_.FailNext("CheckJob",
                    ViolationsStatus(absl::StatusCode::kNotFound, violations));
  EXPECT_EQ(Run({"submit", "bad.yaml"}), 2);
  EXPECT_EQ(out_.str(), "");
  const std::vector<std::string> lines =
      absl::StrSplit(err_.str(), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2u) << err_.str();
  EXPECT_EQ(lines[0], "bad.yaml:3: data.train: got " + directory_ +
                          "/corpus.txt: no such file");
  EXPECT_THAT(lines[1], StartsWith("bad.yaml:6: optimizer.lr: got abc: "));
  EXPECT_TRUE(service_.created().empty());
  ASSERT_EQ(service_.checked().size(), 1u);
  EXPECT_EQ(service_.checked()[0].spec().data().train(),
            directory_ + "/corpus.txt");

  // A plan needs no files, and after an error of syntax nobody knows them.
  EXPECT_EQ(Run({"plan", "bad.yaml"}), 2);
  std::ofstream(directory_ + "/broken.yaml") << kSpec << "optimizer: {lr: [\n";
  EXPECT_EQ(Run({"submit", "broken.yaml"}), 2);
  EXPECT_EQ(service_.checked().size(), 1u);
}

TEST_F(CommandLine, SubmitSaysWhichCheckpointIsTaken) {
  service_.SetInitFrom("/jobs/a/checkpoints/step-7");
  EXPECT_EQ(
      Run({"submit", "spec.yaml", "--set", "checkpoint.init_from=/jobs/a"}), 0);
  EXPECT_EQ(err_.str(),
            "ebb: checkpoint.init_from: the newest complete checkpoint of "
            "/jobs/a is taken: /jobs/a/checkpoints/step-7\n");
  EXPECT_EQ(out_.str(), "newjob01\n");
}

TEST_F(CommandLine, SpecMistakesNeedNoCoordinator) {
  service_.Stop();
  std::ofstream(directory_ + "/bad.yaml") << kSpec << "stepz: 1\n";
  EXPECT_EQ(Run({"submit", "bad.yaml"}), 2);
  EXPECT_THAT(err_.str(), StartsWith("bad.yaml:6: stepz: "));
  EXPECT_EQ(out_.str(), "");
  EXPECT_EQ(Run({"plan", "none.yaml"}), 3);
}

TEST_F(CommandLine, MistakesThatTheCoordinatorFindsNameTheSpec) {
  v1::Violation violation;
  violation.set_field("data.train");
  violation.set_value("/x");
  violation.set_rule("must exist");
  violation.set_fix("make it");
  service_.FailNext(
      "CreateJob",
      ViolationsStatus(absl::StatusCode::kInvalidArgument, {violation}));
  EXPECT_EQ(Run({"submit", "spec.yaml"}), 2);
  EXPECT_EQ(err_.str(),
            "spec.yaml:3: data.train: got /x: must exist; make it\n");
}

TEST_F(CommandLine, SubmitWaitEndsWithTheJob) {
  AddFinishedJob("newjob01", v1::STATE_FAILED);
  EXPECT_EQ(Run({"submit", "spec.yaml", "--wait"}), 100);
  EXPECT_EQ(out_.str(), "newjob01\n");
  EXPECT_THAT(err_.str(), HasSubstr("newjob01 failed"));
  EXPECT_EQ(Run({"submit", "spec.yaml", "--wait", "--output", "json"}), 100);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["state"], "STATE_FAILED");
  EXPECT_EQ(err_.str(), "");
}

TEST_F(CommandLine, WatchShowsTheJobToItsEnd) {
  AddFinishedJob("a1b2c3d4", v1::STATE_SUCCEEDED);
  EXPECT_EQ(Run({"watch", "a1b2c3d4"}), 0);
  EXPECT_EQ(out_.str(), "");
  const std::string text = err_.str();
  EXPECT_THAT(text, HasSubstr("attention as full square"));
  EXPECT_THAT(text, HasSubstr("evaluation at step 2: loss 2.5000"));
  EXPECT_THAT(text, HasSubstr("checkpoint at step 2 FAILED: disk full"));
  EXPECT_THAT(text, HasSubstr("step 3/3  loss 2.0000"));
  EXPECT_THAT(text, HasSubstr("recompute 25.0 %"));
  EXPECT_THAT(text, HasSubstr("a1b2c3d4 succeeded"));
  // Not a terminal: nothing is drawn over.
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST_F(CommandLine, WatchRedrawsOnATerminal) {
  AddFinishedJob("a1b2c3d4", v1::STATE_CANCELLED);
  environment_.err_is_terminal = true;
  EXPECT_EQ(Run({"watch", "a1b2c3d4"}), 103);
  EXPECT_THAT(err_.str(), HasSubstr("\r"));
  EXPECT_THAT(err_.str(), HasSubstr("===]  step 3/3"));
  environment_.variables["TERM"] = "dumb";
  EXPECT_EQ(Run({"watch", "a1b2c3d4"}), 103);
  EXPECT_THAT(err_.str(), Not(HasSubstr("\r")));
}

TEST_F(CommandLine, AJobThatEndedHasNoTimeToGo) {
  AddFinishedJob("a1b2c3d4", v1::STATE_CANCELLED);
  v1::Job job = MakeJob("a1b2c3d4", v1::STATE_CANCELLED);
  job.mutable_spec()->set_steps(100);
  service_.SetJob(job);
  EXPECT_EQ(Run({"watch", "a1b2c3d4"}), 103);
  EXPECT_THAT(err_.str(), HasSubstr("cancelled  step 3/100"));
  EXPECT_THAT(err_.str(), Not(HasSubstr("ETA")));
}

TEST_F(CommandLine, WatchTellsWarnings) {
  v1::JobEvent event;
  event.mutable_warning()->set_message("loss nan at step 2");
  service_.AddEvent("a1b2c3d4", event);
  AddFinishedJob("a1b2c3d4", v1::STATE_SUCCEEDED);
  v1::Job job = MakeJob("a1b2c3d4", v1::STATE_SUCCEEDED);
  *job.mutable_warning() = event.warning();
  job.mutable_warning()->set_kind(v1::TrainingWarning::KIND_NOT_FINITE);
  service_.SetJob(job);
  EXPECT_EQ(Run({"watch", "a1b2c3d4"}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("  WARNING: loss nan at step 2\n"));
  EXPECT_EQ(Run({"describe", "a1b2c3d4"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("warning     loss nan at step 2\n"));
  EXPECT_EQ(Run({"list"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("not_finite"));
}

TEST_F(CommandLine, WatchAsJson) {
  AddFinishedJob("a1b2c3d4", v1::STATE_SUCCEEDED);
  EXPECT_EQ(Run({"watch", "a1b2c3d4", "--output", "json"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["id"], "a1b2c3d4");
  EXPECT_EQ(Run({"watch", "a1b2c3d4", "--output", "jsonl"}), 0);
  const std::vector<std::string> lines =
      absl::StrSplit(out_.str(), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(nlohmann::json::parse(lines[1])["eval"]["loss"], 2.5);
}

TEST_F(CommandLine, WatchSurvivesBrokenStreams) {
  AddFinishedJob("a1b2c3d4", v1::STATE_SUCCEEDED);
  service_.BreakNextStream("WatchJob", 2);
  service_.BreakNextStream("ListSteps", 1);
  EXPECT_EQ(Run({"watch", "a1b2c3d4"}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("lost the coordinator"));
  EXPECT_THAT(err_.str(), HasSubstr("step 3/3"));
}

TEST_F(CommandLine, CtrlCDetachesAndTheJobGoesOn) {
  AddEvent("a1b2c3d4", v1::STATE_RUNNING);
  struct Case {
    std::vector<std::string> command;
    // The calls that it holds open.
    std::vector<std::string> methods;
  };
  const Case cases[] = {{{"watch", "a1b2c3d4"}, {"WatchJob", "ListSteps"}},
                        {{"steps", "a1b2c3d4", "--follow"}, {"ListSteps"}},
                        {{"logs", "a1b2c3d4", "--follow"}, {"StreamLogs"}}};
  for (const Case& c : cases) {
    std::map<std::string, int> num_calls;
    for (const std::string& method : c.methods) {
      num_calls[method] = service_.NumCalls(method);
    }
    int exit_code = -1;
    std::thread user([&] { exit_code = Run(c.command); });
    for (const auto& [method, number] : num_calls) {
      service_.AwaitCalls(method, number + 1);
    }
    raise(SIGINT);
    user.join();
    EXPECT_EQ(exit_code, 8) << c.command[0];
    EXPECT_THAT(err_.str(), HasSubstr("detached; the job goes on"));
  }
  EXPECT_TRUE(service_.cancelled().empty());
}

TEST_F(CommandLine, StepsAsTableAndJson) {
  AddFinishedJob("a1b2c3d4", v1::STATE_SUCCEEDED);
  EXPECT_EQ(Run({"steps", "a1b2c3d4"}), 0);
  const std::vector<std::string> rows =
      absl::StrSplit(out_.str(), '\n', absl::SkipEmpty());
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_THAT(rows[0], HasSubstr("LOSS"));
  EXPECT_THAT(rows[3], HasSubstr("2.0000"));

  EXPECT_EQ(Run({"steps", "a1b2c3d4", "--output", "jsonl"}), 0);
  const std::vector<std::string> lines =
      absl::StrSplit(out_.str(), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3u);
  const auto step = nlohmann::json::parse(lines[2]);
  EXPECT_EQ(step["step"], 3);
  EXPECT_EQ(step["tokens"], "1000");
  EXPECT_EQ(step["duration_seconds"], 0.5);

  EXPECT_EQ(Run({"steps", "a1b2c3d4", "--output", "json"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["steps"].size(), 3u);
  EXPECT_EQ(Run({"steps", "nonesuch", "--output", "json"}), 3);
  EXPECT_EQ(out_.str(), "");
}

TEST_F(CommandLine, CompareShowsJobsSideBySide) {
  AddFinishedJob("a1b2c3d4", v1::STATE_SUCCEEDED);
  AddFinishedJob("b1b2c3d4", v1::STATE_FAILED);
  EXPECT_EQ(Run({"compare", "a1b2c3d4", "b1b2c3d4"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("same bits"));
  EXPECT_EQ(Run({"compare", "a1b2c3d4", "b1b2c3d4", "--output", "json"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["jobs"].size(), 2u);
  EXPECT_EQ(Run({"compare", "a1b2c3d4", "b1b2c3d4", "--output", "jsonl"}), 0);
  const std::vector<std::string> lines =
      absl::StrSplit(out_.str(), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(nlohmann::json::parse(lines[1])["losses"]["same_bits"], true);
  EXPECT_EQ(Run({"compare", "a1b2c3d4", "b1b2c3d5"}), 3);
  EXPECT_THAT(err_.str(), HasSubstr("did you mean b1b2c3d4?"));
  EXPECT_EQ(out_.str(), "");
  EXPECT_EQ(Run({"compare"}), 2);
}

TEST_F(CommandLine, SampleShowsTextAsItComes) {
  service_.SetJob(MakeJob("a1b2c3d4", v1::STATE_RUNNING));
  v1::SampleChunk chunk;
  chunk.set_step(7);
  chunk.set_text("upon a ");
  std::vector<v1::SampleChunk> chunks = {chunk};
  chunk.set_text("time\x1b\xff");
  chunks.push_back(chunk);
  service_.SetSample(chunks);
  const std::vector<std::string> command = {
      "sample",        "a1b2c3d4", "--prompt", "Once ", "--tokens", "5",
      "--top-k",       "40",       "--seed",   "9",     "--step",   "7",
      "--temperature", "0.5"};
  EXPECT_EQ(Run(command), 0);
  EXPECT_EQ(out_.str(), "Once upon a time\x1b\xff\n");
  const v1::SampleJobRequest request = service_.sampled().back();
  EXPECT_EQ(request.text(), "Once ");
  EXPECT_EQ(request.num_tokens(), 5);
  EXPECT_EQ(request.top_k(), 40);
  EXPECT_EQ(request.seed(), 9u);
  EXPECT_EQ(request.step(), 7);
  EXPECT_EQ(request.temperature(), 0.5);
  // A model's bytes do not command a terminal.
  environment_.out_is_terminal = true;
  EXPECT_EQ(Run(command), 0);
  EXPECT_EQ(out_.str(), "Once upon a time?\xff\n");
  std::vector<std::string> as_json = command;
  as_json.insert(as_json.end(), {"--output", "json"});
  EXPECT_EQ(Run(as_json), 0);
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["prompt"], "Once ");
  EXPECT_EQ(json["seed"], "9");
  EXPECT_THAT(json["text"].get<std::string>(), StartsWith("upon a time"));
}

TEST_F(CommandLine, SampleOfTokenIds) {
  service_.SetJob(MakeJob("a1b2c3d4", v1::STATE_SUCCEEDED));
  v1::SampleChunk chunk;
  chunk.set_step(7);
  chunk.add_token_ids(11);
  chunk.add_token_ids(12);
  service_.SetSample({chunk});
  EXPECT_EQ(Run({"sample", "a1b2c3d4", "--prompt-tokens", "1,2"}), 0);
  EXPECT_EQ(out_.str(), "1,2,11,12\n");
  EXPECT_EQ(Run({"sample", "a1b2c3d4", "--prompt-tokens", "1,2", "--output",
                 "jsonl"}),
            0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["tokens"],
            nlohmann::json::parse("[11, 12]"));
}

TEST_F(CommandLine, SampleErrorsLeaveTheOutputEmpty) {
  service_.SetJob(MakeJob("a1b2c3d4", v1::STATE_RUNNING));
  EXPECT_EQ(Run({"sample", "a1b2c3d4"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("--prompt-tokens"));
  EXPECT_EQ(
      Run({"sample", "a1b2c3d4", "--prompt", "x", "--prompt-tokens", "1"}), 2);
  EXPECT_EQ(Run({"sample", "a1b2c3d4", "--prompt-tokens", "1,x"}), 2);
  EXPECT_EQ(Run({"sample", "a1b2c3d4", "--prompt", "x", "--tokens", "0"}), 2);
  EXPECT_EQ(
      Run({"sample", "a1b2c3d4", "--prompt", "x", "--temperature", "nan"}), 2);
  EXPECT_EQ(Run({"sample", "a1b2c3d5", "--prompt", "x"}), 3);
  EXPECT_THAT(err_.str(), HasSubstr("did you mean a1b2c3d4?"));
  service_.FailNext("SampleJob",
                    absl::FailedPreconditionError("no checkpoint"));
  EXPECT_EQ(Run({"sample", "a1b2c3d4", "--prompt", "x"}), 5);
  EXPECT_EQ(out_.str(), "");
}

TEST_F(CommandLine, CompletionAsksTheCoordinatorThatRuns) {
  service_.SetJob(MakeJob("a1b2c3d4", v1::STATE_RUNNING));
  EXPECT_EQ(Run({"completion", "candidates", "get", "a"}), 0);
  EXPECT_EQ(out_.str(), "a1b2c3d4\trunning, job a1b2c3d4\n");
  EXPECT_EQ(Run({"completion", "bash"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("complete -F _ebb ebb"));
  EXPECT_EQ(Run({"completion", "tcsh"}), 2);
}

TEST_F(CommandLine, CompletionStartsNothingAndSaysNothing) {
  environment_.variables.clear();
  environment_.variables["EBB_STATE"] = directory_ + "/state";
  EXPECT_EQ(Run({"completion", "candidates", "get", ""}), 0);
  EXPECT_EQ(out_.str(), "");
  EXPECT_EQ(err_.str(), "");
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/state"));
  // A file that a dead coordinator left.
  std::filesystem::create_directory(directory_ + "/state");
  std::ofstream(directory_ + "/state/ebbd.json")
      << R"({"pid": 999999999, "version": "1", "socket": "/nowhere",)"
      << R"( "metrics_address": ""})";
  EXPECT_EQ(Run({"completion", "candidates", "get", ""}), 0);
  environment_.variables["EBB_SERVER"] = "unix:" + directory_ + "/nobody";
  EXPECT_EQ(Run({"completion", "candidates", "get", ""}), 0);
  environment_.variables["EBB_SERVER"] = "unix:" + directory_ + "/socket";
  service_.FailNext("ListJobs", absl::UnavailableError("busy"));
  EXPECT_EQ(Run({"completion", "candidates", "get", ""}), 0);
  EXPECT_EQ(out_.str(), "");
  EXPECT_EQ(err_.str(), "");
}

TEST_F(CommandLine, FollowedStepsEndWithTheJob) {
  AddFinishedJob("a1b2c3d4", v1::STATE_FAILED);
  EXPECT_EQ(Run({"steps", "a1b2c3d4", "--follow", "--output", "jsonl"}), 100);
  const std::vector<std::string> lines =
      absl::StrSplit(out_.str(), '\n', absl::SkipEmpty());
  EXPECT_EQ(lines.size(), 3u);
}

TEST_F(CommandLine, Logs) {
  service_.SetJob(MakeJob("a1b2c3d4", v1::STATE_SUCCEEDED));
  service_.SetLog("a1b2c3d4", "one\ntwo\nlast\xff");
  EXPECT_EQ(Run({"logs", "a1b2c3d4"}), 0);
  EXPECT_EQ(out_.str(), "one\ntwo\nlast\xff");
  EXPECT_EQ(Run({"logs", "a1b2c3d4", "--tail", "1"}), 0);
  EXPECT_EQ(out_.str(), "two\nlast\xff");
  EXPECT_EQ(Run({"logs", "a1b2c3d4", "--follow", "--output", "jsonl"}), 0);
  EXPECT_EQ(out_.str(),
            "{\"rank\":0,\"attempt\":1,\"line\":\"one\"}\n"
            "{\"rank\":0,\"attempt\":1,\"line\":\"two\"}\n"
            "{\"rank\":0,\"attempt\":1,\"line\":\"last\xef\xbf\xbd\"}\n");
  EXPECT_EQ(Run({"logs", "a1b2c3d4", "--output", "json"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["lines"].size(), 3u);
}

TEST_F(CommandLine, ListPagesAndStates) {
  for (const char* id : {"aaaaaaaa", "bbbbbbbb", "cccccccc"}) {
    service_.SetJob(MakeJob(id, v1::STATE_RUNNING));
  }
  service_.SetJob(MakeJob("dddddddd", v1::STATE_FAILED));
  EXPECT_EQ(Run({"list"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("aaaaaaaa"));
  EXPECT_THAT(out_.str(), Not(HasSubstr("cccccccc")));
  EXPECT_THAT(err_.str(), HasSubstr("--all"));
  EXPECT_EQ(Run({"list", "--all"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("dddddddd"));
  EXPECT_EQ(err_.str(), "");
  EXPECT_EQ(Run({"list", "--state", "failed", "--output", "jsonl"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["id"], "dddddddd");
  EXPECT_EQ(Run({"list", "--output", "json"}), 0);
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["jobs"].size(), 2u);
  EXPECT_EQ(json["next_page_token"], "bbbbbbbb");
}

TEST_F(CommandLine, ListFitsANarrowTerminal) {
  service_.SetJob(MakeJob("aaaaaaaa", v1::STATE_RUNNING));
  environment_.columns = [] { return 40; };
  EXPECT_EQ(Run({"list"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("CREATED"));  // a pipe has no width
  environment_.out_is_terminal = true;
  EXPECT_EQ(Run({"list"}), 0);
  for (const absl::string_view line : absl::StrSplit(out_.str(), '\n')) {
    EXPECT_LE(line.size(), 40u) << line;
  }
  EXPECT_THAT(out_.str(), HasSubstr("aaaaaaaa"));
  EXPECT_THAT(out_.str(), HasSubstr("running"));
}

TEST_F(CommandLine, GetAndDescribe) {
  AddFinishedJob("a1b2c3d4", v1::STATE_SUCCEEDED);
  EXPECT_EQ(Run({"get", "a1b2c3d4"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("succeeded"));
  EXPECT_EQ(Run({"describe", "a1b2c3d4"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("predicted and as measured in step 3"));
  EXPECT_THAT(out_.str(), HasSubstr("last steps"));
  EXPECT_THAT(out_.str(), Not(HasSubstr("lossy")));
  EXPECT_EQ(Run({"describe", "a1b2c3d4", "--output", "json"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["last_steps"].size(), 3u);
}

// What a job has lost, and what it never came to.
TEST_F(CommandLine, DescribeTellsWhatWasLostAndWhatWaitsInVain) {
  AddFinishedJob("a1b2c3d4", v1::STATE_CANCELLED);
  v1::Job job = MakeJob("a1b2c3d4", v1::STATE_CANCELLED);
  job.set_lossy(true);
  v1::PolicySwitch& waiting = *job.add_pending_switches();
  waiting.set_state(v1::PolicySwitch::STATE_PENDING);
  waiting.set_next_run(true);
  service_.SetJob(job);
  EXPECT_EQ(Run({"describe", "a1b2c3d4"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("none now, but earlier steps were lossy"));
  EXPECT_THAT(out_.str(), HasSubstr("ordered for the next attempt"));
  EXPECT_THAT(out_.str(), HasSubstr(": the job ended first"));
}

TEST_F(CommandLine, Export) {
  service_.SetJob(MakeJob("a1b2c3d4", v1::STATE_RUNNING));
  EXPECT_EQ(Run({"export", "a1b2c3d4", "hf", "--step", "6", "--shard-size",
                 "1.5KiB"}),
            0);
  EXPECT_EQ(out_.str(), "step 6 of a1b2c3d4 exported to " + directory_ +
                            "/hf: 2 files, 4.00 KiB\n");
  ASSERT_EQ(service_.exported().size(), 1u);
  EXPECT_EQ(service_.exported()[0].shard_bytes(), 1536);
  EXPECT_EQ(Run({"export", "a1b2c3d4", "/hf", "--output", "json"}), 0);
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["directory"], "/hf");
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["files"].size(), 2u);
  EXPECT_EQ(Run({"export", "a1b2c3d5", "hf"}), 3);
  EXPECT_THAT(err_.str(), HasSubstr("a1b2c3d4"));
  EXPECT_EQ(Run({"export", "a1b2c3d4", "hf", "--shard-size", "5GB"}), 2);
  EXPECT_EQ(Run({"export", "a1b2c3d4", "hf", "--step", "0"}), 2);
  EXPECT_EQ(Run({"export", "a1b2c3d4"}), 2);
  // The job is there, its checkpoint is not: no other job is meant.
  service_.FailNext("ExportJob", absl::NotFoundError("no such step"));
  EXPECT_EQ(Run({"export", "a1b2c3d4", "hf", "--step", "3"}), 3);
  EXPECT_EQ(err_.str(), "ebb: no such step\n");
  service_.FailNext("ExportJob", absl::FailedPreconditionError("not empty"));
  EXPECT_EQ(Run({"export", "a1b2c3d4", "hf"}), 5);
  EXPECT_EQ(out_.str(), "");
}

TEST_F(CommandLine, CancelAndDelete) {
  service_.SetJob(MakeJob("a1b2c3d4", v1::STATE_RUNNING));
  EXPECT_EQ(Run({"cancel", "a1b2c3d4", "--now"}), 0);
  EXPECT_EQ(out_.str(), "a1b2c3d4 cancelling\n");
  ASSERT_EQ(service_.cancelled().size(), 1u);
  EXPECT_TRUE(service_.cancelled()[0].now());
  EXPECT_EQ(Run({"cancel", "a1b2c3d4"}), 5);
  EXPECT_EQ(Run({"delete", "a1b2c3d4", "--output", "json"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["id"], "a1b2c3d4");
  EXPECT_EQ(Run({"delete", "a1b2c3d4"}), 3);
}

// A switch to full in that state, as an event tells of it.
v1::JobEvent SwitchEvent(int64_t number, v1::PolicySwitch::State state) {
  v1::JobEvent event;
  v1::PolicySwitch& told = *event.mutable_policy_switch();
  told.set_number(number);
  told.set_state(state);
  told.mutable_before()->set_policy("none");
  told.mutable_before()->set_peak_bytes(4096);
  told.mutable_before()->set_budget_bytes(8192);
  told.mutable_after()->set_policy("full");
  told.mutable_after()->set_group(2);
  told.mutable_after()->set_peak_bytes(1024);
  told.mutable_after()->set_budget_bytes(8192);
  if (state == v1::PolicySwitch::STATE_DONE) told.set_step(51);
  return event;
}

TEST_F(CommandLine, PolicyOfAQueuedJobIsAtOnce) {
  service_.SetJob(MakeJob("a1b2c3d4", v1::STATE_QUEUED));
  EXPECT_EQ(Run({"policy", "a1b2c3d4", "full", "--budget", "1.5KiB", "--set",
                 "memory.group=2"}),
            0);
  EXPECT_THAT(out_.str(),
              StartsWith("a1b2c3d4: policy none to full from step 1 on"));
  EXPECT_EQ(err_.str(), "");
  ASSERT_EQ(service_.switched().size(), 1u);
  const v1::SwitchPolicyRequest request = service_.switched()[0];
  EXPECT_EQ(request.memory().policy(), v1::POLICY_FULL);
  EXPECT_EQ(request.memory().budget(), 1536);
  EXPECT_EQ(request.memory().group(), 2);
  EXPECT_FALSE(request.memory().has_host_budget()) << "only what is said";
  EXPECT_EQ(Run({"policy", "a1b2c3d5", "full"}), 3);
  EXPECT_THAT(err_.str(), HasSubstr("a1b2c3d4"));
}

TEST_F(CommandLine, PolicyReturnsWhenItIsInForce) {
  service_.SetJob(MakeJob("a1b2c3d4", v1::STATE_RUNNING));
  struct Case {
    v1::PolicySwitch::State state;
    int exit_code;
    const char* text;
  };
  const Case cases[] = {
      {v1::PolicySwitch::STATE_DONE, 0,
       "a1b2c3d4: policy none to full (group 2) from step 51 on: peak 4.00 KiB "
       "to 1.00 KiB, budget 8.00 KiB\n"},
      {v1::PolicySwitch::STATE_REFUSED, 9, "NOT taken"},
      {v1::PolicySwitch::STATE_SUPERSEDED, 5, "a later switch came first"}};
  int64_t number = 0;
  for (const Case& c : cases) {
    int exit_code = -1;
    const int calls = service_.NumCalls("WatchJob");
    std::thread user([&] { exit_code = Run({"policy", "a1b2c3d4", "full"}); });
    service_.AwaitCalls("WatchJob", calls + 1);
    // Of another switch, then of this one.
    v1::JobEvent other = SwitchEvent(99, v1::PolicySwitch::STATE_DONE);
    service_.AddEvent("a1b2c3d4", other);
    v1::JobEvent event = SwitchEvent(++number, c.state);
    event.mutable_policy_switch()->set_code(
        c.state == v1::PolicySwitch::STATE_REFUSED ? 8 : 0);
    service_.AddEvent("a1b2c3d4", event);
    user.join();
    EXPECT_EQ(exit_code, c.exit_code);
    EXPECT_THAT(exit_code == 0 ? out_.str() : err_.str(), HasSubstr(c.text));
    EXPECT_EQ(out_.str().empty(), exit_code != 0);
  }
}

TEST_F(CommandLine, PolicyAsJson) {
  service_.SetJob(MakeJob("a1b2c3d4", v1::STATE_RUNNING));
  EXPECT_EQ(
      Run({"policy", "a1b2c3d4", "full", "--next-run", "--output", "json"}), 0);
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["id"], "a1b2c3d4");
  EXPECT_EQ(json["state"], "STATE_PENDING");
  EXPECT_EQ(json["step"], 0);
  EXPECT_EQ(json["before"]["policy"], "none");
  EXPECT_EQ(json["after"]["policy"], "full");
  EXPECT_TRUE(service_.switched()[0].next_run());
}

TEST_F(CommandLine, PolicyThatTheJobsEndOvertakes) {
  service_.SetJob(MakeJob("a1b2c3d4", v1::STATE_RUNNING));
  int exit_code = -1;
  std::thread user([&] {
    exit_code = Run({"policy", "a1b2c3d4", "full", "--at-step", "3"});
  });
  service_.AwaitCalls("WatchJob", 1);
  AddEvent("a1b2c3d4", v1::STATE_SUCCEEDED);
  user.join();
  EXPECT_EQ(exit_code, 5);
  EXPECT_EQ(out_.str(), "");
  EXPECT_THAT(err_.str(), HasSubstr("ordered for step 3"));
  EXPECT_THAT(err_.str(), HasSubstr("ended before the switch came into force"));
}

TEST_F(CommandLine, PolicyThatIsDetachedStaysOrdered) {
  service_.SetJob(MakeJob("a1b2c3d4", v1::STATE_RUNNING));
  int exit_code = -1;
  std::thread user([&] { exit_code = Run({"policy", "a1b2c3d4", "full"}); });
  service_.AwaitCalls("WatchJob", 1);
  raise(SIGINT);
  user.join();
  EXPECT_EQ(exit_code, 8);
  EXPECT_EQ(out_.str(), "");
  EXPECT_THAT(err_.str(), HasSubstr("stays ordered"));
}

TEST_F(CommandLine, PolicyMistakesAllAtOnce) {
  service_.SetJob(MakeJob("a1b2c3d4", v1::STATE_QUEUED));
  EXPECT_EQ(Run({"policy", "a1b2c3d4", "ful", "--budget", "2GB", "--set",
                 "memory.grp=2", "--set", "optimizer.lr=1"}),
            2);
  EXPECT_EQ(out_.str(), "");
  EXPECT_THAT(err_.str(), HasSubstr("POLICY: memory.policy: got ful"));
  EXPECT_THAT(err_.str(), HasSubstr("did you mean full?"));
  EXPECT_THAT(err_.str(), HasSubstr("--budget: memory.budget: got 2GB"));
  EXPECT_THAT(err_.str(), HasSubstr("--set memory.grp"));
  EXPECT_THAT(err_.str(),
              HasSubstr("--set optimizer.lr: optimizer.lr: got 1: must be a "
                        "field of memory"));
  EXPECT_EQ(service_.NumCalls("SwitchPolicy"), 0);
  // What the coordinator finds has its place on the line.
  v1::Violation violation;
  violation.set_field("memory.group");
  violation.set_rule("is for policy full");
  service_.FailNext(
      "SwitchPolicy",
      ViolationsStatus(absl::StatusCode::kInvalidArgument, {violation}));
  EXPECT_EQ(Run({"policy", "a1b2c3d4", "cheap", "--set", "memory.group=2"}), 2);
  EXPECT_THAT(err_.str(), StartsWith("--set memory.group: memory.group: "));
  EXPECT_EQ(Run({"policy", "a1b2c3d4"}), 2);
  EXPECT_EQ(Run({"policy", "a1b2c3d4", "full", "--at-step", "0"}), 2);
  EXPECT_EQ(Run({"policy", "a1b2c3d4", "full", "--at-step", "3", "--next-run"}),
            2);
}

TEST_F(CommandLine, WatchAndDescribeTellOfSwitches) {
  service_.AddEvent("a1b2c3d4", SwitchEvent(1, v1::PolicySwitch::STATE_DONE));
  v1::JobEvent memory = SwitchEvent(2, v1::PolicySwitch::STATE_DONE);
  memory.mutable_policy_switch()->set_cause(
      v1::PolicySwitch::CAUSE_OUT_OF_MEMORY);
  memory.mutable_policy_switch()->set_message("need 5, have 4");
  service_.AddEvent("a1b2c3d4", memory);
  AddFinishedJob("a1b2c3d4", v1::STATE_SUCCEEDED);
  v1::Job job = MakeJob("a1b2c3d4", v1::STATE_SUCCEEDED);
  *job.mutable_last_switch() = memory.policy_switch();
  *job.add_pending_switches() =
      SwitchEvent(3, v1::PolicySwitch::STATE_PENDING).policy_switch();
  service_.SetJob(job);
  EXPECT_EQ(Run({"watch", "a1b2c3d4"}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("  policy none to full (group 2) from step "
                                    "51 on: peak 4.00 KiB to 1.00 KiB"));
  EXPECT_THAT(err_.str(), HasSubstr("OUT OF MEMORY: need 5, have 4\n"));
  EXPECT_EQ(Run({"describe", "a1b2c3d4"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("\nswitch      policy none to full"));
  EXPECT_THAT(out_.str(), HasSubstr("ordered for the next step"));
}

TEST_F(CommandLine, Plan) {
  v1::PlanJobResponse response;
  response.mutable_plan()->set_policy("none");
  response.mutable_plan()->set_fits(true);
  response.mutable_plan()->set_budget_bytes(1 << 20);
  response.set_dump("# rank 0\n");
  service_.SetPlan(response);
  EXPECT_EQ(Run({"plan", "spec.yaml"}), 0);
  EXPECT_THAT(out_.str(), StartsWith("plan of small: policy none, fits\n"));
  EXPECT_EQ(Run({"plan", "spec.yaml", "--dump", "--rank", "0"}), 0);
  EXPECT_EQ(out_.str(), "# rank 0\n");
  EXPECT_EQ(Run({"plan", "spec.yaml", "--output", "json", "--dump"}), 0);
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["budget_bytes"], "1048576");
  EXPECT_EQ(json["dump"], "# rank 0\n");
}

TEST_F(CommandLine, APlanThatDoesNotFitIsShown) {
  v1::PlanJobResponse response;
  response.mutable_plan()->set_policy("none");
  response.mutable_plan()->set_budget_bytes(1024);
  response.mutable_plan()->add_ranks()->set_peak_bytes(4096);
  response.mutable_plan()->set_shortfall("short of 3072 B: buy more");
  service_.SetPlan(response);
  EXPECT_EQ(Run({"plan", "spec.yaml"}), 9);
  EXPECT_THAT(out_.str(), HasSubstr("DOES NOT FIT"));
  EXPECT_THAT(err_.str(), HasSubstr("does not fit: short of 3072 B: buy more"));
  EXPECT_EQ(Run({"plan", "spec.yaml", "--output", "json"}), 9);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["fits"], false);
  EXPECT_EQ(nlohmann::json::parse(err_.str())["error"]["code"],
            "RESOURCE_EXHAUSTED");
  EXPECT_EQ(Run({"plan", "spec.yaml", "--svg", "-"}), 9);
  EXPECT_THAT(out_.str(), HasSubstr("does not fit its budget of 1.00 KiB"));
}

v1::PlanJobResponse PlanWithViews() {
  v1::PlanJobResponse response;
  response.mutable_plan()->set_policy("none");
  response.mutable_plan()->set_fits(true);
  v1::Timeline& timeline = *response.mutable_timeline();
  timeline.set_num_instructions(3);
  timeline.set_num_microbatches(4);
  v1::TimelinePoint* const point = timeline.add_points();
  point->set_num_instructions(3);
  (*point->mutable_memory())["saved"] = 3 << 20;
  response.mutable_paper_accounting()->set_model_flops(2e9);
  return response;
}

TEST_F(CommandLine, PlanDrawsTheTimeline) {
  service_.SetPlan(PlanWithViews());
  EXPECT_EQ(Run({"plan", "spec.yaml"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("one of 4 equal microbatches"));
  EXPECT_THAT(out_.str(), HasSubstr("3.00 MiB |sss"));
  // Scripts get what they ask for.
  EXPECT_EQ(Run({"plan", "spec.yaml", "--output", "json"}), 0);
  EXPECT_FALSE(nlohmann::json::parse(out_.str()).contains("timeline"));
  EXPECT_EQ(Run({"plan", "spec.yaml", "--output", "json", "--svg", "step.svg"}),
            0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["timeline"]["num_microbatches"],
            4);
  std::ifstream file(directory_ + "/step.svg");
  std::string first;
  std::getline(file, first);
  EXPECT_THAT(first, StartsWith("<svg xmlns="));
  EXPECT_EQ(Run({"plan", "spec.yaml", "--svg", "-"}), 0);
  EXPECT_THAT(out_.str(), StartsWith("<svg xmlns="));
}

TEST_F(CommandLine, APictureThatCannotBeWrittenIsAnError) {
  service_.SetPlan(PlanWithViews());
  EXPECT_EQ(Run({"plan", "spec.yaml", "--svg", "missing/step.svg"}), 5);
  EXPECT_EQ(out_.str(), "");
  EXPECT_THAT(err_.str(), HasSubstr("--svg: cannot write"));
  EXPECT_THAT(err_.str(), HasSubstr("No such file or directory"));
  // A disk that is full in the midst of it.
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  rlimit limit = old_limit;
  limit.rlim_cur = 512;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const int code = Run({"plan", "spec.yaml", "--svg", "step.svg"});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  signal(SIGXFSZ, old_handler);
  EXPECT_EQ(code, 5);
  EXPECT_THAT(err_.str(), HasSubstr("File too large"));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/step.svg"));
}

TEST_F(CommandLine, PicturesHaveAPlaceOfTheirOwn) {
  service_.SetPlan(PlanWithViews());
  EXPECT_EQ(Run({"plan", "--graph", "graph.json", "--budget", "1", "--svg",
                 "step.svg"}),
            2);
  EXPECT_THAT(err_.str(), HasSubstr("--accounting and --svg"));
  EXPECT_EQ(Run({"plan", "spec.yaml", "--svg", ""}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("--svg: must not be empty"));
  using Options = std::vector<std::string>;
  for (const Options& option : {Options{"--output", "json"}, Options{"--dump"},
                                Options{"--accounting", "paper"}}) {
    Options arguments = {"plan", "spec.yaml", "--svg", "-"};
    arguments.insert(arguments.end(), option.begin(), option.end());
    EXPECT_EQ(Run(arguments), 2);
    EXPECT_EQ(out_.str(), "");
    EXPECT_THAT(err_.str(), HasSubstr("the picture takes standard output"));
  }
}

TEST_F(CommandLine, PlanCountsAsPapersDo) {
  service_.SetPlan(PlanWithViews());
  EXPECT_EQ(Run({"plan", "spec.yaml"}), 0);
  EXPECT_THAT(out_.str(), Not(HasSubstr("Korthikanti")));
  EXPECT_EQ(Run({"plan", "spec.yaml", "--accounting", "paper"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("what Korthikanti et al. 2022 count"));
  EXPECT_EQ(
      Run({"plan", "spec.yaml", "--accounting", "paper", "--output", "json"}),
      0);
  EXPECT_EQ(
      nlohmann::json::parse(out_.str())["paper_accounting"]["model_flops"],
      2e9);
  EXPECT_EQ(Run({"plan", "spec.yaml", "--accounting", "folklore"}), 2);
  EXPECT_EQ(err_.str(),
            "ebb: --accounting: got folklore: must be paper; leave it out for "
            "what Ebb stores alone\n");
}

TEST_F(CommandLine, PlanOfAGraph) {
  const std::string graph = R"({"outputs":["x"],"nodes":[]})";
  std::ofstream(directory_ + "/graph.json") << graph;
  v1::PlanGraphResponse response;
  response.set_total_seconds(2.5);
  response.set_lower_bound_seconds(2.5);
  response.set_peak_bytes(1000);
  response.set_optimal(true);
  response.add_schedule("compute x");
  service_.SetGraphPlan(response);
  EXPECT_EQ(Run({"plan", "--graph", "graph.json", "--budget", "1.5KiB",
                 "--time-limit", "250ms"}),
            0);
  EXPECT_THAT(out_.str(),
              StartsWith("schedule of graph.json: 2.5 s, optimal\n"));
  ASSERT_EQ(service_.planned_graphs().size(), 1u);
  EXPECT_EQ(service_.planned_graphs()[0].graph(), graph);
  EXPECT_EQ(service_.planned_graphs()[0].budget_bytes(), 1536);
  EXPECT_EQ(service_.planned_graphs()[0].time_limit().nanos(), 250'000'000);
  // What it prints can be checked: with graph and budget.
  EXPECT_EQ(Run({"plan", "--graph", "graph.json", "--budget", "1536",
                 "--output", "json"}),
            0);
  EXPECT_FALSE(service_.planned_graphs()[1].has_time_limit());
  EXPECT_EQ(nlohmann::json::parse(out_.str()),
            nlohmann::json::parse(R"({"total_seconds": 2.5,
                "peak_bytes": "1000", "lower_bound_seconds": 2.5,
                "optimal": true, "schedule": ["compute x"],
                "budget_bytes": "1536",
                "graph": {"outputs": ["x"], "nodes": []}})"));
  in_.str(graph);
  EXPECT_EQ(Run({"plan", "--graph", "-", "--budget", "1"}), 0);
  EXPECT_EQ(service_.planned_graphs()[2].graph(), graph);
  service_.FailNext("PlanGraph",
                    absl::ResourceExhaustedError("does not fit: 3 B"));
  EXPECT_EQ(Run({"plan", "--graph", "graph.json", "--budget", "1"}), 9);
  EXPECT_EQ(out_.str(), "");
  EXPECT_EQ(err_.str(), "ebb: does not fit: 3 B\n");
  v1::Violation violation;
  violation.set_field("nodes[0] (x).seconds");
  violation.set_value("-1");
  violation.set_rule("must be more");
  service_.FailNext(
      "PlanGraph",
      ViolationsStatus(absl::StatusCode::kInvalidArgument, {violation}));
  EXPECT_EQ(Run({"plan", "--graph", "graph.json", "--budget", "1"}), 2);
  EXPECT_EQ(err_.str(),
            "graph.json: nodes[0] (x).seconds: got -1: must be more\n");
}

TEST_F(CommandLine, CheckOfASchedule) {
  std::ofstream(directory_ + "/graph.json") << "{}";
  std::ofstream(directory_ + "/schedule.json") << "[]";
  v1::CheckScheduleResponse response;
  response.set_total_seconds(2.5);
  response.set_peak_bytes(1000);
  response.set_budget_bytes(1024);
  response.set_num_computations(3);
  response.set_num_recomputations(1);
  service_.SetCheckedSchedule(response);
  EXPECT_EQ(Run({"plan", "--check", "schedule.json"}), 0);
  EXPECT_THAT(out_.str(), StartsWith("schedule.json keeps every rule: 2.5 s"));
  EXPECT_EQ(Run({"plan", "--check", "schedule.json", "--graph", "graph.json",
                 "--budget", "2KiB", "--output", "json"}),
            0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["num_recomputations"], "1");
  ASSERT_EQ(service_.checked_schedules().size(), 2u);
  EXPECT_EQ(service_.checked_schedules()[0].schedule(), "[]");
  EXPECT_EQ(service_.checked_schedules()[0].graph(), "");
  EXPECT_EQ(service_.checked_schedules()[0].budget_bytes(), 0);
  EXPECT_EQ(service_.checked_schedules()[1].graph(), "{}");
  EXPECT_EQ(service_.checked_schedules()[1].budget_bytes(), 2048);
  // Each mistake says in which file.
  std::vector<v1::Violation> violations(2);
  violations[0].set_field("graph.nodes");
  violations[0].set_rule("is required");
  violations[1].set_field("schedule[0]");
  violations[1].set_rule("is wrong");
  service_.FailNext(
      "CheckSchedule",
      ViolationsStatus(absl::StatusCode::kInvalidArgument, violations));
  EXPECT_EQ(Run({"plan", "--check", "schedule.json", "--graph", "graph.json"}),
            2);
  EXPECT_EQ(err_.str(),
            "graph.json: graph.nodes: got nothing: is required\n"
            "schedule.json: schedule[0]: got nothing: is wrong\n");
}

TEST_F(CommandLine, PlanWantsOneSubject) {
  const std::vector<std::vector<std::string>> wrong = {
      {"plan"},
      {"plan", "spec.yaml", "--graph", "g", "--budget", "1"},
      {"plan", "spec.yaml", "--check", "s"},
      {"plan", "spec.yaml", "--budget", "1GiB"},
      {"plan", "spec.yaml", "--time-limit", "1s"},
      {"plan", "--graph", "g"},
      {"plan", "--graph", "g", "--budget", "1", "--set", "steps=1"},
      {"plan", "--graph", "g", "--budget", "1", "--dump"},
      {"plan", "--graph", "g", "--budget", "0"},
      {"plan", "--graph", "g", "--budget", "1GB"},
      {"plan", "--graph", "g", "--budget", "1", "--time-limit", "5"},
      {"plan", "--check", "s", "--time-limit", "5s"},
      {"plan", "--check", "-", "--graph", "-"},
  };
  for (const std::vector<std::string>& arguments : wrong) {
    EXPECT_EQ(Run(arguments), 2) << absl::StrJoin(arguments, " ");
    EXPECT_EQ(out_.str(), "");
  }
  EXPECT_EQ(Run({"plan", "--graph", "none.json", "--budget", "1"}), 3);
  EXPECT_THAT(err_.str(), HasSubstr("cannot read the graph: none.json"));
  EXPECT_EQ(Run({"plan", "--check", "none.json"}), 3);
  EXPECT_THAT(err_.str(), HasSubstr("cannot read the schedule: none.json"));
}

TEST_F(CommandLine, StopIsForTheLocalCoordinator) {
  EXPECT_EQ(Run({"stop"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("EBB_STATE"));
  environment_.variables.erase("EBB_SERVER");
  environment_.variables["EBB_STATE"] = directory_ + "/none";
  EXPECT_EQ(Run({"stop"}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("no coordinator runs"));
  EXPECT_EQ(Run({"stop", "--cancel", "--output", "json"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["stopped"], false);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/none"));
}

TEST_F(CommandLine, CommandsStartTheLocalCoordinator) {
  environment_.variables.erase("EBB_SERVER");
  environment_.variables["EBB_STATE"] = directory_ + "/state";
  environment_.variables["PATH"] = "/usr/bin:/bin";
  environment_.program_directory = EBB_FAKE_COORDINATOR_DIR;
  EXPECT_EQ(Run({"list", "--output", "jsonl"}), 0);
  EXPECT_EQ(out_.str(), "");
  EXPECT_THAT(err_.str(), StartsWith("starting the coordinator"));
  EXPECT_EQ(Run({"submit", "spec.yaml"}), 0);
  EXPECT_EQ(err_.str(), "");
  EXPECT_EQ(Run({"stop", "--cancel"}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("waiting for the end of newjob01"));
  EXPECT_THAT(err_.str(), HasSubstr("stopped the coordinator"));
  // Jobs outlive a coordinator: one is started to look for them.
  std::filesystem::remove(directory_ + "/state/ebbd.json");
  EXPECT_EQ(Run({"stop", "--cancel"}), 0);
  EXPECT_THAT(err_.str(), StartsWith("starting the coordinator"));
  EXPECT_THAT(err_.str(), HasSubstr("stopped the coordinator"));
}

TEST_F(CommandLine, DoctorTellsWhatToDo) {
  EXPECT_EQ(Run({"doctor"}), 5);
  EXPECT_THAT(out_.str(), HasSubstr("ok    coordinator: version"));
  EXPECT_THAT(out_.str(), HasSubstr("fail  ebb-worker: "));
  EXPECT_THAT(out_.str(), HasSubstr("build or install all programs"));
  EXPECT_EQ(Run({"doctor", "--output", "json"}), 5);
  EXPECT_GT(nlohmann::json::parse(out_.str())["checks"].size(), 7u);
  environment_.out_is_terminal = true;
  EXPECT_EQ(Run({"doctor"}), 5);
  EXPECT_THAT(out_.str(), HasSubstr("\x1b[31mfail\x1b[0m"));
}

}  // namespace
}  // namespace ebb
