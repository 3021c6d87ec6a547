// Runs the real programs on loopback, each test in a state directory of its
// own, and cleans up whatever happens.
#pragma once

#include <sys/types.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ebb {

struct CommandResult {
  int exit_code = -1;  // 128 + signal if it was killed
  std::string out;
  std::string err;
};

// A child process with its output in files, killed with the object.
class Process {
 public:
  // `environment`: NAME=VALUE, added to the test's own.
  Process(const std::vector<std::string>& arguments,
          const std::vector<std::string>& environment,
          const std::string& output_prefix);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal);
  // Waits for the end; a process that takes longer is killed and fails the
  // test.
  CommandResult Wait(double timeout_seconds);

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
  std::string output_prefix_;
};

// One state directory with its coordinator.
class Service {
 public:
  Service();
  // Stops the coordinator and kills every process that carries this state
  // directory in its environment.
  ~Service();

  const std::string& directory() const { return directory_; }
  std::string Path(const std::string& name) const;

  // Runs `ebb` to its end.
  CommandResult Ebb(std::vector<std::string> arguments,
                    double timeout_seconds = 60);
  // Starts `ebb` and returns at once.
  std::unique_ptr<Process> StartEbb(std::vector<std::string> arguments);
  // As Ebb with --output json; the parsed standard output. Fails the test if
  // the command does.
  nlohmann::json EbbJson(std::vector<std::string> arguments,
                         double timeout_seconds = 60);
  // `ebb steps JOB --output jsonl`.
  std::vector<nlohmann::json> Steps(const std::string& job);

  // Writes a file into the state directory and returns its path.
  std::string Write(const std::string& name, const std::string& text);
  // Submits the text of a spec with the given --set values; returns the id.
  std::string Submit(const std::string& spec,
                     const std::vector<std::string>& sets = {});
  // Waits until the job is in a final state; returns it.
  nlohmann::json WaitForEnd(const std::string& job,
                            double timeout_seconds = 120);
  nlohmann::json Get(const std::string& job);

  // Of the running coordinator, from ebbd.json; 0: none.
  pid_t CoordinatorPid() const;
  // The text of /metrics.
  std::string Metrics();
  // Processes whose environment has this state directory (job processes carry
  // EBB_JOB too); without the test itself.
  std::vector<pid_t> Processes(const std::string& variable = "EBB_STATE=");

 private:
  std::string directory_;
  std::vector<std::string> environment_;
  int num_commands_ = 0;
};

// Polls until `condition` holds; false after the timeout.
bool WaitUntil(const std::function<bool()>& condition, double timeout_seconds);

// The base job of the cases: B0 with its token file D0, written into the
// service's directory.
std::string BaseSpec(Service& service);

}  // namespace ebb
