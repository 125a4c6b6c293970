// Rejected results in real steps: what is run again, how the run ends, what is saved.
#include "megalith/train/faults/rerun_guard.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "megalith/train/saving/shared_folder.h"
#include "megalith/train/simulated_fault.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

using train::RerunExit;

// Runs of forward and backward are counted from 1, reruns too; those from `from` to `to` have a bad loss, or a good one
// with a bad gradient.
class BadRuns : public train::Objective {
 public:
  BadRuns(bool here, int from, int to, bool gradient = false)
      : here_(here), from_(from), to_(to), gradient_(gradient) {}
  void begin(std::span<const data::MicroBatch>, train::Phase) override { ++run_; }
  train::MicrobatchLoss loss(const train::MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                             train::Phase phase) const override {
    train::MicrobatchLoss loss = Objective::loss(output, batch, microbatch, phase);
    if (!here_ || run_ < from_ || run_ > to_) return loss;
    if (gradient_)
      loss.sum.register_hook([](const at::Tensor& gradient) { return gradient * HUGE_VAL; });
    else
      loss.sum = loss.sum * NAN;
    return loss;
  }

 private:
  const bool here_;
  const int from_, to_;
  const bool gradient_;
  int run_ = 0;
};

constexpr int kAlways = std::numeric_limits<int>::max();

struct BadCase {
  int pp = 1;
  int from = 3, to = kAlways;
  bool gradient = false;
  bool distributed_optimizer = false;
};

// Trains on two replicas; the last rank computes badly. What RerunExit says, which all ranks must agree on.
struct Ended {
  int exit_code = 0;
  int rank = -1;
  std::string text, state;
  int64_t steps = 0;
};
Ended train_badly(const BadCase& bad, const std::filesystem::path& output, const std::string& rerun_state = "") {
  TrainerCase how{.pp = bad.pp, .dp = 2};
  how.args.batch.micro_batch_size = 2;
  how.args.batch.gradient_accumulation_steps = 2;
  how.args.fault.rerun_mode = config::RerunMode::kValidateResults;
  how.args.optimizer.use_distributed_optimizer = bad.distributed_optimizer;
  how.args.ddp.overlap_grad_reduce = bad.distributed_optimizer;
  how.args.save.output_dir = output.string();
  std::atomic<int> ended = 0;
  Ended result;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(20, 512)));
    setup.objective = std::make_unique<BadRuns>(r.rank.rank == how.ranks() - 1, bad.from, bad.to, bad.gradient);
    if (!rerun_state.empty()) {
      train::TrainerState state;
      state.rerun_state = rerun_state;
      setup.resume = train::ResumePoint{.state = state, .data = {}, .restore = [](train::OptimizedModel&) {}};
    }
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    try {
      trainer.train();
    } catch (const RerunExit& exit) {
      ++ended;
      if (r.rank.rank == 0)
        result = {exit.facts().exit_code, exit.facts().rank, exit.what(), exit.facts().state,
                  trainer.state().global_step};
    }
  });
  EXPECT_TRUE(ended == 0 || ended == how.ranks());
  return result;
}

TEST(RerunSteps, ATransientErrorEndsTheRunOnAllRanks) {
  for (const BadCase& bad : {BadCase{.to = 3}, BadCase{.pp = 2, .to = 3}, BadCase{.to = 3, .gradient = true},
                             BadCase{.to = 3, .gradient = true, .distributed_optimizer = true}}) {
    const TempFolder folder;
    const Ended ended = train_badly(bad, folder.path());
    EXPECT_EQ(ended.exit_code, train::kExitResultRejected);
    EXPECT_EQ(ended.rank, 2 * bad.pp - 1);
    EXPECT_EQ(ended.steps, 2);
    for (const std::string& part :
         {"rank " + std::to_string(2 * bad.pp - 1), std::string("iteration 3"), std::string("transient error"),
          std::string(bad.gradient ? "bucket 0" : " of 2: found NaN")})
      expect_contains(ended.text, part);
    EXPECT_FALSE(std::filesystem::exists(folder / "checkpoint-2"));
  }
}

