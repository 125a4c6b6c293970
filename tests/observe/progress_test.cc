// The progress of a run as text: one live line on a terminal, one line per logged step without one, Megatron's line for
// pretrain.
#include "megalith/observe/progress.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/observe/some_run.h"
#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

using testing::expect_contains;

TEST(MegatronLine, IsWrittenAsByTheReference) {
  MegatronNumbers numbers;
  numbers.time = "2026-01-31 12:00:00";
  numbers.iteration = 100;
  numbers.train_iters = 500000;
  numbers.consumed_samples = 25600;
  numbers.milliseconds = 1234.56;
  numbers.learning_rate = 1.5e-4;
  numbers.global_batch_size = 256;
  numbers.losses = {{"lm loss", 7.5}, {"z_loss", 0}};
  numbers.grad_norm = 1.2345;
  EXPECT_EQ(megatron_line(numbers),
            " [2026-01-31 12:00:00] iteration      100/  500000 | consumed samples:        25600 | elapsed time per "
            "iteration (ms): 1234.6 | learning rate: 1.500000E-04 | global batch size:   256 | lm loss: 7.500000E+00 | "
            "loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 |");
  numbers.skipped_samples = 8;
  numbers.tflops_per_device = 412.34;
  numbers.num_zeros = 12;
  numbers.params_norm = 100.5;
  const std::string line = megatron_line(numbers);
  expect_contains(line, " skipped samples:            8 | elapsed");
  expect_contains(line, " | throughput per GPU (TFLOP/s/GPU): 412.3 | learning rate");
  numbers.joules_per_device = 1234.56;
  numbers.watts_per_device = 617.28;
  expect_contains(megatron_line(numbers),
                  "GPU): 412.3 | energy per GPU (J/iter/GPU): 1234.6 | power per GPU (W/GPU): 617.3 | learning rate");
  expect_contains(line, " | grad norm: 1.234 | num zeros: 12 | params norm: 100.500 | number of skipped");
  numbers.losses = {{"lm loss", std::nan("")}};
  numbers.skipped_iterations = 12;
  numbers.nan_iterations = 3;
  expect_contains(megatron_line(numbers), " | lm loss: NAN | loss scale");
  expect_contains(megatron_line(numbers), " | number of skipped iterations:  12 | number of nan iterations:   3 |");
}

TEST(MegatronLine, Validation) {
  const std::string line =
      " validation loss at iteration 20 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 | ";
  const std::string frame(line.size() + 1, '-');
  EXPECT_EQ(megatron_validation(20, 2), frame + "\n" + line + "\n" + frame);
  expect_contains(megatron_validation(20, 30), "lm loss PPL: 4.851652E+08");
}

// A run of which a step takes two seconds, the first ten.
struct Watched {
  std::string screen;
  double time = 0;
  SomeRun run{};
  ProgressCallback callback;

  explicit Watched(ProgressSettings settings) : callback(with_clock(std::move(settings))) { run.state.max_steps = 10; }
  ProgressSettings with_clock(ProgressSettings settings) {
    settings.write = [this](std::string_view text) { screen += text; };
    settings.now = [this] { return time; };
    return settings;
  }
  void step() {
    time += run.state.global_step == 0 ? 10 : 2;
    ++run.state.global_step;
    run.tell(callback, &train::TrainerCallback::on_step_end);
  }
};

const train::MetricList kLine{{"loss", 2.5}, {"learning_rate", 1e-4}, {"grad_norm", 1}, {"tokens_per_second", 2000}};

TEST(Progress, OneLinePerLoggedStepWithoutATerminal) {
  Watched watched({});
  watched.run.begin(watched.callback);
  for (int i = 0; i < 4; ++i) watched.step();
  watched.run.log(watched.callback, kLine);
  watched.run.log(watched.callback, {{"eval_loss", 2.25}, {"eval_perplexity", 9.5}, {"epoch", 1}});
  watched.run.log(watched.callback, {{"train_runtime", 16}});
  watched.run.end(watched.callback);
  // Six steps of two seconds remain.
  EXPECT_EQ(watched.screen,
            "step 4/10 | loss 2.5000 | lr 1.00e-04 | grad 1.000 | 2.0k tok/s | ETA 0:00:12\n"
            "evaluation at step 4: loss 2.2500, perplexity 9.5\n");
}

TEST(Progress, OneLiveLineOnATerminal) {
  Watched watched({.terminal = true, .columns = [] { return 30; }, .peak_flops = 1e15});
  watched.run.begin(watched.callback);
  watched.step();
  EXPECT_EQ(watched.screen, "\r\x1b[2Kstep 1/10 | ETA 0:01:30") << "before it is known what later steps take";
  watched.step();
  watched.screen.clear();
  watched.time -= 1.95;  // a fast step is counted, not drawn
  watched.step();
  EXPECT_EQ(watched.screen, "");
  watched.run.log(watched.callback, kLine);
  EXPECT_EQ(watched.screen, "\r\x1b[2Kstep 3/10 | loss 2.5000") << "no part is cut";
  watched.screen.clear();
  watched.run.log(watched.callback, {{"eval_loss", 2}});
  EXPECT_EQ(watched.screen, "\r\x1b[2Kevaluation at step 3: loss 2.0000\n\r\x1b[2Kstep 3/10 | loss 2.5000");
  watched.screen.clear();
  watched.run.end(watched.callback);
  EXPECT_TRUE(watched.screen.ends_with("\n"));
  EXPECT_EQ(watched.screen.find("evaluation"), std::string::npos);
}

TEST(Progress, PretrainSpeaksAsMegatron) {
  Watched watched({.style = ReportStyle::kMegatron, .terminal = true});
  watched.run.begin(watched.callback);
  watched.step();
  watched.step();
  train::MetricList line = kLine;
  line.set("consumed_samples", 16);
  line.set("global_batch_size", 8);
  line.set("tflops_per_device", 3);
  watched.run.log(watched.callback, line);
  expect_contains(watched.screen,
                  " iteration        2/      10 | consumed samples:           16 | elapsed time per "
                  "iteration (ms): 6000.0 | learning rate: 1.000000E-04 | global batch size:     8 | lm "
                  "loss: 2.500000E+00 | loss scale: 1.0 | grad norm: 1.000 |");
  EXPECT_EQ(watched.screen.find("throughput"), std::string::npos) << "only with log_throughput";
  EXPECT_EQ(watched.screen.find('\r'), std::string::npos);
  watched.screen.clear();
  watched.step();
  watched.run.log(watched.callback, line);
  expect_contains(watched.screen, "(ms): 2000.0 |");
  watched.run.log(watched.callback, {{"eval_loss", 2}});
  expect_contains(watched.screen, "validation loss at iteration 3");
}

TEST(Progress, OtherRanksAreSilent) {
  Watched watched({.terminal = true});
  watched.run.state.is_world_process_zero = false;
  watched.run.begin(watched.callback);
  watched.step();
  watched.run.log(watched.callback, kLine);
  watched.run.log(watched.callback, {{"eval_loss", 2}});
  watched.run.end(watched.callback);
  EXPECT_EQ(watched.screen, "");
}

}  // namespace
}  // namespace megalith::observe
