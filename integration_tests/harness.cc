#include "integration_tests/harness.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void Pause() {
  struct timespec nap = {0, 10'000'000};
  nanosleep(&nap, nullptr);
}

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

bool WaitUntil(const std::function<bool()>& condition, double timeout_seconds) {
  const double end = Now() + timeout_seconds;
  while (!condition()) {
    if (Now() > end) return false;
    Pause();
  }
  return true;
}

Process::Process(const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment,
                 const std::string& output_prefix)
    : output_prefix_(output_prefix) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  const std::string out = output_prefix + ".out";
  const std::string err = output_prefix + ".err";
  pid_ = fork();
  if (pid_ != 0) return;
  for (const std::string& variable : environment) {
    putenv(const_cast<char*>(variable.c_str()));
  }
  const int in_fd = open("/dev/null", O_RDONLY);
  const int out_fd = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int err_fd = open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(in_fd, 0);
  dup2(out_fd, 1);
  dup2(err_fd, 2);
  execv(argv[0], argv.data());
  _exit(127);
}

Process::~Process() {
  if (ended_ || pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Process::Signal(int signal) { kill(pid_, signal); }

CommandResult Process::Wait(double timeout_seconds) {
  int status = 0;
  const bool in_time = WaitUntil(
      [&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, timeout_seconds);
  if (!in_time) {
    ADD_FAILURE() << "process " << pid_ << " took over " << timeout_seconds
                  << " s; stderr: " << ReadAll(output_prefix_ + ".err");
    kill(pid_, SIGKILL);
    waitpid(pid_, &status, 0);
  }
  ended_ = true;
  CommandResult result;
  result.exit_code =
      WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = ReadAll(output_prefix_ + ".out");
  result.err = ReadAll(output_prefix_ + ".err");
  return result;
}

Service::Service() {
  const char* base = std::getenv("TMPDIR");
  std::string pattern =
      absl::StrCat(base == nullptr ? "/tmp" : base, "/ebb-test.XXXXXX");
  EXPECT_NE(mkdtemp(pattern.data()), nullptr);
  directory_ = pattern;
  environment_ = {absl::StrCat("EBB_STATE=", directory_),
                  "EBB_METRICS_ADDRESS=127.0.0.1:0",
                  "EBB_SERVER=", "NO_COLOR=1"};
}

Service::~Service() {
  for (int round = 0; round < 100; ++round) {
    const std::vector<pid_t> left = Processes();
    if (left.empty()) break;
    for (pid_t pid : left) kill(pid, SIGKILL);
    Pause();
  }
  if (testing::Test::HasFailure()) {
    std::cerr << "state directory kept: " << directory_ << "\n";
    return;
  }
  std::error_code ignored;
  fs::remove_all(directory_, ignored);
}

std::string Service::Path(const std::string& name) const {
  return absl::StrCat(directory_, "/", name);
}

std::unique_ptr<Process> Service::StartEbb(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), EBB_BINARY_DIR "/ebb");
  const std::string prefix = Path(absl::StrCat("command-", ++num_commands_));
  return std::make_unique<Process>(arguments, environment_, prefix);
}

CommandResult Service::Ebb(std::vector<std::string> arguments,
                           double timeout_seconds) {
  return StartEbb(std::move(arguments))->Wait(timeout_seconds);
}

nlohmann::json Service::EbbJson(std::vector<std::string> arguments,
                                double timeout_seconds) {
  const std::string command = arguments.empty() ? "" : arguments[0];
  arguments.push_back("--output");
  arguments.push_back("json");
  const CommandResult result = Ebb(std::move(arguments), timeout_seconds);
  EXPECT_EQ(result.exit_code, 0) << command << ": " << result.err;
  return nlohmann::json::parse(result.out, nullptr, false);
}

std::vector<nlohmann::json> Service::Steps(const std::string& job) {
  const CommandResult result = Ebb({"steps", job, "--output", "jsonl"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<nlohmann::json> steps;
  for (absl::string_view line :
       absl::StrSplit(result.out, '\n', absl::SkipEmpty())) {
    steps.push_back(nlohmann::json::parse(std::string(line), nullptr, false));
  }
  return steps;
}

std::string Service::Write(const std::string& name, const std::string& text) {
  const std::string path = Path(name);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string Service::Submit(const std::string& spec,
                            const std::vector<std::string>& sets) {
  std::vector<std::string> arguments = {
      "submit", Write(absl::StrCat("spec-", num_commands_, ".yaml"), spec)};
  for (const std::string& set : sets) {
    arguments.push_back("--set");
    arguments.push_back(set);
  }
  const CommandResult result = Ebb(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::string id = result.out;
  while (!id.empty() && id.back() == '\n') id.pop_back();
  EXPECT_EQ(id.size(), 8u) << result.out;
  return id;
}

nlohmann::json Service::Get(const std::string& job) {
  return EbbJson({"get", job});
}

nlohmann::json Service::WaitForEnd(const std::string& job,
                                   double timeout_seconds) {
  nlohmann::json last;
  const bool ended = WaitUntil(
      [&] {
        last = Get(job);
        if (!last.is_object()) return true;
        const std::string state = last.value("state", "");
        return state == "STATE_SUCCEEDED" || state == "STATE_FAILED" ||
               state == "STATE_CANCELLED";
      },
      timeout_seconds);
  EXPECT_TRUE(ended) << last.dump(1);
  return last;
}

pid_t Service::CoordinatorPid() const {
  const auto file =
      nlohmann::json::parse(ReadAll(Path("ebbd.json")), nullptr, false);
  if (!file.is_object() || !file.contains("pid")) return 0;
  return file["pid"].is_string()
             ? std::atoi(file["pid"].get<std::string>().c_str())
             : file["pid"].get<pid_t>();
}

std::string Service::Metrics() {
  const auto file =
      nlohmann::json::parse(ReadAll(Path("ebbd.json")), nullptr, false);
  if (!file.is_object()) return "";
  const std::string address = file.value("metrics_address", "");
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port)) {
    return "";
  }
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  addrinfo hints = {};
  hints.ai_family = AF_INET;
  addrinfo* found = nullptr;
  getaddrinfo(address.substr(0, colon).c_str(),
              address.substr(colon + 1).c_str(), &hints, &found);
  std::string answer;
  if (found != nullptr && connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
    const std::string request =
        "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
    if (write(fd, request.data(), request.size()) > 0) {
      char buffer[65536];
      for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) {
        answer.append(buffer, n);
      }
    }
  }
  if (found != nullptr) freeaddrinfo(found);
  close(fd);
  const size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos ? "" : answer.substr(body + 4);
}

std::vector<pid_t> Service::Processes(const std::string& variable) {
  std::vector<pid_t> pids;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid) ||
        pid == getpid()) {
      continue;
    }
    const std::string environment =
        ReadAll(absl::StrCat("/proc/", pid, "/environ"));
    bool here = false;
    bool has_variable = false;
    for (absl::string_view entry_text : absl::StrSplit(environment, '\0')) {
      here |= entry_text == absl::StrCat("EBB_STATE=", directory_);
      has_variable |= entry_text.substr(0, variable.size()) == variable;
    }
    // A zombie has no environment and does not count.
    if (here && has_variable) pids.push_back(pid);
  }
  return pids;
}

std::string BaseSpec(Service& service) {
  constexpr int kTokens = 20001;
  std::string file(1024 + 2 * kTokens, '\0');
  const int32_t header[3] = {20240520, 1, kTokens};
  std::copy_n(reinterpret_cast<const char*>(header), sizeof(header),
              file.begin());
  for (int64_t i = 0; i < kTokens; ++i) {
    const auto token =
        static_cast<uint16_t>((7919 * i + 104729 * (i / 7)) % 257);
    file[1024 + 2 * i] = static_cast<char>(token & 0xff);
    file[1024 + 2 * i + 1] = static_cast<char>(token >> 8);
  }
  const std::string data = service.Write("d0.bin", file);
  return absl::StrCat(R"(name: base
model: {layers: 4, hidden: 64, heads: 4, ffn: 256, vocab: 257, seq_len: 32,
        tied_embeddings: false, dropout: 0}
data: {train: )",
                      data, R"(}
batch: {global: 8, micro: 2}
steps: 6
seed: 1234
precision: fp32
optimizer: {lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip: 1.0}
lr_schedule: {warmup: 0, decay: constant, min_lr: 0}
memory: {budget: 2GiB}
resources: {threads: 1}
)");
}

}  // namespace ebb
