// The gRPC edge over a real Unix socket.
#include "server/services.h"

#include <google/protobuf/util/message_differencer.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job_service.grpc.pb.h"
#include "proto/rpc_status.h"
#include "proto/violations.h"
#include "proto/worker_service.grpc.pb.h"
#include "server/local_socket.h"
#include "server/testing/fakes.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ServicesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ServerInfo info;
    info.version = "1.2.3";
    info.pid = getpid();
    info.state_directory = test_.directory;
    info.start_time = absl::UnixEpoch();
    info.backends = [] { return std::vector<Backend>{Backend()}; };
    auto services = Services::Start(test_.get(), test_.exporter.get(), info);
    ASSERT_TRUE(services.ok()) << services.status();
    services_ = *std::move(services);
    const std::string path = test_.directory + "/s";
    auto socket = LocalSocket::Listen(
        path, [](uid_t peer) { return PeerAllowed(peer, geteuid()); },
        [this](int fd) { services_->AddConnection(fd); });
    ASSERT_TRUE(socket.ok()) << socket.status();
    socket_ = *std::move(socket);
    channel_ =
        grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials());
    jobs_ = v1::JobService::NewStub(channel_);
    workers_ = v1::WorkerService::NewStub(channel_);
  }
  void TearDown() override {
    socket_.reset();
    services_.reset();
  }

  // A call that hangs fails the test instead of hanging it.
  static std::unique_ptr<grpc::ClientContext> Context() {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() +
                          std::chrono::seconds(20));
    return context;
  }

  TestCoordinator test_;
  std::unique_ptr<Services> services_;
  std::unique_ptr<LocalSocket> socket_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::WorkerService::Stub> workers_;
};

TEST_F(ServicesTest, CreatesAndGets) {
  v1::CreateJobRequest create;
  *create.mutable_spec() = TestCoordinator::Spec();
  v1::Job job;
  ASSERT_TRUE(jobs_->CreateJob(Context().get(), create, &job).ok());
  v1::GetJobRequest get;
  get.set_id(job.id());
  v1::Job same;
  ASSERT_TRUE(jobs_->GetJob(Context().get(), get, &same).ok());
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(same, job));
  v1::Server server;
  ASSERT_TRUE(jobs_->GetServer(Context().get(), {}, &server).ok());
  EXPECT_EQ(server.version(), "1.2.3");
  EXPECT_EQ(server.backends_size(), 1);
  EXPECT_THAT(
      test_.Page(),
      HasSubstr("grpc_server_handled_total{grpc_type=\"unary\",grpc_service="
                "\"ebb.v1.JobService\",grpc_method=\"CreateJob\",grpc_code="
                "\"OK\"} 1"));
  EXPECT_THAT(
      test_.Page(),
      HasSubstr("grpc_server_handling_seconds_count{grpc_type=\"unary\",grpc_"
                "service=\"ebb.v1.JobService\",grpc_method=\"CreateJob\"} 1"));
}

TEST_F(ServicesTest, ViolationsTravelInTheStatusDetails) {
  v1::CreateJobRequest create;
  *create.mutable_spec() = TestCoordinator::Spec();
  create.mutable_spec()->set_steps(0);
  create.mutable_spec()->mutable_model()->set_heads(3);
  v1::Job job;
  const grpc::Status status = jobs_->CreateJob(Context().get(), create, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  std::vector<std::string> fields;
  for (const v1::Violation& violation : GetViolations(FromGrpcStatus(status))) {
    fields.push_back(violation.field());
    EXPECT_FALSE(violation.rule().empty());
  }
  EXPECT_THAT(fields, ::testing::Contains("steps"));
  EXPECT_GE(fields.size(), 2u);
}

TEST_F(ServicesTest, WatchFollowsFromANumberToTheEnd) {
  const std::string id = test_.Create();
  v1::WatchJobRequest request;
  request.set_id(id);
  auto context = Context();
  auto reader = jobs_->WatchJob(context.get(), request);
  v1::JobEvent event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.job().state(), v1::STATE_QUEUED);
  v1::CancelJobRequest cancel;
  cancel.set_id(id);
  v1::Job job;
  ASSERT_TRUE(jobs_->CancelJob(Context().get(), cancel, &job).ok());
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.job().state(), v1::STATE_CANCELLED);
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
  // Later, from the middle.
  request.set_after_sequence(1);
  auto later = Context();
  reader = jobs_->WatchJob(later.get(), request);
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.sequence(), 2);
  EXPECT_FALSE(reader->Read(&event));
}

TEST_F(ServicesTest, AClientThatGoesAwayFreesItsStream) {
  const std::string id = test_.Create();
  v1::WatchJobRequest request;
  request.set_id(id);
  auto context = Context();
  auto reader = jobs_->WatchJob(context.get(), request);
  v1::JobEvent event;
  ASSERT_TRUE(reader->Read(&event));
  context->TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  // The stop below waits for all handlers: it would hang.
}

