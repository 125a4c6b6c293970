#include "megalith/plan/run_shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "megalith/base/error.h"
#include "megalith/config/derive.h"
#include "megalith/layout/pipeline_schedule.h"
#include "megalith/plan/adapter_sizes.h"

namespace megalith::plan {

namespace {

class Problems {
 public:
  template <typename... Args>
  void require(bool holds, fmt::format_string<Args...> text, Args&&... args) {
    if (!holds) found_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  void add(const std::vector<std::string>& more) { found_.insert(found_.end(), more.begin(), more.end()); }
  std::vector<std::string> take() { return std::move(found_); }

 private:
  std::vector<std::string> found_;
};

layout::SplitRequest split_request(const RunShape& run) {
  layout::SplitRequest request = config::split_request(run.args);
  request.num_layers = static_cast<int>(run.model->num_layers);
  request.mtp_layers = static_cast<int>(run.model->mtp_layers);
  request.pp = run.grid.pp;
  return request;
}

void check_tensor_parallel(const RunShape& run, Problems& problems) {
  const model::ModelConfig& m = *run.model;
  const int tp = run.grid.tp;
  problems.require(m.num_heads % tp == 0,
                   "tensor_model_parallel_size {} does not divide the {} attention heads; use a divisor of them", tp,
                   m.num_heads);
  if (!m.latent)
    problems.require(m.num_kv_heads % tp == 0 || tp % m.num_kv_heads == 0,
                     "tensor_model_parallel_size {} neither divides the {} key/value heads nor is a multiple of them",
                     tp, m.num_kv_heads);
  problems.require(m.mlp_width % tp == 0, "tensor_model_parallel_size {} does not divide the MLP's width {}", tp,
                   m.mlp_width);
  if (m.delta_net)
    problems.require(m.delta_net->key_heads % tp == 0,
                     "tensor_model_parallel_size {} does not divide the {} key heads of linear attention", tp,
                     m.delta_net->key_heads);
}

// As the collator pads: in halves for each context-parallel rank, in equal shares for each tensor-parallel one.
int64_t padded_length(const RunShape& run) {
  int64_t multiple = run.grid.cp > 1 ? 2 * run.grid.cp : 1;
  if (run.options.sequence_parallel) multiple = std::lcm(multiple, int64_t{run.grid.cp} * run.grid.tp);
  return (run.sequence_length + multiple - 1) / multiple * multiple;
}

void check_experts(const RunShape& run, Problems& problems) {
  const model::ModelConfig& m = *run.model;
  if (!m.moe) {
    problems.require(run.grid.ep == 1, "expert_model_parallel_size {}: a {} model has no experts; use 1", run.grid.ep,
                     m.family);
    return;
  }
  nn::MoeShape shape = *m.moe;
  shape.hidden = m.hidden_size;
  problems.add(nn::problems(shape, run.grid.ep, run.grid.expert_tp()));
}

// The adapter of the arguments; "all" stays as it is.
peft::AdapterConfig planned_adapter(const config::LoraConfig& lora) {
  return {.rank = lora.rank,
          .dropout = lora.dropout,
          .target_modules = lora.target,
          .modules_to_save = lora.additional_target,
          .base_model = {},
          .source = {}};
}

// What preferences change: two answers a sample; a reference with weights of its own, unless it lies below the adapter
// or has been run before.
void apply_preferences(RunShape& run) {
  const config::PreferenceConfig& how = run.args.preference;
  run.answers = 2;
  run.reference =
      config::needs_reference(how.loss) && !how.precompute_ref_log_probs && !(run.options.adapter && !how.ref_model);
}

}  // namespace

double RunShape::tokens() const {
  return static_cast<double>(sequences()) * static_cast<double>(sequence_length) / grid.cp;
}

double RunShape::shard_tokens() const { return options.sequence_parallel ? tokens() / grid.tp : tokens(); }

layout::LayerSplit RunShape::split() const { return layout::LayerSplit(split_request(*this)); }

std::vector<std::string> layout_problems(const RunShape& run) {
  Problems problems;
  check_tensor_parallel(run, problems);
  check_experts(run, problems);
  const int cp = run.grid.cp;
  problems.require(cp == 1 || (!run.model->delta_net && run.model->mtp_layers == 0),
                   "context_parallel_size {}: models with linear attention or multi-token prediction need 1", cp);
  problems.add(layout::problems(split_request(run)));
  const layout::PipelineShape shape = config::pipeline_shape(run.args, static_cast<int>(run.microbatches));
  problems.add(layout::problems(shape));
  problems.add(adapter_problems(run));
  return problems.take();
}

RunShape run_shape(const model::ModelConfig& model, const config::TrainingArguments& args,
                   const model::ModelOptions& options, int world_size, int64_t sequence_length,
                   const Machinery& machinery) {
  check<ConfigError>(sequence_length >= 1, "the sequence length is {}; it must be positive", sequence_length);
  RunShape run;
  run.model = &model;
  run.args = args;
  run.args.shape.num_layers = static_cast<int>(model.num_layers);
  run.grid = config::grid_shape(args, world_size);
  run.machinery = machinery;
  run.sequence_length = sequence_length;
  std::vector<std::string> found;
  for (const layout::GridProblem& problem : layout::problems(run.grid)) found.push_back(problem.message);
  check<ConfigError>(found.empty(), "{}", fmt::join(found, "\n"));
  run.options = options;
  if (args.run.finetuning_type == config::FinetuningType::kLora) run.options.adapter = planned_adapter(args.lora);
  if (args.run.stage == config::Stage::kDpo) apply_preferences(run);
  if (model.moe && run.grid.tp > 1) run.options.sequence_parallel = true;  // as a run does, with a warning
  run.sequence_length = padded_length(run);
  const layout::MicrobatchCalculator batches(config::batch_plan(args, run.dp()));
  run.micro_batch_size = batches.micro_batch_size();
  run.microbatches = batches.final_global_batch_size() / (run.micro_batch_size * run.dp());
  found = layout_problems(run);
  check<ConfigError>(found.empty(), "{}", fmt::join(found, "\n"));
  return run;
}

}  // namespace megalith::plan