TEST(RerunSteps, ARepeatedResultIsSavedAndCheckedElsewhere) {
  const TempFolder folder;
  const Ended ended = train_badly({}, folder.path());
  EXPECT_EQ(ended.exit_code, train::kExitResumeElsewhere);
  const auto saved = train::TrainerState::load(folder / "checkpoint-2" / "trainer_state.json");
  EXPECT_EQ(saved.global_step, 2);
  EXPECT_EQ(saved.rerun_state, ended.state);
  auto records = train::rejected_from_json(ended.state, "test");
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].rank, 1);
  EXPECT_EQ(records[0].iteration, 3);

  // The same device: once more. Another one: it is known.
  const TempFolder second;
  const BadCase at_once{.from = 1};
  const Ended here = train_badly(at_once, second.path(), ended.state);
  EXPECT_EQ(here.exit_code, train::kExitResumeElsewhere);
  expect_contains(here.text, "start the run on another one");
  records[0].device = "7";
  const std::string elsewhere = train::rejected_to_json(records);
  const Ended same = train_badly(at_once, second.path(), elsewhere);
  EXPECT_EQ(same.exit_code, train::kExitResultRejected);
  expect_contains(same.text, "the result is correct");
  const Ended other = train_badly({.from = kAlways}, second.path(), elsewhere);
  EXPECT_EQ(other.exit_code, train::kExitResultRejected);
  expect_contains(other.text, "a persistent error of node");
  EXPECT_TRUE(std::filesystem::is_empty(second.path()));  // nothing is saved
}

TEST(RerunSteps, TheFirstStepIsNotChecked) {
  const TempFolder folder;
  const Ended ended = train_badly({.from = 1, .to = 1}, folder.path());
  EXPECT_EQ(ended.exit_code, 0) << ended.text;
}

// Every step twice, with dropout: the second run must see what the first saw, and leave nothing behind.
TEST(RerunSteps, ARerunChangesNothing) {
  for (const int pp : {1, 2}) {
    TrainerCase how{.pp = pp, .dp = 2};
    how.args.batch.micro_batch_size = 2;
    how.args.batch.gradient_accumulation_steps = 2;
    how.args.layer.hidden_dropout = 0.2;
    const auto samples = random_sequences(20, 512);
    how.args.fault.rerun_mode = config::RerunMode::kDisabled;
    const RunLog once = run_training(golden_folder("llama"), how, samples, samples);
    how.args.fault.rerun_mode = config::RerunMode::kReportDeterminismStats;
    const RunLog twice = run_training(golden_folder("llama"), how, samples, samples);
    EXPECT_EQ(once.numbers("loss"), twice.numbers("loss"));
    EXPECT_EQ(once.numbers("grad_norm"), twice.numbers("grad_norm"));
    EXPECT_EQ(once.evaluation.find("eval_loss"), twice.evaluation.find("eval_loss"));
  }
}

TEST(RerunSteps, InjectedErrorsEndARunAsTheirKindSays) {
  for (const auto& [kind, code] :
       {std::pair{"transient_error", 17}, {"persistent_error", 16}, {"correct_result", 16}}) {
    TrainerCase how;
    how.args.fault.rerun_mode = config::RerunMode::kValidateResults;
    how.args.fault.error_injection_rate = 1;
    how.args.fault.error_injection_type = kind;
    run_trainer_ranks(golden_folder("llama"), how, [&, expected = code](const TrainerRank& r) {
      train::Trainer trainer(r.models, r.settings(), r.setup(dataset_of(random_sequences(20, 512))));
      try {
        trainer.train();
        ADD_FAILURE() << "no error";
      } catch (const RerunExit& exit) {
        EXPECT_EQ(exit.facts().exit_code, expected) << exit.what();
        EXPECT_EQ(trainer.state().global_step, 1);
      }
    });
  }
}

