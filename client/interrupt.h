// Ctrl-C while a job is followed: the first one detaches, the second one ends
// the program at once.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace ebb {

// While it lives, SIGINT does not end the process: the first calls
// `on_interrupt` on a thread of its own, the second exits with the code of
// "detached". One at a time in a process.
class InterruptScope {
 public:
  explicit InterruptScope(std::function<void()> on_interrupt);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  bool interrupted() const { return interrupted_; }

 private:
  std::function<void()> on_interrupt_;
  std::atomic<bool> interrupted_ = false;
  // Reads the pipe that the signal's handler writes to.
  std::thread thread_;
};

}  // namespace ebb
