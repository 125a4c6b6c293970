// precompute_ref_log_probs: the reference runs once, what it said is kept, and training is the same.
#include "megalith/train/preference/reference_scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>

#include "tests/support/close.h"
#include "tests/support/temp_folder.h"
#include "tests/train/preference_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

struct ScoringOutcome {
  RunLog log;
  int loads = 0;  // loads of the reference model, on rank 0
};

class ReferenceScores : public ::testing::Test {
 protected:
  // Trains on pairs whose scores are precomputed; evaluates on others.
  ScoringOutcome run(const TrainerCase& how, const std::shared_ptr<const data::Dataset>& pairs) {
    ScoringOutcome outcome;
    run_trainer_ranks(golden_.policy, how, [&](const TrainerRank& r) {
      const auto size = pairs->size();
      train::TrainerSetup setup;
      setup.train_data = train::numbered_data(pairs, {.size = size, .shuffle = false}, r.collator);
      setup.eval_data.push_back({.dataset = eval_, .collator = r.collator});
      const auto load = [&] {
        if (r.rank.rank == 0) ++outcome.loads;
        return reference_on(r, golden_.reference);
      };
      train::precompute_reference_scores(setup.train_data, setup.eval_data, load,
                                         {cache_, golden_.reference, {}, r.models[0].options().dtype},
                                         r.settings().eval.micro_batch_size, r.models.context());
      Recorder::Heard heard;
      setup.objective = std::make_unique<train::PreferenceObjective>(run::preference_settings(r.args.preference),
                                                                     r.models.context(), nullptr);
      setup.callbacks.push_back(std::make_unique<Recorder>(heard));
      train::Trainer trainer(r.models, r.settings(), std::move(setup));
      const auto output = trainer.train();
      const auto evaluation = trainer.evaluate();
      if (r.rank.rank == 0) outcome.log = {heard.lines, evaluation, output};
    });
    return outcome;
  }

  std::vector<fs::path> files() const {
    std::vector<fs::path> all;
    for (const auto& entry : fs::recursive_directory_iterator(cache_))
      if (entry.is_regular_file()) all.push_back(entry.path());
    std::ranges::sort(all);
    return all;
  }

  static void expect_same(const RunLog& run, const RunLog& expected, double tolerance) {
    for (const char* key : {"loss", "rewards/chosen", "rewards/rejected", "logps/chosen"}) {
      const auto actual = run.numbers(key), right = expected.numbers(key);
      ASSERT_EQ(actual.size(), right.size());
      for (size_t i = 0; i < right.size(); ++i)
        expect_close(actual[i], right[i], fmt::format("{} {}", key, i), tolerance, tolerance);
    }
    expect_close(*run.evaluation.find("eval_loss"), *expected.evaluation.find("eval_loss"), "eval_loss", tolerance);
  }

  const GoldenPairs golden_ = read_golden_pairs();
  const std::shared_ptr<const data::Dataset> eval_ = random_pairs(5, 512, 3);
  const TempFolder folder_;
  fs::path cache_ = folder_ / "reference";
};

TEST_F(ReferenceScores, AreThoseOfEveryStep) {
  const auto pairs = random_pairs(9, 512);
  const TrainerCase how = preference_case("one rank", 4, 2);
  RunLog live;
  run_trainer_ranks(golden_.policy, how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    train::TrainerSetup setup = r.setup(pairs, eval_);
    setup.objective = std::make_unique<train::PreferenceObjective>(
        run::preference_settings(r.args.preference), r.models.context(), reference_on(r, golden_.reference));
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    const auto output = trainer.train();
    live = {heard.lines, trainer.evaluate(), output};
  });
  const ScoringOutcome first = run(how, pairs);
  EXPECT_EQ(first.loads, 1);
  expect_same(first.log, live, 2e-5);
  EXPECT_EQ(files().size(), 2U);  // one for the training data, one for the evaluation data
  const ScoringOutcome second = run(how, pairs);
  EXPECT_EQ(second.loads, 0);
  expect_same(second.log, first.log, 0);

  // Another layout reads the same files; nothing is kept without a folder, and the numbers are the same.
  TrainerCase spread = preference_case("tp 2 pp 2 dp 2", 4, 2, 2);
  spread.tp = spread.pp = 2;
  EXPECT_EQ(run(spread, pairs).loads, 0);
  cache_.clear();
  const ScoringOutcome computed = run(spread, pairs);
  EXPECT_EQ(computed.loads, 1);
  expect_same(computed.log, live, 2e-4);
}

TEST_F(ReferenceScores, OtherDataAndNumberFormatsAreOthers) {
  const TrainerCase how = preference_case("one rank", 4);
  EXPECT_EQ(run(how, random_pairs(8, 512, 1)).loads, 1);
  EXPECT_EQ(run(how, random_pairs(8, 512, 2)).loads, 1);
  EXPECT_EQ(files().size(), 3U);
  TrainerCase half = how;
  half.args.precision.bf16 = true;
  EXPECT_EQ(run(half, random_pairs(8, 512, 2)).loads, 1);
}

TEST_F(ReferenceScores, BrokenOnesAreComputedAgain) {
  const TrainerCase how = preference_case("one rank", 4);
  const auto pairs = random_pairs(8, 512);
  const ScoringOutcome first = run(how, pairs);
  const auto kept = files();
  ASSERT_EQ(kept.size(), 2U);
  const auto size = fs::file_size(kept[0]);
  const auto damage = {
      std::function<void()>([&] {  // a byte of the numbers
        std::fstream(kept[0], std::ios::in | std::ios::out | std::ios::binary)
            .seekp(static_cast<std::streamoff>(size) - 5)
            .put('!');
      }),
      std::function<void()>([&] { fs::resize_file(kept[0], size / 2); }),
      std::function<void()>([&] { fs::remove(kept[0]); }),
  };
  for (const auto& break_it : damage) {
    break_it();
    ::testing::internal::CaptureStderr();
    const ScoringOutcome again = run(how, pairs);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find(kept[0].string()), std::string::npos) << said;
    EXPECT_NE(said.find("are computed again"), std::string::npos) << said;
    EXPECT_EQ(again.loads, 1);
    expect_same(again.log, first.log, 0);
    EXPECT_EQ(files(), kept);
  }
  EXPECT_EQ(run(how, pairs).loads, 0);
}

}  // namespace
}  // namespace megalith::testing
