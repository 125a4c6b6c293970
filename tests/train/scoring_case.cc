#include "tests/train/scoring_case.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "megalith/data/token_table.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_files.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/inference/score.h"
#include "megalith/model/auto_model.h"
#include "megalith/run/resolve/inputs.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/preference_settings.h"
#include "megalith/train/scoring/label_objective.h"
#include "megalith/train/scoring/reward_objective.h"
#include "tests/support/json_file.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int kGoldenPairs = 4;

// Joins rows to one whose pieces do not see one another.
data::Sequence packed(const std::vector<data::Sequence>& rows) {
  data::Sequence all;
  for (const data::Sequence& row : rows) {
    all.ids.insert(all.ids.end(), row.ids.begin(), row.ids.end());
    all.labels.insert(all.labels.end(), row.labels.begin(), row.labels.end());
    all.pieces.push_back(static_cast<int32_t>(row.ids.size()));
  }
  return all;
}

TrainerCase scoring_case(const std::string& name, config::Stage stage, int items, int microbatches, int dp) {
  TrainerCase how;
  how.name = name;
  how.dp = dp;
  how.args.run.stage = stage;
  how.args.ddp.calculate_per_token_loss = false;
  how.args.batch.gradient_accumulation_steps = microbatches;
  how.args.batch.micro_batch_size = items / dp / microbatches;
  how.args.batch.eval_micro_batch_size = items / dp / microbatches;
  return how;
}

}  // namespace

data::Sequence scored_row(const std::vector<int32_t>& ids, int32_t label) {
  data::Sequence row;
  row.ids = ids;
  data::mark_scored(row, label, 0, "a test");
  return row;
}

at::Tensor tensor_in(const json& numbers) {
  if (!numbers.at(0).is_array()) return at::tensor(numbers.get<std::vector<double>>(), at::kFloat);
  std::vector<at::Tensor> rows;
  for (const json& row : numbers) rows.push_back(tensor_in(row));
  return at::stack(rows);
}

