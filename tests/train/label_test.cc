// Classification of texts: five steps with transformers' ForSequenceClassification losses (golden/trl/make_rewards.py),
// layouts, and rows of several texts.
#include "megalith/train/scoring/label_objective.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/data/token_table.h"
#include "megalith/model/families/scores.h"
#include "megalith/model/footprint/model_footprint.h"
#include "megalith/run/resolve/inputs.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/train/settings/scoring_settings.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/train/preference_case.h"
#include "tests/train/scoring_case.h"

namespace megalith::testing {
namespace {

using nlohmann::json;

int64_t labels_vocab(const std::string& model) { return model::read_model_config(golden_folder(model)).vocab_size; }

data::LabelForm form_of(const std::string& problem, const json& expected) {
  return {.problem = *config::choice_of<config::ProblemType>(problem), .num_labels = expected.at("num_labels")};
}

TEST(GoldenLabels, trl_rewards_json) {
  const json golden = golden_json("trl/rewards.json");
  for (const auto& [name, cases] : golden.at("models").items())
    for (const auto& [problem, expected] : cases.at("labels").items()) {
      SCOPED_TRACE(name + " " + problem);
      const TempFolder folder;
      write_scoring_model(name, tensor_in(expected.at("score")),
                          {{"pad_token_id", golden.at("pad_token_id")}, {"problem_type", problem}}, folder / "model");
      TrainerCase how = label_case(problem);
      take_optimizer(golden.at("optimizer"), how.args);
      const auto texts = labelled_texts(labels_vocab(name), expected.at("labels"), form_of(problem, expected));
      const RunLog run = run_scoring(how, folder / "model", texts);
      std::vector<double> losses = run.numbers("loss");
      losses.push_back(*run.evaluation.find("eval_loss"));
      ASSERT_EQ(losses.size(), expected.at("losses").size());
      for (size_t i = 0; i < losses.size(); ++i)
        expect_close(losses[i], expected.at("losses")[i], fmt::format("loss {}", i), i == 0 ? kClose : 1e-4);
      const std::vector<double> norms = run.numbers("grad_norm");
      for (size_t i = 0; i < norms.size(); ++i)
        expect_close(norms[i], expected.at("grad_norms")[i], fmt::format("norm {}", i), i == 0 ? 5e-5 : 2e-4);
      EXPECT_EQ(run.evaluation.find("eval_accuracy").has_value(), problem != "regression");
      expect_close(scores_in(folder / "model", golden_texts(labels_vocab(name))), tensor_in(expected.at("logits")),
                   "scores", 2e-5);
    }
}

// The share of texts with the largest score at their class, counted by the golden scores.
TEST(GoldenLabels, trl_rewards_json_accuracy) {
  const json golden = golden_json("trl/rewards.json");
  const json& expected = golden.at("models").at("llama").at("labels").at("single_label_classification");
  const TempFolder folder;
  write_scoring_model("llama", tensor_in(expected.at("score")), {{"pad_token_id", 0}}, folder / "model");
  const auto texts =
      labelled_texts(labels_vocab("llama"), expected.at("labels"), form_of("single_label_classification", expected));
  const at::Tensor right = tensor_in(expected.at("logits"))
                               .argmax(1)
                               .eq(at::tensor(expected.at("labels").get<std::vector<int64_t>>(), at::kLong));
  const RunLog run = run_scoring(label_case("one rank"), folder / "model", texts);
  EXPECT_NEAR(run.numbers("accuracy").front(), right.to(at::kDouble).mean().item<double>(), 1e-6);
}

// Two texts in a row that do not see one another are two texts, in every layout.
TEST(LabelLayouts, GiveTheNumbersOfOneRank) {
  const json golden = golden_json("trl/rewards.json");
  const json& expected = golden.at("models").at("qwen3").at("labels").at("single_label_classification");
  const data::LabelForm form = form_of("single_label_classification", expected);
  const auto apart = labelled_texts(labels_vocab("qwen3"), expected.at("labels"), form);
  const auto joined = labelled_texts(labels_vocab("qwen3"), expected.at("labels"), form, 2);
  const auto of = [&](const std::string& name, const std::function<void(TrainerCase&)>& change, int dp = 1) {
    TrainerCase how = label_case(name, 2 / dp, dp);
    how.args.scoring.num_labels = 3;
    how.args.ddp.calculate_per_token_loss = true;
    how.args.optimizer.use_distributed_optimizer = dp > 1;
    change(how);
    return how;
  };
  const auto halved = [](TrainerCase& how) {  // as many texts in half as many rows
    how.args.batch.micro_batch_size = *how.args.batch.micro_batch_size / 2;
    how.args.batch.eval_micro_batch_size = how.args.batch.micro_batch_size;
  };
  const RunLog alone = run_scoring(of("one rank", [](TrainerCase&) {}), golden_folder("qwen3"), apart);
  const auto expect_same = [&](const TrainerCase& how, const auto& texts) {
    SCOPED_TRACE(how.name);
    const RunLog run = run_scoring(how, golden_folder("qwen3"), texts);
    for (const char* key : {"loss", "accuracy", "grad_norm"}) {
      const auto actual = run.numbers(key), right = alone.numbers(key);
      ASSERT_EQ(actual.size(), right.size()) << key;
      for (size_t i = 0; i < right.size(); ++i)
        expect_close(actual[i], right[i], fmt::format("{} {}", key, i), i == 0 ? kClose : 1e-4, 1e-6);
    }
    expect_close(*run.evaluation.find("eval_loss"), *alone.evaluation.find("eval_loss"), "eval_loss", 1e-4);
  };
  expect_same(of(
                  "dp 2", [](TrainerCase&) {}, 2),
              apart);
  expect_same(
      of("tp 2 sp pp 2 cp 2", [](TrainerCase& c) { c.tp = c.pp = c.cp = 2, c.args.parallel.sequence_parallel = true; }),
      apart);
  expect_same(of("two in a row", halved), joined);
  expect_same(of("two in a row, cp 2",
                 [&](TrainerCase& c) {
                   halved(c);
                   c.cp = 2;
                 }),
              joined);
}

// Five texts for two or four replicas: see RewardLayouts.FivePairsOnSeveralReplicas.
TEST(LabelLayouts, FiveTextsOnSeveralReplicas) {
  const json golden = golden_json("trl/rewards.json");
  for (const auto& [problem, expected] : golden.at("models").at("llama").at("labels").items()) {
    const data::LabelForm form = form_of(problem, expected);
    const auto texts = golden_texts(labels_vocab("llama"));
    data::TokenTable table;
    for (size_t i = 0; i < 5; ++i)
      table.append(
          scored_row(texts[i], data::label_in({{"label", expected.at("labels")[i]}}, "label", form, "a test")));
    const auto five = data::dataset_of(std::move(table), {});
    // Micro-batches of one text, four of them in a step of all replicas.
    const auto run = [&](int pp, int dp) {
      TrainerCase how = label_case(fmt::format("{} pp {} dp {}", problem, pp, dp), 4 / dp, dp);
      how.pp = pp;
      how.args.batch.micro_batch_size = how.args.batch.eval_micro_batch_size.emplace(1);
      how.args.scoring.num_labels = static_cast<int>(form.num_labels);
      how.args.scoring.problem_type = form.problem;
      return run_scoring(how, golden_folder("llama"), five);
    };
    const RunLog alone = run(1, 1);
    for (const auto& [pp, dp] : {std::pair(1, 2), {1, 4}, {2, 2}}) {
      SCOPED_TRACE(fmt::format("{} pp {} dp {}", problem, pp, dp));
      const RunLog other = run(pp, dp);
      for (const char* key : {"loss", "accuracy", "grad_norm"}) {
        const auto actual = other.numbers(key), right = alone.numbers(key);
        ASSERT_EQ(actual.size(), right.size()) << key;
        for (size_t i = 0; i < right.size(); ++i)
          expect_close(actual[i], right[i], fmt::format("{} {}", key, i), i == 0 ? kClose : 1e-4, 1e-6);
      }
      for (const char* key : {"eval_loss", "eval_accuracy"}) {
        const auto actual = other.evaluation.find(key), right = alone.evaluation.find(key);
        ASSERT_EQ(actual.has_value(), right.has_value()) << key;
        if (right) expect_close(*actual, *right, key, 1e-4);
      }
    }
  }
}

TEST(LabelForms, ThatDoNotFitTheModelAreRefused) {
  const TempFolder folder;
  const auto error = [&](int64_t labels, const std::string& problem) {
    write_scoring_model("llama", at::zeros({labels, 64}), {{"problem_type", problem}}, folder / problem);
    return error_of<ConfigError>([&] { run::label_form(model::read_model_config(folder / problem)); });
  };
  expect_contains(error(2, "regression"), "has 2 labels");
  expect_contains(error(1, "single_label_classification"), "needs at least 2");
  expect_contains(error(40, "multi_label_classification"), "at most 31");
  expect_error<ConfigError>(
      [] {
        const auto overrides = run::model_overrides(label_case("no number").effective());
        overrides.applied_to(model::read_model_config(golden_folder("llama")));
      },
      {"num_labels is missing"});
}

// The planner counts the head that scores in place of the head that predicts.
TEST(ScoringFootprint, CountsTheParametersOfTheModel) {
  TrainerCase how = label_case("one rank");
  how.args.scoring.num_labels = 3;
  run_trainer_ranks(golden_folder("qwen3"), how, [](const TrainerRank& r) {
    const nn::RankSizes rank{.h = 64};
    const model::ModelFootprint planned(r.models.config(), r.models[0].options(), rank);
    const auto split = model::layer_split({}, r.models.config(), 1);
    int64_t counted = 0;
    for (const nn::ParameterSize& size : planned.parameters(split.stage(0, 0))) counted += size.numel;
    EXPECT_EQ(counted, r.models[0].parameters().numel());
  });
}

}  // namespace
}  // namespace megalith::testing
