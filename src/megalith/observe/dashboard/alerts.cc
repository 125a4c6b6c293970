// Alerts are computed from what the dashboard has read anyway, each time that something has changed; there is no state,
// so an alert disappears when its reason does.
#include "megalith/observe/dashboard/alerts.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"

namespace megalith::observe {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kGibibyte = 1024.0 * 1024 * 1024;

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

int64_t last_step(const AlertFacts& facts) {
  return facts.loss != nullptr && facts.loss->points() > 0 ? static_cast<int64_t>(facts.loss->last_x()) : 0;
}

// Returns the newest event of a kind in the last steps.
std::optional<Json> recent_event(const AlertFacts& facts, std::string_view kind) {
  if (facts.events == nullptr) return std::nullopt;
  // Newest first; the texts are JSON objects with these members, or they would not be here.
  for (auto text = facts.events->rbegin(); text != facts.events->rend(); ++text) {
    Json event = Json::parse(*text);
    if (event["step"].get<double>() + kRecentSteps < static_cast<double>(last_step(facts))) return std::nullopt;
    if (event["event"] == kind) return event;
  }
  return std::nullopt;
}

std::optional<Alert> nan_alert(const AlertFacts& facts) {
  const int64_t step = last_step(facts);
  if (facts.loss != nullptr && facts.loss->points() > 0 && !std::isfinite(facts.loss->last_y()))
    return Alert{"nan", step, fmt::format("the loss of step {} is not finite", step)};
  const auto skip = recent_event(facts, "skip");
  if (!skip || skip->value("why", "") == "requested") return std::nullopt;
  const auto at = static_cast<int64_t>((*skip)["step"].get<double>());
  return Alert{"nan", at,
               fmt::format("the update of step {} was skipped: {} not finite", at,
                           skip->value("why", "") == "loss" ? "its loss is" : "its gradients are")};
}

// The last tenth of up to 200 lines is compared with the lines before it. The median and the median deviation are not
// moved by the spike itself, nor by an earlier one.
std::optional<Alert> spike_alert(const AlertFacts& facts) {
  constexpr size_t kMostLines = 200;
  constexpr double kDeviations = 8, kLeastShare = 0.1;
  if (facts.loss == nullptr) return std::nullopt;
  std::vector<DownsampledSeries::Bucket> lines;
  for (const DownsampledSeries::Bucket& bucket : facts.loss->buckets())
    if (bucket.finite > 0) lines.push_back(bucket);
  if (lines.size() < kSpikeLines) return std::nullopt;
  if (lines.size() > kMostLines) lines.erase(lines.begin(), lines.end() - kMostLines);
  const size_t recent = std::max<size_t>(1, lines.size() / 10);
  std::vector<double> before, deviations;
  for (size_t i = 0; i + recent < lines.size(); ++i) before.push_back(lines[i].mean());
  const double usual = median_of(before);
  for (const double value : before) deviations.push_back(std::abs(value - usual));
  const double bound = usual + std::max(kDeviations * median_of(deviations), kLeastShare * std::abs(usual));
  const auto worst = std::max_element(lines.end() - static_cast<int64_t>(recent), lines.end(),
                                      [](const auto& a, const auto& b) { return a.max < b.max; });
  if (worst->max <= bound) return std::nullopt;
  const auto step = static_cast<int64_t>(worst->last_x);
  return Alert{
      "loss_spike", step,
      fmt::format("the loss jumped to {:.4g} at step {}; before, it was about {:.4g}", worst->max, step, usual)};
}

std::optional<Alert> stall_alert(const AlertFacts& facts) {
  constexpr double kLeastSeconds = 120, kIntervals = 10;
  if (facts.ended || facts.changed <= 0) return std::nullopt;
  double bound = kLeastSeconds;
  if (facts.time != nullptr && facts.time->points() > 1) {
    const auto& buckets = facts.time->buckets();
    const double span = buckets.back().mean() - buckets.front().mean();
    bound = std::max(bound, kIntervals * span / static_cast<double>(facts.time->points() - 1));
  }
  const double silent = facts.now - facts.changed;
  if (!(silent > bound)) return std::nullopt;
  return Alert{"stall", last_step(facts),
               fmt::format("no new line for {:.0f} minutes, and the run has not ended", silent / 60)};
}

std::optional<Alert> straggler_alert(const AlertFacts& facts) {
  const auto event = recent_event(facts, "straggler");
  if (!event || facts.ended) return std::nullopt;
  const auto number = [&](const char* name) { return event->contains(name) && (*event)[name].is_number(); };
  if (!number("rank") || !number("compute_seconds") || !number("median_seconds")) return std::nullopt;
  return Alert{"straggler", static_cast<int64_t>((*event)["step"].get<double>()),
               fmt::format("rank {} computes {:.3g} s per step, the others {:.3g} s",
                           static_cast<int64_t>((*event)["rank"].get<double>()),
                           (*event)["compute_seconds"].get<double>(), (*event)["median_seconds"].get<double>())};
}

std::optional<Alert> disk_alert(const AlertFacts& facts) {
  if (facts.ended || !facts.free_bytes) return std::nullopt;
  const double needed = std::max(2.0 * static_cast<double>(facts.checkpoint_bytes), kGibibyte);
  const auto room = static_cast<double>(*facts.free_bytes);
  if (room >= needed) return std::nullopt;
  return Alert{
      "low_disk", last_step(facts),
      fmt::format("{:.2f} GiB are left on the disk of the run; {}", room / kGibibyte,
                  facts.checkpoint_bytes > 0 ? fmt::format("a checkpoint takes {:.2f} GiB",
                                                           static_cast<double>(facts.checkpoint_bytes) / kGibibyte)
                                             : "a save may fail")};
}

}  // namespace

std::vector<Alert> alerts_of(const AlertFacts& facts) {
  constexpr double kDaySeconds = 86400;
  if (facts.now - facts.changed > kDaySeconds) return {};
  std::vector<Alert> alerts;
  for (const auto& judge : {nan_alert, stall_alert, spike_alert, disk_alert, straggler_alert})
    if (auto alert = judge(facts)) alerts.push_back(std::move(*alert));
  return alerts;
}

}  // namespace megalith::observe
