#include "tests/model/layout_case.h"

#include <ATen/ATen.h>

#include <mutex>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/layout/rng_seeds.h"
#include "megalith/model/adapter.h"
#include "megalith/model/adapter_start.h"
#include "megalith/model/families/family.h"
#include "megalith/model/model_input.h"
#include "megalith/model/pretrained.h"
#include "megalith/nn/context_parallel/slice.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "tests/support/golden.h"

namespace megalith::testing {

namespace {

at::Tensor gradient_of(const nn::Parameter& parameter, const parallel::ParallelContext& context) {
  at::Tensor grad = parameter.grad.main_grad.defined() ? parameter.grad.main_grad : parameter.value.grad();
  // A rank without images does not run the tower.
  const bool unused = parameter.grad.main_grad.defined() ? parameter.grad.stale : !grad.defined();
  if (unused && !parameter.value.grad().defined()) grad = at::zeros(parameter.value.sizes());
  if (parameter.grad.main_grad.defined() && parameter.value.grad().defined())
    grad = parameter.grad.stale ? parameter.value.grad() : parameter.grad.main_grad + parameter.value.grad();
  grad = grad.to(at::kFloat).clone();
  if (parameter.spec.partial_grad_over_tp) (parameter.spec.expert ? context.etp() : context.tp()).all_reduce(grad);
  (parameter.spec.expert ? context.edp() : context.dp(/*with_cp=*/true)).all_reduce(grad);
  return grad;
}

// The sequences of a data-parallel rank, and where their tokens start.
std::pair<TokenBatch, int64_t> share_of(const TokenBatch& batch, const comm::Group& dp) {
  const int64_t each = batch.layout.sequences() / dp.size(), first = each * dp.rank();
  check(each * dp.size() == batch.layout.sequences(), "{} sequences for {} ranks", batch.layout.sequences(), dp.size());
  const auto& ends = batch.layout.cumulative();
  const int64_t begin = ends[static_cast<size_t>(first)], count = ends[static_cast<size_t>(first + each)] - begin;
  std::vector<int64_t> lengths;
  for (int64_t i = first; i < first + each; ++i)
    lengths.push_back(ends[static_cast<size_t>(i + 1)] - ends[static_cast<size_t>(i)]);
  const auto layout = batch.layout.uniform() ? ops::SequenceLayout::dense(each, batch.layout.longest())
                                             : ops::SequenceLayout::packed(lengths);
  if (dp.size() == 1) return {batch, 0};
  check(!batch.pixels.defined() && !batch.audio_features.defined() && !batch.layout.has_coordinates(),
        "images with dp {}", dp.size());
  return {{batch.ids.narrow(0, begin, count), batch.labels.narrow(0, begin, count), layout, batch.loss_scale}, begin};
}

// A batch whose sequences are padded so that they can be dealt: to multiples of 2 cp, their total to one of cp · tp.
struct PaddedBatch {
  ops::SequenceLayout layout;
  at::Tensor ids, targets;
  at::Tensor visual_rows;  // undefined without images
  at::Tensor audio_rows;   // undefined without sounds
  at::Tensor real;         // positions of the batch's own tokens

