// An update rule and a schedule that a program brings, through the trainer: layouts, save points, resumption.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/checkpoint/manifest.h"
#include "megalith/checkpoint/state_files.h"
#include "tests/optim/lion.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/train/resume_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

using SetupChange = std::function<void(const TrainerRank&, train::TrainerSetup&)>;

void with_lion(const TrainerRank& /*rank*/, train::TrainerSetup& setup) { setup.update_rule = lion(); }

// Always 8 samples per step.
TrainerCase data_parallel(int dp, const fs::path& out, bool shards) {
  TrainerCase how{.name = fmt::format("dp {}{}", dp, shards ? " with shards" : ""), .dp = dp};
  how.args = resume_arguments(out, 6, 3);
  how.args.batch.micro_batch_size = 8 / dp;
  how.args.optimizer.learning_rate = 1e-4;
  how.args.optimizer.use_distributed_optimizer = shards;
  return how;
}

std::vector<double> logged(const train::TrainerState& state, const std::string& name) {
  std::vector<double> found;
  for (const train::MetricList& line : state.log_history)
    if (const auto value = line.find(name)) found.push_back(*value);
  return found;
}

TEST(OwnRule, TrainsAlikeInEveryLayout) {
  const TempFolder alone, spread;
  const auto expected = logged(run_resumable(data_parallel(1, alone.path(), false), {.change = with_lion}), "loss");
  ASSERT_EQ(expected.size(), 6U);
  EXPECT_NE(logged(run_resumable(data_parallel(1, spread.path(), false), {}), "loss"), expected) << "AdamW is another";
  std::vector<TrainerCase> layouts{data_parallel(2, spread.path(), true), data_parallel(4, spread.path(), true),
                                   data_parallel(2, spread.path(), false), data_parallel(2, spread.path(), true)};
  layouts.back().name += " and tp, pp";
  layouts.back().tp = layouts.back().pp = 2;
  for (TrainerCase& layout : layouts) {
    layout.args.save.strategy = config::Interval::kNo;
    const auto losses = logged(run_resumable(layout, {.change = with_lion}), "loss");
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t i = 0; i < losses.size(); ++i)
      expect_close(losses[i], expected[i], fmt::format("{}: loss {}", layout.name, i), 1e-4);
  }
}

class OwnRulePrecisions : public ::testing::TestWithParam<const char*> {};

// Shards, offload and save points: all with the same bits as a run that has none of them.
TEST_P(OwnRulePrecisions, ResumesAndOffloadsBitForBit) {
  const TempFolder plain, sharded, offloaded, rest;
  const auto run = [&](const TempFolder& out, bool shards, double offload, std::optional<fs::path> from = {}) {
    TrainerCase how = data_parallel(2, out.path(), shards);
    how.args.precision.bf16 = std::string(GetParam()) == "bf16";
    how.args.optimizer.cpu_offload = offload > 0;
    how.args.optimizer.offload_fraction = offload;
    run_resumable(how, {.checkpoint = std::move(from), .change = with_lion});
  };
  run(plain, false, 0);
  run(sharded, true, 0);
  run(offloaded, true, 0.4);
  run(rest, true, 1, sharded / "checkpoint-3");
  for (const TempFolder* out : {&sharded, &offloaded, &rest})
    expect_same_tensors(*out / "checkpoint-6", plain / "checkpoint-6", /*with_rng=*/true);
}

INSTANTIATE_TEST_SUITE_P(Of, OwnRulePrecisions, ::testing::Values("fp32", "bf16"),
                         [](const auto& test) { return std::string(test.param); });

TEST(OwnRule, StateIsReadInAnotherLayout) {
  const TempFolder out, other;
  run_resumable(data_parallel(4, out.path(), true), {.change = with_lion});
  const fs::path saved = out / "checkpoint-3";
  const checkpoint::StateFiles files(saved, checkpoint::read_manifest(saved), "optimizer");
  for (const auto& tensor : files.tensors()) EXPECT_TRUE(tensor.name.starts_with("optimizer.exp_avg.")) << tensor.name;
  const auto holds_what_was_saved = [&](train::Trainer& trainer) {
    const checkpoint::StateFiles mine(saved, checkpoint::read_manifest(saved), "optimizer");
    for (const parallel::ShardedTensor& part : trainer.optimized_model()->optimizer().sharded_state()) {
      parallel::ShardedTensor wanted = part;
      wanted.local = at::zeros_like(part.local, at::MemoryFormat::Contiguous);
      mine.read(wanted);
      EXPECT_TRUE(part.local.ne(0).any().item<bool>()) << part.name;
      expect_identical(part.local, wanted.local, part.name);
    }
    EXPECT_EQ(trainer.optimized_model()->optimizer().steps(), 3);
  };
  const auto expected =
      logged(run_resumable(data_parallel(4, other.path(), true), {.checkpoint = saved, .change = with_lion}), "loss");
  for (const int dp : {1, 2}) {
    const auto state = run_resumable(data_parallel(dp, other.path(), dp > 1),
                                     {.checkpoint = saved, .change = with_lion, .begun = holds_what_was_saved});
    const auto losses = logged(state, "loss");
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t i = 0; i < losses.size(); ++i)
      expect_close(losses[i], expected[i], fmt::format("dp {}: loss {}", dp, i), 1e-4);
  }
}

