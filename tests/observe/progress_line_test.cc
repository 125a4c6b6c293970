// The progress of a run in one line, for a file and for a terminal.
#include "megalith/observe/progress_line.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

using testing::expect_contains;

TEST(ProgressLine, HasEveryNumberThatIsKnown) {
  ProgressNumbers numbers;
  numbers.step = 120;
  numbers.max_steps = 1000;
  EXPECT_EQ(progress_line(numbers), "step 120/1000");
  numbers.epoch = 0.125;
  numbers.loss = 2.34567;
  numbers.learning_rate = 1e-4;
  numbers.grad_norm = 1.2341;
  numbers.tokens_per_second = 12345;
  numbers.tflops_per_device = 380;
  numbers.peak_tflops = 1000;
  numbers.memory = 12.25 * (1LL << 30);
  numbers.remaining_seconds = 5025;
  EXPECT_EQ(progress_line(numbers),
            "step 120/1000 | epoch 0.12 | loss 2.3457 | lr 1.00e-04 | grad 1.234 | 12.3k tok/s | 380.0 TFLOP/s (MFU "
            "38.0 %) | 12.2 GiB | ETA 1:23:45");
  numbers.peak_tflops.reset();
  numbers.tflops_per_device = 0.0521;
  expect_contains(progress_line(numbers), "| 0.052 TFLOP/s |");
  numbers.watts = 617.4;
  expect_contains(progress_line(numbers), "| 0.052 TFLOP/s | 617 W | 12.2 GiB |");
  numbers.loss = std::nan("");
  numbers.skipped_steps = 3;
  numbers.nan_steps = 2;
  expect_contains(progress_line(numbers), "| loss nan | lr 1.00e-04 | grad 1.234 | 3 skipped | 2 NaN | 12.3k tok/s |");
}

ProgressNumbers some_numbers() {
  ProgressNumbers numbers;
  numbers.step = numbers.loss_step = 120;
  numbers.max_steps = 1000;
  numbers.loss = 2.34567;
  numbers.learning_rate = 1e-4;
  numbers.grad_norm = 1.2341;
  numbers.tokens_per_second = 12345;
  numbers.tflops_per_device = 380;
  numbers.memory = 12.25 * (1LL << 30);
  numbers.remaining_seconds = 5025;
  return numbers;
}

TEST(LiveLine, HasABarAndACurve) {
  const std::vector<double> losses{8, 7, 6, 5, 4, 3, 2, 1};
  EXPECT_EQ(live_line(some_numbers(), losses, {.unicode = true}),
            "step 120/1000 ━─────────────── 12 % | loss 2.3457 █▇▆▅▄▃▂▁ | lr 1.00e-04 | grad 1.234 | 12.3k tok/s | "
            "380.0 TFLOP/s | 12.2 GiB | ETA 1:23:45");
  EXPECT_EQ(live_line(some_numbers(), losses, {}),
            "step 120/1000 [#---------------] 12 % | loss 2.3457 | lr 1.00e-04 | grad 1.234 | 12.3k tok/s | "
            "380.0 TFLOP/s | 12.2 GiB | ETA 1:23:45");
}

// Each width has what the line before it had, less the least important part.
TEST(LiveLine, LeavesOutWholePartsOnANarrowTerminal) {
  const auto line = [](int columns) { return live_line(some_numbers(), {}, {.columns = columns}); };
  EXPECT_EQ(line(120),
            "step 120/1000 [#---------------] 12 % | loss 2.3457 | lr 1.00e-04 | grad 1.234 | 12.3k tok/s | "
            "12.2 GiB | ETA 1:23:45");
  EXPECT_EQ(line(100), "step 120/1000 [#---------------] 12 % | loss 2.3457 | grad 1.234 | 12.3k tok/s | ETA 1:23:45");
  EXPECT_EQ(line(80), "step 120/1000 [#---------------] 12 % | loss 2.3457 | 12.3k tok/s | ETA 1:23:45");
  EXPECT_EQ(line(60), "step 120/1000 | loss 2.3457 | 12.3k tok/s | ETA 1:23:45");
  EXPECT_EQ(line(50), "step 120/1000 | loss 2.3457 | ETA 1:23:45");
  EXPECT_EQ(line(30), "step 120/1000 | loss 2.3457");
  EXPECT_EQ(line(5), "step 120/1000");
  for (int columns = 14; columns < 160; ++columns) EXPECT_LT(line(columns).size(), static_cast<size_t>(columns));
}

TEST(LiveLine, SaysWhereItsLossIsFrom) {
  ProgressNumbers numbers = some_numbers();
  numbers.loss_step = 100;
  expect_contains(live_line(numbers, {}, {}), "| loss 2.3457 (step 100) |");
  numbers.max_steps = 0;  // a run without an end
  EXPECT_TRUE(live_line(numbers, {}, {}).starts_with("step 120/0 | loss"));
}

TEST(LiveLine, CurvesOfFewOddAndManyLosses) {
  const auto curve = [](const std::vector<double>& losses) {
    const std::string line = live_line(some_numbers(), losses, {.unicode = true});
    const size_t begin = line.find("2.3457") + 6;
    return line.substr(begin, line.find(" | lr") - begin);
  };
  EXPECT_EQ(curve({1}), "");
  EXPECT_EQ(curve({2, 2, 2}), " ▁▁▁");
  EXPECT_EQ(curve({1, std::nan(""), 8}), " ▁ █");
  std::vector<double> many(64, 1.0);
  for (size_t i = 0; i < 32; ++i) many[i] = 2;
  EXPECT_EQ(curve(many), " ████████▁▁▁▁▁▁▁▁");
}

}  // namespace
}  // namespace megalith::observe
