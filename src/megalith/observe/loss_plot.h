// A picture of curves as SVG, and the one of a run's loss.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "megalith/train/report/callback.h"

namespace megalith::observe {

struct Curve {
  std::string name;                               // in the legend
  std::vector<std::pair<double, double>> points;  // x ascending; one that is not finite interrupts the line
};

struct PlotText {
  std::string title, x_label, y_label;
};

// Axes with round ticks, a grid, a line in its own colour for each curve, a legend. A curve of few points shows them as
// dots, too. Without any point the frame says so. The same input gives the same text.
std::string plot_svg(std::span<const Curve> curves, const PlotText& text);

// "train" and "eval" from the lines of a run, those without points left out.
std::vector<Curve> loss_curves(std::span<const train::MetricList> history);

// Between two and about `most` round numbers (1, 2 or 5 times a power of ten apart) that lie in [low, high]; low <
// high.
std::vector<double> round_ticks(double low, double high, int most);

// Writes `<folder>/loss.svg` when training ends, on world process zero, with the name of the run (empty: "Loss") as
// title.
class LossPlotCallback : public train::TrainerCallback {
 public:
  explicit LossPlotCallback(std::filesystem::path folder, std::string run_name = "")
      : folder_(std::move(folder)), run_name_(std::move(run_name)) {}
  void on_train_end(train::TrainerEvent& event) override;

 private:
  std::filesystem::path folder_;
  std::string run_name_;
};

}  // namespace megalith::observe
