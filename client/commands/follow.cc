// See follow.h. The display's threads: one reads events, one reads steps; both
// put what they read into a queue, and the calling thread alone draws.
#include "client/commands/follow.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/commands/job_text.h"
#include "client/exit_code.h"
#include "client/format.h"
#include "client/interrupt.h"
#include "client/output.h"
#include "client/progress.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"
#include "proto/violations.h"

namespace ebb {
namespace {

// A terminal is redrawn at most this often, a log gets a line this often.
constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);
constexpr absl::Duration kLineInterval = absl::Seconds(5);
// Steps before the newest one that the moving averages start from.
constexpr int64_t kNumPastSteps = 20;
// After the job's end its last steps may still be on the way.
constexpr absl::Duration kLastStepsWait = absl::Seconds(5);

// The event stream and the step stream are over.
struct EventsEnd {
  absl::StatusOr<v1::Job> job;
};
struct StepsEnd {};

using Update =
    std::variant<v1::JobEvent, v1::Step, std::string, EventsEnd, StepsEnd>;

class UpdateQueue {
 public:
  void Push(Update update) {
    absl::MutexLock lock(&mutex_);
    updates_.push_back(std::move(update));
  }

  // Nothing if none came before the deadline.
  std::optional<Update> Pop(absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    const auto has_update = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return !updates_.empty();
    };
    if (!mutex_.AwaitWithDeadline(absl::Condition(&has_update), deadline)) {
      return std::nullopt;
    }
    Update update = std::move(updates_.front());
    updates_.pop_front();
    return update;
  }

 private:
  absl::Mutex mutex_;
  std::deque<Update> updates_ ABSL_GUARDED_BY(mutex_);
};

// Draws on err: lines for events, and below them the progress.
class ProgressDisplay {
 public:
  ProgressDisplay(const Environment& environment, const v1::Job& job)
      : environment_(environment), redraws_(environment.CanRedraw()) {
    progress_.planned_steps = job.spec().steps();
    progress_.budget_bytes = job.plan().budget_bytes();
    SetState(job);
    Line(absl::StrCat("following ", job.id(), " ", OneLine(job.name()),
                      ": policy ", job.plan().policy(),
                      "; recompute is the share of all FLOPs, attention as "
                      "full square"));
  }

  void Show(const v1::JobEvent& event) {
    if (event.history_lost()) Line("(older events are gone)");
    const std::string time = TimeText(ToTime(event.time()), environment_.zone);
    if (event.has_job()) {
      SetState(event.job());
      const std::string reason = ReasonWord(event.job());
      const std::string& message = event.job().message();
      Line(absl::StrCat(time, "  ", StateWord(event.job()),
                        reason.empty() ? "" : ": ", reason,
                        message.empty() ? "" : ": ", OneLine(message, 2000)));
    } else if (event.has_eval()) {
      const v1::EvalReport& eval = event.eval();
      Line(absl::StrCat(time, "  evaluation at step ", eval.step(), ": loss ",
                        FormatLoss(eval.loss()), ", ", eval.tokens(),
                        " tokens in ",
                        DurationText(absl::Seconds(eval.duration_seconds()))));
    } else if (event.has_checkpoint()) {
      const v1::CheckpointReport& checkpoint = event.checkpoint();
      Line(absl::StrCat(
          time, "  checkpoint at step ", checkpoint.step(),
          checkpoint.error().empty()
              ? absl::StrCat(
                    ": ", FormatBytes(checkpoint.bytes()), " in ",
                    DurationText(absl::Seconds(checkpoint.duration_seconds())),
                    ": ", OneLine(checkpoint.directory(), 2000))
              : absl::StrCat(" FAILED: ", OneLine(checkpoint.error(), 2000))));
    } else if (event.has_policy_switch()) {
      const v1::PolicySwitch& told = event.policy_switch();
      if (told.state() == v1::PolicySwitch::STATE_DONE) {
        progress_.budget_bytes = told.after().budget_bytes();
      }
      Line(absl::StrCat(time, "  ", SwitchText(told)));
    } else if (event.has_warning()) {
      Line(absl::StrCat(
          time, "  WARNING: ", OneLine(event.warning().message(), 2000)));
    }
  }

  void Show(const v1::Step& step) {
    AddStep(ToProgressStep(step), &progress_);
    changed_ = true;
    Draw(absl::Now());
  }

  // When Draw has something to do; the infinite future: after the next step.
  absl::Time NextDraw() const {
    return changed_ ? last_drawn_ + Interval() : absl::InfiniteFuture();
  }

  // Draws the progress if it changed and is due.
  void Draw(absl::Time now) {
    const bool last = progress_.step >= progress_.planned_steps;
    if (!changed_ || (now < last_drawn_ + Interval() && !last)) return;
    changed_ = false;
    last_drawn_ = now;
    if (redraws_) {
      // Return, draw, erase what is left of the line below.
      *environment_.err << "\r"
                        << RenderBar(progress_, environment_.columns() - 1)
                        << "\x1b[K" << std::flush;
      bar_drawn_ = true;
    } else {
      *environment_.err << RenderLine(progress_) << "\n" << std::flush;
    }
  }

