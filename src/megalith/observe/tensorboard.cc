// Names and rhythm of the curves follow the system whose options the run uses, so that its curves lie over old ones in
// the same TensorBoard: Hugging Face's integration ("train/loss", "eval/loss", every logged step) or Megatron's
// training_log ("lm loss", also over samples, every tensorboard_log_interval steps).
#include "megalith/observe/tensorboard.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "megalith/observe/units.h"

namespace megalith::observe {
namespace {

// Megatron-LM's names of the curves.
constexpr auto kMegatronTags = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"loss", "lm loss"},
    {"learning_rate", "learning-rate"},
    {"grad_norm", "grad-norm"},
    {"num_zeros_in_grad", "num-zeros"},
    {"params_norm", "params-norm"},
    {"loss_scale", "loss-scale"},
    {"global_batch_size", "batch-size"},
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
  for (const auto& [name, tag] : kMegatronTags)
    if (name == metric) return std::string(tag);
  return std::string(metric);
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
void TensorboardCallback::on_log(train::TrainerEvent& event) {
  if (!file_) return;
  const bool megatron = settings_.style == ReportStyle::kMegatron;
  const int64_t step = event.state.global_step;
  const bool evaluation = event.metrics.find("eval_loss").has_value();
  if (megatron && !evaluation && step % settings_.log_interval != 0) return;
  const double now = seconds_since_1970();
  const auto samples = event.metrics.find("consumed_samples");
  for (const auto& [name, value] : event.metrics) {
    if (name == "step" || name == "consumed_samples") continue;
    const std::string tag = tensorboard_tag(settings_.style, name);
    file_->add_scalar(tag, value, step, now);
    if (megatron && samples && name.ends_with("loss"))
      file_->add_scalar(tag + " vs samples", value, static_cast<int64_t>(*samples), now);
  }
}

}  // namespace megalith::observe
