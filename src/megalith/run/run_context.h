// initialize_megatron and RunContext: turn arguments into one object that holds what Megatron-LM keeps in global
// variables.
//
//   const auto run = initialize_megatron(words, {.allow_no_cuda = true});
//   run->args(), run->tokenizer(), run->microbatches(), run->timers(), run->context() …
//   shutdown_megatron();
//
// A process joins the other ranks once, through a connection that belongs to the process, not to a RunContext:
// initialize_megatron may be called again, and finds the groups of the first call. Ranks that are threads bring a World
// each (InitializeOptions::world) and share nothing.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/comm/store/heartbeat.h"
#include "megalith/config/parser.h"
#include "megalith/layout/microbatches.h"
#include "megalith/parallel/runtime.h"
#include "megalith/run/resolve/run_settings.h"
#include "megalith/run/resolve/run_tokenizer.h"
#include "megalith/train/stop_flag.h"

namespace megalith::train {
class KeptState;
}

namespace megalith::run {

// Writes a point of a curve; `step` is the iteration.
using ScalarWriter = std::function<void(std::string_view tag, double value, int64_t step)>;

// A service of a cluster that ends jobs and starts them again. Each rank has one.
struct Autoresume {
  std::function<void()> init{};                 // called once, between two barriers of all ranks
  std::function<bool()> termination_requested;  // called every `interval` iterations, on each rank
  std::function<void()> request_resume{};       // called on rank 0 when the run has been saved and ends
  int64_t interval = 1000;
};

// Everything a program can tell initialize_megatron besides its arguments.
struct InitializeOptions {
  config::Dialect dialect = config::Dialect::kPretrain;  // decides defaults and rules of the words
  // The program's own options (extra_args_provider); parsing sets their targets.
  std::vector<config::CommandOption> extra_args{};
  // Pairs of option (with underscores) and value, used where the words do not give the option. If the words give
  // another value, that one is used, with a warning.
  std::vector<std::pair<std::string, std::string>> args_defaults{};
  bool ignore_unknown_args = false;
  bool allow_no_cuda = false;            // run on the CPU; option use_cpu does the same
  bool skip_mpu_initialization = false;  // make no groups and set no seeds; the caller calls finish_mpu_init later
  layout::PipelineRanks get_embedding_ranks{};           // empty means first and last stage
  layout::PipelineRanks get_position_embedding_ranks{};  // empty means first stage

  // Creates the writer of a folder; called on the last rank only, and only with tensorboard_dir.
  std::function<ScalarWriter(const std::filesystem::path& folder)> tensorboard{};
  std::optional<Autoresume> autoresume{};
  const train::StopFlag* stop = nullptr;               // requests a graceful stop; must outlive the run
  comm::Heartbeat heartbeat{};                         // see TrainerSetup
  std::filesystem::path rejection_tracker{};           // see TrainerSetup
  train::KeptState* kept = nullptr;                    // see TrainerSetup
  std::function<void(const std::string&)> on_stuck{};  // see comm::WorldOptions; used by the call that connects

  // At most one of these: existing groups, or a connected world. They must outlive the run. With neither, the
  // connection of the process is used.
  parallel::ParallelContext* context = nullptr;
  comm::World* world = nullptr;
};

// The state of a run on one rank. Used by one thread per rank.
class RunContext {
 public:
  // `args` have gone through validate() for the size of the world and derive(). `settings` are resolved from them.
  RunContext(config::TrainingArguments args, InitializeOptions options);
  RunContext(config::TrainingArguments args, RunSettings settings, InitializeOptions options);
  RunContext(const RunContext&) = delete;
  RunContext& operator=(const RunContext&) = delete;

  // Returns the options after all normalizations (Megatron's get_args).
  const config::TrainingArguments& args() const { return args_; }
  // Returns the settings with every default decided; pretrain() uses these.
  const RunSettings& settings() const { return settings_; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const layout::MicrobatchCalculator& microbatches() const { return *microbatches_; }

  // std::nullopt when no option names a tokenizer.
  const std::optional<RunTokenizer>& tokenizer() const { return tokenizer_; }
  // Returns the tokenizer; throws ConfigError naming the options for one if there is none.
  const RunTokenizer& required_tokenizer() const { return required(tokenizer_); }
  // Returns the rows of the embedding over all ranks; needs padded_vocab_size or a tokenizer.
  int64_t padded_vocab_size() const;

  // Empty on all ranks but the last, and without tensorboard_dir or a hook.
  const ScalarWriter& tensorboard() const { return tensorboard_; }
  TraceRecorder& timers() { return timers_; }
  const std::optional<Autoresume>& autoresume() const { return options_.autoresume; }
  const comm::Heartbeat& heartbeat() const { return options_.heartbeat; }
  const std::filesystem::path& rejection_tracker() const { return options_.rejection_tracker; }
  train::KeptState* kept() const { return options_.kept; }
  // Returns whether InitializeOptions::stop is raised on this rank.
  bool stop_requested() const { return options_.stop != nullptr && options_.stop->requested(); }

  // Makes the groups, sets the seeds and initializes autoresume. initialize_megatron calls it unless
  // skip_mpu_initialization; a second call only seeds again. All ranks call it.
  void finish_mpu_init();
  // False before finish_mpu_init, and after shutdown_megatron.
  bool mpu_is_initialized() const;
  // Throws InternalError while mpu_is_initialized is false.
  parallel::ParallelContext& context();

 private:
  const config::TrainingArguments args_;
  const RunSettings settings_;
  const InitializeOptions options_;
  int rank_ = 0, world_size_ = 1;
  std::optional<layout::MicrobatchCalculator> microbatches_;  // always there after construction
  std::optional<RunTokenizer> tokenizer_;
  ScalarWriter tensorboard_;
  TraceRecorder timers_;
  std::unique_ptr<parallel::Runtime> thread_runtime_;  // with options_.world
  parallel::Runtime* runtime_ = nullptr;               // that one, or the process's; null with options_.context
  bool finished_ = false;                              // finish_mpu_init has been called
};

// Parses words, checks and derives them, joins the other ranks, and makes the RunContext. Throws ConfigError with every
// problem of the words; for options that are refused or not implemented; and without CUDA ("requires CUDA") unless
// allow_no_cuda or use_cpu is given.
//
// A second call in a process keeps the groups and sets all seeds again. If it asks for other sizes than those of the
// groups, it warns and returns a RunContext that cannot train: call shutdown_megatron first.
std::unique_ptr<RunContext> initialize_megatron(std::span<const std::string> words, InitializeOptions options = {});
// The same for arguments that a program has filled in itself; dialect, extra_args, args_defaults and
// ignore_unknown_args have no effect. Arguments are checked like words as far as possible (config::report_of): a
// refused option without a member in TrainingArguments cannot be seen here. use_checkpoint_args has no effect either,
// since it depends on which words were given.
std::unique_ptr<RunContext> initialize_megatron(const config::TrainingArguments& args, InitializeOptions options = {});

// Returns whether this process has groups: made by initialize_megatron (without a context or world of the caller) and
// not shut down since.
bool is_distribute_initialized();
// Waits for the other ranks and disconnects; the next initialize_megatron connects again and may choose other sizes. A
// program that ends without this call leaves without waiting, which ranks that still work take for a failure. All ranks
// call it. Does nothing when there is no connection.
void shutdown_megatron();

}  // namespace megalith::run
