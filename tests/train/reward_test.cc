// Reward models: five steps of trl's RewardTrainer (golden/trl/make_rewards.py), every layout against one rank,
// adapters, chosen layers, exports and continued runs.
#include "megalith/train/scoring/reward_objective.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "megalith/data/token_table.h"
#include "megalith/hf/weight_files.h"
#include "megalith/inference/generate.h"
#include "megalith/model/adapter.h"
#include "megalith/model/auto_model.h"
#include "megalith/run/resolve/adapter_source.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/train/scoring/sequence_labels.h"
#include "megalith/train/settings/scoring_settings.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/json_file.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"
#include "tests/train/preference_case.h"
#include "tests/train/scoring_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::vector<std::string> kRewardKeys{"loss",        "grad_norm",  "accuracy",  "margin",
                                           "mean_reward", "min_reward", "max_reward"};

int64_t vocab_of(const std::string& model) { return model::read_model_config(golden_folder(model)).vocab_size; }

// ---- trl's numbers ----

void expect_golden_rewards(const json& expected, const RunLog& run) {
  std::vector<double> losses = run.numbers("loss");
  losses.push_back(*run.evaluation.find("eval_loss"));
  ASSERT_EQ(losses.size(), expected.at("losses").size());
  for (size_t i = 0; i < losses.size(); ++i)
    expect_close(losses[i], expected.at("losses")[i], fmt::format("loss {}", i), i == 0 ? kClose : 1e-4, 1e-5);
  for (const std::string& key : kRewardKeys) {
    if (key == "loss") continue;
    const json& right = expected.at(key == "grad_norm" ? "grad_norms" : key);
    const std::vector<double> values = run.numbers(key);
    ASSERT_EQ(values.size(), right.size()) << key;
    for (size_t i = 0; i < values.size(); ++i)
      expect_close(values[i], right[i], fmt::format("{} {}", key, i), i == 0 ? 5e-5 : 2e-4, 1e-4);
  }
}

TEST(GoldenRewards, trl_rewards_json) {
  const json golden = golden_json("trl/rewards.json");
  for (const auto& [name, cases] : golden.at("models").items())
    for (const auto& [kind, expected] : cases.at("rewards").items()) {
      SCOPED_TRACE(name + " " + kind);
      const TempFolder folder;
      write_scoring_model(name, tensor_in(expected.at("score")), {{"pad_token_id", golden.at("pad_token_id")}},
                          folder / "model");
      const json& options = expected.at("options");
      TrainerCase how = reward_case(kind);
      take_optimizer(golden.at("optimizer"), how.args);
      how.args.scoring.center_rewards_coefficient = options.value("center_rewards_coefficient", 0.0);
      const auto margins = options.value("margins", std::vector<double>{});
      const RunLog run = run_scoring(how, folder / "model", scored_pairs(vocab_of(name), margins));
      expect_golden_rewards(expected, run);
      EXPECT_FALSE(run.evaluation.find("eval_perplexity"));
    }
}

// transformers' scores of the same texts, whatever the layout.
TEST(GoldenRewards, trl_rewards_json_scores) {
  const json golden = golden_json("trl/rewards.json");
  for (const auto& [name, cases] : golden.at("models").items()) {
    const json& expected = cases.at("rewards").at("plain");
    const TempFolder folder;
    write_scoring_model(name, tensor_in(expected.at("score")), {{"pad_token_id", golden.at("pad_token_id")}},
                        folder / "model");
    for (const auto& [tp, pp, cp, dp] :
         {std::array{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 2, 1, 1}, {1, 1, 2, 1}, {1, 1, 1, 2}, {2, 2, 2, 1}}) {
      TrainerCase layout = reward_case(fmt::format("{} tp {} pp {} cp {} dp {}", name, tp, pp, cp, dp), 1, dp);
      layout.tp = tp, layout.pp = pp, layout.cp = cp;
      layout.args.parallel.sequence_parallel = tp > 1;
      expect_close(scores_in(folder / "model", golden_texts(vocab_of(name)), layout), tensor_in(expected.at("logits")),
                   layout.name, 2e-5);
    }
  }
}

// ---- Layouts ----

void expect_same_rewards(const RunLog& run, const RunLog& expected, double tolerance) {
  ASSERT_EQ(run.lines.size(), expected.lines.size());
  for (const std::string& key : kRewardKeys) {
    const auto actual = run.numbers(key), right = expected.numbers(key);
    ASSERT_EQ(actual.size(), right.size()) << key;
    for (size_t i = 0; i < right.size(); ++i)
      expect_close(actual[i], right[i], fmt::format("{} {}", key, i), i == 0 ? kClose : tolerance, 1e-6);
    if (key == "grad_norm") continue;
    expect_close(*run.evaluation.find("eval_" + key), *expected.evaluation.find("eval_" + key), "eval_" + key,
                 tolerance, 2e-6);
  }
}

