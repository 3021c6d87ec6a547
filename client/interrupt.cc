// See interrupt.h. The handler may run on any thread and may call only what is
// safe in a signal: it counts, and wakes the scope's thread through a pipe.
#include "client/interrupt.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "client/exit_code.h"
#include "kernels/status.h"

namespace ebb {
namespace {

std::atomic<int> num_interrupts = 0;
int pipe_ends[2] = {-1, -1};
struct sigaction previous_action;

void OnSignal(int) {
  const int saved_errno = errno;
  if (num_interrupts.fetch_add(1) > 0) _exit(kExitDetached);
  const char byte = 'i';
  // A full pipe is impossible: one byte is written at most.
  [[maybe_unused]] const ssize_t written = write(pipe_ends[1], &byte, 1);
  errno = saved_errno;
}

}  // namespace

InterruptScope::InterruptScope(std::function<void()> on_interrupt)
    : on_interrupt_(std::move(on_interrupt)) {
  EBB_CHECK(pipe_ends[0] < 0);
  EBB_CHECK(pipe2(pipe_ends, O_CLOEXEC) == 0);
  num_interrupts = 0;
  thread_ = std::thread([this] {
    char byte = 0;
    ssize_t num_read = 0;
    do {
      num_read = read(pipe_ends[0], &byte, 1);
    } while (num_read < 0 && errno == EINTR);
    if (num_read != 1 || byte != 'i') return;
    interrupted_ = true;
    on_interrupt_();
  });
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  EBB_CHECK(sigaction(SIGINT, &action, &previous_action) == 0);
}

InterruptScope::~InterruptScope() {
  EBB_CHECK(sigaction(SIGINT, &previous_action, nullptr) == 0);
  const char byte = 'q';
  [[maybe_unused]] const ssize_t written = write(pipe_ends[1], &byte, 1);
  thread_.join();
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  pipe_ends[0] = pipe_ends[1] = -1;
}

}  // namespace ebb
