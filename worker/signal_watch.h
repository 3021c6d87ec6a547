// Takes SIGTERM and SIGINT on a thread, where any code may run, instead of in a
// signal handler, where hardly any may.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace ebb {

// Blocks SIGTERM and SIGINT in the calling thread and those that it starts from
// then on. Called before the process starts threads: one that has them open
// would take them.
void BlockStopSignals();

// Calls `on_stop` on its own thread for every SIGTERM or SIGINT to the process,
// until destroyed. REQUIRES: BlockStopSignals.
class SignalWatch {
 public:
  explicit SignalWatch(std::function<void(int signal)> on_stop);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  void Run();

  std::function<void(int signal)> on_stop_;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

}  // namespace ebb
