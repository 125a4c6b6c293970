// Connects options to the planner for `megalith plan`, `megalith preview memory` and the check at the start of a run.
// The check compares the planned peak with the memory that is free now, before weights are loaded: a run that cannot
// fit ends after seconds instead of in its first step.
#include "megalith/run/plan_inputs.h"

#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/comm/store/rendezvous.h"
#include "megalith/hf/hub_cache.h"
#include "megalith/layout/grid_shape.h"
#include "megalith/model/families/family.h"
#include "megalith/model/virtual_models.h"
#include "megalith/nn/tensor_parallel/sliced_product.h"
#include "megalith/observe/units.h"
#include "megalith/run/resolve/adapter_source.h"
#include "megalith/run/resolve/model_from_options.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/run_shape.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/run/vocabulary/run_vocabulary.h"

namespace megalith::run {

namespace {

// Returns the memory that this rank may use: what is free on its GPU, or its share of the host's. 0 when unknown.
double device_bytes(const parallel::ParallelContext& context) {
  if (context.device().is_cuda()) {
    const auto [free, all] = at::accelerator::getMemoryInfo(context.device().index());
    return static_cast<double>(free);
  }
  return available_host_bytes() / comm::rendezvous_from_env().local_world_size;
}

}  // namespace

double available_host_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string key, line; file >> key && std::getline(file, line);)
    if (key == "MemAvailable:") return std::stod(line) * 1024;
  return 0;
}

bool was_given(const config::OptionReport& report, std::string_view name) {
  return std::ranges::any_of(report.uses, [&](const config::OptionUse& use) { return use.name == name; });
}

// LLaMA-Factory's default is LoRA, but a planner that is asked about a model is usually asked about all of its
// weights.
config::TrainingArguments planned_arguments(config::TrainingArguments args, const config::OptionReport& report) {
  if (!was_given(report, "finetuning_type")) args.run.finetuning_type = config::FinetuningType::kFull;
  return args;
}

// --model wins over model_name_or_path; without a folder the options describe the model. Weights are not needed.
PlannedModel planned_model(const std::optional<std::string>& model, const config::TrainingArguments& args) {
  const std::optional<std::string>& path = model ? model : args.source.model_name_or_path;
  if (path) {
    const auto folder = hf::find_model_folder(*path, hf::HubEnvironment::from_process(), hf::ModelParts::kConfig);
    PlannedModel planned{.config = model_overrides(args).applied_to(model::read_model_config(folder))};
    RunVocabulary vocabulary;
    if (asks_for_rows(args.source)) {
      vocabulary = run_vocabulary(args, folder, planned.config, /*source=*/std::nullopt);
      planned.config.vocab_size = vocabulary.size;
    }
    if (!trains_adapter(args)) return planned;
    model::AdapterSource adapter{.fresh = new_adapter(args)};
    train_new_rows(vocabulary, planned.config, adapter);
    planned.trained_modules = adapter.fresh.modules_to_save;
    if (adapter.fresh.biases == peft::TrainedBiases::kAll) planned.trained_modules.emplace_back("bias");
    return planned;
  }
  check<ConfigError>(args.shape.hidden_size && args.shape.num_layers,
                     "there is no model: give --model DIR (a folder with config.json), or Megatron's options for its"
                     " shape (--num_layers, --hidden_size, --num_attention_heads, --vocab_size, …)");
  check<ConfigError>(args.shape.vocab_size.has_value(), "vocab_size is missing: how many tokens the model knows");
  return {.config = model_from_options(args, {.size = *args.shape.vocab_size}),
          .trained_modules = args.lora.additional_target};
}

// Counts by names and shapes of the whole model, so no tensor is allocated.
int64_t parameter_count(const model::ModelConfig& model) {
  int64_t elements = 0;
  for (const hf::GlobalTensor& tensor : model::global_tensors(model)) {
    int64_t product = 1;
    for (const int64_t size : tensor.shape) product *= size;
    elements += product;
  }
  return elements;
}

