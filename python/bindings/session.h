// A rank of a run, held by Python: its groups, models and trainers. What depends on the groups is closed
// before they are.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/comm/world.h"
#include "megalith/model/exchange/weights_in_memory.h"
#include "megalith/model/virtual_models.h"
#include "megalith/parallel/runtime.h"
#include "megalith/run/resolve/run_plan.h"
#include "megalith/run/run_context.h"
#include "megalith/run/run_data.h"
#include "megalith/train/trainer.h"
#include "options.h"

namespace megalith::python {

// Something that uses the groups of a rank and has to go before them.
class Closable {
 public:
  virtual ~Closable() = default;
  virtual void close() = 0;  // idempotent
};

// Checks what the options alone tell, before anything else is done.
void begin(const Options& options);

// A rank in this process: the process itself, or one of several threads, in tests. Each is used by one thread.
class Rank {
 public:
  // The rank that the launcher's variables name.
  static std::shared_ptr<Rank> of_process();
  // Ranks for so many threads. Operations of theirs have a time limit.
  static std::vector<std::shared_ptr<Rank>> of_threads(int size, double timeout_seconds);
  ~Rank();

  // Joins the ranks, makes the groups and sets the seeds; later calls only set the seeds. Throws ConfigError.
  void initialize(const Options& options);
  bool is_initialized() const;
  // Closes trainers and models, the newest first, waits for the other ranks and leaves.
  void shutdown();
  // Closes trainers and models without waiting for anybody: this rank has failed.
  void abandon();
  // Tells the other ranks that this one has failed. Does nothing without groups.
  void report_failure(const std::string& reason) const;
  // Returns rank and number of ranks.
  std::pair<int, int> place() const;

  // ---- For models and trainers ----
  // The ranks of a run that this one would take part in, and whether it begins the run (RunRequest::begins_run).
  run::RunWorld world(const config::CommConfig& comm) const;
  bool begins_run() const;
  // Returns the rank's part of a run, with groups. Throws ConfigError for other groups than those that there are.
  // `more` is what else the run brings.
  std::unique_ptr<run::RunContext> join(const config::TrainingArguments& args, const run::RunSettings& settings,
                                        run::InitializeOptions more = {});
  void add(Closable* object);
  void remove(Closable* object);

 private:
  explicit Rank(std::unique_ptr<comm::World> world);
  void close_objects();

  std::unique_ptr<comm::World> world_;            // a thread's own; nullptr for the process
  std::unique_ptr<parallel::Runtime> runtime_;    // likewise
  parallel::ParallelContext* context_ = nullptr;  // the groups; nullptr without any
  std::mutex mutex_;
  std::vector<Closable*> open_;  // guarded by mutex_: Python may drop an object on another thread
};

class RankTrainer;

// A model with its weights on this rank, and the plan of the run that it was loaded for.
class LoadedModel : public Closable {
 public:
  // Resolves the run (with every problem at once), joins the ranks and loads the weights of `folder_or_name`, or those
  // of the checkpoint that the run continues. Options without a dataset mean that the program brings one.
  LoadedModel(std::shared_ptr<Rank> rank, std::shared_ptr<const Options> options, const std::string& folder_or_name);
  ~LoadedModel() override;
  void close() override;

  model::VirtualModels& models();
  const run::RunPlan& plan() const { return plan_; }
  const Options& options() const { return *options_; }
  bool brings_data() const { return brings_data_; }
  const std::optional<std::filesystem::path>& checkpoint() const { return checkpoint_; }
  // Writes the model as a Hugging Face folder. Collective over all ranks.
  void save(const std::filesystem::path& folder);

  // ---- Weights in memory, between steps; see model/exchange/weights_in_memory.h ----
  std::unique_ptr<model::WeightStream> stream(const model::StreamOptions& options);
  std::vector<model::WeightShard> shards(model::WeightsOf of);
  model::GivenNames set_weights(const std::vector<model::GivenWeight>& given, bool strict, model::WeightsOf of);

  Rank& rank() { return *rank_; }
  // The trainers of the model, whose buffers may hold its parameters.
  void add(RankTrainer* trainer) { trainers_.push_back(trainer); }
  void remove(RankTrainer* trainer) { std::erase(trainers_, trainer); }

 private:
  // Returns the models once all their parameters have arrived.
  model::VirtualModels& complete_models();

  std::shared_ptr<Rank> rank_;
  std::shared_ptr<const Options> options_;
  bool brings_data_ = false;
  run::RunPlan plan_;
  std::unique_ptr<run::RunContext> run_;
  std::optional<std::filesystem::path> checkpoint_;
  std::optional<model::VirtualModels> models_;
  std::vector<RankTrainer*> trainers_;
};

// The parts that Python brings, as C++ sees them. What is left out follows the options.
struct OwnTrainerParts {
  // One of `dataset` and `stream` is set.
  struct Data {
    std::shared_ptr<const data::Dataset> dataset{};
    data::OpenStream stream{};
    data::CollateFunction collate{};
  };
  std::optional<Data> train{};
  std::vector<std::pair<std::string, Data>> eval{};  // by name, "" for a single one
  data::CollateFunction file_collate{};              // for datasets that options name
  std::function<std::unique_ptr<train::Objective>(model::VirtualModels& models)> objective{};
  std::unique_ptr<train::TrainerCallback> callbacks{};  // nullptr for none
};

// A trainer on this rank.
class RankTrainer : public Closable {
 public:
  // Opens the data and writes the summary of the run. Call it without the lock, as everything below.
  RankTrainer(std::shared_ptr<LoadedModel> model, OwnTrainerParts parts);
  ~RankTrainer() override;
  void close() override;

  train::Trainer& trainer();
  // Trains, and stops at Ctrl-C if `handles_signals`, which only the main thread may ask for.
  train::TrainOutput train(bool handles_signals);
  int received_signal() const { return received_signal_; }
  // The model with its optimizer; nullptr before the first train().
  train::OptimizedModel* optimized_model() { return trainer_ ? trainer_->optimized_model() : nullptr; }
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
