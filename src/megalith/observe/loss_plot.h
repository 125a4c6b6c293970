// Draws curves as SVG, in particular the losses of a run.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "megalith/train/report/callback.h"

namespace megalith::observe {

// One line of the plot.
struct Curve {
  std::string name;                               // shown in the legend
  std::vector<std::pair<double, double>> points;  // x ascending; a value that is not finite interrupts the line
};

// The words of a plot.
struct PlotText {
  std::string title, x_label, y_label;
};

// Draws axes with round ticks, a grid, one line per curve in its own color, and a legend. A curve of few points also
// shows dots; a plot without points says so in its frame. The same input gives the same text. The picture is 720 by 420
// pixels and needs neither scripts nor fonts of its own.
std::string plot_svg(std::span<const Curve> curves, const PlotText& text);

// Returns "train" and "eval" from the lines of a run; curves without points are left out. x is the step; lines without
// a step, such as the totals at the end, are ignored.
std::vector<Curve> loss_curves(std::span<const train::MetricList> history);

// Returns between two and about `most` round numbers (1, 2 or 5 times a power of ten apart) in [low, high]; low < high.
// Example: round_ticks(0, 37, 8) gives 0, 5, 10, …, 35.
std::vector<double> round_ticks(double low, double high, int most);

// Writes `<folder>/loss.svg` on world process zero when training ends. The title is the name of the run, or "Loss".
class LossPlotCallback : public train::TrainerCallback {
 public:
  // Creates `folder` when it writes, if it does not exist.
  explicit LossPlotCallback(std::filesystem::path folder, std::string run_name = "")
      : folder_(std::move(folder)), run_name_(std::move(run_name)) {}
  void on_train_end(train::TrainerEvent& event) override;

 private:
  std::filesystem::path folder_;
  std::string run_name_;
};

}  // namespace megalith::observe
