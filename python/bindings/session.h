// A rank of a run, held by Python: the groups of the process, models and trainers. What depends on the groups is closed
// before they are.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/model/virtual_models.h"
#include "megalith/run/resolve/run_plan.h"
#include "megalith/run/run_context.h"
#include "megalith/run/run_data.h"
#include "megalith/train/trainer.h"
#include "options.h"

namespace megalith::python {

// Something that uses the groups of the process and has to go before them.
class Closable {
 public:
  Closable();
  virtual ~Closable();
  Closable(const Closable&) = delete;
  Closable& operator=(const Closable&) = delete;
  virtual void close() = 0;  // idempotent
};

// Joins the ranks, makes the groups and sets the seeds; later calls only set the seeds. Throws ConfigError.
std::unique_ptr<run::RunContext> initialize(const Options& options);
// Closes trainers and models, the newest first, waits for the other ranks and leaves.
void shutdown();
// Tells the other ranks that this one has failed. Does nothing without groups.
void report_failure(const std::string& reason);
// Returns rank and number of ranks, as the groups or else the launcher's variables say.
std::pair<int, int> place_of_process();

// A model with its weights on this rank, and the plan of the run that it was loaded for.
class LoadedModel : public Closable {
 public:
  // Resolves the run (with every problem at once), joins the ranks and loads the weights of `folder_or_name`, or those
  // of the checkpoint that the run continues. Options without a dataset mean that the program brings one.
  LoadedModel(std::shared_ptr<const Options> options, const std::string& folder_or_name);
  ~LoadedModel() override { close(); }
  void close() override;

  model::VirtualModels& models();
  const run::RunPlan& plan() const { return plan_; }
  const Options& options() const { return *options_; }
  bool brings_data() const { return brings_data_; }
  const std::optional<std::filesystem::path>& checkpoint() const { return checkpoint_; }
  // Writes the model as a Hugging Face folder. Collective over all ranks.
  void save(const std::filesystem::path& folder);

 private:
  std::shared_ptr<const Options> options_;
  bool brings_data_ = false;
  run::RunPlan plan_;
  std::unique_ptr<run::RunContext> run_;
  std::optional<std::filesystem::path> checkpoint_;
  std::optional<model::VirtualModels> models_;
};

// The parts that Python brings, as C++ sees them. What is left out follows the options.
struct OwnTrainerParts {
  std::shared_ptr<const data::Dataset> train{};
  data::CollateFunction train_collate{};
  struct Eval {
    std::string name;
    std::shared_ptr<const data::Dataset> dataset;
    data::CollateFunction collate{};
  };
  std::vector<Eval> eval{};
  data::CollateFunction file_collate{};  // for datasets that options name
  std::function<std::unique_ptr<train::Objective>(model::VirtualModels& models)> objective{};
  std::unique_ptr<train::TrainerCallback> callbacks{};  // nullptr for none
};

// A trainer on this rank.
class RankTrainer : public Closable {
 public:
  // Opens the data and writes the summary of the run. Call it without the lock, as everything below.
  RankTrainer(std::shared_ptr<LoadedModel> model, OwnTrainerParts parts);
  ~RankTrainer() override { close(); }
  void close() override;

  train::Trainer& trainer();
  // Trains, and stops at Ctrl-C if `handles_signals`, which only the main thread may ask for.
  train::TrainOutput train(bool handles_signals);
  int received_signal() const { return received_signal_; }
  LoadedModel& model() { return *model_; }

 private:
  run::RunData open_data(OwnTrainerParts& parts) const;

  std::shared_ptr<LoadedModel> model_;
  run::RunPlan plan_;  // that of the model, with the parts that Python brings
  TraceRecorder trace_;
  comm::HeartbeatSlot heartbeat_;
  train::StopFlag stop_;
  std::unique_ptr<train::Trainer> trainer_;
  int received_signal_ = 0;
};

}  // namespace megalith::python
