#include "tests/train/preference_case.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "megalith/data/token_table.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/model/auto_model.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/train/preference/kto_objective.h"
#include "megalith/train/preference/reference_model.h"
#include "tests/support/temp_folder.h"
#include "tests/train/resume_case.h"

namespace megalith::testing {

namespace {

data::Sequence row_of(const at::Tensor& ids, const at::Tensor& mask, const at::Tensor& labels, int64_t row) {
  data::Sequence sequence;
  for (int64_t i = 0; i < mask[row].sum().item<int64_t>(); ++i) {
    sequence.ids.push_back(ids[row][i].item<int32_t>());
    sequence.labels.push_back(labels[row][i].item<int32_t>());
  }
  return sequence;
}

}  // namespace

GoldenPairs read_golden_pairs() {
  GoldenPairs golden{.json = golden_json("hf/preference/golden.json"), .folder = golden_folder("preference")};
  golden.policy = golden_dir() / "hf" / golden_member(golden.json, "policy").get<std::string>();
  golden.reference = golden_dir() / "hf" / golden_member(golden.json, "reference").get<std::string>();
  const hf::SafetensorsFile file(golden.folder / "golden.safetensors");
  const at::Tensor ids = file.tensor("input_ids"), mask = file.tensor("attention_mask"), labels = file.tensor("labels");
  const int64_t pairs = golden.json.at("pairs");
  data::TokenTable table;
  for (int64_t i = 0; i < pairs; ++i)
    table.append(data::Sample{row_of(ids, mask, labels, i), row_of(ids, mask, labels, pairs + i)});
  golden.pairs = data::dataset_of(std::move(table), {.pairs = true});
  return golden;
}

std::optional<config::PreferenceConfig> golden_preference(const nlohmann::json& golden, const std::string& kind) {
  config::PreferenceConfig how;
  how.beta = golden.at("beta");
  const bool smooth = kind == "sigmoid_smooth";
  if (smooth || kind == "robust") how.label_smoothing = golden.at("label_smoothing");
  const auto loss = config::choice_of<config::PrefLoss>(smooth ? "sigmoid" : kind);
  if (!loss) return std::nullopt;
  how.loss = *loss;
  return how;
}

std::shared_ptr<const data::Dataset> golden_verdicts(const GoldenPairs& golden, const std::vector<bool>& verdicts) {
  std::vector<data::Sequence> rows;
  for (int64_t i = 0; i < golden.pairs->size(); ++i) {
    const data::Sample pair = golden.pairs->sample(i);
    rows.insert(rows.end(), {pair.row, *pair.rejected});
  }
  const auto answer_of = [](const data::Sequence& row) {
    return std::ranges::find_if(row.labels, [](int32_t label) { return label >= 0; }) - row.labels.begin();
  };
  data::TokenTable table;
  for (size_t i = 0; i < rows.size(); ++i) {
    const data::Sequence& before = rows[i == 0 ? rows.size() - 1 : i - 1];
    data::Sequence mismatched = rows[i];
    mismatched.ids.resize(static_cast<size_t>(answer_of(rows[i])));
    mismatched.labels.resize(mismatched.ids.size());
    mismatched.ids.insert(mismatched.ids.end(), before.ids.begin() + answer_of(before), before.ids.end());
    mismatched.labels.insert(mismatched.labels.end(), before.labels.begin() + answer_of(before), before.labels.end());
    table.append(data::Sample{
        .row = rows[i], .rejected = std::nullopt, .feedback = data::Feedback{verdicts.at(i), std::move(mismatched)}});
  }
  return data::dataset_of(std::move(table), {.feedback = true});
}

void take_optimizer(const nlohmann::json& optimizer, config::TrainingArguments& args) {
  args.run.max_steps = optimizer.at("steps");
  args.optimizer.learning_rate = optimizer.at("lr");
  args.optimizer.weight_decay = optimizer.at("weight_decay");
  args.optimizer.adam_beta1 = optimizer.at("betas").at(0);
  args.optimizer.adam_beta2 = optimizer.at("betas").at(1);
  args.optimizer.adam_epsilon = optimizer.at("eps");
  args.optimizer.max_grad_norm = optimizer.at("clip");
}

std::shared_ptr<const data::Dataset> random_pairs(int64_t count, int64_t vocab, uint64_t seed) {
  const auto rows = random_sequences(2 * count, vocab, seed);
  data::TokenTable table;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) table.append(data::Sample{rows[2 * i], rows[2 * i + 1]});
  return data::dataset_of(std::move(table), {.pairs = true});
}