TrainerCase with(TrainerCase how, const std::function<void(TrainerCase&)>& change) {
  change(how);
  return how;
}

// From a language model: the head gets the same first numbers everywhere.
TEST(RewardLayouts, GiveTheNumbersOfOneRank) {
  for (const char* model : {"llama", "qwen3"}) {
    const auto pairs = scored_pairs(vocab_of(model), {0.5, 0, 0.25, 0});
    const auto in_parts = [&](const std::string& name, const std::function<void(TrainerCase&)>& change, int dp = 1) {
      return with(reward_case(fmt::format("{} {}", model, name), 4 / dp, dp), [&](TrainerCase& how) {
        change(how);
        how.args.optimizer.use_distributed_optimizer = dp > 1;
        how.args.scoring.center_rewards_coefficient = 0.01;
      });
    };
    const RunLog alone = run_scoring(in_parts("one rank", [](TrainerCase&) {}), golden_folder(model), pairs);
    for (const TrainerCase& how :
         {in_parts("tp 2", [](TrainerCase& c) { c.tp = 2; }),
          in_parts("tp 2 sp", [](TrainerCase& c) { c.tp = 2, c.args.parallel.sequence_parallel = true; }),
          in_parts("pp 2", [](TrainerCase& c) { c.pp = 2; }),
          in_parts("vpp 2", [](TrainerCase& c) { c.pp = 2, c.vpp = 2; }),
          in_parts("zero bubble",
                   [](TrainerCase& c) { c.pp = 2, c.args.pipeline.schedule = layout::ScheduleKind::kZeroBubble; }),
          in_parts("cp 2", [](TrainerCase& c) { c.cp = 2; }),
          in_parts("packed", [](TrainerCase& c) { c.collator.padding = data::Padding::kNone; }),
          in_parts("packed, cp 2", [](TrainerCase& c) { c.cp = 2, c.collator.padding = data::Padding::kNone; }),
          in_parts(
              "dp 2", [](TrainerCase&) {}, 2),
          in_parts("recompute, tp 2 sp pp 2", [](TrainerCase& c) {
            c.tp = c.pp = 2;
            c.args.parallel.sequence_parallel = true;
            c.args.recompute.granularity = config::RecomputeGranularity::kFull;
          })})
      expect_same_rewards(run_scoring(how, golden_folder(model), pairs), alone, 1e-4);
  }
}

// Five pairs for two or four replicas: the micro-batches that fill up a group of the evaluation are copies of the first
// pair and count nowhere, and a step that an epoch does not fill continues with its first pairs.
TEST(RewardLayouts, FivePairsOnSeveralReplicas) {
  const auto texts = golden_texts(vocab_of("llama"));
  data::TokenTable table;
  for (const auto& [chosen, rejected] : {std::pair(0, 4), {1, 5}, {2, 6}, {3, 7}, {0, 6}})
    table.append(data::Sample{scored_row(texts.at(chosen), data::label_of_number(0)),
                              scored_row(texts.at(rejected), data::label_of_number(0))});
  const auto five = data::dataset_of(std::move(table), {.pairs = true});
  // Micro-batches of one pair, four of them in a step of all replicas.
  const auto run = [&](int pp, int dp) {
    TrainerCase how = reward_case(fmt::format("pp {} dp {}", pp, dp), 4 / dp, dp);
    how.pp = pp;
    how.args.optimizer.use_distributed_optimizer = dp > 1;
    return run_scoring(how, golden_folder("llama"), five);
  };
  const RunLog alone = run(1, 1);
  for (const auto& [pp, dp] : {std::pair(1, 2), {1, 4}, {2, 2}}) {
    SCOPED_TRACE(fmt::format("pp {} dp {}", pp, dp));
    expect_same_rewards(run(pp, dp), alone, 1e-4);
  }
}

TEST(RewardLayouts, ExpertsOnTwoRanks) {
  const auto pairs = scored_pairs(vocab_of("qwen3_moe"));
  const auto of = [](const std::string& name, int ep) {
    return with(reward_case(name, 1, 2), [&](TrainerCase& how) {
      how.args.parallel.ep = ep;
      how.args.moe.token_dispatcher = config::TokenDispatcher::kAllToAll;
    });
  };
  const RunLog alone = run_scoring(of("experts on each rank", 1), golden_folder("qwen3_moe"), pairs);
  expect_same_rewards(run_scoring(of("ep 2", 2), golden_folder("qwen3_moe"), pairs), alone, 1e-4);
}

