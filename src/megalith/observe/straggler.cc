// A step takes equally long on every rank, because the collectives make the fast ranks wait for the slow ones; so the
// length of a step does not tell who is slow. The time outside of waits does: the straggler computes longest and waits
// least. It is compared with the median of the others rather than the mean, which the straggler itself would raise.
#include "megalith/observe/straggler.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/log.h"

namespace megalith::observe {

namespace {

// "rank 3 (0.520 s compute, 0.010 s wait), rank 1 (…)".
std::string names(const std::vector<RankTime>& ranks) {
  std::string text;
  for (const RankTime& time : ranks)
    text += fmt::format("{}rank {} ({:.3f} s compute, {:.3f} s wait)", text.empty() ? "" : ", ", time.rank,
                        time.compute, time.wait);
  return text;
}

}  // namespace

// Ranks are sorted by compute time; the median is that of all ranks but the slowest.
StragglerReport straggler_report(std::vector<RankTime> ranks, int count) {
  check(!ranks.empty(), "a report of no ranks");
  std::ranges::stable_sort(ranks, std::greater<>(), &RankTime::compute);
  StragglerReport report;
  report.slowest = ranks.front();
  // ranks[1 …] are the others, slowest first. With an even number of them the upper of the two middle ones counts.
  const size_t others = ranks.size() - 1;
  report.median_compute = others == 0 ? ranks[0].compute : ranks[1 + others / 2 - (others % 2 == 0 ? 1 : 0)].compute;
  report.longest_wait = std::ranges::max_element(ranks, {}, &RankTime::wait)->wait;
  report.is_straggler = others > 0 && report.slowest.compute > kSlow * report.median_compute;
  const auto shown = static_cast<std::ptrdiff_t>(std::min<size_t>(static_cast<size_t>(count), ranks.size()));
  const std::vector<RankTime> slow(ranks.begin(), ranks.begin() + shown), fast(ranks.rbegin(), ranks.rbegin() + shown);
  report.text = fmt::format("slowest: {}; fastest: {}", names(slow), names(fast));
  return report;
}

// One all-gather of two numbers per rank and line.
void StragglerCallback::on_log(train::TrainerEvent& event) {
  if (!event.metrics.find("loss") || clock_.steps() == 0) return;
  const StepClock::Means times = clock_.take();
  const at::Tensor own_times = at::tensor({times.compute, times.wait}, at::kDouble).to(settings_.device);
  const at::Tensor gathered = at::empty({world_.size() * 2}, own_times.options());
  world_.all_gather(gathered, own_times, "times of all ranks");
  const at::Tensor read = gathered.to(at::kCPU);
  const double* values = read.const_data_ptr<double>();
  std::vector<RankTime> ranks;
  for (int rank = 0; rank < world_.size(); ++rank) ranks.push_back({rank, values[2 * rank], values[2 * rank + 1]});
  const StragglerReport report = straggler_report(std::move(ranks), settings_.count);
  event.metrics.set("compute_seconds_max", report.slowest.compute);
  event.metrics.set("compute_seconds_median", report.median_compute);
  event.metrics.set("wait_seconds_max", report.longest_wait);
  event.metrics.set("slowest_rank", report.slowest.rank);
  if (!event.state.is_world_process_zero) return;
  if (report.is_straggler)
    log_warning(
        "rank {} is slow: it computes for {:.3f} s per step, the others for {:.3f} s (median); ranks wait up to {:.3f} "
        "s"
        " per step. {}",
        report.slowest.rank, report.slowest.compute, report.median_compute, report.longest_wait, report.text);
  else
    log_info("straggler report: {}", report.text);
}

}  // namespace megalith::observe