TEST_F(ServicesTest, AWorkerGetsItsAssignmentAcknowledgementsAndOrders) {
  const std::string id = test_.Create();
  test_->Tick();
  auto context = Context();
  auto stream = workers_->Connect(context.get());
  ASSERT_TRUE(stream->Write(RegisterMessage(id, 1)));
  v1::CoordinatorMessage answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.assignment().spec().steps(), 100);
  ASSERT_TRUE(stream->Write(StartedMessage(id, 1)));
  ASSERT_TRUE(stream->Write(StepMessage(id, 1, 1, 1)));
  // Stored by a Tick after it arrived.
  do {
    test_->Tick();
  } while (test_.Get(id).last_step() == 0);
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.acknowledge().sequence(), 1);
  v1::CancelJobRequest cancel;
  cancel.set_id(id);
  v1::Job job;
  ASSERT_TRUE(jobs_->CancelJob(Context().get(), cancel, &job).ok());
  test_->Tick();
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.order().kind(), v1::Order::KIND_CANCEL);
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_TRUE(stream->Finish().ok());

  v1::ListStepsRequest steps;
  steps.set_id(id);
  auto steps_context = Context();
  auto reader = jobs_->ListSteps(steps_context.get(), steps);
  v1::Step step;
  ASSERT_TRUE(reader->Read(&step));
  EXPECT_EQ(step.step(), 1);
  EXPECT_FALSE(reader->Read(&step));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(ServicesTest, AWorkerThatIsSentAwayLearnsWhy) {
  const std::string id = test_.Create();
  test_->Tick();
  auto context = Context();
  auto stream = workers_->Connect(context.get());
  ASSERT_TRUE(stream->Write(RegisterMessage(id, 99)));
  v1::CoordinatorMessage answer;
  EXPECT_FALSE(stream->Read(&answer));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("attempt 99"));
}

TEST_F(ServicesTest, LogsComeInPiecesFromAnOffsetOrATail) {
  const std::string id = test_.Create();
  test_->Tick();
  std::string text;
  while (text.size() < 200000) {
    absl::StrAppend(&text, "line of the log, number ", text.size(), "\n");
  }
  std::ofstream(test_.Get(id).directory() + "/attempt-1/rank-0.log") << text;
  const auto read = [&](const v1::StreamLogsRequest& request) {
    auto context = Context();
    auto reader = jobs_->StreamLogs(context.get(), request);
    std::string content;
    v1::LogChunk chunk;
    while (reader->Read(&chunk)) {
      content += chunk.content();
      EXPECT_LE(chunk.content().size(), 65536u);
      EXPECT_EQ(chunk.attempt(), 1);
    }
    EXPECT_TRUE(reader->Finish().ok());
    return content;
  };
  v1::StreamLogsRequest request;
  request.set_id(id);
  EXPECT_EQ(read(request), text);
  request.set_offset(199000);
  EXPECT_EQ(read(request), text.substr(199000));
  request.set_tail_lines(1);
  EXPECT_EQ(read(request), text.substr(text.rfind('\n', text.size() - 2) + 1));
}

TEST_F(ServicesTest, HostileBytesGetAnAnswer) {
  v1::GetJobRequest get;
  get.set_id(std::string(100000, '\''));
  v1::Job job;
  EXPECT_EQ(jobs_->GetJob(Context().get(), get, &job).error_code(),
            grpc::StatusCode::NOT_FOUND);
  v1::CreateJobRequest create;
  *create.mutable_spec() = TestCoordinator::Spec(std::string(5 << 20, 'n'));
  const grpc::Status large = jobs_->CreateJob(Context().get(), create, &job);
  EXPECT_EQ(large.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(large.error_message(), HasSubstr("at most 1048576"));
  create.mutable_spec()->set_name(std::string(100 << 20, 'n'));
  EXPECT_EQ(jobs_->CreateJob(Context().get(), create, &job).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::ListJobsRequest list;
  list.set_page_size(INT32_MIN);
  v1::ListJobsResponse listed;
  EXPECT_EQ(jobs_->ListJobs(Context().get(), list, &listed).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  v1::StreamLogsRequest logs;
  logs.set_id(test_.Create());
  logs.set_rank(INT32_MIN);
  logs.set_offset(INT64_MIN);
  logs.set_tail_lines(INT32_MIN);
  auto context = Context();
  auto reader = jobs_->StreamLogs(context.get(), logs);
  v1::LogChunk chunk;
  EXPECT_FALSE(reader->Read(&chunk));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  // And it still serves.
  v1::Server server;
  EXPECT_TRUE(jobs_->GetServer(Context().get(), {}, &server).ok());
}

}  // namespace
}  // namespace ebb
