#include <fmt/format.h>

#include <cmath>

#include "megalith/observe/progress.h"
#include "megalith/observe/units.h"

namespace megalith::observe {

std::string progress_line(const ProgressNumbers& numbers) {
  std::string line = fmt::format("step {}/{}", numbers.step, numbers.max_steps);
  const auto part = [&](const std::string& text) { line += " | " + text; };
  if (numbers.epoch) part(fmt::format("epoch {:.2f}", *numbers.epoch));
  if (numbers.loss) part(fmt::format("loss {:.4f}", *numbers.loss));
  if (numbers.learning_rate) part(fmt::format("lr {:.2e}", *numbers.learning_rate));
  if (numbers.grad_norm) part(fmt::format("grad {:.3f}", *numbers.grad_norm));
  if (numbers.tokens_per_second) part(rate_text(*numbers.tokens_per_second) + " tok/s");
  if (numbers.tflops_per_device) {
    const double tflops = *numbers.tflops_per_device;
    std::string text = fmt::format("{:.{}f} TFLOP/s", tflops, tflops < 1 ? 3 : 1);
    if (numbers.peak_tflops) text += fmt::format(" (MFU {:.1f} %)", 100 * tflops / *numbers.peak_tflops);
    part(text);
  }
  if (numbers.memory) part(bytes_text(*numbers.memory));
  if (numbers.remaining_seconds) part("ETA " + duration_text(*numbers.remaining_seconds));
  return line;
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
  part(fmt::format("learning rate: {:.6E}", numbers.learning_rate));
  part(fmt::format("global batch size: {:5d}", numbers.global_batch_size));
  for (const auto& [name, value] : numbers.losses)
    if (value > 0) part(fmt::format("{}: {:.6E}", name, value));
  part(fmt::format("loss scale: {:.1f}", numbers.loss_scale));
  if (numbers.grad_norm) part(fmt::format("grad norm: {:.3f}", *numbers.grad_norm));
  if (numbers.num_zeros) part(fmt::format("num zeros: {:.0f}", *numbers.num_zeros));
  if (numbers.params_norm) part(fmt::format("params norm: {:.3f}", *numbers.params_norm));
  part(fmt::format("number of skipped iterations: {:3d}", numbers.skipped_iterations));
  part(fmt::format("number of nan iterations: {:3d}", numbers.nan_iterations));
  return line;
}

std::string megatron_validation(int64_t iteration, double loss) {
  constexpr double kLargestExponent = 20;  // of the perplexity
  const std::string line =
      fmt::format(" validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ", iteration, loss,
                  std::exp(std::min(kLargestExponent, loss)));
  const std::string frame(line.size() + 1, '-');
  return frame + "\n" + line + "\n" + frame;
}

}  // namespace megalith::observe
