// A bad result of one rank closes the gate of every rank's update, although the update is queued before any host has
// seen the result: as on a GPU, gradients are checked after they have been reduced.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <set>

#include "megalith/base/exact_sum.h"
#include "megalith/train/faults/rerun_guard.h"
#include "megalith/train/step/step_totals.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

enum class Bad { kNanLoss, kLossWithGoodGradients, kGradient };

// From step 3 on, the loss or the gradient of this rank is bad.
class BadResults : public train::Objective {
 public:
  BadResults(bool here, Bad kind) : here_(here), kind_(kind) {}
  void begin(std::span<const data::MicroBatch>, train::Phase) override { ++step_; }
  train::MicrobatchLoss loss(const train::MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                             train::Phase phase) const override {
    train::MicrobatchLoss loss = Objective::loss(output, batch, microbatch, phase);
    if (!here_ || step_ < 3) return loss;
    if (kind_ == Bad::kNanLoss) loss.sum = loss.sum * NAN;
    if (kind_ == Bad::kLossWithGoodGradients) loss.sum = loss.sum + HUGE_VAL;
    if (kind_ == Bad::kGradient) loss.sum.register_hook([](const at::Tensor& grad) { return grad * HUGE_VAL; });
    return loss;
  }

 private:
  const bool here_;
  const Bad kind_;
  int step_ = 0;
};

// Keeps the parameters as they were before the last step.
class Before : public train::TrainerCallback {
 public:
  Before(model::VirtualModels& models, std::vector<at::Tensor>& parameters)
      : models_(models), parameters_(parameters) {}
  void on_step_begin(train::TrainerEvent&) override {
    parameters_.clear();
    for (const nn::Parameter* p : models_.parameters()) parameters_.push_back(p->value.detach().clone());
  }

 private:
  model::VirtualModels& models_;
  std::vector<at::Tensor>& parameters_;
};

struct VetoCase {
  std::string name;
  TrainerCase how;
};

std::vector<VetoCase> veto_layouts() {
  TrainerCase distributed{.dp = 2}, both{.tp = 2, .dp = 2};
  distributed.args.optimizer.use_distributed_optimizer = both.args.optimizer.use_distributed_optimizer = true;
  std::vector<VetoCase> all{{"one rank", {}},
                            {"dp", {.dp = 2}},
                            {"distributed optimizer", distributed},
                            {"pp", {.pp = 2}},
                            {"tp and dp, distributed optimizer", both}};
  for (VetoCase& each : all) {
    each.how.args.batch.micro_batch_size = 2;
    each.how.args.batch.gradient_accumulation_steps = 2;
    each.how.args.run.max_steps = 5;
  }
  return all;
}

// Trains with a bad last rank; `seen` is called on each rank with the trainer and what it threw, which is nullptr if
// it did not. Returns after all ranks have compared their parameters with those before the last step.
using Seen = std::function<void(const TrainerRank&, train::Trainer&, std::exception_ptr)>;
void train_with(const TrainerCase& how, Bad kind, const std::function<void(train::TrainerSettings&)>& change,
                const Seen& seen) {
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    std::vector<at::Tensor> before;
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(40, 512)));
    // All tensor-parallel ranks of the last stage and replica compute the same loss.
    setup.objective = std::make_unique<BadResults>(r.rank.rank >= how.ranks() - how.tp, kind);
    setup.callbacks.push_back(std::make_unique<Before>(r.models, before));
    train::TrainerSettings settings = r.settings();
    settings.update.gradients.checks_later = true;
    if (change) change(settings);
    train::Trainer trainer(r.models, settings, std::move(setup));
    std::exception_ptr thrown;
    try {
      trainer.train();
    } catch (...) {
      thrown = std::current_exception();
    }
    seen(r, trainer, thrown);
    const auto parameters = r.models.parameters();
    ASSERT_EQ(before.size(), parameters.size());
    for (size_t i = 0; i < before.size(); ++i)
      expect_identical(parameters[i]->value.detach(), before[i], parameters[i]->spec.name);
  });
}

