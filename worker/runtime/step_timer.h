// Wall seconds of a step by phase. The clock is read only where the phase
// changes.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "worker/program/program.h"
#include "worker/program/step_report.h"

namespace ebb {

class StepTimer {
 public:
  enum class Part : uint8_t {
    kForward,
    kRecompute,
    kBackward,
    kOptimizer,
    kDataWait,
    kOffloadWait,  // for copies that something stands still for
    kNumParts,
  };

  // The step begins, in the part kOptimizer (clearing gradients).
  void Start() {
    seconds_ = {};
    part_ = Part::kOptimizer;
    start_ = last_ = Clock::now();
  }
  void Enter(Part part) {
    if (part == part_) return;
    Charge();
    part_ = part;
  }
  void Stop() { Charge(); }

  // From Start to Stop.
  double duration_seconds() const {
    return std::chrono::duration<double>(last_ - start_).count();
  }
  PhaseSeconds phases() const {
    PhaseSeconds phases;
    phases.forward = Of(Part::kForward);
    phases.recompute = Of(Part::kRecompute);
    phases.backward = Of(Part::kBackward);
    phases.optimizer = Of(Part::kOptimizer);
    phases.data_wait = Of(Part::kDataWait);
    phases.offload_wait = Of(Part::kOffloadWait);
    return phases;
  }

  static Part PartOf(Phase phase) {
    switch (phase) {
      case Phase::kForward:
        return Part::kForward;
      case Phase::kRecompute:
        return Part::kRecompute;
      case Phase::kBackward:
        return Part::kBackward;
      case Phase::kUpdate:
        return Part::kOptimizer;
    }
    return Part::kOptimizer;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void Charge() {
    const Clock::time_point now = Clock::now();
    seconds_[static_cast<int>(part_)] +=
        std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }
  double Of(Part part) const { return seconds_[static_cast<int>(part)]; }

  std::array<double, static_cast<int>(Part::kNumParts)> seconds_ = {};
  Part part_ = Part::kOptimizer;
  Clock::time_point start_;
  Clock::time_point last_;
};

}  // namespace ebb
