// A line is a list of parts, each with its importance. Plain lines join all of them; a live line adds the bar and the
// curve and leaves out the least important parts until the rest fits.
#include "megalith/observe/progress_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "megalith/observe/units.h"

namespace megalith::observe {
namespace {

// Parts in the order in which they stay on a terminal that becomes narrower.
enum class Importance {
  kStep,
  kLoss,
  kTrouble,
  kTimeLeft,
  kRate,
  kBar,
  kGradNorm,
  kLearningRate,
  kCurve,
  kEpoch,
  kMemory,
  kFlops,
  kPower
};

struct LinePart {
  std::string text;
  Importance importance;
  bool continues = false;  // belongs to the part before it: joined by a blank instead of a bar
};

// Three decimals below 1: a tiny model on a CPU would otherwise show "0.0".
std::string flops_text(double tflops, const std::optional<double>& peak) {
  std::string text = fmt::format("{:.{}f} TFLOP/s", tflops, tflops < 1 ? 3 : 1);
  if (peak) text += fmt::format(" (MFU {:.1f} %)", 100 * tflops / *peak);
  return text;
}

std::vector<LinePart> parts_of_line(const ProgressNumbers& numbers) {
  std::vector<LinePart> parts{{fmt::format("step {}/{}", numbers.step, numbers.max_steps), Importance::kStep}};
  const auto add = [&](Importance importance, std::string text) { parts.push_back({std::move(text), importance}); };
  if (numbers.epoch) add(Importance::kEpoch, fmt::format("epoch {:.2f}", *numbers.epoch));
  if (numbers.loss) add(Importance::kLoss, fmt::format("loss {:.4f}", *numbers.loss));
  if (numbers.learning_rate) add(Importance::kLearningRate, fmt::format("lr {:.2e}", *numbers.learning_rate));
  if (numbers.grad_norm) add(Importance::kGradNorm, fmt::format("grad {:.3f}", *numbers.grad_norm));
  if (numbers.skipped_steps > 0) add(Importance::kTrouble, fmt::format("{} skipped", numbers.skipped_steps));
  if (numbers.nan_steps > 0) add(Importance::kTrouble, fmt::format("{} NaN", numbers.nan_steps));
  if (numbers.tokens_per_second) add(Importance::kRate, rate_text(*numbers.tokens_per_second) + " tok/s");
  if (numbers.tflops_per_device) add(Importance::kFlops, flops_text(*numbers.tflops_per_device, numbers.peak_tflops));
  if (numbers.watts) add(Importance::kPower, fmt::format("{:.0f} W", *numbers.watts));
  if (numbers.memory) add(Importance::kMemory, bytes_text(*numbers.memory));
  if (numbers.remaining_seconds) add(Importance::kTimeLeft, "ETA " + duration_text(*numbers.remaining_seconds));
  return parts;
}

std::string joined(const std::vector<LinePart>& parts) {
  std::string line;
  for (const LinePart& part : parts) {
    if (!line.empty()) line += part.continues ? " " : " | ";
    line += part.text;
  }
  return line;
}

// Columns of a text whose characters are all one column wide: bytes that do not continue a character of UTF-8.
int columns_of(const std::string& text) {
  return static_cast<int>(std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

std::string repeated(const char* text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

// "━━────────────── 12 %", or "[##--------------] 12 %".
std::string bar_text(const ProgressNumbers& numbers, bool unicode) {
  constexpr int kColumns = 16;
  const double done = std::clamp(static_cast<double>(numbers.step) / static_cast<double>(numbers.max_steps), 0.0, 1.0);
  const int full = static_cast<int>(done * kColumns);
  const std::string bar = unicode ? repeated("━", full) + repeated("─", kColumns - full)
                                  : fmt::format("[{}{}]", repeated("#", full), repeated("-", kColumns - full));
  return fmt::format("{} {:.0f} %", bar, std::floor(100 * done));
}

// One of eight heights per column, between the least and the largest value; several values per column are averaged.
// Numbers that are not finite leave a gap.
std::string curve_text(std::span<const double> values) {
  constexpr size_t kColumns = 16;
  constexpr std::array<const char*, 8> kHeights{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const size_t columns = std::min(kColumns, values.size());
  std::vector<double> means;
  for (size_t i = 0; i < columns; ++i) {
    const size_t begin = i * values.size() / columns, end = (i + 1) * values.size() / columns;
    double sum = 0;
    for (const double value : values.subspan(begin, end - begin)) sum += value;
    means.push_back(sum / static_cast<double>(end - begin));
  }
  double least = INFINITY, largest = -INFINITY;
  for (const double mean : means) {
    if (!std::isfinite(mean)) continue;
    least = std::min(least, mean);
    largest = std::max(largest, mean);
  }
  std::string text;
  for (const double mean : means) {
    const double height = largest > least ? (mean - least) / (largest - least) : 0;
    text += std::isfinite(mean) ? kHeights[static_cast<size_t>(std::lround(height * 7))] : " ";
  }
  return text;
}

}  // namespace

std::string progress_line(const ProgressNumbers& numbers) { return joined(parts_of_line(numbers)); }

std::string live_line(const ProgressNumbers& numbers, std::span<const double> losses, const LiveView& view) {
  std::vector<LinePart> parts = parts_of_line(numbers);
  const auto after = [&](Importance importance, LinePart part) {
    const auto found = std::ranges::find(parts, importance, &LinePart::importance);
    if (found != parts.end()) parts.insert(found + 1, std::move(part));
  };
  if (view.unicode && losses.size() > 1)
    after(Importance::kLoss, {curve_text(losses), Importance::kCurve, /*continues=*/true});
  if (numbers.loss && numbers.loss_step != numbers.step)
    after(Importance::kLoss, {fmt::format("(step {})", numbers.loss_step), Importance::kCurve, /*continues=*/true});
  if (numbers.max_steps > 0)
    after(Importance::kStep, {bar_text(numbers, view.unicode), Importance::kBar, /*continues=*/true});
  while (view.columns > 0 && parts.size() > 1 && columns_of(joined(parts)) >= view.columns)
    parts.erase(std::ranges::max_element(parts, {}, &LinePart::importance));
  return joined(parts);
}

}  // namespace megalith::observe