std::string text_of(const std::exception_ptr& thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Terms of a norm as a rank on the CPU makes them.
at::Tensor terms_of(double squares) {
  ExactSum sum;
  sum.add(squares);
  std::vector<double> terms;
  for (const int64_t word : sum.words()) terms.push_back(static_cast<double>(word));
  terms.push_back(3);  // zeros
  return at::tensor(terms, at::kDouble);
}

TEST(StepTotals, AddUpOverAllRanks) {
  for (const bool vetoes : {false, true})
    run_ranks(3, [&](const Rank& r) {
      const parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 3}));
      train::MetricSums metrics({"first", "second"});
      metrics.add("first", at::scalar_tensor(r.rank + 1.0), 2);
      metrics.add("second", 0.5, 1);
      const at::Tensor veto = at::full({1}, vetoes && r.rank == 1 ? 1 : 0, at::kDouble);
      const train::StepTotals totals({veto, terms_of(r.rank == 2 ? 0x1p-300 : 8), metrics}, context);
      EXPECT_EQ(totals.vetoed(), vetoes);
      const auto squares = totals.squares().item<double>();
      EXPECT_TRUE(vetoes ? std::isnan(squares) : squares == 16);
      EXPECT_EQ(totals.stats().norm, 4);
      EXPECT_EQ(totals.stats().zeros, 9);
      EXPECT_FALSE(totals.stats().non_finite);
      const std::vector<train::MetricTotal> sums = totals.metrics();
      ASSERT_EQ(sums.size(), 2U);
      EXPECT_EQ(sums[0].name, "first");
      EXPECT_EQ(sums[0].mean(), 1);
      EXPECT_EQ(sums[1].sum, 1.5);
    });
}

TEST(Veto, ARejectedResultChangesNoRank) {
  for (const VetoCase& layout : veto_layouts())
    for (const Bad kind : {Bad::kNanLoss, Bad::kLossWithGoodGradients, Bad::kGradient}) {
      SCOPED_TRACE(fmt::format("{}, {}", layout.name, static_cast<int>(kind)));
      std::atomic<int> ended = 0;
      train_with(layout.how, kind, {}, [&](const TrainerRank& r, train::Trainer& trainer, auto thrown) {
        EXPECT_EQ(trainer.state().global_step, 2);
        try {
          if (thrown) std::rethrow_exception(thrown);
        } catch (const train::RerunExit& exit) {
          ++ended;
          EXPECT_EQ(exit.facts().exit_code, train::kExitResumeElsewhere);
          // A bad gradient reaches the stages before, which reject it as well.
          if (layout.how.pp == 1 || kind != Bad::kGradient) {
            EXPECT_GE(exit.facts().rank, r.rank.size - layout.how.tp);
          }
          expect_contains(exit.what(), "iteration 3");
        }
      });
      EXPECT_EQ(ended, layout.how.ranks());
    }
}

// With rerun_mode disabled the rank that has computed it says so, and the others stop because of it.
TEST(Veto, TheRankOfABadGradientNamesTheParameter) {
  for (const VetoCase& layout : veto_layouts()) {
    SCOPED_TRACE(layout.name);
    std::atomic<int> told = 0, echoed = 0;
    const auto disabled = [](train::TrainerSettings& settings) { settings.rerun.mode = config::RerunMode::kDisabled; };
    train_with(layout.how, Bad::kGradient, disabled, [&](const TrainerRank& r, train::Trainer&, auto thrown) {
      const std::string text = text_of(thrown);
      try {
        if (thrown) std::rethrow_exception(thrown);
      } catch (const optim::NonFiniteGradient&) {
        ++told;
        expect_contains(text, "the gradient of ");
        expect_contains(text, "before it was reduced");
        r.rank.world.report_failure(text);
      } catch (const comm::PeerFailure&) {
        ++echoed;
      }
    });
    EXPECT_GE(told, 1);
    EXPECT_EQ(told + echoed, layout.how.ranks());
  }
}

// Without checks the norm decides: every rank skips the step and halves the loss scale.
TEST(Veto, AnOverflowOfOneRankIsSkippedByAll) {
  for (const VetoCase& layout : veto_layouts()) {
    SCOPED_TRACE(layout.name);
    std::mutex mutex;
    std::set<float> scales;
    const auto scaled = [](train::TrainerSettings& settings) {
      settings.rerun.check_for_nan = false;
      settings.update.gradients.check_for_nan = false;
      settings.update.scaler = optim::GradScaler::dynamic({.initial_scale = 1024, .hysteresis = 1});
    };
    train_with(layout.how, Bad::kGradient, scaled, [&](const TrainerRank&, train::Trainer& trainer, auto thrown) {
      EXPECT_EQ(text_of(thrown), "");
      EXPECT_EQ(trainer.state().global_step, 5);
      const std::lock_guard lock(mutex);
      scales.insert(trainer.optimized_model()->scaler().scale());
    });
    EXPECT_EQ(scales, std::set<float>{128});  // three of five steps
  }
}

}  // namespace
}  // namespace megalith::testing
