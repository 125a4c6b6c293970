// Each policy on a loss or a gradient that is not finite. Whole runs: trainer_test.cc, rerun_guard_test.cc.
#include "megalith/train/faults/result_check.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "megalith/io/file_io.h"
#include "megalith/layout/rank_grid.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

using config::RerunMode;
using train::RerunMachine;
using train::ResultCheck;

train::MicrobatchLoss loss_of(double value) { return {.sum = at::scalar_tensor(value), .count = 1}; }

// One weight whose gradient a check watches.
class WatchedWeight {
 public:
  WatchedWeight(const Rank& rank, ResultCheck& check)
      : context_(rank.world, layout::RankGrid({.world_size = 1})),
        set_(at::kFloat, at::kCPU),
        weight_(nn::ParameterScope(set_).add({.name = "w"}, {2, 3})),
        ddp_({&weight_}, {}, context_) {
    const std::array<optim::DistributedDataParallel*, 1> chunks{&ddp_};
    check.watch(chunks);
  }

  // A backward pass after which each gradient is `value`.
  void run_backward(double value) {
    ddp_.zero_grad();
    (weight_.value.sum() * value).backward();
    ddp_.finish_grad_sync();
  }

 private:
  parallel::ParallelContext context_;
  nn::ParameterSet set_;
  nn::Parameter& weight_;
  optim::DistributedDataParallel ddp_;
};

RerunMachine machine_of(RerunMode mode) {
  return {{.mode = mode}, [](std::vector<bool> mine) { return mine; }, nullptr};
}

TEST(ResultCheck, ThrowsAndTellsTheTracker) {
  run_ranks(1, [](const Rank& r) {
    const TempFolder folder;
    const train::RejectionTracker tracker(folder / "tracker", {}, "job");
    RerunMachine machine = machine_of(RerunMode::kDisabled);
    ResultCheck check({.mode = RerunMode::kDisabled}, machine, &tracker, 5);
    WatchedWeight weight(r, check);
    check.begin(7, 2);
    check.add_loss(loss_of(1));
    EXPECT_NO_THROW(weight.run_backward(1));
    EXPECT_THROW(weight.run_backward(NAN), optim::NonFiniteGradient);
    EXPECT_THROW(check.add_loss(loss_of(NAN)), train::NonFiniteLoss) << "at once on the CPU";
    EXPECT_THROW(weight.run_backward(NAN), train::NonFiniteLoss) << "a bad loss is the cause";
    EXPECT_THROW(check.check_losses(), train::NonFiniteLoss);
    check.begin(8, 2);
    EXPECT_NO_THROW(check.check_losses());
    const std::string lines = io::read_text_file(folder / "tracker", 1 << 20);
    for (const char* part : {"iteration=7 status=rerun_disabled", "gradient: the gradient of w on rank 0",
                             "loss: the loss of micro-batch 2 of 2 in step 7 on rank 5 is nan"})
      expect_contains(lines, part);
  });
}

TEST(ResultCheck, LeavesStepsToTheOptimizerWhenNobodyChecks) {
  run_ranks(1, [](const Rank& r) {
    RerunMachine machine = machine_of(RerunMode::kValidateResults);
    ResultCheck check({.check_for_nan = false}, machine, nullptr, 0);
    WatchedWeight weight(r, check);
    check.begin(1, 1);
    check.add_loss(loss_of(HUGE_VAL));
    EXPECT_NO_THROW(weight.run_backward(HUGE_VAL));
    EXPECT_NO_THROW(check.check_losses());
    EXPECT_FALSE(machine.rejected());
  });
}

TEST(ResultCheck, GivesThemToTheRerunMachine) {
  run_ranks(1, [](const Rank& r) {
    for (const bool gradient : {false, true}) {
      RerunMachine machine = machine_of(RerunMode::kValidateResults);
      ResultCheck check({}, machine, nullptr, 0);
      WatchedWeight weight(r, check);
      machine.next(1);
      machine.next(1);  // the first step is not validated
      machine.next(2);
      check.begin(2, 1);
      check.add_loss(loss_of(gradient ? 1 : NAN));
      EXPECT_NO_THROW(weight.run_backward(gradient ? NAN : 1));
      EXPECT_EQ(machine.rejected().has_value(), gradient) << "losses are read at the end";
      check.check_losses();
      ASSERT_TRUE(machine.rejected());
      expect_contains(machine.rejected()->message, gradient ? "local gradients of bucket 0 of buffer 0 of chunk 0"
                                                            : "found NaN in local forward loss");
      EXPECT_EQ(ResultCheck::is_of_loss(machine.rejected()->message), !gradient);
    }
  });
}

}  // namespace
}  // namespace megalith::testing
