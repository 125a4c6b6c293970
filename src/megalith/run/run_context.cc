// Two ways lead to a RunContext: from words and from a filled-in struct. Both check the options, derive the settings
// and then join the other ranks. The connection belongs to the process (process_runtime), not to a RunContext, since a
// process is a rank for its whole life; tests whose ranks are threads pass a World instead.
#include "megalith/run/run_context.h"

#include <ATen/Context.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/comm/store/rendezvous.h"
#include "megalith/config/derive.h"
#include "megalith/config/validate.h"
#include "megalith/layout/rank_grid.h"
#include "megalith/layout/vocab_split.h"
#include "megalith/run/resolve/load.h"
#include "megalith/run/resolve/run_settings.h"
#include "megalith/run/resolve/runtime_settings.h"

namespace megalith::run {

namespace {

using config::OptionUse;

// The connection of a process that is one rank. Only users' entry points use it; the library takes a context.
parallel::Runtime& process_runtime() {
  static parallel::Runtime runtime;
  return runtime;
}

// The reference's rule: a program that forgets a GPU machine should fail and not train slowly.
void check_device(const config::TrainingArguments& args, const InitializeOptions& options) {
  if (options.allow_no_cuda || args.comm.use_cpu) return;
  check<ConfigError>(at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0,
                     "initialize_megatron requires CUDA, and there is no CUDA device; set allow_no_cuda, or the option"
                     " use_cpu, to run on the CPU");
}

// Returns the place of this rank: in the caller's world, or as the launcher's variables say.
comm::Rendezvous place_of(const InitializeOptions& options) {
  if (options.context != nullptr) return options.context->world().place();
  if (options.world != nullptr) return options.world->place();
  return comm::rendezvous_from_env();
}

// Appends to the words the defaults of the program that they do not give; adds a message to `overruled` for the others.
std::vector<std::string> with_defaults(std::span<const std::string> words, const InitializeOptions& options,
                                       config::UnknownNames unknown, std::vector<std::string>& overruled) {
  std::vector<std::string> all(words.begin(), words.end());
  if (options.args_defaults.empty()) return all;
  // Parsed once only to see which options are given; the real parse follows with the defaults appended.
  const auto given = config::parse_arguments(options.dialect, words, options.extra_args, unknown);
  for (const auto& [name, value] : options.args_defaults) {
    const auto match = config::OptionTable::instance().find(name);
    check<ConfigError>(match && !match->negated, "args_defaults: {} is not an option", name);
    const auto& uses = given.report.uses;
    const auto use = std::ranges::find(uses, match->option->name, &OptionUse::name);
    if (use == uses.end()) {
      all.push_back("--" + name + "=" + value);
    } else if (use->value != value) {
      overruled.push_back(fmt::format("{} = {} replaces this program's default {}", use->given, use->value, value));
    }
  }
  return all;
}

// Starts a run from options as given; refused options and notes have been handled by the caller.
std::unique_ptr<RunContext> start_run(const config::TrainingArguments& args, InitializeOptions options) {
  check_device(args, options);
  // The program brings its model and data, so the options need not name them.
  config::validate(args, {.world_size = place_of(options).world_size, .needs_inputs = false});
  const auto effective = config::derive(args);
  const bool skip = options.skip_mpu_initialization;
  auto run = std::make_unique<RunContext>(effective.args, std::move(options));
  if (run->rank() == 0)
    for (const std::string& warning : effective.warnings) log_warning("{}", warning);
  if (!skip) run->finish_mpu_init();
  return run;
}

}  // namespace

RunContext::RunContext(config::TrainingArguments args, InitializeOptions options)
    : RunContext(args, run_settings(args, world_of(place_of(options))), std::move(options)) {}

// Three ways to a connection: the caller's context, the caller's world (tests with threads), or the process's own.
RunContext::RunContext(config::TrainingArguments args, RunSettings settings, InitializeOptions options)
    : args_(std::move(args)),
      settings_(std::move(settings)),
      options_(std::move(options)),
      tokenizer_(make_run_tokenizer(args_)) {
  check(options_.context == nullptr || options_.world == nullptr, "a context and a world are given; keep one");
  const comm::Rendezvous place = place_of(options_);
  rank_ = place.rank;
  world_size_ = place.world_size;
  if (options_.world != nullptr) thread_runtime_ = std::make_unique<parallel::Runtime>(*options_.world);
  if (options_.context == nullptr) runtime_ = thread_runtime_ ? thread_runtime_.get() : &process_runtime();
  microbatches_.emplace(settings_.trainer.batch);
  // The last rank writes, as in Megatron: it is the one that has the losses of a pipeline.
  if (options_.tensorboard && args_.logging.logging_dir && rank_ == world_size_ - 1)
    tensorboard_ = options_.tensorboard(*args_.logging.logging_dir);
}

int64_t RunContext::padded_vocab_size() const {
  if (settings_.pretrain.padded_vocab_size > 0) return settings_.pretrain.padded_vocab_size;
  return layout::padded_vocab_size(required_tokenizer().tokens.vocab_size, settings_.model.options.vocab_multiple,
                                   settings_.runtime.grid.tp);
}

// With a context of the caller the groups exist already, and only the random streams are seeded.
void RunContext::finish_mpu_init() {
  const parallel::RuntimeSettings& settings = settings_.runtime;
  if (runtime_ != nullptr) {
    parallel::EmbeddingRanks ranks;
    if (options_.get_embedding_ranks) ranks.word = options_.get_embedding_ranks;
    if (options_.get_position_embedding_ranks) ranks.position = options_.get_position_embedding_ranks;
    runtime_->initialize(settings, options_.on_stuck, ranks);
  } else {
    options_.context->rng().seed(parallel::rng_seeds(settings.seeds, options_.context->grid(), rank_));
  }
  finished_ = true;
  if (!options_.autoresume || !options_.autoresume->init) return;
  const comm::Group all_ranks = context().world().world();
  // The service may be a file or a daemon of the machine; no rank may use it before every rank is there.
  all_ranks.barrier("autoresume");
  options_.autoresume->init();
  all_ranks.barrier("autoresume: done");
}

bool RunContext::mpu_is_initialized() const { return finished_ && (runtime_ == nullptr || runtime_->is_initialized()); }

parallel::ParallelContext& RunContext::context() {
  check(mpu_is_initialized(), "the parallel context is used before finish_mpu_init, or after shutdown_megatron");
  return runtime_ != nullptr ? runtime_->context() : *options_.context;
}

std::unique_ptr<RunContext> initialize_megatron(const config::TrainingArguments& args, InitializeOptions options) {
  const config::OptionReport report = config::report_of(args);
  report.check_runnable();
  auto run = start_run(args, std::move(options));
  if (run->rank() == 0)
    for (const std::string& note : report.notes()) log_info("{}", note);
  return run;
}

std::unique_ptr<RunContext> initialize_megatron(std::span<const std::string> words, InitializeOptions options) {
  const auto unknown = options.ignore_unknown_args ? config::UnknownNames::kIgnore : config::UnknownNames::kRefuse;
  std::vector<std::string> overruled;
  // Defaults of the program are appended as words, so that they pass the same checks as the user's.
  const auto all_words = with_defaults(words, options, unknown, overruled);
  auto parsed = config::parse_arguments(options.dialect, all_words, options.extra_args, unknown);
  parsed.report.check_runnable();
  if (options.dialect == config::Dialect::kPretrain) take_checkpoint_arguments(parsed);
  auto run = start_run(parsed.args, std::move(options));
  if (run->rank() != 0) return run;
  for (const std::string& warning : overruled) log_warning("{}", warning);
  for (const std::string& note : parsed.notes) log_info("{}", note);
  return run;
}

bool is_distribute_initialized() { return process_runtime().is_initialized(); }
void shutdown_megatron() { process_runtime().shutdown(); }

}  // namespace megalith::run