std::string refusal(const TrainerCase& how, const std::optional<fs::path>& checkpoint, const SetupChange& change) {
  std::string message;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& rank) {
    train::TrainerSetup setup = rank.setup(dataset_of(random_sequences(20, 200)));
    if (change) change(rank, setup);
    if (checkpoint) setup.resume = train::read_resume_point(*checkpoint, rank.settings(), rank.models.context());
    if (setup.resume) setup.resume->sampler.reset();  // its data is not at issue
    train::Trainer trainer(rank.models, rank.settings(), std::move(setup));
    message = error_of<ConfigError>([&] { trainer.train(); });
  });
  return message;
}

TEST(OwnRule, WrongSettingsAndOtherStateAreRefused) {
  const TempFolder out;
  TrainerCase how = data_parallel(1, out.path(), false);
  run_resumable(how, {.change = with_lion});
  how.args.save.strategy = config::Interval::kNo;
  expect_contains(refusal(how, out / "checkpoint-3", {}),
                  "holds the state of the optimizer \"lion\"; this run uses adam");
  const auto wrong = [](const TrainerRank&, train::TrainerSetup& setup) { setup.update_rule = lion(0.9, 1); };
  expect_contains(refusal(how, std::nullopt, wrong), "lion_beta2 is 1; it must be at least 0 and below 1");
}

// A rule without state has no file of it for an fp32 model, and resumes all the same.
TEST(OwnRule, WithoutStateResumes) {
  class SignDescent : public optim::UpdateRule {
    std::string name() const override { return "sign_descent"; }
    std::vector<std::string> state_names() const override { return {}; }
    void update(const optim::FlatElements& x, const ops::UpdateScalars& scalars) const override {
      x.main.sub_(x.grad.sign(), scalars.lr);
    }
  };
  const SetupChange stateless = [](const TrainerRank&, train::TrainerSetup& setup) {
    setup.update_rule = std::make_shared<SignDescent>();
  };
  for (const bool per_writer : {false, true}) {
    const TempFolder whole, rest;
    const auto run = [&](const TempFolder& out, std::optional<fs::path> from) {
      TrainerCase how = data_parallel(2, out.path(), true);
      how.args.checkpoint.files = per_writer ? "per_writer" : "shared";
      run_resumable(how, {.checkpoint = std::move(from), .change = stateless});
    };
    run(whole, std::nullopt);
    run(rest, whole / "checkpoint-3");
    expect_same_tensors(rest / "checkpoint-6", whole / "checkpoint-6", /*with_rng=*/true);
  }
}

// ---- A schedule of one's own ----

const SetupChange kOwnRates = [](const TrainerRank&, train::TrainerSetup& setup) {
  setup.rates = {.lr = [](int64_t step) { return 1e-3 / static_cast<double>(1 + step); },
                 .weight_decay = [](int64_t step) { return 0.1 * static_cast<double>(step); }};
};

TEST(OwnSchedule, IsFollowedAndResumed) {
  const TempFolder whole, rest;
  const auto state = run_resumable(data_parallel(2, whole.path(), true), {.change = kOwnRates});
  EXPECT_EQ(logged(state, "learning_rate"),
            (std::vector<double>{1e-3, 1e-3 / 2, 1e-3 / 3, 1e-3 / 4, 1e-3 / 5, 1e-3 / 6}));
  TrainerCase how = data_parallel(2, rest.path(), true);
  const auto resumed = run_resumable(how, {.checkpoint = whole / "checkpoint-3", .change = kOwnRates});
  EXPECT_EQ(logged(resumed, "learning_rate"), logged(state, "learning_rate"));
  EXPECT_EQ(logged(resumed, "loss"), logged(state, "loss"));
  expect_same_tensors(rest / "checkpoint-6", whole / "checkpoint-6", /*with_rng=*/true);
  // Options of curves that are not used may change: here the length of the run.
  how.args.run.max_steps = 8;
  const auto longer = run_resumable(how, {.checkpoint = whole / "checkpoint-3", .change = kOwnRates});
  EXPECT_EQ(logged(longer, "learning_rate").at(7), 1e-3 / 8);
  EXPECT_EQ(logged(longer, "loss").at(5), logged(state, "loss").at(5));
}

TEST(OwnSchedule, DecaysWeights) {
  const TempFolder out;
  const auto losses = [&](const SetupChange& change) {
    TrainerCase how = data_parallel(1, out.path(), false);
    how.args.save.strategy = config::Interval::kNo;
    return logged(run_resumable(how, {.change = change}), "loss");
  };
  const auto decay = [](double value) -> SetupChange {
    return [value](const TrainerRank&, train::TrainerSetup& setup) {
      setup.rates.weight_decay = [value](int64_t) { return value; };
    };
  };
  EXPECT_EQ(losses(decay(0.1)), losses({}));  // as the options say
  EXPECT_NE(losses(decay(50)), losses({}));
}

TEST(OwnSchedule, OfNoRatesIsRefused) {
  const TempFolder out;
  TrainerCase how = data_parallel(1, out.path(), false);
  how.args.save.strategy = config::Interval::kNo;
  const auto broken = [](const TrainerRank&, train::TrainerSetup& setup) {
    setup.rates.lr = [](int64_t step) { return step < 2 ? 1e-3 : -1; };
  };
  expect_contains(refusal(how, std::nullopt, broken), "returned a learning rate of -1 at progress 2");
  how.args.optimizer.decoupled_lr = 1e-3;
  expect_contains(refusal(how, std::nullopt, kOwnRates), "decoupled_lr is 0.001, and this program gives");
}

}  // namespace
}  // namespace megalith::testing
