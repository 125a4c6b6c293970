#include "tests/model/layout_case.h"

#include <ATen/ATen.h>

#include <mutex>

#include "megalith/layout/rng_seeds.h"
#include "megalith/model/families/family.h"
#include "megalith/model/pretrained.h"
#include "megalith/nn/tensor_parallel/mappings.h"

namespace megalith::testing {

namespace {

at::Tensor gradient_of(const nn::Parameter& parameter, const parallel::ParallelContext& context) {
  at::Tensor grad = parameter.main_grad.defined() ? parameter.main_grad : parameter.value.grad();
  if (parameter.main_grad.defined() && parameter.value.grad().defined())
    grad = parameter.main_grad_is_stale ? parameter.value.grad() : parameter.main_grad + parameter.value.grad();
  grad = grad.to(at::kFloat).clone();
  if (parameter.partial_grad_over_tp) context.tp().all_reduce(grad);
  (parameter.expert ? context.edp() : context.dp()).all_reduce(grad);
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
  return {{batch.ids.narrow(0, begin, count), batch.labels.narrow(0, begin, count), layout, batch.loss_scale}, begin};
}

void attach_main_grads(const model::VirtualModels& models) {
  for (nn::Parameter* parameter : models.parameters()) {
    parameter->main_grad = at::full(parameter->value.sizes(), NAN, at::kFloat);  // to be overwritten
    parameter->main_grad_is_stale = true;
  }
}

}  // namespace

std::string LayoutCase::name() const {
  const bool gather = options.moe.dispatcher == nn::MoeOptions::Dispatcher::kAllGather;
  return fmt::format(
      "tp {}{}{}{}", tp, sequence_parallel ? " sp" : "", main_grad ? " main_grad" : "",
      dp * ep > 1 ? fmt::format(" dp {} ep {} etp {} {}", dp, ep, etp.value_or(tp), gather ? "allgather" : "alltoall")
                  : "");
}

NamedTensors whole_tensors(const model::ModelConfig& config) {
  const hf::TensorMapping mapping(model::name_map(config), model::global_tensors(config));
  NamedTensors whole;
  for (const auto& file : mapping.files())
    if (!file.name.ends_with("e_score_correction_bias"))  // a buffer: it has no gradient and is not trained
      whole[file.name] = at::full(file.shape, NAN, at::kFloat);
  return whole;
}

void fill_in(NamedTensors& whole, const model::VirtualModels& models,
             const std::function<at::Tensor(const nn::Parameter&)>& pick) {
  static std::mutex mutex;
  const model::ModelConfig& config = models.config();
  const hf::TensorMapping mapping(model::name_map(config), model::global_tensors(config));
  for (const nn::Parameter* parameter : models.parameters()) {
    if (parameter->buffer) continue;
    const at::Tensor tensor = pick(*parameter);  // may communicate
    const std::lock_guard lock(mutex);
    for (const auto& part : parameter->sharded(tensor)) {
      const auto place = mapping.place(part);
      at::Tensor target = whole.at(place.file->name);
      for (size_t d = 0; d < place.offset.size(); ++d)
        target = target.narrow(static_cast<int64_t>(d), place.offset[d], place.data.size(static_cast<int64_t>(d)));
      target.copy_(place.data);
    }
  }
}

RunResult run_layout(const std::filesystem::path& folder, const TokenBatch& whole, const LayoutCase& layout,
                     const std::function<void(model::ModelConfig&)>& change) {
  const model::ModelConfig in_files = model::read_model_config(folder);
  model::ModelConfig config = in_files;
  if (change) change(config);
  RunResult result{{}, {}, whole_tensors(config), whole_tensors(config)};
  result.token_losses = at::empty({whole.layout.tokens()});
  result.logits = at::empty({whole.layout.tokens(), config.vocab_size});
  run_ranks(layout.ranks(), [&](const Rank& r) {
    parallel::ParallelContext context(
        r.world, layout::RankGrid({.world_size = r.size, .tp = layout.tp, .ep = layout.ep, .etp = layout.etp}));
    context.rng().seed(layout::seeds_for_base(1, context.place().tp_rank, 0, 0));
    const auto [batch, first_token] = share_of(whole, context.dp());
    model::ModelOptions options = layout.options;
    options.sequence_parallel = layout.sequence_parallel;
    model::VirtualModels models(config, options, {model::ChunkPlace::whole(config)}, context);
    model::load_weights(models, folder, in_files, 1);
    if (layout.main_grad) attach_main_grads(models);
    const model::ModelInput input{.layout = batch.layout, .ids = batch.ids};
    at::Tensor logits;
    {
      const at::NoGradGuard no_grad;
      model::ModelInput evaluated = input;
      evaluated.training = false;
      logits = nn::all_gather_columns(models[0].forward(evaluated), context.tp(), "logits");
    }
    model::ModelInput trained = input;
    trained.targets = model::shift_labels(batch.labels, batch.layout);
    const at::Tensor losses = models[0].forward(trained);
    (losses.sum() * batch.loss_scale).backward();
    fill_in(result.gradients, models, [&](const nn::Parameter& p) { return gradient_of(p, context); });
    fill_in(result.weights, models, [](const nn::Parameter& p) { return p.value.detach(); });
    if (context.place().tp_rank == 0) {
      result.logits.narrow(0, first_token, logits.size(0)).copy_(logits.narrow(1, 0, config.vocab_size));
      result.token_losses.narrow(0, first_token, losses.size(0)).copy_(losses.detach());
    }
  });
  return result;
}

}  // namespace megalith::testing
