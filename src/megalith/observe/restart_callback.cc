// A restart costs the time until the failure is noticed, the time until the first new step, and the steps since the
// last checkpoint, which are done twice. The launcher remembers earlier starts (comm::Attempt) and passes them to the
// ranks; this callback adds its own, so that each line can tell what share of the job's time was useful (goodput).
#include "megalith/observe/restart_callback.h"

#include "megalith/base/log.h"

namespace megalith::observe {

namespace {

double seconds_since(int64_t begin_ns) { return static_cast<double>(comm::monotonic_ns() - begin_ns) / 1e9; }

}  // namespace

void RestartCallback::on_step_begin(train::TrainerEvent&) { step_began_ns_ = comm::monotonic_ns(); }

// The launcher keeps what on_step receives, so that the next start knows what this one achieved.
void RestartCallback::on_step_end(train::TrainerEvent& event) {
  own_.last_step = event.state.global_step;
  if (own_.first_step == 0) own_.first_step = own_.last_step;
  own_.step_seconds += seconds_since(step_began_ns_);
  if (!resume_seconds_ && launch_.failed_ns > 0) resume_seconds_ = seconds_since(launch_.failed_ns);
  if (launch_.on_step) launch_.on_step(own_);
}

// Goodput divides the time of useful steps in all starts by the time since the first start.
void RestartCallback::on_log(train::TrainerEvent& event) {
  // Written twice: with the first training line after the restart, and with the totals at the end of the run.
  const bool totals = event.metrics.find("train_runtime").has_value();
  const bool line = event.metrics.find("loss").has_value();
  if (launch_.restarts == 0 || (!totals && (told_ || !line))) return;
  told_ = true;
  event.metrics.set("restarts", launch_.restarts);
  if (launch_.earlier.empty()) return;
  double detect = 0;
  for (const comm::Attempt& attempt : launch_.earlier) detect += attempt.detect_seconds;
  event.metrics.set("detect_seconds", detect / static_cast<double>(launch_.earlier.size()));
  if (resume_seconds_) event.metrics.set("resume_seconds", *resume_seconds_);
  std::vector<comm::Attempt> all = launch_.earlier;
  all.push_back(own_);
  event.metrics.set("goodput", comm::useful_seconds(all) / seconds_since(launch_.started_ns));
  if (!launch_.launcher_tells && totals) log_info("{}", comm::restarts_in_words(launch_, all));
  if (!launch_.launcher_tells && !totals && resume_seconds_)
    log_info(
        "running again: the failure was detected {:.1f} s after the last step, and the next step was done {:.1f} s "
        "later",
        launch_.earlier.back().detect_seconds, *resume_seconds_);
}

}  // namespace megalith::observe