TEST(RerunSteps, TheTrackerLeavesOutStepsThatFailedTwice) {
  const TempFolder folder;
  for (const char* job : {"a", "b"})
    train::RejectionTracker(folder / "tracker", {.rank = 0}, job).append(2, "first_rerun_reproducible", NAN, "loss");
  TrainerCase how;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(40, 512)));
    setup.rejection_tracker = folder / "tracker";
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    trainer.train();
    EXPECT_EQ(trainer.optimized_model()->optimizer().steps(), trainer.state().global_step - 1);
  });
}

// ---- The folder that all machines share ----

TEST(SharedFolder, IsSeenByAllOrNamed) {
  const TempFolder shared, other;
  run_ranks(3, [&](const Rank& r) {
    EXPECT_NO_THROW(train::check_shared_folder_of_ranks(shared.path(), r.world.world(), true, 0.2));
    const auto mine = r.rank == 2 ? other.path() : shared.path();
    try {
      train::check_shared_folder_of_ranks(mine, r.world.world(), true, 0.2);
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      expect_contains(error.what(), "output_dir " + mine.string());
      expect_contains(error.what(), "not the same folder on all machines");
    }
    try {
      train::check_shared_folder_of_ranks("/proc/none", r.world.world(), true, 0.2);
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      expect_contains(error.what(), "output_dir /proc/none cannot be written");
    }
  });
  EXPECT_TRUE(std::filesystem::is_empty(shared.path()));
}

// ---- Faults on purpose ----

TEST(SimulatedFault, Descriptions) {
  const auto what = train::FaultDescription::parse("rank_hung;3;2.5");
  EXPECT_EQ(what.kind, train::FaultKind::kRankHung);
  EXPECT_EQ(what.rank, 3);
  EXPECT_EQ(what.delay_seconds, 2.5);
  EXPECT_FALSE(train::FaultDescription::parse("random;;0").rank);
  EXPECT_EQ(train::FaultDescription::parse("nan_loss;0;@/tmp/now").trigger, "/tmp/now");
  for (const auto& [text, part] : {std::pair{"rank_gone;0;1", "rank_gone"},
                                   {"rank_killed;0", "kind;rank;delay"},
                                   {"rank_killed;x;1", "\"x\" is not a rank"},
                                   {"rank_killed;0;soon", "\"soon\""}}) {
    try {
      train::FaultDescription::parse(text);
      ADD_FAILURE() << text;
    } catch (const ConfigError& error) {
      expect_contains(error.what(), "FT_SIM_FAULT_DESC");
      expect_contains(error.what(), part);
    }
  }
}

TEST(SimulatedFault, ANanOfTheProgramIsToldFromAFlippedBit) {
  for (const auto& [kind, code] : {std::pair{"nan_loss", 16}, {"gradient_bit", 17}, {"exception", 0}}) {
    TrainerCase how{.dp = 2};
    how.args.run.max_steps = 2000;
    how.args.fault.rerun_mode = config::RerunMode::kValidateResults;
    const std::string text = std::string(kind) + ";1;0.3";
    run_trainer_ranks(golden_folder("llama"), how, [&, expected = code](const TrainerRank& r) {
      train::TrainerSetup setup = r.setup(dataset_of(random_sequences(20, 512)));
      parallel::ParallelContext& context = r.models.context();
      const auto fault = train::simulate_fault(train::FaultDescription::parse(text), context, 0, setup);
      EXPECT_EQ(fault != nullptr, r.rank.rank == 1);
      train::Trainer trainer(r.models, r.settings(), std::move(setup));
      try {
        trainer.train();
        ADD_FAILURE() << "no error";
      } catch (const RerunExit& exit) {
        EXPECT_EQ(exit.facts().exit_code, expected) << exit.what();
        EXPECT_EQ(exit.facts().rank, 1);
      } catch (const InternalError& error) {
        EXPECT_EQ(expected, 0) << error.what();
        r.rank.world.report_failure(error.what());
      } catch (const comm::PeerFailure&) {
        EXPECT_EQ(expected, 0);
      }
    });
  }
}

}  // namespace
}  // namespace megalith::testing
