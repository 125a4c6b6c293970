// Names and rhythm of the curves follow the system whose options the run uses, so that its curves lie over old ones in
// the same TensorBoard: Hugging Face's integration ("train/loss", "eval/loss", every logged step) or Megatron's
// training_log ("lm loss", also over samples, every tensorboard_log_interval steps).
#include "megalith/observe/tensorboard.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "megalith/observe/units.h"
#include "megalith/optim/histograms.h"

namespace megalith::observe {
namespace {

// Megatron-LM's name of a curve, and whether it is also plotted over the consumed samples.
struct MegatronCurve {
  std::string_view metric, tag;
  bool over_samples = true;
};
constexpr auto kMegatronCurves = std::to_array<MegatronCurve>({
    {"loss", "lm loss"},
    {"learning_rate", "learning-rate"},
    {"grad_norm", "grad-norm"},
    {"num_zeros_in_grad", "num-zeros"},
    {"params_norm", "params-norm"},
    {"loss_scale", "loss-scale"},
    {"global_batch_size", "batch-size"},
    {"skipped_samples", "skipped-train-samples", false},
    {"energy_per_device", "iter-energy/gpu", false},
    {"power_per_device", "power/gpu", false},
    {"eval_loss", "lm loss validation"},
    {"eval_perplexity", "lm loss validation ppl"},
});

// "eval_loss" -> "eval/loss", "test_loss" -> "test/loss", "grad_norm" -> "train/grad_norm"; as Hugging Face's
// rewrite_logs.
std::string hf_tag(std::string_view metric) {
  for (const std::string_view part : {"eval", "test"})
    if (metric.starts_with(part) && metric.substr(part.size()).starts_with('_'))
      return fmt::format("{}/{}", part, metric.substr(part.size() + 1));
  return fmt::format("train/{}", metric);
}

// Other losses, such as those of routers, are plotted over samples, too.
bool has_curve_over_samples(std::string_view metric) {
  const auto curve = std::ranges::find(kMegatronCurves, metric, &MegatronCurve::metric);
  return curve != kMegatronCurves.end() ? curve->over_samples : metric.ends_with("loss");
}

// Returns a Markdown code block: every line is indented by four spaces.
std::string as_markdown(std::string_view yaml) {
  std::string text = "    ";
  for (const char c : yaml) {
    text += c;
    if (c == '\n') text += "    ";
  }
  return text;
}

}  // namespace

std::string tensorboard_tag(ReportStyle style, std::string_view metric) {
  if (style == ReportStyle::kHuggingFace) return hf_tag(metric);
  const auto curve = std::ranges::find(kMegatronCurves, metric, &MegatronCurve::metric);
  return std::string(curve != kMegatronCurves.end() ? curve->tag : metric);
}

std::string wandb_sync_command(const std::filesystem::path& folder) {
  return fmt::format("wandb sync {}", folder.string());
}

// A resumed run makes TensorBoard drop the steps after the save point; the arguments are written once.
void TensorboardCallback::on_train_begin(train::TrainerEvent& event) {
  const train::TrainerState& state = event.state;
  if (!state.is_world_process_zero) return;
  const double now = seconds_since_1970();
  file_.emplace(folder_,
                EventFileOptions{.wall_time = now, .purge_step = state.global_step > 0 ? state.global_step + 1 : -1});
  if (state.global_step == 0) file_->add_text("args", as_markdown(settings_.arguments), 0, now);
}

// consumed_samples is an axis in Megatron's style and not a curve.
void TensorboardCallback::add(std::string_view metric, double value, int64_t step, double wall_time) {
  if (metric == "step" || metric == "consumed_samples") return;
  const std::string tag = tensorboard_tag(settings_.style, metric);
  file_->add_scalar(tag, value, step, wall_time);
  if (settings_.style != ReportStyle::kMegatron || !has_curve_over_samples(metric)) return;
  if (const auto samples = step_numbers_.find("consumed_samples"))
    file_->add_scalar(tag + " vs samples", value, static_cast<int64_t>(*samples), wall_time);
}

void TensorboardCallback::on_step_end(train::TrainerEvent& event) {
  if (!file_ || settings_.style != ReportStyle::kMegatron) return;
  step_numbers_ = event.metrics;
  const int64_t step = event.state.global_step;
  if (step % settings_.log_interval != 0) return;
  const double now = seconds_since_1970();
  for (const auto& [name, value] : event.metrics) add(name, value, step, now);
}

// In Megatron's style the curves of numbers that steps have are those of the steps. Zeros in the gradients are among
// them: in a line, 0 may also mean that nobody counted.
void TensorboardCallback::on_log(train::TrainerEvent& event) {
  if (!file_) return;
  const bool megatron = settings_.style == ReportStyle::kMegatron;
  const double now = seconds_since_1970();
  for (const auto& [name, value] : event.metrics)
    if (!step_numbers_.find(name) && !(megatron && name == "num_zeros_in_grad"))
      add(name, value, event.state.global_step, now);
}

// Bins of negative values come in descending order of their magnitudes, then zeros, then the positive ones.
EventFile::Buckets buckets_of(const optim::Histogram& histogram) {
  EventFile::Buckets buckets;
  const auto add = [&](double low, double high, int64_t count) {
    buckets.limits.push_back(high);
    buckets.counts.push_back(static_cast<double>(count));
    if (count == 0) return;
    if (buckets.counts.size() == 1) buckets.least = low;
    const double middle = (low + high) / 2;
    buckets.most = high;
    buckets.sum += static_cast<double>(count) * middle;
    buckets.sum_squares += static_cast<double>(count) * middle * middle;
  };
  const auto edge = [](const optim::BinCounts& side, size_t bin) {
    return optim::bin_edge(side.first + static_cast<int>(bin));
  };
  const optim::BinCounts &negative = histogram.negative, &positive = histogram.positive;
  for (size_t bin = negative.counts.size(); bin-- > 0;)
    add(-edge(negative, bin + 1), -edge(negative, bin), negative.counts[bin]);
  if (histogram.zeros > 0 || !positive.counts.empty())
    add(0, positive.counts.empty() ? 0 : edge(positive, 0), histogram.zeros);
  for (size_t bin = 0; bin < positive.counts.size(); ++bin)
    add(edge(positive, bin), edge(positive, bin + 1), positive.counts[bin]);
  return buckets;
}

void TensorboardCallback::on_histograms(train::TrainerEvent& event) {
  if (!file_) return;
  const double now = seconds_since_1970();
  const int64_t step = event.state.global_step;
  for (const optim::PartHistograms& part : event.histograms->parts) {
    file_->add_histogram("weights/" + part.name, buckets_of(part.weights), step, now);
    file_->add_histogram("gradients/" + part.name, buckets_of(part.gradients), step, now);
  }
}

}  // namespace megalith::observe
