// Reward models of LLaMA-Factory: value heads beside a model or an adapter give its scores and, trained further, its
// losses (tests/data/value_head/make.py); what is saved gives the same scores again.
#include "megalith/model/families/value_head.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>

#include "megalith/data/token_table.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_files.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/model/adapter.h"
#include "megalith/run/resolve/model_settings.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/json_file.h"
#include "tests/support/temp_folder.h"
#include "tests/train/preference_case.h"
#include "tests/train/scoring_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kValueHeads = "tests/data/value_head";

class ValueHeads : public ::testing::Test {
 protected:
  // The padding of the model is the token with which all texts end.
  ValueHeads() : golden_(json_file(kValueHeads / "golden.json")) {
    fs::create_directory(folder_ / "base");
    json config = json_file(golden_folder("llama") / "config.json");
    config["pad_token_id"] = golden_.at("end");
    std::ofstream(folder_ / "base" / "config.json") << config.dump(2);
    fs::copy_file(golden_folder("llama") / "model.safetensors", folder_ / "base" / "model.safetensors");
    for (const auto& [name, file] :
         {std::pair("full", "value_head.safetensors"), std::pair("pickled", "value_head.bin")}) {
      fs::copy(folder_ / "base", folder_ / name);
      fs::copy_file(kValueHeads / name / file, folder_ / name / file);
    }
  }

  std::vector<std::vector<int32_t>> texts() const {
    return golden_.at("texts").get<std::vector<std::vector<int32_t>>>();
  }
  // fp32 [texts, 1].
  at::Tensor scores(const std::string& name) const { return tensor_in(golden_.at(name).at("scores")).unsqueeze(1); }
  // The texts in pairs, whole.
  std::shared_ptr<const data::Dataset> pairs() const {
    const auto all = texts();
    const auto row_of = [&](size_t text) {
      data::Sequence row;
      row.ids = all.at(text);
      data::mark_scored(row, data::label_of_number(0), std::nullopt, "a test");
      return row;
    };
    data::TokenTable table;
    for (size_t pair = 0; pair < all.size() / 2; ++pair)
      table.append(data::Sample{row_of(pair), row_of(pair + all.size() / 2)});
    return data::dataset_of(std::move(table), {.pairs = true});
  }
  // Stage rm with LLaMA-Factory's optimizer. `adapter` is the folder of an adapter to train; if it is empty, the whole
  // model is trained.
  TrainerCase case_of(const std::string& name, const fs::path& adapter = {}, int dp = 1) const {
    TrainerCase how = reward_case(name, 1, dp);
    const json& losses = golden_.at("full").at("losses");
    take_optimizer({{"steps", losses.size()},
                    {"lr", golden_.at("rate")},
                    {"weight_decay", 0.0},
                    {"betas", {0.9, 0.95}},
                    {"eps", 1e-8},
                    {"clip", 1.0}},
                   how.args);
    if (adapter.empty()) return how;
    how.args.run.finetuning_type = config::FinetuningType::kLora;
    how.args.lora.adapter_name_or_path = {adapter.string()};
    return how;
  }
  void expect_losses(const std::string& name, const RunLog& run) const {
    const std::vector<double> losses = run.numbers("loss");
    const json& expected = golden_.at(name).at("losses");
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t i = 0; i < losses.size(); ++i)
      expect_close(losses[i], expected[i], fmt::format("{} loss {}", name, i), i == 0 ? kClose : 1e-4, 1e-5);
  }

  const json golden_;
  TempFolder folder_;
};

TEST_F(ValueHeads, GiveTheScoresOfLlamaFactory) {
  for (const auto& [tp, pp, cp, dp] :
       {std::array{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 2, 1, 1}, {1, 1, 2, 1}, {1, 1, 1, 2}, {2, 2, 2, 1}}) {
    const auto laid_out = [&](TrainerCase how) {
      how.tp = tp, how.pp = pp, how.cp = cp;
      how.args.parallel.sequence_parallel = tp > 1;
      return how;
    };
    const std::string name = fmt::format("tp {} pp {} cp {} dp {}", tp, pp, cp, dp);
    for (const char* folder : {"full", "pickled"})
      expect_close(scores_in(folder_ / folder, texts(), laid_out(case_of(name, {}, dp))), scores("full"),
                   fmt::format("{} {}", folder, name), 2e-5);
    for (const char* base : {"base", "full"})  // the head of an adapter replaces that of its base
      expect_close(scores_in(folder_ / base, texts(), laid_out(case_of(name, kValueHeads / "adapter", dp))),
                   scores("adapter"), fmt::format("adapter on {} {}", base, name), 2e-5);
  }
  // An adapter that is merged brings its head, too.
  TrainerCase merged = case_of("merged", kValueHeads / "adapter");
  merged.args.lora.create_new_adapter = true;
  expect_close(scores_in(folder_ / "base", texts(), merged), scores("adapter"), "merged", 2e-5);
}