void write_scoring_model(const std::string& name, const at::Tensor& score, const json& changes, const fs::path& to) {
  json config = json_file(golden_folder(name) / "config.json");
  auto architecture = config.at("architectures").at(0).get<std::string>();
  architecture.replace(architecture.find("CausalLM"), std::string("CausalLM").size(), "SequenceClassification");
  config["architectures"] = {architecture};
  config["id2label"] = json::object();
  for (int64_t label = 0; label < score.size(0); ++label)
    config["id2label"][std::to_string(label)] = "L" + std::to_string(label);
  config.update(changes);
  fs::create_directories(to);
  std::ofstream(to / "config.json") << config.dump(2);
  const hf::WeightFiles files(golden_folder(name));
  std::map<std::string, at::Tensor> tensors{{"score.weight", score}};
  for (const std::string& each : files.names())
    if (each != "lm_head.weight") tensors[each] = files.tensor(each);
  std::vector<hf::WeightSpec> specs;
  for (const auto& [tensor_name, tensor] : tensors)
    specs.push_back({tensor_name, hf::dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  hf::WeightWriter writer(to, specs);
  writer.create_files();
  for (const auto& [tensor_name, tensor] : tensors) writer.write(tensor_name, tensor);
  writer.sync();
}

std::vector<std::vector<int32_t>> golden_texts(int64_t vocab) {
  const hf::SafetensorsFile file(golden_folder("preference") / "golden.safetensors");
  const at::Tensor ids = file.tensor("input_ids").remainder(vocab).to(at::kInt), mask = file.tensor("attention_mask");
  std::vector<std::vector<int32_t>> texts;
  for (int64_t row = 0; row < ids.size(0); ++row) {
    const int64_t length = mask[row].sum().item<int64_t>();
    const at::Tensor mine = ids[row].narrow(0, 0, length).contiguous();
    texts.emplace_back(mine.const_data_ptr<int32_t>(), mine.const_data_ptr<int32_t>() + length);
  }
  return texts;
}

std::shared_ptr<const data::Dataset> scored_pairs(int64_t vocab, const std::vector<double>& margins) {
  const auto texts = golden_texts(vocab);
  data::TokenTable table;
  for (size_t pair = 0; pair < kGoldenPairs; ++pair) {
    const float margin = margins.empty() ? 0 : static_cast<float>(margins.at(pair));
    table.append(data::Sample{scored_row(texts[pair], data::label_of_number(margin)),
                              scored_row(texts[pair + kGoldenPairs], data::label_of_number(0))});
  }
  return data::dataset_of(std::move(table), {.pairs = true});
}

std::shared_ptr<const data::Dataset> labelled_texts(int64_t vocab, const json& labels, const data::LabelForm& form,
                                                    size_t together) {
  const auto texts = golden_texts(vocab);
  data::TokenTable table;
  std::vector<data::Sequence> rows;
  for (size_t i = 0; i < texts.size(); ++i) {
    rows.push_back(scored_row(texts[i], data::label_in(json{{"label", labels.at(i)}}, "label", form, "a test")));
    if (rows.size() < together) continue;
    table.append(together > 1 ? packed(rows) : rows.front());
    rows.clear();
  }
  return data::dataset_of(std::move(table), {});
}

TrainerCase reward_case(const std::string& name, int microbatches, int dp) {
  return scoring_case(name, config::Stage::kReward, kGoldenPairs, microbatches, dp);
}

TrainerCase label_case(const std::string& name, int microbatches, int dp) {
  return scoring_case(name, config::Stage::kClassify, 2 * kGoldenPairs, microbatches, dp);
}

std::unique_ptr<train::Objective> scoring_objective(const TrainerRank& rank) {
  const auto plan = run::scoring_plan(rank.args, rank.models.config());
  if (plan->rewards) return std::make_unique<train::RewardObjective>(*plan->rewards, rank.models.context());
  return std::make_unique<train::LabelObjective>(*plan->labels, rank.models.context());
}

RunLog run_scoring(const TrainerCase& how, const fs::path& folder, const std::shared_ptr<const data::Dataset>& data,
                   const fs::path& save_to) {
  SCOPED_TRACE(how.name);
  RunLog result;
  run_trainer_ranks(folder, how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    train::TrainerSetup setup = r.setup(data, data);
    // As in `megalith train`: no sample of an epoch is left out.
    setup.train_data =
        train::numbered_data(data, {.size = data->size(), .shuffle = false, .end = data::EpochEnd::kWrap}, r.collator);
    setup.objective = scoring_objective(r);
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    const train::TrainOutput output = trainer.train();
    RunLog mine{heard.lines, trainer.evaluate(), output};
    if (!save_to.empty()) trainer.save_model(save_to);
    if (r.rank.rank == 0) result = std::move(mine);
  });
  return result;
}

at::Tensor scores_in(const fs::path& folder, const std::vector<std::vector<int32_t>>& texts,
                     const TrainerCase& layout) {
  size_t longest = 0;
  for (const auto& text : texts) longest = std::max(longest, text.size());
  at::Tensor ids = at::zeros({std::ssize(texts), static_cast<int64_t>(longest)}, at::kLong), mask = ids.clone();
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto row = static_cast<int64_t>(i), length = static_cast<int64_t>(texts[i].size());
    ids[row].narrow(0, 0, length).copy_(at::tensor(texts[i], at::kLong));
    mask[row].narrow(0, 0, length).fill_(1);
  }
  const TempFolder out;
  at::Tensor scores;
  run_trainer_ranks(folder, layout, [&](const TrainerRank& r) {
    const at::Tensor mine =
        inference::score_sequences_to_file(r.models, {ids, mask, {}}, out / "scores.safetensors", /*rows=*/3);
    if (r.rank.rank == 0) scores = mine;
  });
  const hf::SafetensorsFile file(out / "scores.safetensors");
  EXPECT_TRUE(at::equal(file.tensor("logits"), scores)) << "the file holds other scores";
  return scores;
}

}  // namespace megalith::testing
