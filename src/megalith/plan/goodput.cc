// Work moves through three accounts: steps since the last save, steps in a save that is still being written, and steps
// in a save that can be used. A failure loses the first two. A run that ends keeps all three.
//
// Failures arrive as a Poisson process with the rate of all GPUs together; each is drawn when the one before it has
// happened. The closed formulas (Young, Daly) ignore that a save is usable only after it is written and that restarts
// may fail, so the best interval is searched in the simulation, starting from Daly's.
#include "megalith/plan/goodput.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "megalith/base/error.h"

namespace megalith::plan {

namespace {

constexpr double kDay = 86400;

// Simulates one run. Time moves from event to event (the end of a stretch of steps, of a save, of a write); a failure
// interrupts.
class Course {
 public:
  Course(const SimulatedRun& run, uint64_t seed)
      : run_(run),
        end_(run.days * kDay),
        // Saves happen between steps, so the interval is rounded to whole steps.
        stretch_(std::max(1.0, std::round(run.interval_s / run.step_s)) * run.step_s),
        random_(seed),
        failure_(draw_failure()) {}

  Goodput run_to_end() {
    while (now_ < end_) {
      if (!advance(stretch_, work_since_save_)) continue;
      save();
    }
    // Work since the last usable save counts, too: the run has ended without losing it.
    sum_.useful = safe_work_ + pending_work_ + work_since_save_;
    const double elapsed = now_;
    sum_.useful /= elapsed;
    sum_.saving /= elapsed;
    sum_.lost /= elapsed;
    sum_.restarts /= elapsed;
    return sum_;
  }

 private:
  // The exponential distribution has no memory: the time to the next failure can be drawn from any moment.
  double draw_failure() { return now_ + std::exponential_distribution<double>(1 / run_mtbf_s(run_))(random_); }

  // Advances by `seconds` and adds them to `account`. Returns false if the run ends first or a failure comes first; in
  // the latter case the run has been restarted.
  bool advance(double seconds, double& account) {
    const double stop = std::min(now_ + seconds, end_);
    if (failure_ >= stop) {
      account += stop - now_;
      now_ = stop;
      use_written_save();
      return now_ < end_;
    }
    // A failure comes first. Whole steps until then go to the account of work, whose loss fail() counts; the unfinished
    // step is lost at once. Time of other kinds is spent up to the failure.
    const double whole_steps = std::floor((failure_ - now_) / run_.step_s) * run_.step_s;
    const double broken = failure_ - now_;
    if (&account == &work_since_save_) {
      work_since_save_ += whole_steps;
      sum_.lost += broken - whole_steps;
    } else {
      account += broken;
    }
    now_ = failure_;
    fail();
    return false;
  }

  // Once a save is completely written, its work cannot be lost any more.
  void use_written_save() {
    if (pending_work_ == 0 || now_ < usable_at_) return;
    safe_work_ += pending_work_;
    pending_work_ = 0;
  }

  // Training stalls while the state is copied; the write to storage continues beside the next steps.
  void save() {
    // A save must wait until the previous one is written.
    if (pending_work_ > 0 && now_ < usable_at_ && !advance(usable_at_ - now_, sum_.saving)) return;
    use_written_save();
    pending_work_ = work_since_save_;
    work_since_save_ = 0;
    usable_at_ = now_ + std::max(run_.checkpoint.write_s, run_.checkpoint.stall_s);
    advance(run_.checkpoint.stall_s, sum_.saving);
  }

  // Everything since the last usable save is lost, including a save that is half written.
  void fail() {
    use_written_save();
    sum_.lost += work_since_save_ + pending_work_;
    work_since_save_ = pending_work_ = 0;
    // A failure during the restart begins the restart again.
    for (;;) {
      ++sum_.failures;
      failure_ = draw_failure();
      const double up = now_ + run_.faults.restart_s + run_.checkpoint.load_s;
      const double stop = std::min({up, failure_, end_});
      sum_.restarts += stop - now_;
      now_ = stop;
      if (now_ < failure_ || now_ >= end_) return;
    }
  }

  const SimulatedRun& run_;
  const double end_, stretch_;
  std::mt19937_64 random_;
  double now_ = 0;
  double failure_;
  double work_since_save_ = 0, pending_work_ = 0, safe_work_ = 0;  // seconds of steps, in the three accounts
  double usable_at_ = 0;
  Goodput sum_;
};

// Numbers come from the command line, so their mistakes are the user's.
void check_run(const SimulatedRun& run) {
  const auto positive = [](double value) { return std::isfinite(value) && value > 0; };
  check<ConfigError>(positive(run.faults.gpu_mtbf_hours), "mtbf_hours is {}; it must be positive",
                     run.faults.gpu_mtbf_hours);
  check<ConfigError>(positive(run.step_s) && positive(run.interval_s) && positive(run.days) && run.gpus >= 1,
                     "a simulation of {} GPUs, steps of {} s, saves every {} s, over {} days: all must be positive",
                     run.gpus, run.step_s, run.interval_s, run.days);
  check<ConfigError>(run.checkpoint.stall_s >= 0 && run.checkpoint.write_s >= 0 && run.checkpoint.load_s >= 0 &&
                         run.faults.restart_s >= 0,
                     "times of checkpoints and restarts must not be negative");
}

}  // namespace

Goodput simulate(const SimulatedRun& run, uint64_t seed) {
  check_run(run);
  return Course(run, seed).run_to_end();
}

// The mean over several courses with seeds in sequence.
Goodput simulate(const SimulatedRun& run, uint64_t seed, int courses) {
  Goodput mean;
  for (int i = 0; i < courses; ++i) {
    const Goodput one = simulate(run, seed + static_cast<uint64_t>(i));
    mean.useful += one.useful / courses;
    mean.saving += one.saving / courses;
    mean.lost += one.lost / courses;
    mean.restarts += one.restarts / courses;
    mean.failures += one.failures / courses;
  }
  return mean;
}

double run_mtbf_s(const SimulatedRun& run) { return run.faults.gpu_mtbf_hours * 3600 / run.gpus; }

double young_interval_s(const SimulatedRun& run) { return std::sqrt(2 * run.checkpoint.stall_s * run_mtbf_s(run)); }

// Daly (2006), the higher-order estimate: sqrt(2cm) (1 + 1/3 sqrt(c/2m) + c/18m) - c for c < 2m, otherwise m.
double daly_interval_s(const SimulatedRun& run) {
  const double c = run.checkpoint.stall_s, m = run_mtbf_s(run);
  if (c >= 2 * m) return m;
  const double root = std::sqrt(c / (2 * m));
  return std::sqrt(2 * c * m) * (1 + root / 3 + root * root / 9) - c;
}

double best_interval_s(SimulatedRun run, uint64_t seed, int courses) {
  const auto useful = [&](double interval) {
    run.interval_s = interval;
    return simulate(run, seed, courses).useful;
  };
  // Hill climbing from Daly's interval, in factors of 2 and then smaller ones. All candidates see the same failures
  // (the same seeds), so the comparison is not noise.
  double best = std::max(run.step_s, daly_interval_s(run)), most = useful(best);
  for (const double factor : {2.0, 1.25, 1.08}) {
    for (bool moved = true; moved;) {
      moved = false;
      for (const double candidate : {best * factor, best / factor}) {
        if (candidate < run.step_s) continue;
        const double value = useful(candidate);
        if (value <= most) continue;
        most = value;
        best = candidate;
        moved = true;
        break;
      }
    }
  }
  return best;
}

}  // namespace megalith::plan
