#include "megalith/observe/loss_plot.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/observe/some_run.h"
#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

using testing::expect_contains;
using testing::TempFolder;

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Every element is closed, and no attribute is NaN or infinite.
void expect_well_formed(const std::string& svg) {
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_EQ(occurrences(svg, "<text"), occurrences(svg, "</text>"));
  for (const char* bad : {"nan", "inf\"", "-inf"}) EXPECT_EQ(svg.find(bad), std::string::npos) << svg;
}

TEST(RoundTicks, AreRoundAndInside) {
  EXPECT_EQ(round_ticks(0, 100, 8), (std::vector<double>{0, 20, 40, 60, 80, 100}));
  EXPECT_EQ(round_ticks(1, 10, 8), (std::vector<double>{2, 4, 6, 8, 10}));
  const auto small = round_ticks(-0.012, 0.011, 5);
  ASSERT_EQ(small.size(), 5U);
  EXPECT_DOUBLE_EQ(small.front(), -0.01);
  EXPECT_EQ(small[2], 0);
  for (const double high : {1e-9, 0.3, 7.0, 1234.5, 1e12}) {
    const auto ticks = round_ticks(0, high, 7);
    EXPECT_GE(ticks.size(), 2U) << high;
    EXPECT_LE(ticks.size(), 8U) << high;
  }
}

TEST(Plot, CurvesTicksAndLegend) {
  const std::vector<Curve> curves{{"train", {{1, 8.0}, {50, 4.0}, {100, 2.0}}}, {"eval & <test>", {{100, 2.5}}}};
  const std::string svg = plot_svg(curves, {"Loss", "step", "loss"});
  expect_well_formed(svg);
  EXPECT_EQ(occurrences(svg, "<polyline"), 2U);
  EXPECT_EQ(occurrences(svg, "<circle"), 4U);
  for (const char* part :
       {">Loss<", ">step<", ">loss<", ">train<", ">eval &amp; &lt;test&gt;<", ">20<", ">100<", ">8<"})
    expect_contains(svg, part);
  // The first point is at the left end, the last at the right one, and smaller values are lower down.
  expect_contains(svg, "points=\"70.0,52.0 381.8,");
  expect_contains(svg, " 700.0,353.0\"");
  EXPECT_EQ(svg, plot_svg(curves, {"Loss", "step", "loss"}));
}

TEST(Plot, MissingValuesInterruptTheLine) {
  const std::vector<Curve> curves{{"train", {{1, 3.0}, {2, 2.5}, {3, std::nan("")}, {4, 2.0}, {5, INFINITY}}}};
  const std::string svg = plot_svg(curves, {});
  expect_well_formed(svg);
  EXPECT_EQ(occurrences(svg, "<polyline"), 2U);
  EXPECT_EQ(occurrences(svg, "<circle"), 3U);
}

TEST(Plot, NothingAndOneValue) {
  expect_contains(plot_svg({}, {}), "no points");
  expect_well_formed(plot_svg({}, {}));
  for (const double value : {0.0, 5.0, -3.0}) {
    const std::vector<Curve> curves{{"train", {{7, value}}}};
    expect_well_formed(plot_svg(curves, {}));
  }
}

TEST(Plot, ManyPointsHaveNoDots) {
  Curve curve{"train", {}};
  for (int i = 0; i < 1000; ++i) curve.points.emplace_back(i, 1.0 / (1 + i));
  const std::string svg = plot_svg({&curve, 1}, {});
  EXPECT_EQ(occurrences(svg, "<circle"), 0U);
}

TEST(LossPlot, FromTheHistoryOfARun) {
  const TempFolder folder;
  SomeRun run;
  run.state.log_history = {{{"loss", 3}, {"step", 10}},
                           {{"eval_loss", 2.5}, {"step", 10}},
                           {{"loss", 2}, {"step", 20}},
                           {{"train_runtime", 5}, {"step", 20}}};
  const auto curves = loss_curves(run.state.log_history);
  ASSERT_EQ(curves.size(), 2U);
  EXPECT_EQ(curves[0].points, (std::vector<std::pair<double, double>>{{10, 3}, {20, 2}}));
  EXPECT_EQ(curves[1].name, "eval");
  LossPlotCallback callback(folder / "out");
  run.end(callback);
  expect_well_formed(text_of_file(folder / "out" / "loss.svg"));
}

}  // namespace
}  // namespace megalith::observe
