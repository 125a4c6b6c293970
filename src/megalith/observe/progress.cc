// Prints the progress of a run. On a terminal the live line is redrawn in place (carriage return, clear line) at most
// ten times per second; any other line first clears it. Off a terminal, and in Megatron's style, every logged step is a
// line of its own, which can be kept in a file.
#include "megalith/observe/progress.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <vector>

#include "megalith/observe/tensorboard.h"
#include "megalith/observe/units.h"

namespace megalith::observe {
namespace {

constexpr double kSecondsBetweenDraws = 0.1;          // redrawing more often only costs time
constexpr size_t kLossesOfCurve = 64;                 // four for each column of the curve
constexpr std::string_view kClearLine = "\r\x1b[2K";  // carriage return, then ANSI "erase line"

// The clock of a run: immune to changes of the wall clock. Tests pass their own.
double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The trainer logs three kinds of lines through the same event: training lines have "loss", evaluations "eval_loss".
bool is_evaluation(const train::MetricList& metrics) { return metrics.find("eval_loss").has_value(); }
// Lines without a loss and without an evaluation are the totals at the end, which the end summary shows.
bool is_training(const train::MetricList& metrics) { return metrics.find("loss").has_value(); }

// Metrics are doubles; counts are exact up to 2^53, and 0 when the line does not have them.
int64_t count(const train::MetricList& metrics, std::string_view name) {
  return static_cast<int64_t>(metrics.find(name).value_or(0));
}

// Collects the numbers of Megatron's line from a log line, which has Hugging Face's names.
MegatronNumbers megatron_numbers(const train::TrainerEvent& event, const ProgressSettings& settings,
                                 double milliseconds) {
  const train::MetricList& metrics = event.metrics;
  MegatronNumbers numbers;
  numbers.time = fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(std::time(nullptr)));
  numbers.iteration = event.state.global_step;
  numbers.train_iters = event.state.max_steps;
  numbers.consumed_samples = count(metrics, "consumed_samples");
  numbers.skipped_samples = count(metrics, "skipped_samples");
  numbers.milliseconds = milliseconds;
  if (settings.throughput) numbers.tflops_per_device = metrics.find("tflops_per_device");
  numbers.joules_per_device = metrics.find("energy_per_device");
  numbers.watts_per_device = metrics.find("power_per_device");
  numbers.learning_rate = metrics.find("learning_rate").value_or(0);
  numbers.global_batch_size = count(metrics, "global_batch_size");
  for (const auto& [name, value] : metrics)
    // "loss" and the further losses of an objective ("mtp_1_loss"), under the names that Megatron's curves have.
    if (name.ends_with("loss")) numbers.losses.set(tensorboard_tag(ReportStyle::kMegatron, name), value);
  numbers.loss_scale = metrics.find("loss_scale").value_or(1);
  numbers.grad_norm = metrics.find("grad_norm");
  if (settings.num_zeros) numbers.num_zeros = metrics.find("num_zeros_in_grad");
  numbers.params_norm = metrics.find("params_norm");
  numbers.skipped_iterations = count(metrics, "skipped_iter");
  numbers.nan_iterations = count(metrics, "nan_iter");
  return numbers;
}

// One number of an evaluation in words. metrics.jsonl has all digits.
std::string evaluation_text(std::string name, double value) {
  if (name == "runtime") return fmt::format("{:.{}f} s", value, value < 1 ? 2 : 1);
  if (name == "samples_per_second") return rate_text(value) + " samples/s";
  if (name == "steps_per_second") return fmt::format("{:.4g} steps/s", value);
  const bool share = name.ends_with("accuracy") || name.ends_with("accuracies");
  const bool loss = name.ends_with("loss");
  std::ranges::replace(name, '_', ' ');
  if (share) return fmt::format("{} {:.1f} %", name, 100 * value);
  return loss ? fmt::format("{} {:.4f}", name, value) : fmt::format("{} {:.4g}", name, value);
}

}  // namespace