// ---- Adapters and chosen layers ----

TEST(RewardLora, TheHeadIsTrainedAndSavedAsAWhole) {
  const TempFolder out;
  const auto pairs = scored_pairs(vocab_of("qwen3"));
  const auto of = [](const std::string& name, int tp, int dp) {
    return with(reward_case(name, 2 / dp, dp), [&](TrainerCase& how) {
      how.tp = tp;
      how.args.run.finetuning_type = config::FinetuningType::kLora;
      how.args.parallel.sequence_parallel = tp > 1;
    });
  };
  const RunLog alone = run_scoring(of("one rank", 1, 1), golden_folder("qwen3"), pairs, out / "adapter");
  expect_same_rewards(run_scoring(of("tp 2 dp 2", 2, 2), golden_folder("qwen3"), pairs), alone, 1e-4);
  const json config = json_file(out / "adapter" / "adapter_config.json");
  EXPECT_EQ(config.at("task_type"), "SEQ_CLS");
  EXPECT_EQ(config.at("modules_to_save"), json::array({"score"}));
  for (const json& target : config.at("target_modules")) EXPECT_NE(target, "score");
  const hf::SafetensorsFile file(out / "adapter" / "adapter_model.safetensors");
  EXPECT_EQ(file.tensor("base_model.model.score.weight").sizes(), (std::vector<int64_t>{1, 64}));
  // Read again, it evaluates like the trained model.
  TrainerCase again = of("read again", 1, 1);
  again.args.lora.adapter_name_or_path = {(out / "adapter").string()};
  again.args.run.max_steps = 1;
  again.args.optimizer.learning_rate = 0;
  EXPECT_EQ(*run_scoring(again, golden_folder("qwen3"), pairs).evaluation.find("eval_loss"),
            *alone.evaluation.find("eval_loss"));
}

TEST(RewardFreeze, TheHeadIsTrainedBesideTheChosenLayers) {
  const TempFolder out;
  TrainerCase how = reward_case("the last layer");
  how.args.run.finetuning_type = config::FinetuningType::kFreeze;
  how.args.freeze.layers = 1;
  run_scoring(how, golden_folder("llama"), scored_pairs(vocab_of("llama")), out / "trained");
  how.args.optimizer.learning_rate = 0;
  how.args.run.max_steps = 1;
  run_scoring(how, golden_folder("llama"), scored_pairs(vocab_of("llama")), out / "start");
  const hf::WeightFiles trained(out / "trained"), start(out / "start");
  for (const std::string& name : trained.names()) {
    const bool chosen = name.starts_with("model.layers.3.") || name == "score.weight";
    EXPECT_EQ(at::equal(trained.tensor(name), start.tensor(name)), !chosen) << name;
  }
}

// ---- Exports ----

// argv: a model, an adapter or "", and texts as JSON; prints their scores.
constexpr const char* kScoreInPython = R"(
import json, sys, torch
from transformers import AutoModelForSequenceClassification
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], num_labels=1, dtype=torch.float32, attn_implementation="eager")
if sys.argv[2]:
    from peft import PeftModel
    model.config.pad_token_id = 0
    model = PeftModel.from_pretrained(model, sys.argv[2])
assert model.config.num_labels == 1 and model.config.pad_token_id == 0, model.config
texts = json.loads(sys.argv[3])
longest = max(map(len, texts))
ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
with torch.no_grad(): print(json.dumps(model.eval()(input_ids=ids, attention_mask=ids.ne(0).long()).logits.tolist()))
)";

class RewardExport : public ::testing::Test {
 protected:
  // Trained by two stages of two ranks, from a language model.
  RewardExport() {
    TrainerCase how = reward_case("tp 2 pp 2", 2);
    how.tp = how.pp = 2;
    run_trainer_ranks(golden_folder("qwen3"), how, [&](const TrainerRank& r) {
      // As a run does that knows the padding of its tokenizer.
      model::ModelSettings settings = run::model_settings(r.args, at::kCPU);
      settings.overrides.scores->pad_token = 0;
      model::VirtualModels models =
          model::AutoModel::from_pretrained(golden_folder("qwen3").string(), settings, r.models.context());
      train::TrainerSetup setup = r.setup(scored_pairs(vocab_of("qwen3")));
      setup.objective = scoring_objective(r);
      train::Trainer trainer(models, r.settings(), std::move(setup));
      trainer.train();
      trainer.save_model(folder_ / "reward");
    });
  }
  TempFolder folder_;
};