TrainerCase preference_case(const std::string& name, int pairs, int microbatches, int dp) {
  TrainerCase how;
  how.name = name;
  how.dp = dp;
  how.args.run.stage = config::Stage::kDpo;
  how.args.ddp.calculate_per_token_loss = false;
  how.args.batch.gradient_accumulation_steps = microbatches;
  how.args.batch.micro_batch_size = pairs / dp / microbatches;
  return how;
}

std::unique_ptr<train::ReferenceModel> reference_on(const TrainerRank& rank, const std::filesystem::path& folder,
                                                    std::optional<double> ld_alpha) {
  return std::make_unique<train::ReferenceModel>(
      model::AutoModel::from_pretrained(folder.string(), run::model_settings(rank.args, at::kCPU),
                                        rank.models.context()),
      run::step_settings(rank.args), ld_alpha);
}

namespace {

std::unique_ptr<train::Objective> objective_of(const TrainerRank& r, const std::filesystem::path& reference) {
  if (r.args.run.stage == config::Stage::kKto)
    return std::make_unique<train::KtoObjective>(run::kto_settings(r.args.preference), r.models,
                                                 run::step_settings(r.args), reference_on(r, reference));
  const train::PreferenceSettings preference = run::preference_settings(r.args.preference);
  return std::make_unique<train::PreferenceObjective>(
      preference, r.models.context(),
      config::needs_reference(preference.loss) ? reference_on(r, reference, preference.ld_alpha) : nullptr);
}

}  // namespace

RunLog run_preferences(const TrainerCase& how, const PairRun& run) {
  SCOPED_TRACE(how.name);
  RunLog result;
  run_trainer_ranks(run.policy, how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    train::TrainerSetup setup = r.setup(run.pairs, run.pairs);
    setup.objective = objective_of(r, run.reference);
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    const train::TrainOutput output = trainer.train();
    RunLog mine{heard.lines, trainer.evaluate(), output};
    if (!run.save_to.empty()) trainer.save_model(run.save_to);
    if (r.rank.rank == 0) result = std::move(mine);
  });
  return result;
}

void expect_continues(TrainerCase how, const std::function<void(const TrainerRank&, train::TrainerSetup&)>& change,
                      const std::vector<std::string>& keys) {
  const TempFolder whole, rest;
  const auto into = [&](const TempFolder& out) {
    const config::TrainingArguments before = how.args;
    how.args = resume_arguments(out.path(), 6, 3);
    how.args.ddp = before.ddp;
    how.args.batch = before.batch;
    how.args.parallel = before.parallel;
    how.args.run.stage = before.run.stage;
    how.args.layer.hidden_dropout = 0.2;
    how.args.optimizer.use_distributed_optimizer = true;
  };
  into(whole);
  const train::TrainerState expected = run_resumable(how, {.change = change});
  into(rest);
  const train::TrainerState actual = run_resumable(how, {.checkpoint = whole / "checkpoint-3", .change = change});
  expect_same_tensors(rest / "checkpoint-6", whole / "checkpoint-6", /*with_rng=*/true);
  ASSERT_EQ(actual.log_history.size(), expected.log_history.size());
  for (size_t i = 0; i < expected.log_history.size(); ++i)
    for (const std::string& key : keys) EXPECT_EQ(actual.log_history[i].find(key), expected.log_history[i].find(key));
}

}  // namespace megalith::testing
