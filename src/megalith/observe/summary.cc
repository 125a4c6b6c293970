// Formats the summaries. Each part is a function that returns its text or "" if it has nothing to say; Lines leaves
// empty parts out.
#include "megalith/observe/summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "megalith/observe/tensorboard.h"
#include "megalith/observe/units.h"

namespace megalith::observe {
namespace {

// Lines of a name in a column of its own and a text.
class Lines {
 public:
  void add(std::string_view name, std::string_view text) {
    if (!text.empty()) text_ += fmt::format("{:<11} {}\n", name, text);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// "1 rank", "1,024 ranks".
std::string counted(int64_t number, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", grouped(number), number == 1 ? one : many);
}

// Ranks of different pipeline stages hold different numbers of parameters, so the line gives a range where they
// do:
//   "llama, 4 layers of width 256: 5,242,880 parameters, 1,310,720 to 1,572,864 per rank"
std::string model_text(const StartSummary& summary) {
  std::string text = summary.model;
  if (summary.parameters > 0) text += fmt::format(": {} parameters", grouped(summary.parameters));
  if (summary.world_size == 1 || summary.most_on_rank == 0) return text;
  if (summary.fewest_on_rank == summary.most_on_rank)
    return text + fmt::format(", {} per rank", grouped(summary.most_on_rank));
  return text + fmt::format(", {} to {} per rank", grouped(summary.fewest_on_rank), grouped(summary.most_on_rank));
}

// "4 ranks = tp 2 x pp 2; gloo on CPU, fp32". Axes of size 1 say nothing and are left out.
std::string layout_text(const StartSummary& summary) {
  const auto product = [](const std::vector<std::pair<std::string, int>>& axes) {
    std::vector<std::string> factors;
    for (const auto& [axis, size] : axes)
      if (size > 1) factors.push_back(fmt::format("{} {}", axis, size));
    return fmt::format("{}", fmt::join(factors, " x "));
  };
  std::string text = counted(summary.world_size, "rank", "ranks");
  if (const std::string axes = product(summary.axes); !axes.empty()) text += " = " + axes;
  if (const std::string axes = product(summary.expert_axes); !axes.empty()) text += ", for experts " + axes;
  return summary.machinery.empty() ? text : text + "; " + summary.machinery;
}

// The parts come from the planner (or, where it does not know the run, from the state alone); nothing is measured yet.
std::string memory_text(const StartSummary& summary) {
  if (summary.memory_bytes.empty()) return "";
  double all = 0;
  std::string parts;
  for (const auto& [part, bytes] : summary.memory_bytes) {
    all += bytes;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", part, bytes_text(bytes));
  }
  return fmt::format("{} per rank: {}", bytes_text(all), parts);
}

// "train: 1,024 sequences; evaluation: 64 sequences".
std::string data_text(const StartSummary& summary) {
  std::string text;
  for (const auto& [name, what] : summary.data) text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name, what);
  return text;
}

// The product that makes the global batch, written out.
std::string batch_text(const StartSummary& summary) {
  const int64_t sequences = summary.micro_batch_size * summary.microbatches * summary.dp;
  if (sequences == 0) return "";
  std::string text =
      fmt::format("{} x {} x {} = {}", counted(summary.micro_batch_size, "sequence", "sequences"),
                  counted(summary.microbatches, "micro-batch", "micro-batches"),
                  counted(summary.dp, "replica", "replicas"), counted(sequences, "sequence", "sequences"));
  if (summary.sequence_length > 0)
    text += fmt::format(", at most {} tokens", grouped(sequences * summary.sequence_length));
  return text + " per step";
}

// "1,000 steps (7.81 epochs), resumed after step 400".
std::string run_text(const StartSummary& summary) {
  if (summary.max_steps == 0) return "";
  std::string text = counted(summary.max_steps, "step", "steps");
  if (summary.epochs) text += fmt::format(" ({:.2f} epochs)", *summary.epochs);
  if (summary.resumed_step > 0) text += fmt::format(", resumed after step {}", grouped(summary.resumed_step));
  return text;
}

// "8.3176 -> 2.3456; best eval_loss 2.2500". A run that logged a single line has a first and a last loss that are
// equal.
std::string loss_text(const EndSummary& summary) {
  std::string text;
  if (summary.last_loss) text = fmt::format("{:.4f}", *summary.last_loss);
  if (summary.first_loss && summary.last_loss) text = fmt::format("{:.4f} -> {}", *summary.first_loss, text);
  if (!summary.best_metric) return text;
  return fmt::format("{}{}best {} {:.4f}", text, text.empty() ? "" : "; ", summary.best_metric_name,
                     *summary.best_metric);
}

// Rates only if there is something to divide.
std::string done_text(const EndSummary& summary) {
  std::string text = counted(summary.steps, "step", "steps");
  if (summary.last_step < summary.max_steps)
    text += fmt::format(", stopped at step {} of {},", grouped(summary.last_step), grouped(summary.max_steps));
  text += " in " + duration_text(summary.seconds);
  if (summary.seconds <= 0 || summary.steps == 0) return text;
  text += fmt::format(" ({:.2f} steps/s", static_cast<double>(summary.steps) / summary.seconds);
  if (summary.tokens > 0)
    text += fmt::format(", {} tokens/s", rate_text(static_cast<double>(summary.tokens) / summary.seconds));
  if (summary.padding > 0)
    text += fmt::format(", {:.0f} % padding", 100 * static_cast<double>(summary.padding) /
                                                  static_cast<double>(summary.tokens + summary.padding));
  return text + ")";
}

}  // namespace

std::string text_of(const StartSummary& summary) {
  Lines lines;
  lines.add("model", model_text(summary));
  lines.add("layout", layout_text(summary));
  lines.add("fp8", summary.fp8);
  for (const std::string& products : summary.bf16) lines.add("bf16", products);
  lines.add("memory", memory_text(summary));
  lines.add("data", data_text(summary));
  lines.add("batch", batch_text(summary));
  lines.add("run", run_text(summary));
  lines.add("output", summary.output_dir);
  return lines.text();
}

std::string text_of(const EndSummary& summary) {
  Lines lines;
  lines.add("done", done_text(summary));
  lines.add("loss", loss_text(summary));
  if (summary.peak_bytes) lines.add("memory", bytes_text(*summary.peak_bytes) + " at most per rank");
  for (const auto& [name, path] : summary.files) lines.add(name, path);
  if (!summary.wandb_folder.empty())
    lines.add("wandb", "nothing was sent; to upload: " + wandb_sync_command(summary.wandb_folder));
  return lines.text();
}

EndSummary end_summary(const ReportSettings& settings, const train::TrainerState& state, int64_t start_step,
                       double seconds) {
  EndSummary summary;
  summary.steps = state.global_step - start_step;
  summary.last_step = state.global_step;
  summary.max_steps = state.max_steps;
  summary.seconds = seconds;
  // Losses before the resume belong to an earlier run. The history of a resumed run also contains the lines of the runs
  // before it, read from the checkpoint.
  for (const train::MetricList& line : state.log_history) {
    const auto loss = line.find("loss");
    if (!loss || line.find("step").value_or(0) <= static_cast<double>(start_step)) continue;
    if (!summary.first_loss) summary.first_loss = loss;
    summary.last_loss = loss;
  }
  summary.best_metric = state.best_metric;
  summary.best_metric_name = settings.best_metric;
  const std::filesystem::path &folder = settings.output_dir, &tensorboard = settings.tensorboard_dir;
  if (!folder.empty())
    summary.files = {{"metrics", (folder / "metrics.jsonl").string()}, {"plot", (folder / "loss.svg").string()}};
  if (!tensorboard.empty()) summary.files.emplace_back("tensorboard", tensorboard.string());
  if (settings.wandb) summary.wandb_folder = tensorboard.string();
  return summary;
}

}  // namespace megalith::observe
