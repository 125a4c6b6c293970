// Training on verdicts: the formula, trl's KTOTrainer, and the same numbers in every layout.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "megalith/base/error.h"
#include "megalith/config/derive.h"
#include "megalith/data/token_table.h"
#include "megalith/layout/rng_seeds.h"
#include "megalith/model/adapter.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/preference/kto_loss.h"
#include "megalith/train/preference/kto_objective.h"
#include "megalith/train/preference/reference_scores.h"
#include "megalith/train/preference/sequence_scorer.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/train/preference_case.h"
#include "tests/train/resume_case.h"

namespace megalith::testing {
namespace {

using nlohmann::json;

constexpr int kGoldenAnswers = 8;
const std::vector<std::string> kKtoKeys{
    "loss", "rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected", "kl"};
// Mostly desirable, so that the policy drifts from the reference and the KL term is not 0.
const std::vector<bool> kMostlyDesirable{true, true, true, false, true, true, false, true};

// ---- The formula ----

TEST(KtoLoss, IsThatOfThePaper) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const train::VerdictScores scores{.policy = at::tensor({-6.0F, -8.0F}),
                                    .reference = at::tensor({-7.0F, -5.0F}),
                                    .tokens = at::tensor({2.0F, 4.0F}),
                                    .desirable = at::tensor({1, 0}, at::kInt).to(at::kBool),
                                    .kl = at::full({}, 0.5, at::kFloat)};
  train::KtoSettings how{.beta = 0.4, .ftx = 0, .chosen_weight = 2, .rejected_weight = 3};
  const double wanted = 2 * (1 - sigmoid(0.4 * (1 - 0.5))), unwanted = 3 * (1 - sigmoid(0.4 * (0.5 + 3)));
  const train::KtoTerms terms = train::kto_terms(scores, how);
  expect_close(terms.losses, at::tensor({wanted, unwanted}, at::kFloat), "losses");
  expect_close(terms.rewards, at::tensor({0.4, -1.2}, at::kFloat), "rewards");
  how.ftx = 0.5;  // counts for the desirable answer alone
  expect_close(train::kto_terms(scores, how).losses, at::tensor({wanted + 0.5 * 3, unwanted}, at::kFloat),
               "with pref_ftx");
}

// ---- Runs ----

TEST(SequenceScorer, ScoresPairsAndMismatchedAnswers) {
  const GoldenPairs golden = read_golden_pairs();
  const auto verdicts = golden_verdicts(golden, kMostlyDesirable);
  run_trainer_ranks(golden.policy, preference_case("one rank", 4), [&](const TrainerRank& r) {
    train::SequenceScorer scorer(r.models, run::step_settings(r.args));
    std::vector<data::Sample> pairs, answers;
    for (int64_t i = 0; i < golden.pairs->size(); ++i) pairs.push_back(golden.pairs->sample(i));
    for (int64_t i = 0; i < verdicts->size(); ++i) answers.push_back(verdicts->sample(i));
    std::vector<data::MicroBatch> batches{r.collator.collate(pairs), r.collator.collate(pairs)};
    batches[1].samples = 0;  // a filler
    const auto scores = scorer.log_probabilities(batches);
    const auto expected = golden.json.at("policy_logps").get<std::vector<double>>();
    expect_close(scores.at(0), at::tensor(expected, at::kFloat), "log-probabilities");
    EXPECT_FALSE(scores.at(1).defined());
    // The mismatched answers of answers with verdicts, scored as rows of their own.
    batches = {r.collator.collate(answers)};
    const auto mismatched = scorer.mismatched_log_probabilities(batches);
    std::vector<data::Sample> rows;
    for (const data::Sample& sample : answers) rows.push_back({sample.feedback->mismatched, std::nullopt});
    batches = {r.collator.collate(rows)};
    expect_close(mismatched.at(0), scorer.log_probabilities(batches).at(0), "mismatched answers");
    EXPECT_THROW(scorer.mismatched_log_probabilities(batches), InternalError);
  });
}

TrainerCase kto_case(const std::string& name, int tp = 1, int pp = 1, int cp = 1, int dp = 1) {
  TrainerCase how =
      preference_case(fmt::format("{} tp {} pp {} cp {} dp {}", name, tp, pp, cp, dp), kGoldenAnswers, pp, dp);
  how.tp = tp, how.pp = pp, how.cp = cp;
  how.args.run.stage = config::Stage::kKto;
  how.args.parallel.sequence_parallel = tp > 1;
  how.args.optimizer.use_distributed_optimizer = dp > 1;
  how.args.batch.eval_micro_batch_size = kGoldenAnswers / dp / pp;  // one group: its answers share a KL term
  return how;
}

TrainerCase golden_kto_case(const json& golden, const std::string& name, int tp = 1, int pp = 1, int cp = 1,
                            int dp = 1) {
  TrainerCase how = kto_case(name, tp, pp, cp, dp);
  take_optimizer(golden.at("optimizer"), how.args);
  const json& options = golden.at("kto").at(name).at("options");
  how.args.preference.beta = options.at("beta");
  how.args.preference.kto_chosen_weight = options.at("desirable_weight");
  how.args.preference.kto_rejected_weight = options.at("undesirable_weight");
  return how;
}

PairRun verdict_run(const GoldenPairs& golden, const std::vector<bool>& verdicts) {
  return {.policy = golden.policy, .reference = golden.reference, .pairs = golden_verdicts(golden, verdicts)};
}

void expect_golden_verdicts(const json& expected, const RunLog& run) {
  std::vector<double> losses = run.numbers("loss");
  losses.push_back(*run.evaluation.find("eval_loss"));
  ASSERT_EQ(losses.size(), expected.at("losses").size());
  for (size_t i = 0; i < losses.size(); ++i)
    expect_close(losses[i], expected.at("losses")[i], fmt::format("loss {}", i), i == 0 ? kClose : 1e-4, 1e-5);
  const std::vector<double> norms = run.numbers("grad_norm");
  ASSERT_EQ(norms.size(), expected.at("grad_norms").size());
  for (size_t i = 0; i < norms.size(); ++i)
    expect_close(norms[i], expected.at("grad_norms")[i], fmt::format("gradient norm {}", i), i == 0 ? 5e-5 : 2e-4);
  for (const std::string& key : kKtoKeys) {
    if (key == "loss" || !expected.contains(key)) continue;
    const std::vector<double> values = run.numbers(key);
    ASSERT_EQ(values.size(), expected.at(key).size()) << key;
    for (size_t i = 0; i < values.size(); ++i)
      expect_close(values[i], expected.at(key)[i], fmt::format("{} {}", key, i), 2e-4, 2e-4);
  }
}

// In one kind alone the other has no answers at all; its sums are 0, never NaN.
TEST(GoldenKto, trl_answers_json) {
  const json golden = golden_json("trl/answers.json");
  const GoldenPairs pairs = read_golden_pairs();
  for (const auto& [name, expected] : golden.at("kto").items()) {
    const auto verdicts = expected.at("verdicts").get<std::vector<bool>>();
    for (const auto& [tp, pp, cp, dp] :
         {std::array{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 2, 1, 1}, {1, 1, 2, 1}, {1, 1, 1, 2}, {2, 2, 2, 2}}) {
      if (name == "both" && tp * pp * cp * dp == 2) continue;  // the KL term is 0; other layouts are tested below
      const TrainerCase how = golden_kto_case(golden, name, tp, pp, cp, dp);
      SCOPED_TRACE(how.name);
      const RunLog run = run_preferences(how, verdict_run(pairs, verdicts));
      expect_golden_verdicts(expected, run);
      for (const train::MetricList& line : run.lines)
        for (const auto& [key, value] : line) EXPECT_TRUE(std::isfinite(value)) << key;
      EXPECT_FALSE(run.evaluation.find("eval_perplexity"));
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// ---- Layouts ----

void expect_close_verdicts(const RunLog& run, const RunLog& expected, double tolerance) {
  ASSERT_EQ(run.lines.size(), expected.lines.size());
  for (const std::string& key : kKtoKeys) {
    const auto actual = run.numbers(key), right = expected.numbers(key);
    ASSERT_EQ(actual.size(), right.size()) << key;
    for (size_t i = 0; i < right.size(); ++i)
      expect_close(actual[i], right[i], fmt::format("{} {}", key, i), tolerance, 2e-5);
    expect_close(*run.evaluation.find("eval_" + key), *expected.evaluation.find("eval_" + key), "eval_" + key,
                 tolerance, 2e-5);
  }
}

TEST(KtoLayouts, GiveTheNumbersOfOneRank) {
  const GoldenPairs golden = read_golden_pairs();
  const PairRun run = verdict_run(golden, kMostlyDesirable);
  const auto with = [](TrainerCase how, const std::function<void(TrainerCase&)>& change) {
    change(how);
    return how;
  };
  // Four micro-batches of two answers: some have one kind alone.
  const auto in_parts = [&](const std::string& name, const std::function<void(TrainerCase&)>& change, int dp = 1) {
    TrainerCase how = with(kto_case(name, 1, 1, 1, dp), change);
    how.args.batch.gradient_accumulation_steps = 4 / dp;
    how.args.batch.micro_batch_size = how.args.batch.eval_micro_batch_size.emplace(2);
    return how;
  };
  const RunLog alone = run_preferences(in_parts("one rank", [](TrainerCase&) {}), run);
  EXPECT_GT(alone.numbers("kl").back(), 0) << "the KL term is not tested";
  for (const TrainerCase& how :
       {in_parts("vpp 2", [](TrainerCase& c) { c.pp = 2, c.vpp = 2; }),
        in_parts("zero bubble",
                 [](TrainerCase& c) { c.pp = 2, c.args.pipeline.schedule = layout::ScheduleKind::kZeroBubble; }),
        in_parts("packed, cp 2", [](TrainerCase& c) { c.cp = 2, c.collator.padding = data::Padding::kNone; }),
        in_parts("recompute, tp 2 sp pp 2",
                 [](TrainerCase& c) {
                   c.tp = c.pp = 2;
                   c.args.parallel.sequence_parallel = true;
                   c.args.recompute.granularity = config::RecomputeGranularity::kFull;
                 }),
        in_parts(
            "overlapped distributed optimizer",
            [](TrainerCase& c) {
              c.args.ddp.overlap_grad_reduce = c.args.ddp.overlap_param_gather = true;
              c.args.ddp.bucket_size = 5000;
            },
            2)}) {
    SCOPED_TRACE(how.name);
    expect_close_verdicts(run_preferences(how, run), alone, 5e-5);
  }
}

// Three ranks' worth of micro-batches for two ranks: fillers count for nothing, in the KL term either.
TEST(KtoLayouts, EvaluationOfFiveAnswers) {
  const GoldenPairs golden = read_golden_pairs();
  const auto all = golden_verdicts(golden, kMostlyDesirable);
  data::TokenTable table;
  for (int64_t i = 0; i < 5; ++i) table.append(all->sample(i));
  const auto five = data::dataset_of(std::move(table), {.feedback = true});
  const auto evaluate = [&](const TrainerCase& how) {
    train::MetricList metrics;
    // The other way around, the policy is above the reference.
    run_trainer_ranks(golden.reference, how, [&](const TrainerRank& r) {
      train::TrainerSetup setup = r.setup(all, five);
      setup.objective = std::make_unique<train::KtoObjective>(
          run::kto_settings(r.args.preference), r.models, run::step_settings(r.args), reference_on(r, golden.policy));
      const auto mine = train::Trainer(r.models, r.settings(), std::move(setup)).evaluate();
      if (r.rank.rank == 0) metrics = mine;
    });
    return metrics;
  };
  const train::MetricList alone = evaluate(kto_case("one rank"));
  TrainerCase spread = kto_case("spread", 1, 2, 1, 2);
  spread.args.batch.gradient_accumulation_steps = 4;
  spread.args.batch.micro_batch_size = 1;
  spread.args.batch.eval_micro_batch_size = 1;
  const train::MetricList others = evaluate(spread);
  for (const std::string& key : kKtoKeys)
    expect_close(*others.find("eval_" + key), *alone.find("eval_" + key), key, 5e-5, 1e-5);
}

// ---- Adapters, precomputed scores, continued runs, bad input ----

TEST(KtoLora, TheReferenceIsThePolicyBelowItsAdapter) {
  const GoldenPairs golden = read_golden_pairs();
  const auto verdicts = golden_verdicts(golden, kMostlyDesirable);
  const auto adapter = golden_dir() / "hf" / golden.json.at("lora").at("adapter").get<std::string>();
  const auto train = [&](bool below, int tp, int dp) {
    TrainerCase how = kto_case(below ? "below the adapter" : "a model of its own", tp, 1, 1, dp);
    how.args.run.finetuning_type = config::FinetuningType::kLora;
    SCOPED_TRACE(how.name);
    const config::TrainingArguments args = how.effective();
    RunLog result;
    run_ranks(how.ranks(), [&](const Rank& rank) {
      parallel::ParallelContext context(rank.world, layout::RankGrid(config::grid_shape(args, rank.size)));
      context.rng().seed(layout::adapter_seeds(args.seeds.seed, context.grid(), rank.rank));
      model::VirtualModels models = model::with_adapter(golden.policy, run::model_settings(args, context.device()),
                                                        context, {.trained = adapter, .keep_base = true});
      data::CollatorOptions collator = how.collator;
      collator.tp = how.tp;
      const TrainerRank mine{rank, args, models, data::Collator(collator)};
      Recorder::Heard heard;
      train::TrainerSetup setup = mine.setup(verdicts, verdicts);
      setup.objective = std::make_unique<train::KtoObjective>(
          run::kto_settings(args.preference), models, run::step_settings(args),
          below ? train::ReferenceModel::below_adapter(models, run::step_settings(args))
                : reference_on(mine, golden.policy));
      setup.callbacks.push_back(std::make_unique<Recorder>(heard));
      train::Trainer trainer(models, run::trainer_settings(args, models.context().grid().shape()), std::move(setup));
      const train::TrainOutput output = trainer.train();
      RunLog log{heard.lines, trainer.evaluate(), output};
      if (rank.rank == 0) result = std::move(log);
    });
    return result;
  };
  const RunLog own = train(false, 1, 1);
  expect_close_verdicts(train(true, 1, 1), own, 5e-5);
  expect_close_verdicts(train(true, 2, 2), own, 5e-5);
}

TEST(KtoReference, PrecomputedScoresAreThoseOfEachStep) {
  const GoldenPairs golden = read_golden_pairs();
  const PairRun run = verdict_run(golden, kMostlyDesirable);
  const RunLog live = run_preferences(kto_case("live"), run);
  const TempFolder cache;
  const TrainerCase how = kto_case("precomputed", 1, 2, 1, 2);
  RunLog scored;
  run_trainer_ranks(run.policy, how, [&](const TrainerRank& r) {
    train::TrainerSetup setup = r.setup(run.pairs, run.pairs);
    train::precompute_reference_scores(
        setup.train_data, setup.eval_data, [&] { return reference_on(r, run.reference); },
        {cache.path(), run.reference, {}, r.models[0].options().dtype}, r.settings().eval.micro_batch_size,
        r.models.context());
    Recorder::Heard heard;
    setup.objective = std::make_unique<train::KtoObjective>(run::kto_settings(r.args.preference), r.models,
                                                            run::step_settings(r.args), nullptr);
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    const auto output = trainer.train();
    RunLog log{heard.lines, trainer.evaluate(), output};
    if (r.rank.rank == 0) scored = std::move(log);
  });
  expect_close_verdicts(scored, live, 5e-5);
}

TEST(KtoResume, ContinuesBitForBit) {
  const GoldenPairs golden = read_golden_pairs();
  const auto verdicts = golden_verdicts(golden, kMostlyDesirable);
  TrainerCase how = kto_case("resumed", 2, 1, 1, 2);
  const auto change = [&](const TrainerRank& r, train::TrainerSetup& setup) {
    setup.train_data =
        train::numbered_data(verdicts, {.size = verdicts->size(), .shuffle = true, .seed = 5}, r.collator);
    setup.eval_data.clear();
    setup.objective = std::make_unique<train::KtoObjective>(
        run::kto_settings(r.args.preference), r.models, run::step_settings(r.args), reference_on(r, golden.reference));
  };
  expect_continues(how, change, kKtoKeys);
}

TEST(KtoObjective, SaysWhatItLacks) {
  const GoldenPairs golden = read_golden_pairs();
  const auto error = [&](const std::shared_ptr<const data::Dataset>& data) {
    std::string message;
    run_trainer_ranks(golden.policy, kto_case("one rank"), [&](const TrainerRank& r) {
      train::TrainerSetup setup = r.setup(data);
      setup.objective = std::make_unique<train::KtoObjective>(run::kto_settings(r.args.preference), r.models,
                                                              run::step_settings(r.args), nullptr);
      train::Trainer trainer(r.models, r.settings(), std::move(setup));
      message = error_of<InternalError>([&] { trainer.train(); });
    });
    return message;
  };
  expect_contains(error(golden_verdicts(golden, kMostlyDesirable)), "stage kto needs a reference model");
  expect_contains(error(dataset_of(random_sequences(8, 512))), "trains on answers with verdicts");
}

}  // namespace
}  // namespace megalith::testing