ProgressCallback::ProgressCallback(ProgressSettings settings) : settings_(std::move(settings)) {
  if (!settings_.now) settings_.now = steady_seconds;
  if (settings_.peak_flops) numbers_.peak_tflops = *settings_.peak_flops * 1e-12;
}

void ProgressCallback::on_train_begin(train::TrainerEvent& event) {
  begin_ = last_line_ = settings_.now();
  start_step_ = begin_step_ = last_line_step_ = event.state.global_step;
}

// Extrapolates from the steps after the first, which is slow because it allocates, connects and plans.
std::optional<double> ProgressCallback::remaining_seconds(const train::TrainerState& state) const {
  const int64_t done = state.global_step - begin_step_;
  if (done <= 0) return std::nullopt;
  // Constant pace assumed: the time per step so far, times the steps to come.
  const double seconds_per_step = (settings_.now() - begin_) / static_cast<double>(done);
  return seconds_per_step * static_cast<double>(state.max_steps - state.global_step);
}

void ProgressCallback::update_numbers(const train::TrainerState& state) {
  numbers_.step = state.global_step;
  numbers_.max_steps = state.max_steps;
  numbers_.epoch = state.epoch;
  numbers_.remaining_seconds = remaining_seconds(state);
}

void ProgressCallback::draw_live(const train::TrainerEvent& event) {
  last_draw_ = settings_.now();
  update_numbers(event.state);
  const LiveView view{.columns = settings_.columns ? settings_.columns() : 0, .unicode = settings_.unicode};
  const std::vector<double> losses(losses_.begin(), losses_.end());
  settings_.write(std::string(kClearLine) + live_line(numbers_, losses, view));
  line_is_open_ = true;
}

void ProgressCallback::say(std::string_view line) {
  settings_.write(fmt::format("{}{}\n", line_is_open_ ? kClearLine : "", line));
  line_is_open_ = false;
}

void ProgressCallback::on_step_end(train::TrainerEvent& event) {
  if (!event.state.is_world_process_zero) return;
  // A run of a single step has no step after the first, so its only one must serve for the ETA.
  const bool first = event.state.global_step == start_step_ + 1 && event.state.global_step < event.state.max_steps;
  if (is_live() && (first || settings_.now() - last_draw_ >= kSecondsBetweenDraws)) draw_live(event);
  if (!first) return;
  begin_ = settings_.now();
  begin_step_ = event.state.global_step;
}

// A live line is only redrawn with the new numbers; elsewhere each training line is printed.
void ProgressCallback::on_log(train::TrainerEvent& event) {
  const train::MetricList& metrics = event.metrics;
  if (!event.state.is_world_process_zero) return;
  if (is_evaluation(metrics)) {
    say_evaluation(event);
    if (is_live()) draw_live(event);
    return;
  }
  if (!is_training(metrics)) return;
  if (settings_.style == ReportStyle::kMegatron) {
    say_megatron(event);
    return;
  }
  numbers_.loss = metrics.find("loss");
  numbers_.learning_rate = metrics.find("learning_rate");
  numbers_.grad_norm = metrics.find("grad_norm");
  numbers_.tokens_per_second = metrics.find("tokens_per_second");
  numbers_.tflops_per_device = metrics.find("tflops_per_device");
  numbers_.watts = metrics.find("power_per_device");
  numbers_.memory = metrics.find("memory");
  numbers_.skipped_steps = count(metrics, "skipped_iter");
  numbers_.nan_steps = count(metrics, "nan_iter");
  numbers_.loss_step = event.state.global_step;
  if (is_live()) {
    losses_.push_back(*numbers_.loss);
    if (losses_.size() > kLossesOfCurve) losses_.pop_front();
    draw_live(event);
    return;
  }
  update_numbers(event.state);
  say(progress_line(numbers_));
}

