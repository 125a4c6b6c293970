// Preference training: formulas, the golden pairs, and the same numbers in every layout.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "megalith/hf/safetensors_file.h"
#include "megalith/hf/weight_files.h"
#include "megalith/train/preference/preference_loss.h"
#include "megalith/train/settings/preference_settings.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/train/golden_steps.h"
#include "tests/train/preference_case.h"
#include "tests/train/resume_case.h"

namespace megalith::testing {
namespace {

using config::PrefLoss;
using nlohmann::json;

at::Tensor tensor_of(const json& values) { return at::tensor(values.get<std::vector<double>>(), at::kFloat); }

double mean_of(const json& values, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += values.at(i).get<double>();
  return sum / static_cast<double>(end - begin);
}

// ---- Formulas ----

TEST(GoldenPreferenceLoss, hf_preference_golden_json) {
  const json golden = golden_json("hf/preference/golden.json");
  const train::AnswerScores scores{.policy = tensor_of(golden.at("policy_logps")),
                                   .reference = tensor_of(golden.at("reference_logps")),
                                   .tokens = tensor_of(golden.at("response_lengths"))};
  int kinds = 0;
  for (const auto& [kind, expected] : golden.at("losses").items()) {
    SCOPED_TRACE(kind);
    const auto how = golden_preference(golden, kind);
    if (!how) {
      std::cout << kind << " is not offered\n";
      continue;
    }
    ++kinds;
    const train::PreferenceTerms terms = train::preference_terms(scores, run::preference_settings(*how));
    expect_close(terms.losses, tensor_of(expected.at("per_pair")), "losses");
    expect_close(terms.losses.mean().item<double>(), expected.at("loss").get<double>(), "loss");
    expect_close(terms.chosen, tensor_of(expected.at("rewards_chosen")), "rewards of the chosen");
    expect_close(terms.rejected, tensor_of(expected.at("rewards_rejected")), "rewards of the rejected");
    expect_close(terms.sft.mean().item<double>(), golden.at("sft_loss").get<double>(), "sft_loss");
    EXPECT_EQ(terms.odds.defined(), how->loss == PrefLoss::kOrpo);
  }
  EXPECT_GT(kinds, 0);
}

TEST(PreferenceLoss, SimpoAndTheChosenAnswersOwnLoss) {
  const train::AnswerScores scores{.policy = at::tensor({-6.0F, -8.0F, -9.0F, -4.0F}),
                                   .reference = {},
                                   .tokens = at::tensor({2.0F, 4.0F, 3.0F, 1.0F})};
  train::PreferenceSettings how{.loss = PrefLoss::kSimpo, .beta = 2.0, .simpo_gamma = 0.7};
  const auto cost = [](double margin) { return std::log1p(std::exp(-(2.0 * margin - 0.7))); };
  const at::Tensor plain = at::tensor({cost(-3.0 + 3.0), cost(-2.0 + 4.0)}, at::kFloat);
  const train::PreferenceTerms terms = train::preference_terms(scores, how);
  expect_close(terms.losses, plain, "simpo");
  expect_close(terms.rejected, at::tensor({-6.0F, -8.0F}), "rewards");
  how.ftx = 0.25;
  expect_close(train::preference_terms(scores, how).losses, plain + 0.25 * at::tensor({3.0F, 2.0F}), "with pref_ftx");
  how.loss = PrefLoss::kHinge;
  expect_error<InternalError>([&] { train::preference_terms(scores, how); }, {"hinge"});
}

// An answer that is certain has no odds; the loss and its gradient stay numbers.
TEST(PreferenceLoss, OrpoOfCertainAnswersIsFinite) {
  const at::Tensor policy = at::tensor({0.0F, -1e-9F, -200.0F, -0.5F}).requires_grad_();
  const train::AnswerScores scores{.policy = policy, .reference = {}, .tokens = at::ones({4})};
  const train::PreferenceSettings how{.loss = PrefLoss::kOrpo};
  const at::Tensor loss = train::preference_terms(scores, how).losses.sum();
  loss.backward();
  EXPECT_TRUE(std::isfinite(loss.item<double>()));
  EXPECT_TRUE(policy.grad().isfinite().all().item<bool>()) << policy.grad();
}

// ---- Golden pairs ----

TrainerCase golden_case(const GoldenPairs& golden, const std::string& kind, int tp = 1, int pp = 1, int cp = 1,
                        int dp = 1) {
  TrainerCase how = preference_case(fmt::format("{} tp {} pp {} cp {} dp {}", kind, tp, pp, cp, dp),
                                    static_cast<int>(golden.pairs->size()), pp, dp);
  how.tp = tp, how.pp = pp, how.cp = cp;
  how.args.parallel.sequence_parallel = tp > 1;
  how.args.optimizer.use_distributed_optimizer = dp > 1;
  how.args.preference = *golden_preference(golden.json, kind);
  take_optimizer(golden.json.at("optimizer"), how.args);
  return how;
}

PairRun golden_run(const GoldenPairs& golden) {
  return {.policy = golden.policy, .reference = golden.reference, .pairs = golden.pairs};
}

void expect_first_line(const GoldenPairs& golden, const std::string& kind, const RunLog& run) {
  const json& expected = golden.json.at("losses").at(kind);
  const train::MetricList& line = run.lines.front();
  const auto pairs = static_cast<size_t>(golden.pairs->size());
  const auto expect = [&](const char* name, double value, double tolerance = kClose) {
    ASSERT_TRUE(line.find(name)) << name;
    expect_close(*line.find(name), value, name, tolerance, 1e-6);
  };
  expect("loss", expected.at("loss"));
  expect("grad_norm", expected.at("grad_norm"), 5e-5);
  expect("rewards/chosen", mean_of(expected.at("rewards_chosen"), 0, pairs), 5e-5);
  expect("rewards/rejected", mean_of(expected.at("rewards_rejected"), 0, pairs), 5e-5);
  expect("rewards/accuracies", expected.at("rewards_accuracy"));
  expect("rewards/margins", expected.at("rewards_margin"), 5e-4);  // a difference of numbers 30 times as large
  expect("logps/chosen", mean_of(golden.json.at("policy_logps"), 0, pairs));
  expect("logps/rejected", mean_of(golden.json.at("policy_logps"), pairs, 2 * pairs));
  expect("sft_loss", golden.json.at("sft_loss"));
}

void expect_golden_training(const std::string& kind) {
  const GoldenPairs golden = read_golden_pairs();
  const json& expected = golden_member(golden_member(golden.json, "train"), kind);
  for (const int tp : {1, 2})
    for (const int pp : {1, 2})
      for (const int cp : {1, 2})
        for (const int dp : {1, 2}) {
          const TrainerCase how = golden_case(golden, kind, tp, pp, cp, dp);
          SCOPED_TRACE(how.name);
          const RunLog run = run_preferences(how, golden_run(golden));
          ASSERT_FALSE(run.lines.empty());
          expect_first_line(golden, kind, run);
          expect_golden_log(run, expected);
          if (::testing::Test::HasFailure()) return;
        }
}

TEST(GoldenPreferenceTraining, hf_preference_sigmoid) { expect_golden_training("sigmoid"); }
TEST(GoldenPreferenceTraining, hf_preference_orpo) { expect_golden_training("orpo"); }

TEST(GoldenPreferenceTraining, hf_preference_first_step_of_every_kind) {
  const GoldenPairs golden = read_golden_pairs();
  for (const auto& [kind, expected] : golden_member(golden.json, "losses").items()) {
    if (!golden_preference(golden.json, kind)) continue;
    for (const int split : {1, 2}) {
      TrainerCase how = golden_case(golden, kind, split, split, split, split);
      how.args.run.max_steps = 1;
      SCOPED_TRACE(how.name);
      expect_first_line(golden, kind, run_preferences(how, golden_run(golden)));
    }
  }
}

// A step of SGD at a rate so large that the weights' own rounding does not show.
TEST(GoldenPreferenceTraining, hf_preference_gradients) {
  const GoldenPairs golden = read_golden_pairs();
  const hf::SafetensorsFile file(golden.folder / "golden.safetensors");
  constexpr double kRate = 1000;
  int compared = 0;
  for (const auto& [kind, expected] : golden_member(golden.json, "train").items()) {
    for (const int split : {1, 2}) {
      TrainerCase how = golden_case(golden, kind, split, split, split, split);
      SCOPED_TRACE(how.name);
      how.args.run.max_steps = 1;
      how.args.optimizer.optimizer = config::OptimizerKind::kSgd;
      how.args.optimizer.optim = config::HfOptimizer::kSgd;
      how.args.optimizer.learning_rate = kRate;
      how.args.optimizer.weight_decay = 0;
      how.args.optimizer.max_grad_norm = 0;
      const TempFolder folder;
      PairRun run = golden_run(golden);
      run.save_to = folder / "trained";
      run_preferences(how, run);
      const hf::WeightFiles before(golden.policy), after(run.save_to);
      const std::string prefix = "grad." + kind + ".";
      for (const hf::TensorInfo& info : file.tensors()) {
        if (!info.name.starts_with(prefix)) continue;
        const std::string name = info.name.substr(prefix.size());
        const at::Tensor gradient = (before.tensor(name) - after.tensor(name)) / kRate;
        expect_close(golden_sample(gradient), file.tensor(info.name), name, 5e-5);
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 20);
}

// ---- Layouts ----

const std::vector<std::string> kKeys{"loss",         "rewards/chosen", "rewards/rejected", "rewards/margins",
                                     "logps/chosen", "logps/rejected", "sft_loss"};

void expect_close_runs(const RunLog& run, const RunLog& expected, double tolerance) {
  ASSERT_EQ(run.lines.size(), expected.lines.size());
  for (const std::string& key : kKeys) {
    const auto actual = run.numbers(key), right = expected.numbers(key);
    ASSERT_EQ(actual.size(), right.size()) << key;
    for (size_t i = 0; i < right.size(); ++i)
      expect_close(actual[i], right[i], fmt::format("{} {}", key, i), tolerance, 1e-5);
    expect_close(*run.evaluation.find("eval_" + key), *expected.evaluation.find("eval_" + key), "eval_" + key,
                 tolerance, 1e-5);
  }
  EXPECT_FALSE(run.evaluation.find("eval_perplexity"));
}

TEST(PreferenceLayouts, GiveTheNumbersOfOneRank) {
  const GoldenPairs golden = read_golden_pairs();
  const PairRun run{.policy = golden.policy, .reference = golden.reference, .pairs = random_pairs(8, 512)};
  const auto with = [](TrainerCase how, const std::function<void(TrainerCase&)>& change) {
    change(how);
    return how;
  };
  const RunLog alone = run_preferences(preference_case("one rank", 8, 4), run);
  for (const TrainerCase& how :
       {with(preference_case("vpp 2", 8, 4), [](TrainerCase& c) { c.pp = 2, c.vpp = 2; }),
        with(preference_case("zero bubble", 8, 4),
             [](TrainerCase& c) { c.pp = 2, c.args.pipeline.schedule = layout::ScheduleKind::kZeroBubble; }),
        with(preference_case("packed, cp 2", 8, 4),
             [](TrainerCase& c) { c.cp = 2, c.collator.padding = data::Padding::kNone; }),
        with(preference_case("recompute, tp 2 pp 2", 8, 4),
             [](TrainerCase& c) {
               c.tp = c.pp = 2;
               c.args.recompute.granularity = config::RecomputeGranularity::kFull;
             }),
        with(preference_case("overlapped distributed optimizer", 8, 2, 2), [](TrainerCase& c) {
          c.args.optimizer.use_distributed_optimizer = true;
          c.args.ddp.overlap_grad_reduce = c.args.ddp.overlap_param_gather = true;
          c.args.ddp.bucket_size = 5000;
        })}) {
    SCOPED_TRACE(how.name);
    expect_close_runs(run_preferences(how, run), alone, 5e-5);
  }
}

TEST(PreferenceLayouts, ExpertsGiveTheNumbersOfOneRank) {
  const PairRun run{
      .policy = golden_folder("qwen3_moe"), .reference = golden_folder("qwen3_moe"), .pairs = random_pairs(8, 256)};
  const auto layout = [](const std::string& name, int tp, int dp) {
    TrainerCase how = preference_case(name, 8, 4 / dp, dp);
    how.tp = tp;
    how.args.parallel.ep = 2;
    how.args.parallel.etp = 1;
    how.args.parallel.sequence_parallel = tp > 1;
    how.args.moe.token_dispatcher = config::TokenDispatcher::kAllToAll;
    return how;
  };
  const RunLog alone = run_preferences(preference_case("one rank", 8, 4), run);
  for (const TrainerCase& how : {layout("ep 2 over dp", 1, 2), layout("ep 2 over tp", 2, 1)}) {
    SCOPED_TRACE(how.name);
    expect_close_runs(run_preferences(how, run), alone, 1e-4);
  }
}

// Evaluation counts every pair once, whatever the groups are.
TEST(PreferenceLayouts, EvaluationOfFivePairs) {
  const GoldenPairs golden = read_golden_pairs();
  const PairRun run{.policy = golden.policy, .reference = golden.reference, .pairs = random_pairs(5, 512)};
  const auto evaluate = [&](const TrainerCase& how) {
    train::MetricList metrics;
    run_trainer_ranks(run.policy, how, [&](const TrainerRank& r) {
      train::TrainerSetup setup = r.setup(run.pairs, run.pairs);
      setup.objective = std::make_unique<train::PreferenceObjective>(
          run::preference_settings(r.args.preference), r.models.context(), reference_on(r, run.reference));
      const auto mine = train::Trainer(r.models, r.settings(), std::move(setup)).evaluate();
      if (r.rank.rank == 0) metrics = mine;
    });
    return metrics;
  };
  const train::MetricList alone = evaluate(preference_case("one rank", 4));
  TrainerCase spread = preference_case("pp 2 dp 2 vpp 2", 8, 2, 2);
  spread.pp = spread.vpp.emplace(2);
  spread.args.batch.eval_micro_batch_size = 1;
  const train::MetricList others = evaluate(spread);
  for (const std::string& key : kKeys) expect_close(*others.find("eval_" + key), *alone.find("eval_" + key), key, 5e-5);
}

// ---- Resuming, bad input ----

TEST(PreferenceResume, ContinuesBitForBit) {
  const GoldenPairs golden = read_golden_pairs();
  const auto pairs = random_pairs(20, 200);
  TrainerCase how = preference_case("tp 2 dp 2", 8, 2, 2);
  how.tp = 2;
  const auto change = [&](const TrainerRank& r, train::TrainerSetup& setup) {
    setup.train_data = train::numbered_data(pairs, {.size = pairs->size(), .shuffle = true, .seed = 5}, r.collator);
    setup.eval_data.clear();
    setup.objective = std::make_unique<train::PreferenceObjective>(
        run::preference_settings(r.args.preference), r.models.context(), reference_on(r, golden.reference));
  };
  expect_continues(how, change, kKeys);
}

TEST(PreferenceObjective, SaysWhatItLacks) {
  const GoldenPairs golden = read_golden_pairs();
  const auto error = [&](std::shared_ptr<const data::Dataset> data) {
    std::string message;
    run_trainer_ranks(golden.policy, preference_case("one rank", 4), [&](const TrainerRank& r) {
      train::TrainerSetup setup = r.setup(std::move(data));
      setup.objective = std::make_unique<train::PreferenceObjective>(run::preference_settings(r.args.preference),
                                                                     r.models.context(), nullptr);
      train::Trainer trainer(r.models, r.settings(), std::move(setup));
      message = error_of<InternalError>([&] { trainer.train(); });
    });
    return message;
  };
  expect_contains(error(golden.pairs), "pref_loss sigmoid needs a reference model");
  expect_contains(error(dataset_of(random_sequences(8, 512))), "trained on pairs");
}

}  // namespace
}  // namespace megalith::testing