TEST_F(RewardExport, IsASequenceClassificationModel) {
  const json config = json_file(folder_ / "reward" / "config.json");
  EXPECT_EQ(config.at("architectures"), json::array({"Qwen3ForSequenceClassification"}));
  EXPECT_EQ(config.at("id2label"), json({{"0", "LABEL_0"}}));
  EXPECT_EQ(config.at("pad_token_id"), 0);
  const hf::WeightFiles files(folder_ / "reward");
  EXPECT_TRUE(files.contains("score.weight"));
  EXPECT_FALSE(files.contains("lm_head.weight"));
  const auto texts = golden_texts(vocab_of("qwen3"));
  TrainerCase split = reward_case("tp 2");
  split.tp = 2;
  expect_close(scores_in(folder_ / "reward", texts, split), scores_in(folder_ / "reward", texts), "scores");
}

TEST_F(RewardExport, CannotGenerateText) {
  run_trainer_ranks(folder_ / "reward", reward_case("one rank"), [&](const TrainerRank& r) {
    expect_error<ConfigError>(
        [&] {
          inference::generate(r.models, {1, 2}, {});
        },
        {"scores sequences", "cannot generate"});
  });
}

// The same scores in transformers and peft.
class RewardsInPython : public RewardExport {
 protected:
  void SetUp() override {
    const char* python = std::getenv("MEGALITH_PYTHON");
    if (!python || *python == 0) GTEST_SKIP() << "MEGALITH_PYTHON does not name a Python with transformers and peft";
    python_ = python;
  }
  void expect_same(const fs::path& model, const fs::path& adapter, const TrainerCase& layout) const {
    const auto texts = golden_texts(vocab_of("qwen3"));
    const auto run = run_process({python_, "-c", kScoreInPython, model.string(), adapter.string(), json(texts).dump()},
                                 {}, std::chrono::minutes(3));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    expect_close(scores_in(model, texts, layout), tensor_in(json::parse(run.out)), "scores", 2e-5);
  }
  std::string python_;
};

TEST_F(RewardsInPython, OfModels) { expect_same(folder_ / "reward", "", reward_case("one rank")); }

TEST_F(RewardsInPython, OfAdapters) {
  TrainerCase how = reward_case("tp 2", 1);
  how.tp = 2;
  how.args.run.finetuning_type = config::FinetuningType::kLora;
  run_scoring(how, golden_folder("qwen3"), scored_pairs(vocab_of("qwen3")), folder_ / "adapter");
  how.args.lora.adapter_name_or_path = {(folder_ / "adapter").string()};
  expect_same(golden_folder("qwen3"), folder_ / "adapter", how);
}

// ---- Continued runs, bad input ----

TEST(RewardResume, ContinuesBitForBit) {
  const auto pairs = scored_pairs(vocab_of("llama"));
  TrainerCase how = reward_case("resumed", 1, 2);
  how.tp = 2;
  const auto change = [&](const TrainerRank& r, train::TrainerSetup& setup) {
    setup.train_data = train::numbered_data(pairs, {.size = pairs->size(), .shuffle = true, .seed = 5}, r.collator);
    setup.eval_data.clear();
    setup.objective = scoring_objective(r);
  };
  expect_continues(how, change, kRewardKeys);
}

TEST(RewardObjective, SaysWhatItLacks) {
  const auto error = [](const std::shared_ptr<const data::Dataset>& data) {
    std::string message;
    run_trainer_ranks(golden_folder("llama"), reward_case("one rank"), [&](const TrainerRank& r) {
      train::TrainerSetup setup = r.setup(data);
      setup.objective = scoring_objective(r);
      train::Trainer trainer(r.models, r.settings(), std::move(setup));
      message = error_of<Error>([&] { trainer.train(); });
    });
    return message;
  };
  expect_contains(error(dataset_of(random_sequences(8, 512))), "trained on pairs");
  expect_contains(error(random_pairs(4, 512)), "one label per text");
}

TEST(ScoreModels, OtherHeadsAndFamiliesAreRefused) {
  const TempFolder folder;
  write_scoring_model("llama", at::zeros({3, 64}), json::object(), folder / "three");
  const auto error = [](const fs::path& model) {
    const auto overrides = run::model_overrides(reward_case("one rank").effective());
    return error_of<ConfigError>([&] { overrides.applied_to(model::read_model_config(model)); });
  };
  expect_contains(error(folder / "three"), "num_labels is 1, but the head in the model's files has 3");
  expect_contains(error(golden_folder("gpt2")), "gpt2 models cannot score sequences");
}

}  // namespace
}  // namespace megalith::testing
