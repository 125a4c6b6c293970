// A line plot as SVG text: a frame that maps numbers to pixels, round ticks, one polyline per uninterrupted part of a
// curve. Written by hand, so that a run ends with a picture without any plotting library. All numbers are printed with
// a fixed number of digits, so that the same input gives the same bytes.
#include "megalith/observe/loss_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "megalith/io/file_io.h"

namespace megalith::observe {
namespace {

constexpr double kWidth = 720, kHeight = 420;  // pixels
// The frame inside the picture, in pixels; the margins hold labels and title.
constexpr double kLeft = 70, kRight = kWidth - 20, kTop = 40, kBottom = kHeight - 55;
constexpr std::array kColors{"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e"};
constexpr size_t kFewPoints = 40;  // up to this many points are also drawn as dots

// An interval of numbers on one axis.
struct Range {
  double low = 0, high = 1;
  // Makes room around a single value, or when there is none.
  void widen() {
    if (high > low) return;
    const double margin = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= margin;
    high += margin;
  }
};

// Points that fail this are gaps: a skipped step with a NaN loss interrupts the line instead of distorting the axes.
bool finite(const std::pair<double, double>& point) {
  return std::isfinite(point.first) && std::isfinite(point.second);
}

// Maps numbers to pixels. The y range gets 4 % of margin, so that curves do not touch the frame.
struct Frame {
  Range x, y;
  bool empty = true;

  explicit Frame(std::span<const Curve> curves) {
    for (const Curve& curve : curves)
      for (const auto& point : curve.points)
        if (finite(point)) add(point);
    x.widen();
    y.widen();
    const double room = 0.04 * (y.high - y.low);
    y = {y.low - room, y.high + room};
  }
  double px(double value) const { return kLeft + (value - x.low) / (x.high - x.low) * (kRight - kLeft); }
  double py(double value) const { return kBottom - (value - y.low) / (y.high - y.low) * (kBottom - kTop); }

 private:
  void add(const std::pair<double, double>& point) {
    if (std::exchange(empty, false)) {
      x = {point.first, point.first};
      y = {point.second, point.second};
    }
    x = {std::min(x.low, point.first), std::max(x.high, point.first)};
    y = {std::min(y.low, point.second), std::max(y.high, point.second)};
  }
};

// Names of runs come from users; in the text of an element only these three characters are markup.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else
      result += c;
  }
  return result;
}

// A text at (x, y) pixels. `anchor` is SVG's text-anchor, `more` further attributes with a leading blank.
std::string label(double x, double y, std::string_view anchor, std::string_view text, std::string_view more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     escaped(text));
}

// A straight line between two points in pixels.
std::string line(double x1, double y1, double x2, double y2, std::string_view stroke) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2, y2,
                     stroke);
}

// Grid lines and labels at round numbers, then the two axes on top of them.
std::string axes(const Frame& frame, const PlotText& text) {
  constexpr std::string_view kGrid = "#dddddd", kAxis = "#333333";
  std::string svg;
  for (const double tick : round_ticks(frame.x.low, frame.x.high, 8)) {
    svg += line(frame.px(tick), kTop, frame.px(tick), kBottom, kGrid);
    svg += label(frame.px(tick), kBottom + 18, "middle", fmt::format("{:g}", tick));
  }
  for (const double tick : round_ticks(frame.y.low, frame.y.high, 7)) {
    svg += line(kLeft, frame.py(tick), kRight, frame.py(tick), kGrid);
    svg += label(kLeft - 8, frame.py(tick) + 4, "end", fmt::format("{:g}", tick));
  }
  svg += line(kLeft, kBottom, kRight, kBottom, kAxis) + line(kLeft, kTop, kLeft, kBottom, kAxis);
  svg += label((kLeft + kRight) / 2, kTop - 16, "middle", text.title, " font-size=\"15\"");
  svg += label((kLeft + kRight) / 2, kHeight - 14, "middle", text.x_label);
  const double middle = (kTop + kBottom) / 2;
  svg += label(18, middle, "middle", text.y_label, fmt::format(" transform=\"rotate(-90 18 {:.1f})\"", middle));
  return svg;
}

// Draws one line for each part between missing points.
std::string drawn(const Curve& curve, const Frame& frame, std::string_view color) {
  std::string svg, coordinates;
  const auto finish = [&] {
    if (!coordinates.empty())
      svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"/>\n", coordinates,
                         color);
    coordinates.clear();
  };
  for (const auto& point : curve.points) {
    if (!finite(point)) {
      finish();
      continue;
    }
    const double x = frame.px(point.first), y = frame.py(point.second);
    coordinates += fmt::format("{}{:.1f},{:.1f}", coordinates.empty() ? "" : " ", x, y);
    if (curve.points.size() <= kFewPoints)
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x, y, color);
  }
  finish();
  return svg;
}

// A short stroke and a name in the upper right corner; `place` counts from the top.
std::string legend_entry(std::string_view name, size_t place, std::string_view color) {
  const double x = kRight - 110, y = kTop + 18 + 18 * static_cast<double>(place);
  return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"18\" height=\"3\" fill=\"{}\"/>\n", x, y - 5, color) +
         label(x + 26, y, "start", name);
}

}  // namespace

// The step is the smallest of 1, 2, 5 or 10 times a power of ten that gives at most `most` intervals.
std::vector<double> round_ticks(double low, double high, int most) {
  // Example: [0, 37] with most = 8 gives rough 4.6, power 1, step 5 and the ticks 0, 5, …, 35.
  const double rough = (high - low) / most;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0})
    if (factor * power >= rough) step = factor * power;
  std::vector<double> ticks;
  for (double index = std::ceil(low / step); index * step <= high; ++index)
    // Multiples of the step rather than a running sum, which would drift; and 0 without a sign.
    ticks.push_back(index == 0 ? 0 : index * step);
  return ticks;
}

std::string plot_svg(std::span<const Curve> curves, const PlotText& text) {
  const Frame frame(curves);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\" fill=\"#333333\">\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"white\"/>\n",
      kWidth, kHeight);
  svg += axes(frame, text);
  if (frame.empty) svg += label((kLeft + kRight) / 2, (kTop + kBottom) / 2, "middle", "no points");
  for (size_t i = 0; i < curves.size(); ++i) {
    const std::string_view color = kColors[i % kColors.size()];
    svg += drawn(curves[i], frame, color) + legend_entry(curves[i].name, i, color);
  }
  return svg + "</svg>\n";
}

std::vector<Curve> loss_curves(std::span<const train::MetricList> history) {
  std::vector<Curve> curves{{"train", {}}, {"eval", {}}};
  for (const train::MetricList& line : history) {
    const auto step = line.find("step");
    if (!step) continue;
    if (const auto loss = line.find("loss")) curves[0].points.emplace_back(*step, *loss);
    if (const auto loss = line.find("eval_loss")) curves[1].points.emplace_back(*step, *loss);
  }
  std::erase_if(curves, [](const Curve& curve) { return curve.points.empty(); });
  return curves;
}

void LossPlotCallback::on_train_end(train::TrainerEvent& event) {
  if (!event.state.is_world_process_zero) return;
  io::make_folders(folder_);
  const PlotText text{run_name_.empty() ? "Loss" : run_name_, "step", "loss"};
  io::replace_text_file(folder_ / "loss.svg", plot_svg(loss_curves(event.state.log_history), text));
}

}  // namespace megalith::observe
