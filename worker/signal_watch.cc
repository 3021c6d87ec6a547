// A thread in sigwait.
#include "worker/signal_watch.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace ebb {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

void BlockStopSignals() {
  sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

SignalWatch::SignalWatch(std::function<void(int)> on_stop)
    : on_stop_(std::move(on_stop)), thread_([this] { Run(); }) {}

SignalWatch::~SignalWatch() {
  ending_ = true;
  // To the thread alone; wakes its sigwait.
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void SignalWatch::Run() {
  pthread_setname_np(pthread_self(), "ebb-signal");
  const sigset_t signals = StopSignals();
  for (;;) {
    int number = 0;
    if (sigwait(&signals, &number) != 0) continue;
    if (ending_) return;
    on_stop_(number);
  }
}

}  // namespace ebb
