// initialize_megatron and RunContext: from arguments to what Megatron-LM keeps in global variables, as one object.
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

namespace megalith::run {

// A point of a curve. `step`: the iteration.
using ScalarWriter = std::function<void(std::string_view tag, double value, int64_t step)>;

// A cluster's service that ends jobs and starts them again. Each rank has one.
struct Autoresume {
  std::function<void()> init{};                 // once, between two barriers of all ranks
  std::function<bool()> termination_requested;  // asked every `interval` iterations, on each rank
  std::function<void()> request_resume{};       // the run was saved and ends: start it again; on rank 0
  int64_t interval = 1000;
};

struct InitializeOptions {
  config::Dialect dialect = config::Dialect::kPretrain;  // whose defaults and rules the words follow
  // extra_args_provider: options of the program's own; their targets are set.
  std::vector<config::CommandOption> extra_args{};
  // Option (with underscores) and value: taken where the words do not give the option. A word that differs wins, with a
  // warning.
  std::vector<std::pair<std::string, std::string>> args_defaults{};
  bool ignore_unknown_args = false;
  bool allow_no_cuda = false;            // run on the CPU; use_cpu says so, too
  bool skip_mpu_initialization = false;  // no groups, no seeds: the caller calls finish_mpu_init when it wants them
  layout::PipelineRanks get_embedding_ranks{};           // empty: first and last stage
  layout::PipelineRanks get_position_embedding_ranks{};  // empty: first stage

  // Makes the writer of a folder; called on the last rank only, and only with tensorboard_dir.
  std::function<ScalarWriter(const std::filesystem::path& folder)> tensorboard{};
  std::optional<Autoresume> autoresume{};
  const train::StopFlag* stop = nullptr;               // asks the run to end in order; outlives it
  comm::Heartbeat heartbeat{};                         // see TrainerSetup
  std::filesystem::path rejection_tracker{};           // see TrainerSetup
  std::function<void(const std::string&)> on_stuck{};  // see comm::WorldOptions; that of the call that connects

  // At most one: groups that exist, or a world that is connected. Both outlive the run. With neither, the process's own
  // connection is used.
  parallel::ParallelContext* context = nullptr;
  comm::World* world = nullptr;
};

// One thread a rank.
class RunContext {
 public:
  // `args` after derive(), and validate()d for the world's size. `settings`: what they come to, for this world.
  RunContext(config::TrainingArguments args, InitializeOptions options);
  RunContext(config::TrainingArguments args, RunSettings settings, InitializeOptions options);
  RunContext(const RunContext&) = delete;
  RunContext& operator=(const RunContext&) = delete;

  // Megatron's get_args: what was asked for, every normalisation applied.
  const config::TrainingArguments& args() const { return args_; }
  // What holds, with every default decided: pretrain() acts on these.
  const RunSettings& settings() const { return settings_; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const layout::MicrobatchCalculator& microbatches() const { return *microbatches_; }

  // Nothing when no option speaks of one.
  const std::optional<RunTokenizer>& tokenizer() const { return tokenizer_; }
  // The same; throws ConfigError naming the options that make one.
  const RunTokenizer& required_tokenizer() const { return required(tokenizer_); }
  // Rows of the embedding over all ranks; needs a tokenizer.
  int64_t padded_vocab_size() const;

  // Empty on all ranks but the last, and without tensorboard_dir or a hook.
  const ScalarWriter& tensorboard() const { return tensorboard_; }
  TraceRecorder& timers() { return timers_; }
  const std::optional<Autoresume>& autoresume() const { return options_.autoresume; }
  const comm::Heartbeat& heartbeat() const { return options_.heartbeat; }
  const std::filesystem::path& rejection_tracker() const { return options_.rejection_tracker; }
  // InitializeOptions::stop is up on this rank.
  bool stop_requested() const { return options_.stop != nullptr && options_.stop->requested(); }

  // Groups, seeds, autoresume. initialize_megatron has called it, unless skip_mpu_initialization; a second call seeds
  // again. All ranks call it.
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
// problem of the words; for options that are refused, or planned and not built yet; without CUDA ("requires CUDA")
// unless allow_no_cuda or use_cpu is given.
//
// Called again in a process, it leaves the groups as they are and sets all seeds again. Other sizes than those of the
// groups bring a warning, and a RunContext that is of no use for training: call shutdown_megatron before.
std::unique_ptr<RunContext> initialize_megatron(std::span<const std::string> words, InitializeOptions options = {});
// The same for arguments that a program has made itself; dialect, extra_args, args_defaults and ignore_unknown_args are
// about words. They are checked as words are, as far as a struct can tell (config::report_of): a refused option without
// a member in TrainingArguments cannot be seen here. use_checkpoint_args, too, is about words: it asks which of them
// were given.
std::unique_ptr<RunContext> initialize_megatron(const config::TrainingArguments& args, InitializeOptions options = {});

// Whether this process has groups: made by initialize_megatron (without a context or a world of the caller's), and not
// shut down since.
bool is_distribute_initialized();
// Waits for the other ranks and leaves them; the next initialize_megatron connects again and may choose other sizes. A
// program that ends without it leaves without waiting, which the ranks that still work take for a failure. All ranks
// call it. Does nothing when there is no connection.
void shutdown_megatron();

}  // namespace megalith::run
