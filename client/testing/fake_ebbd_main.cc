// A coordinator's manners and none of its work: takes the lock, serves an empty
// JobService, writes ebbd.json, ends on SIGTERM. What it finds about itself it
// writes to its log, for tests to read. $FAKE_EBBD_FAILS makes it exit at once.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "client/testing/fake_job_service.h"
#include "client/version.h"
#include "nlohmann/json.hpp"

namespace {

int NumDescriptors() {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    static_cast<void>(entry);
    ++count;
  }
  // Less the one that lists them.
  return count - 1;
}

}  // namespace

int main() {
  std::cout << "descriptors " << NumDescriptors() << "\n"
            << "directory " << std::filesystem::current_path().string() << "\n"
            << "leader " << (getsid(0) == getpid() ? "yes" : "no") << std::endl;
  if (std::getenv("FAKE_EBBD_FAILS") != nullptr) {
    std::cerr << "told to fail" << std::endl;
    return 1;
  }
  // Before gRPC's threads exist, so that they all leave it to sigwait.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const std::string state = std::getenv("EBB_STATE");
  const int lock =
      open((state + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    std::cerr << "another one has the lock" << std::endl;
    return 5;
  }
  const std::string socket = state + "/ebbd.sock";
  unlink(socket.c_str());
  ebb::FakeJobService service(ebb::kVersion);
  service.Start(socket);
  const nlohmann::json file = {{"pid", getpid()},
                               {"version", ebb::kVersion},
                               {"socket", socket},
                               {"metrics_address", ""}};
  std::ofstream(state + "/ebbd.json.new") << file.dump();
  std::filesystem::rename(state + "/ebbd.json.new", state + "/ebbd.json");
  std::cout << "serving " << getpid() << std::endl;
  int signal = 0;
  sigwait(&signals, &signal);
  service.Stop();
  return 0;
}