  PaddedBatch(const TokenBatch& batch, int cp, int tp) {
    const int64_t unit = cp > 1 ? 2 * cp : 1, total_unit = std::lcm(unit, int64_t{cp} * tp);
    std::vector<int64_t> lengths;
    std::vector<at::Tensor> places;
    int64_t filled = 0;
    const auto& ends = batch.layout.cumulative();
    for (size_t s = 0; s + 1 < ends.size(); ++s) {
      const int64_t length = ends[s + 1] - ends[s];
      places.push_back(at::arange(filled, filled + length, at::kLong));
      lengths.push_back((length + unit - 1) / unit * unit);
      filled += lengths.back();
    }
    const int64_t total = cp > 1 ? (filled + total_unit - 1) / total_unit * total_unit : filled;
    if (total > filled) lengths.push_back(total - filled);
    layout = ops::SequenceLayout::packed(lengths);
    real = at::cat(places);
    ids = at::zeros({total}, at::kLong).index_copy_(0, real, batch.ids);
    const at::Tensor labels = at::full({total}, -100, at::kLong).index_copy_(0, real, batch.labels);
    targets = model::shift_labels(labels, layout);
    if (batch.visual_rows.defined())
      visual_rows = at::full({total}, -1, at::kLong).index_copy_(0, real, batch.visual_rows);
    if (batch.audio_rows.defined())
      audio_rows = at::full({total}, -1, at::kLong).index_copy_(0, real, batch.audio_rows);
    if (!batch.layout.has_coordinates()) return;
    const at::Tensor given = batch.layout.coordinates(at::kCPU);
    layout = layout.with_coordinates(at::zeros({3, total}, given.options()).index_copy_(1, real, given));
  }
};

void attach_main_grads(const model::VirtualModels& models) {
  for (nn::Parameter* parameter : models.parameters()) {
    if (!parameter->value.requires_grad()) continue;
    parameter->grad.main_grad = at::full(parameter->value.sizes(), NAN, at::kFloat);  // to be overwritten
    parameter->grad.stale = true;
  }
}

hf::TensorMapping mapping_of(const model::ModelConfig& config, const std::optional<peft::AdapterConfig>& adapter) {
  if (adapter) return model::adapter_mapping(config, *adapter);
  return {model::name_map(config), model::global_tensors(config)};
}

layout::GridShape grid_of(const LayoutCase& layout) {
  return {.world_size = layout.ranks(),
          .tp = layout.tp,
          .cp = layout.cp,
          .ep = layout.ep,
          .etp = layout.etp,
          .hierarchical_cp = layout.cp_levels};
}

// Returns why a model or a batch cannot be split as a layout says; empty if they can.
std::string obstacle(const model::ModelConfig& config, const TokenBatch& batch, const LayoutCase& layout) {
  if (batch.layout.sequences() % layout.dp != 0)
    return fmt::format("{} sequences for dp {}", batch.layout.sequences(), layout.dp);
  const auto& ends = batch.layout.cumulative();
  const auto each = static_cast<size_t>(batch.layout.sequences() / layout.dp);
  for (size_t i = 0; layout.sequence_parallel && layout.cp == 1 && i + 1 < ends.size(); i += each)
    if ((ends[i + each] - ends[i]) % layout.tp != 0)
      return fmt::format("{} tokens for tp {}", ends[i + each] - ends[i], layout.tp);
  // The layers themselves know the sizes that they can split: they are made without memory.
  const auto worlds = comm::World::in_process(layout.ranks());
  model::ModelOptions options = layout.options;
  options.device = at::kMeta;
  options.sequence_parallel = layout.sequence_parallel;
  try {
    parallel::ParallelContext context(*worlds[0], layout::RankGrid(grid_of(layout)));
    const model::GptModel model(config, options, model::ChunkPlace::whole(config), context);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

std::string LayoutCase::name() const {
  const bool gather = options.moe.dispatcher == nn::MoeOptions::Dispatcher::kAllGather;
  return fmt::format(
      "tp {} cp {}{}{}{}{}", tp, cp, merged ? " merged" : "", sequence_parallel ? " sp" : "",
      main_grad ? " main_grad" : "",
      dp * ep > 1 ? fmt::format(" dp {} ep {} etp {} {}", dp, ep, etp.value_or(tp), gather ? "allgather" : "alltoall")
                  : "");
}

NamedTensors whole_tensors(const model::ModelConfig& config, const std::optional<peft::AdapterConfig>& adapter) {
  const hf::TensorMapping mapping = mapping_of(config, adapter);
  NamedTensors whole;
  for (const auto& file : mapping.files())
    if (!file.name.ends_with("e_score_correction_bias"))  // a buffer: it has no gradient and is not trained
      whole[file.name] = at::full(file.shape, NAN, at::kFloat);
  return whole;
}

void fill_in(NamedTensors& whole, const model::VirtualModels& models,
             const std::function<at::Tensor(const nn::Parameter&)>& pick) {
  static std::mutex mutex;
  const std::optional<peft::AdapterConfig>& adapter = models[0].options().adapter;
  const hf::TensorMapping mapping = mapping_of(models.config(), adapter);
  for (const nn::Parameter* parameter : models.parameters()) {
    if (parameter->spec.role == nn::ParameterRole::kBuffer || (adapter && !parameter->value.requires_grad())) continue;
    const at::Tensor tensor = pick(*parameter);  // may communicate
    const std::lock_guard lock(mutex);
    for (const auto& part : parameter->sharded(tensor)) {
      if (!mapping.holds(part.name)) continue;  // a bias that is not trained, in one parameter with others that are
      const auto place = mapping.place(part);
      at::Tensor target = whole.at(place.file->name);
      if (place.file->is_kernel) target = target.flatten(1);
      for (size_t d = 0; d < place.offset.size(); ++d)
        target = target.narrow(static_cast<int64_t>(d), place.offset[d], place.data.size(static_cast<int64_t>(d)));
      target.copy_(place.data);
    }
  }
}

std::vector<LayoutCase> layouts_that_fit(const std::filesystem::path& folder, const TokenBatch& batch,
                                         const std::vector<LayoutCase>& layouts) {
  const model::ModelConfig config = model::read_model_config(folder);
  std::vector<LayoutCase> fitting;
  for (const LayoutCase& layout : layouts) {
    const std::string why = obstacle(config, batch, layout);
    if (why.empty())
      fitting.push_back(layout);
    else
      leave_out(layout.name(), why);
  }
  return fitting;
}

RunResult run_layout(const std::filesystem::path& folder, const TokenBatch& whole, const LayoutCase& layout,
                     const std::function<void(model::ModelConfig&)>& change) {
  const model::ModelConfig in_files = model::read_model_config(folder, layout.own_family);
  model::ModelConfig config = in_files;
  if (change) change(config);
  std::optional<peft::AdapterConfig> adapter;
  if (!layout.adapter.empty()) adapter = model::adapter_config({.trained = layout.adapter}, config);
  RunResult result{{}, {}, whole_tensors(config, adapter), whole_tensors(config, adapter)};
  result.token_losses = at::empty({whole.layout.tokens()});
  result.logits = at::empty({whole.layout.tokens(), config.vocab_size});
  run_ranks(layout.ranks(), [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid(grid_of(layout)));
    const comm::Group tp = context.tp(), cp = context.cp();
    context.rng().seed(layout::seeds_for_base(1, tp.rank(), 0, 0));
    const auto [batch, first_token] = share_of(whole, context.dp());
    model::ModelOptions options = layout.options;
    options.sequence_parallel = layout.sequence_parallel;
    options.adapter = adapter;
    model::VirtualModels models(config, options, {model::ChunkPlace::whole(config)}, context);
    model::load_weights(models, folder, in_files, 1);
    if (adapter) model::restore_start(models, layout.adapter);
    if (adapter) model::load_adapter(models, layout.adapter);
    if (layout.main_grad) attach_main_grads(models);
    const PaddedBatch padded(batch, layout.cp, layout.tp);
    const auto slice = [&](const at::Tensor& x) { return nn::slice_tokens(x, padded.layout, cp.rank(), cp.size()); };
    model::ModelInput input{.layout = nn::slice_layout(padded.layout, cp.rank(), cp.size()),
                            .ids = slice(padded.ids),
                            .pixels = batch.pixels,
                            .grids = batch.grids};
    if (padded.visual_rows.defined()) input.visual_rows = slice(padded.visual_rows);
    input.audio_features = batch.audio_features;
    input.audio_lengths = batch.audio_lengths;
    if (padded.audio_rows.defined()) input.audio_rows = slice(padded.audio_rows);
    const auto gathered = [&](const at::Tensor& x) {
      return nn::gather_slices(x, input.layout, cp).index_select(0, padded.real);
    };
    at::Tensor logits;
    {
      const at::NoGradGuard no_grad;
      model::ModelInput evaluated = input;
      evaluated.training = false;
      std::optional<model::WithMergedAdapter> merged;
      std::optional<model::WithoutAdapter> below;
      if (layout.merged) {
        merged.emplace(models);
        below.emplace(models);
      }
      logits = gathered(nn::all_gather_columns(models[0].forward(evaluated), tp, "logits"));
    }
    model::ModelInput trained = input;
    trained.targets = slice(padded.targets);
    const at::Tensor losses = models[0].forward(trained);
    (losses.sum() * batch.loss_scale).backward();
    fill_in(result.gradients, models, [&](const nn::Parameter& p) { return gradient_of(p, context); });
    const at::Tensor token_losses = gathered(losses.detach());
    fill_in(result.weights, models, [](const nn::Parameter& p) { return p.value.detach(); });
    if (tp.rank() == 0 && cp.rank() == 0) {
      result.logits.narrow(0, first_token, logits.size(0)).copy_(logits.narrow(1, 0, config.vocab_size));
      result.token_losses.narrow(0, first_token, token_losses.size(0)).copy_(token_losses);
    }
  });
  return result;
}

}  // namespace megalith::testing