// "evaluation at step 20: loss 2.2500, perplexity 9.488, 1.2 s", or Megatron's three lines.
void ProgressCallback::say_evaluation(const train::TrainerEvent& event) {
  if (settings_.style == ReportStyle::kMegatron) {
    say(megatron_validation(event.state.global_step, *event.metrics.find("eval_loss")));
    return;
  }
  std::string line = fmt::format("evaluation at step {}", event.state.global_step);
  const char* separator = ": ";
  for (const auto& [name, value] : event.metrics) {
    if (!name.starts_with("eval_")) continue;
    line += separator + evaluation_text(name.substr(5), value);
    separator = ", ";
  }
  say(line);
}

// Megatron's time per iteration is the mean since the previous line, with everything in between: evaluations, saves.
void ProgressCallback::say_megatron(const train::TrainerEvent& event) {
  const double now = settings_.now();
  const int64_t steps = std::max<int64_t>(event.state.global_step - last_line_step_, 1);
  say(megatron_line(megatron_numbers(event, settings_, 1e3 * (now - last_line_) / static_cast<double>(steps))));
  last_line_ = now;
  last_line_step_ = event.state.global_step;
}

// The last live line stays on the screen, with the final step, and the shell's prompt gets a line of its own.
void ProgressCallback::on_train_end(train::TrainerEvent& event) {
  if (!event.state.is_world_process_zero) return;
  if (is_live()) draw_live(event);
  if (line_is_open_) settings_.write("\n");
  line_is_open_ = false;
}

std::string megatron_line(const MegatronNumbers& numbers) {
  std::string line = fmt::format(" [{}]", numbers.time);
  const auto part = [&](const std::string& text) { line += " " + text + " |"; };
  part(fmt::format("iteration {:8d}/{:8d}", numbers.iteration, numbers.train_iters));
  part(fmt::format("consumed samples: {:12d}", numbers.consumed_samples));
  if (numbers.skipped_samples > 0) part(fmt::format("skipped samples: {:12d}", numbers.skipped_samples));
  part(fmt::format("elapsed time per iteration (ms): {:.1f}", numbers.milliseconds));
  if (numbers.tflops_per_device)
    part(fmt::format("throughput per GPU (TFLOP/s/GPU): {:.1f}", *numbers.tflops_per_device));
  if (numbers.joules_per_device && numbers.watts_per_device) {
    part(fmt::format("energy per GPU (J/iter/GPU): {:.1f}", *numbers.joules_per_device));
    part(fmt::format("power per GPU (W/GPU): {:.1f}", *numbers.watts_per_device));
  }
  part(fmt::format("learning rate: {:.6E}", numbers.learning_rate));
  part(fmt::format("global batch size: {:5d}", numbers.global_batch_size));
  for (const auto& [name, value] : numbers.losses)
    if (value > 0 || std::isnan(value)) part(fmt::format("{}: {:.6E}", name, value));
  part(fmt::format("loss scale: {:.1f}", numbers.loss_scale));
  if (numbers.grad_norm) part(fmt::format("grad norm: {:.3f}", *numbers.grad_norm));
  if (numbers.num_zeros) part(fmt::format("num zeros: {:.0f}", *numbers.num_zeros));
  if (numbers.params_norm) part(fmt::format("params norm: {:.3f}", *numbers.params_norm));
  part(fmt::format("number of skipped iterations: {:3d}", numbers.skipped_iterations));
  part(fmt::format("number of nan iterations: {:3d}", numbers.nan_iterations));
  return line;
}

std::string megatron_validation(int64_t iteration, double loss) {
  constexpr double kLargestExponent = 20;  // Megatron's cap: a perplexity above exp(20) would not fit its column
  const std::string line =
      fmt::format(" validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ", iteration, loss,
                  std::exp(std::min(kLargestExponent, loss)));
  const std::string frame(line.size() + 1, '-');
  return frame + "\n" + line + "\n" + frame;
}

}  // namespace megalith::observe
