// RunContext and initialize_megatron: what Megatron-LM keeps in global variables, as one object.
//
//   const auto run = initialize_megatron(words, {.allow_no_cuda = true});
//   run->args(), run->tokenizer(), run->microbatches(), run->timers(), run->context() …
//
// This is the second form of initialize_megatron (the first takes a TrainingArguments and gives a ParallelContext;
// parallel/initialize.h). Nothing is global: several can live in one process, one a rank thread.
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
#include "megalith/parallel/initialize.h"
#include "megalith/run/run_tokenizer.h"
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
  std::function<void(const std::string&)> on_stuck{};  // see parallel::Runtime

  // At most one: groups that exist, or a world that is connected. Both outlive the run.
  parallel::ParallelContext* context = nullptr;
  comm::World* world = nullptr;
};

// One thread a rank.
class RunContext {
 public:
  // `args` after derive(), and validate()d for the world's size.
  RunContext(config::TrainingArguments args, InitializeOptions options);
  RunContext(const RunContext&) = delete;
  RunContext& operator=(const RunContext&) = delete;

  const config::TrainingArguments& args() const { return args_; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const layout::MicrobatchCalculator& microbatches() const { return *microbatches_; }

  // Nothing when no option speaks of one.
  const std::optional<RunTokenizer>& tokenizer() const { return tokenizer_; }
  // The same; throws ConfigError naming the options that make one.
  const RunTokenizer& required_tokenizer() const;
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
  // anew. All ranks call it.
  void finish_mpu_init();
  bool mpu_is_initialized() const { return context_ != nullptr; }
  // Throws InternalError before finish_mpu_init.
  parallel::ParallelContext& context();

 private:
  void find_place();

  const config::TrainingArguments args_;
  const InitializeOptions options_;
  int rank_ = 0, world_size_ = 1;
  std::optional<layout::MicrobatchCalculator> microbatches_;  // always there after construction
  std::optional<RunTokenizer> tokenizer_;
  ScalarWriter tensorboard_;
  TraceRecorder timers_;
  std::unique_ptr<parallel::Runtime> runtime_;    // empty with options_.context
  parallel::ParallelContext* context_ = nullptr;  // after finish_mpu_init
};

// Parses Megatron's words (the pretrain dialect), checks and derives them, and makes the RunContext. Throws ConfigError
// with every problem of the words; for options that are refused; without CUDA ("requires CUDA") unless
// allow_no_cuda or use_cpu is given.
std::unique_ptr<RunContext> initialize_megatron(std::span<const std::string> words, InitializeOptions options = {});
// The same for arguments that a program has made itself; extra_args, args_defaults and ignore_unknown_args are about
// words.
std::unique_ptr<RunContext> initialize_megatron(const config::TrainingArguments& args, InitializeOptions options = {});

}  // namespace megalith::run