TEST_F(ValueHeads, AreTrainedFurther) {
  const RunLog full = run_scoring(case_of("full"), folder_ / "full", pairs(), folder_ / "out");
  expect_losses("full", full);
  const json config = json_file(folder_ / "out" / "config.json");
  EXPECT_EQ(config.at("architectures"), json::array({"LlamaForSequenceClassification"}));
  EXPECT_EQ(config.at("score_bias"), golden_.at("full").at("bias"));
  const RunLog adapter =
      run_scoring(case_of("adapter", kValueHeads / "adapter"), folder_ / "base", pairs(), folder_ / "lora");
  expect_losses("adapter", adapter);
  const json adapter_config = json_file(folder_ / "lora" / "adapter_config.json");
  EXPECT_EQ(adapter_config.at("score_bias"), golden_.at("adapter").at("bias"));
  EXPECT_EQ(adapter_config.at("task_type"), "SEQ_CLS");
  EXPECT_EQ(adapter_config.at("modules_to_save"), json::array({"score"}));
  // On two ranks, the same.
  TrainerCase split = case_of("tp 2");
  split.tp = 2;
  expect_losses("full", run_scoring(split, folder_ / "full", pairs()));
  split = case_of("adapter, tp 2", kValueHeads / "adapter");
  split.tp = 2;
  expect_losses("adapter", run_scoring(split, folder_ / "base", pairs()));

  // A saved model evaluates like the trained one: the mean reward shows the bias.
  const auto again = [&](TrainerCase how, const fs::path& model) {
    how.args.run.max_steps = 1;
    how.args.optimizer.learning_rate = 0;
    return run_scoring(how, model, pairs()).evaluation;
  };
  for (const char* key : {"eval_loss", "eval_mean_reward"}) {
    EXPECT_EQ(*again(case_of("saved"), folder_ / "out").find(key), *full.evaluation.find(key)) << key;
    EXPECT_EQ(*again(case_of("saved adapter", folder_ / "lora"), folder_ / "base").find(key),
              *adapter.evaluation.find(key))
        << key;
  }
  // A saved model scores the end of a text like the one that it was made from.
  const at::Tensor ends = scores_in(folder_ / "out", texts(), case_of("saved"));
  auto shorter = texts();
  for (auto& text : shorter) text.pop_back();
  EXPECT_GT((ends - scores_in(folder_ / "out", shorter, case_of("shorter"))).abs().max().item<double>(), 1e-3);
}

TEST_F(ValueHeads, BelongToModelsWithOneScore) {
  const auto config_for = [&](const TrainerCase& how) {
    return run::model_overrides(how.effective()).applied_to(model::read_model_config(folder_ / "full"));
  };
  EXPECT_EQ(model::score_bias(config_for(case_of("rewards"))), golden_.at("full").at("bias").get<double>());
  TrainerCase classes = label_case("classes");
  classes.args.scoring.num_labels = 3;
  EXPECT_FALSE(model::score_bias(config_for(classes)));
  EXPECT_EQ(config_for({}).num_labels, 0);  // beside a language model, that of LLaMA-Factory's PPO does no harm
  EXPECT_EQ(hf::WeightFiles(folder_ / "full").names(), hf::WeightFiles(folder_ / "base").names());
}

TEST_F(ValueHeads, BadFilesAreRefused) {
  const auto error = [&](const std::map<std::string, at::Tensor>& tensors) {
    const fs::path folder = folder_ / "bad";
    fs::remove_all(folder);
    fs::create_directory(folder);
    std::vector<hf::WeightSpec> specs;
    for (const auto& [name, tensor] : tensors)
      specs.push_back({name, hf::dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
    hf::WeightWriter writer(folder, specs, {.stem = "value_head"});
    writer.create_files();
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
    writer.sync();
    return error_of<DataError>([&] { model::read_value_head(folder, 64); });
  };
  const std::string weight = "v_head.summary.weight", bias = "v_head.summary.bias";
  expect_contains(error({{weight, at::zeros({1, 64})}}), "holds no tensor v_head.summary.bias");
  expect_contains(error({{weight, at::zeros({1, 32})}, {bias, at::zeros({1})}}),
                  "needs floating-point numbers of shape [1, 64]");
  expect_contains(error({{weight, at::zeros({1, 64})}, {bias, at::full({1}, NAN)}}), "not finite");
  std::ofstream(folder_ / "pickled" / "value_head.bin") << "no pickle";
  expect_contains(error_of<DataError>([&] { model::read_value_head(folder_ / "pickled", 64); }), "value_head.bin");
}

}  // namespace
}  // namespace megalith::testing