plan::Cluster planned_cluster(const std::optional<std::string>& gpu, const std::optional<int64_t>& gpus_per_node) {
  plan::Cluster cluster = plan::find_cluster(gpu.value_or("h100-80g"));
  if (!gpus_per_node) return cluster;
  check<ConfigError>(*gpus_per_node >= 1 && *gpus_per_node <= layout::kMaxGridSize,
                     "gpus_per_node is {}; it must be a whole number from 1 to {}", *gpus_per_node,
                     layout::kMaxGridSize);
  cluster.gpus_per_node = static_cast<int>(*gpus_per_node);
  return cluster;
}

std::optional<plan::RankMemory> planned_memory(const RunSettings& run, const model::ModelConfig& model, int64_t length,
                                               at::Device device) {
  if (!run.plannable || length < 1) return std::nullopt;
  try {
    const plan::Machinery machinery = device.is_cuda() ? plan::Machinery{} : plan::Machinery::cpu();
    return plan::fullest(plan::plan_memory(closed_shape(run.shape, model, length, machinery)));
  } catch (const ConfigError&) {
    return std::nullopt;  // the planner does not support such a run; the run itself may be fine
  }
}

void check_memory(const RunSettings& run, const model::ModelConfig& model, const parallel::ParallelContext& context) {
  const at::Device device = context.device();
  // A plan that is not possible or a device whose memory is unknown never stops a run.
  const auto planned = planned_memory(run, model, run.sequence_length, device);
  const double usable = device_bytes(context);
  if (!planned || usable <= 0 || planned->peak() <= usable) return;
  const std::string shortage = fmt::format(
      "the run needs {} on a rank of stage {} and {} {} free", observe::bytes_text(planned->peak()), planned->pp_rank,
      observe::bytes_text(usable), device.is_cuda() ? "are" : "of host memory for each rank are");
  if (!run.switches.force)
    throw ConfigError(
        fmt::format("{}; `megalith preview memory` shows the parts, `megalith plan` finds layouts that"
                    " fit, --force starts it anyway",
                    shortage));
  if (context.rank() == 0) log_warning("{}; --force: it is started anyway", shortage);
}

std::string overlap_note(const RunSettings& run, const model::ModelConfig& model, at::Device device) {
  const model::ModelOptions& options = run.shape.options;
  if (!options.tp_overlap || run.sequence_length < 1) return "";
  plan::RunShape shape = run.shape;  // open, as for runs that the planner does not support: tokens are all it is for
  shape.sequence_length = run.sequence_length;
  const auto rows = static_cast<int64_t>(shape.shard_tokens());
  if (nn::slice_count(rows, shape.grid.tp, model.hidden_size, device.is_cuda(), options.tp_slices) > 1) return "";
  return fmt::format(
      "tp_comm_overlap: micro-batches of {:.0f} tokens at hidden_size {} are too small to be sliced, so their "
      "collectives in forward stay exposed; use larger ones, or set tp_comm_overlap_slices",
      shape.tokens(), model.hidden_size);
}

// The last stage has the shortest warm-up: if it runs no pair, no stage does.
std::string expert_overlap_note(const RunSettings& run, const model::ModelConfig& model) {
  layout::PipelineShape shape = run.shape.pipeline;
  shape.microbatches = static_cast<int>(run.shape.microbatches);
  if (!shape.paired) return "";
  if (!model.moe) return "overlap_moe_expert_parallel_comm has no effect: the model has no experts";
  const auto& actions = layout::pipeline_schedule(shape, shape.pp - 1).actions;
  if (std::ranges::any_of(actions, &layout::PipelineAction::with_next)) return "";
  return fmt::format(
      "overlap_moe_expert_parallel_comm has no effect: a step has too few micro-batches ({}) for a forward to run"
      " together with a backward; use more (gradient_accumulation_steps, or smaller ones)",
      shape.microbatches);
}

}  // namespace megalith::run
