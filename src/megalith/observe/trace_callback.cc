// The timeline is recorded per rank and gathered only once, after its last step, so that recording does not disturb
// what it measures. Timers keep only totals per phase, which are gathered with every log line.
#include "megalith/observe/trace_callback.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/observe/trace_export.h"

namespace megalith::observe {
namespace {

// Megatron's layout: the name, filled up with dots.
std::string dotted(const std::string& name) { return fmt::format("{:.<48}", name + " "); }

// Milliseconds; both 0 when no rank has the phase.
struct Extremes {
  double low = 0, high = 0;
};

// Smallest and largest time over the ranks that have the phase.
Extremes min_max(const PhaseTimes& phase) {
  Extremes extremes;
  for (const double ms : phase.milliseconds) {
    // 0 stands for "this rank does not have the phase": the first stage has no receive-forward, for instance.
    if (ms <= 0) continue;
    extremes.low = extremes.low == 0 ? ms : std::min(extremes.low, ms);
    extremes.high = std::max(extremes.high, ms);
  }
  return extremes;
}

// One phase in Megatron's layout; "" if no rank has it.
std::string phase_line(std::string_view option, const PhaseTimes& phase) {
  const auto [low, high] = min_max(phase);
  if (high <= 0) return "";
  if (option == "minmax") return fmt::format("\n    {}: ({:.2f}, {:.2f})", dotted(phase.name), low, high);
  if (option == "max") return fmt::format("\n    {}: {:.2f}", dotted(phase.name), high);
  std::string text = fmt::format("\n  {}:", phase.name);
  for (size_t rank = 0; rank < phase.milliseconds.size(); ++rank)
    if (phase.milliseconds[rank] > 0) text += fmt::format("\n     rank {:2d}: {:.2f}", rank, phase.milliseconds[rank]);
  return text;
}

// Returns the entry of a phase, added on first sight.
PhaseTimes& phase_of(std::vector<PhaseTimes>& phases, const std::string& name, size_t ranks) {
  const auto entry = std::ranges::find(phases, name, &PhaseTimes::name);
  if (entry != phases.end()) return *entry;
  phases.push_back({name, std::vector<double>(ranks, 0)});
  return phases.back();
}

}  // namespace

TraceSteps TraceSteps::parse(std::string_view text) {
  const std::vector<std::string> parts = split(text, '-');
  const auto first = parse_int(parts.front()), last = parse_int(parts.back());
  check<ConfigError>(parts.size() <= 2 && first && last && *first >= 1 && *last >= *first,
                     "trace is \"{}\"; it must be a range of steps such as 10-12, counted from 1", text);
  return {*first, *last};
}

void TraceCallback::on_step_begin(train::TrainerEvent& event) {
  const int64_t step = event.state.global_step + 1;
  if (open_ || step < settings_.steps.first || step > settings_.steps.last) return;
  open_ = true;
  recorder_.start_timeline();
}

void TraceCallback::on_step_end(train::TrainerEvent& event) {
  if (event.state.global_step >= settings_.steps.last) write();
}

void TraceCallback::on_train_end(train::TrainerEvent&) { write(); }

// Collective. A run that ends before the last step of the range writes what it has recorded, from on_train_end.
void TraceCallback::write() {
  if (!open_) return;
  open_ = false;
  recorder_.stop_timeline();
  write_trace(world_, recorder_, settings_.label, settings_.file);
}

// The three layouts, for a phase "forward-compute":
//   minmax   forward-compute ................................: (1.20, 3.40)
//   max      forward-compute ................................: 3.40
//   all      forward-compute:, then a line "rank  0: 1.20" for each rank that has it
std::string timer_text(std::string_view option, const std::vector<PhaseTimes>& phases) {
  check<ConfigError>(option == "minmax" || option == "max" || option == "all",
                     "timing_log_option is \"{}\"; it must be minmax, max or all", option);
  std::string text;
  for (const PhaseTimes& phase : phases) text += phase_line(option, phase);
  if (text.empty()) return text;
  const char* heading = option == "minmax" ? "(min, max) time" : option == "max" ? "max time" : "times";
  return fmt::format("{} across ranks (ms):{}", heading, text);
}

// Ranks of different stages may have different phases, so names travel with the times.
std::vector<PhaseTimes> gather_times(const comm::Group& group, TraceRecorder& recorder, int64_t steps) {
  nlohmann::json own_times = nlohmann::json::array();
  // Totals since the last line become milliseconds per step.
  const double to_ms = 1e3 / static_cast<double>(std::max<int64_t>(steps, 1));
  for (const TraceRecorder::Total& total : recorder.take_totals())
    own_times.push_back({total.name, total.seconds * to_ms});
  std::vector<PhaseTimes> phases;
  const std::vector<std::string> all = group.gather_bytes(own_times.dump(), /*root=*/0, "times of all ranks");
  for (size_t rank = 0; rank < all.size(); ++rank)
    for (const nlohmann::json& item : nlohmann::json::parse(all[rank]))
      phase_of(phases, item.at(0), all.size()).milliseconds[rank] = item.at(1).get<double>();
  return phases;
}

void TimerCallback::on_train_begin(train::TrainerEvent& event) {
  // The recorder keeps totals only for spans up to this level.
  recorder_.set_timing_level(settings_.log_level);
  last_step_ = event.state.global_step;
}

void TimerCallback::on_log(train::TrainerEvent& event) {
  const int64_t steps = event.state.global_step - last_step_;
  if (steps == 0) return;  // the line of an evaluation
  last_step_ = event.state.global_step;
  const std::vector<PhaseTimes> phases = gather_times(world_, recorder_, steps);
  const std::string text = timer_text(settings_.log_option, phases);
  if (world_.rank() == 0 && !text.empty()) say_(text);
}

}  // namespace megalith::observe
