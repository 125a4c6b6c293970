// Training runs of small models through the Trainer, by rank threads.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/trainer.h"
#include "tests/model/model_support.h"

namespace megalith::testing {

// Samples of different lengths; some tokens of each have no label.
std::vector<data::Sequence> random_sequences(int64_t count, int64_t vocab, uint64_t seed = 11);
std::shared_ptr<const data::Dataset> dataset_of(const std::vector<data::Sequence>& sequences);

// AdamW at a constant rate, per-token loss, every step logged, nothing saved.
config::TrainingArguments small_arguments();

// A layout and the arguments of a run on it.
struct TrainerCase {
  std::string name = "one rank";
  int tp = 1, pp = 1, dp = 1, cp = 1;
  std::optional<int> vpp{};
  config::TrainingArguments args = small_arguments();  // sizes above are filled in
  data::CollatorOptions collator{};                    // tp and cp are filled in
  data::CollateFunction collate{};                     // a collator of the program's own
  bool shuffle = false;
  bool gloo = false;  // sockets in place of shared memory
  // A vocabulary that grows, as run::with_vocabulary sets it.
  std::optional<int64_t> vocab_size{};
  std::vector<int64_t> new_tokens{};

  int ranks() const { return tp * pp * dp * cp; }
  // As a run gets them: sizes filled in, derived.
  config::TrainingArguments effective() const;
};

// The state of a rank before the trainer is made.
struct TrainerRank {
  const Rank& rank;
  const config::TrainingArguments& args;
  model::VirtualModels& models;
  data::Collator collator;

  train::TrainerSettings settings() const { return run::trainer_settings(args, models.context().grid().shape()); }
  // The usual set-up: train and evaluation data in the order in which they are.
  train::TrainerSetup setup(std::shared_ptr<const data::Dataset> train,
                            std::shared_ptr<const data::Dataset> eval = nullptr) const;
};

// The model of a folder on a rank, with an adapter for finetuning_type lora. For `vocab_size` and `new_tokens` see
// TrainerCase.
model::VirtualModels model_for(const std::filesystem::path& folder, const config::TrainingArguments& args,
                               parallel::ParallelContext& context, std::optional<int64_t> vocab_size = {},
                               const std::vector<int64_t>& new_tokens = {});
// The model in `folder`, laid out as the case says, on each rank.
void run_trainer_ranks(const std::filesystem::path& folder, const TrainerCase& how,
                       const std::function<void(const TrainerRank&)>& body);

// The log of a run.
struct RunLog {
  std::vector<train::MetricList> lines;  // lines of rank 0
  train::MetricList evaluation;          // at the end
  train::TrainOutput output;

  std::vector<double> numbers(const std::string& name) const;  // by line, without the totals
};
// Trains on `train` and evaluates on `eval` at the end. Fails unless all ranks log the same losses.
RunLog run_training(const std::filesystem::path& folder, const TrainerCase& how,
                    const std::vector<data::Sequence>& train, const std::vector<data::Sequence>& eval);

// Writes down what it hears.
class Recorder : public train::TrainerCallback {
 public:
  struct Heard {
    std::vector<std::string> events;
    std::vector<train::MetricList> lines;
  };
  explicit Recorder(Heard& heard) : heard_(heard) {}

  void on_init_end(train::TrainerEvent&) override { heard_.events.emplace_back("init_end"); }
  void on_train_begin(train::TrainerEvent&) override { heard_.events.emplace_back("train_begin"); }
  void on_train_end(train::TrainerEvent&) override { heard_.events.emplace_back("train_end"); }
  void on_epoch_begin(train::TrainerEvent&) override { heard_.events.emplace_back("epoch_begin"); }
  void on_epoch_end(train::TrainerEvent&) override { heard_.events.emplace_back("epoch_end"); }
  void on_step_begin(train::TrainerEvent&) override { heard_.events.emplace_back("step_begin"); }
  void on_substep_end(train::TrainerEvent&) override { heard_.events.emplace_back("substep_end"); }
  void on_pre_optimizer_step(train::TrainerEvent&) override { heard_.events.emplace_back("pre_optimizer_step"); }
  void on_optimizer_step(train::TrainerEvent&) override { heard_.events.emplace_back("optimizer_step"); }
  void on_step_end(train::TrainerEvent&) override { heard_.events.emplace_back("step_end"); }
  void on_evaluate(train::TrainerEvent&) override { heard_.events.emplace_back("evaluate"); }
  void on_predict(train::TrainerEvent&) override { heard_.events.emplace_back("predict"); }
  void on_prediction_step(train::TrainerEvent&) override { heard_.events.emplace_back("prediction_step"); }
  void on_save(train::TrainerEvent&) override { heard_.events.emplace_back("save"); }
  void on_log(train::TrainerEvent& event) override {
    heard_.events.emplace_back("log");
    heard_.lines.push_back(event.metrics);
  }

 private:
  Heard& heard_;
};

}  // namespace megalith::testing
