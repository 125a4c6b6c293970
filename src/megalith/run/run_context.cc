#include "megalith/run/run_context.h"

#include <ATen/Context.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/comm/store/rendezvous.h"
#include "megalith/config/derive.h"
#include "megalith/config/validate.h"
#include "megalith/layout/vocab_split.h"
#include "megalith/run/pretrain.h"

namespace megalith::run {

namespace {

using config::OptionUse;

void check_device(const config::TrainingArguments& args, const InitializeOptions& options) {
  if (options.allow_no_cuda || args.comm.use_cpu) return;
  check<ConfigError>(at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0,
                     "initialize_megatron requires CUDA, and there is no CUDA device; set allow_no_cuda, or the option"
                     " use_cpu, to run on the CPU");
}

int world_size_of(const InitializeOptions& options) {
  if (options.context != nullptr) return options.context->world().size();
  if (options.world != nullptr) return options.world->size();
  return comm::rendezvous_from_env().world_size;
}

// The words with those defaults behind them that they do not give themselves; `overruled` tells of the others.
std::vector<std::string> with_defaults(std::span<const std::string> words, const InitializeOptions& options,
                                       config::UnknownNames unknown, std::vector<std::string>& overruled) {
  std::vector<std::string> all(words.begin(), words.end());
  if (options.args_defaults.empty()) return all;
  const auto given = config::parse_arguments(config::Dialect::kPretrain, words, options.extra_args, unknown);
  for (const auto& [name, value] : options.args_defaults) {
    const auto match = config::OptionTable::instance().find(name);
    check<ConfigError>(match && !match->negated, "args_defaults: {} is no option", name);
    const auto& uses = given.report.uses;
    const auto use = std::ranges::find(uses, match->option->name, &OptionUse::name);
    if (use == uses.end()) {
      all.push_back("--" + name + "=" + value);
    } else if (use->value != value) {
      overruled.push_back(
          fmt::format("{} = {} is taken in place of this program's default {}", use->given, use->value, value));
    }
  }
  return all;
}

}  // namespace

RunContext::RunContext(config::TrainingArguments args, InitializeOptions options)
    : args_(std::move(args)), options_(std::move(options)), tokenizer_(make_run_tokenizer(args_)) {
  check(options_.context == nullptr || options_.world == nullptr, "a context and a world are given; keep one");
  find_place();
  const layout::RankGrid grid(config::grid_shape(args_, world_size_));
  microbatches_.emplace(config::batch_plan(args_, grid.dp()));
  if (options_.tensorboard && args_.logging.logging_dir && rank_ == world_size_ - 1)
    tensorboard_ = options_.tensorboard(*args_.logging.logging_dir);
}

void RunContext::find_place() {
  comm::World* world = options_.context != nullptr ? &options_.context->world() : options_.world;
  if (world != nullptr) {
    rank_ = world->rank();
    world_size_ = world->size();
  } else {
    const comm::Rendezvous place = comm::rendezvous_from_env();
    rank_ = place.rank;
    world_size_ = place.world_size;
  }
  if (options_.context != nullptr) return;
  runtime_ = world != nullptr ? std::make_unique<parallel::Runtime>(*world) : std::make_unique<parallel::Runtime>();
}

const RunTokenizer& RunContext::required_tokenizer() const {
  check<ConfigError>(tokenizer_.has_value(),
                     "there is no tokenizer; set tokenizer_type with tokenizer_model, or vocab_file with merge_file, or"
                     " vocab_size for data without text");
  return *tokenizer_;
}

int64_t RunContext::padded_vocab_size() const {
  if (args_.shape.padded_vocab_size) return *args_.shape.padded_vocab_size;
  return layout::padded_vocab_size(required_tokenizer().tokens.vocab_size, args_.shape.make_vocab_size_divisible_by,
                                   args_.parallel.tp.value_or(1));
}

void RunContext::finish_mpu_init() {
  if (runtime_) {
    parallel::EmbeddingRanks ranks;
    if (options_.get_embedding_ranks) ranks.word = options_.get_embedding_ranks;
    if (options_.get_position_embedding_ranks) ranks.position = options_.get_position_embedding_ranks;
    context_ = &runtime_->initialize(args_, options_.on_stuck, ranks);
  } else {
    context_ = options_.context;
    context_->rng().seed(config::rng_seeds(args_, context_->grid(), rank_));
  }
  if (!options_.autoresume || !options_.autoresume->init) return;
  const comm::Group world = context_->world().world();
  world.barrier("autoresume");
  options_.autoresume->init();
  world.barrier("autoresume: done");
}

parallel::ParallelContext& RunContext::context() {
  check(context_ != nullptr, "the parallel context is used before finish_mpu_init");
  return *context_;
}

std::unique_ptr<RunContext> initialize_megatron(const config::TrainingArguments& args, InitializeOptions options) {
  check_device(args, options);
  config::validate(args, {.world_size = world_size_of(options), .needs_inputs = false});
  const auto effective = config::derive(args);
  const bool skip = options.skip_mpu_initialization;
  auto run = std::make_unique<RunContext>(effective.args, std::move(options));
  if (run->rank() == 0)
    for (const std::string& warning : effective.warnings) log_warning("{}", warning);
  if (!skip) run->finish_mpu_init();
  return run;
}

std::unique_ptr<RunContext> initialize_megatron(std::span<const std::string> words, InitializeOptions options) {
  const auto unknown = options.ignore_unknown_args ? config::UnknownNames::kIgnore : config::UnknownNames::kRefuse;
  std::vector<std::string> overruled;
  const auto all_words = with_defaults(words, options, unknown, overruled);
  auto parsed = config::parse_arguments(config::Dialect::kPretrain, all_words, options.extra_args, unknown);
  parsed.report.check_not_refused();
  take_checkpoint_arguments(parsed);
  auto run = initialize_megatron(parsed.args, std::move(options));
  if (run->rank() != 0) return run;
  for (const std::string& warning : overruled) log_warning("{}", warning);
  for (const std::string& note : parsed.notes) log_info("{}", note);
  return run;
}

}  // namespace megalith::run