  // A line above the bar.
  void Line(absl::string_view text) {
    if (bar_drawn_) *environment_.err << "\r\x1b[K";
    *environment_.err << text << "\n" << std::flush;
    if (bar_drawn_) {
      bar_drawn_ = false;
      changed_ = true;
      last_drawn_ = absl::InfinitePast();
    }
  }

  // Leaves the bar on the screen and the cursor below it.
  void End() {
    if (bar_drawn_) *environment_.err << "\n" << std::flush;
    bar_drawn_ = false;
  }

 private:
  // Events of a job that ended before tell what was: its state stays.
  void SetState(const v1::Job& job) {
    if (progress_.ended) return;
    progress_.state = StateWord(job);
    progress_.ended = IsFinal(job);
  }

  absl::Duration Interval() const {
    return redraws_ ? kRedrawInterval : kLineInterval;
  }

  const Environment& environment_;
  const bool redraws_;
  Progress progress_;
  bool changed_ = false;
  bool bar_drawn_ = false;
  absl::Time last_drawn_ = absl::InfinitePast();
};

absl::StatusOr<v1::Job> FollowWithProgress(const CommandContext& context,
                                           JobClient& client,
                                           const v1::Job& job) {
  UpdateQueue queue;
  client.set_on_notice(
      [&](absl::string_view text) { queue.Push(std::string(text)); });
  ProgressDisplay display(context.environment, job);
  std::thread events([&] {
    absl::StatusOr<v1::Job> end = client.FollowJob(
        job.id(), 0, [&](const v1::JobEvent& event) { queue.Push(event); });
    queue.Push(EventsEnd{std::move(end)});
  });
  std::thread steps([&] {
    // How the job ends, and errors too, are the event stream's to say.
    client
        .FollowSteps(job.id(),
                     std::max<int64_t>(0, job.last_step() - kNumPastSteps),
                     [&](const v1::Step& step) { queue.Push(step); })
        .status()
        .IgnoreError();
    queue.Push(StepsEnd{});
  });
  std::optional<absl::StatusOr<v1::Job>> end;
  std::string last_notice;
  bool steps_end = false;
  absl::Time give_up = absl::InfiniteFuture();
  while (!end.has_value() || !steps_end) {
    std::optional<Update> update =
        queue.Pop(std::min(display.NextDraw(), give_up));
    const absl::Time now = absl::Now();
    if (!update.has_value()) {
      if (now >= give_up) break;
      display.Draw(now);
    } else if (auto* event = std::get_if<v1::JobEvent>(&*update)) {
      display.Show(*event);
    } else if (auto* step = std::get_if<v1::Step>(&*update)) {
      display.Show(*step);
    } else if (auto* notice = std::get_if<std::string>(&*update)) {
      // Both streams meet the same trouble.
      if (*notice != last_notice) display.Line(*notice);
      last_notice = *notice;
    } else if (auto* events_end = std::get_if<EventsEnd>(&*update)) {
      end = std::move(events_end->job);
      give_up = now + (end->ok() ? kLastStepsWait : absl::ZeroDuration());
    } else {
      steps_end = true;
    }
  }
  display.Draw(absl::InfiniteFuture());
  display.End();
  client.Cancel();
  events.join();
  steps.join();
  return *std::move(end);
}

absl::StatusOr<v1::Job> FollowEvents(const CommandContext& context,
                                     JobClient& client, const v1::Job& job,
                                     FollowDisplay display) {
  client.set_on_notice([&](absl::string_view text) {
    *context.environment.err << text << "\n" << std::flush;
  });
  return client.FollowJob(job.id(), 0, [&](const v1::JobEvent& event) {
    if (display != FollowDisplay::kEvents) return;
    *context.environment.out << WriteJson(ToJson(event), OutputFormat::kJsonl)
                             << std::flush;
  });
}

}  // namespace

int Detached(const CommandContext& context, const std::string& job) {
  *context.environment.err << "detached; the job goes on: `ebb watch " << job
                           << "` follows it again, `ebb cancel " << job
                           << "` ends it\n";
  return kExitDetached;
}

absl::StatusOr<int> FollowToEnd(const CommandContext& context,
                                JobClient& client, const v1::Job& job,
                                FollowDisplay display) {
  InterruptScope interrupt([&] { client.Cancel(); });
  const absl::StatusOr<v1::Job> end =
      display == FollowDisplay::kProgress
          ? FollowWithProgress(context, client, job)
          : FollowEvents(context, client, job, display);
  if (!end.ok()) {
    if (interrupt.interrupted()) return Detached(context, job.id());
    return end.status();
  }
  if (context.output == OutputFormat::kTable) {
    *context.environment.err << EndText(*end) << "\n";
  } else if (display != FollowDisplay::kEvents) {
    *context.environment.out << WriteJson(ToJson(*end), context.output);
  }
  return JobExitCode(*end);
}

}  // namespace ebb
