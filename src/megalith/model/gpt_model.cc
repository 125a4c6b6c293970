#include "megalith/model/gpt_model.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/layout/vocab_split.h"
#include "megalith/model/block_shapes_internal.h"
#include "megalith/nn/attention/kv_cache.h"
#include "megalith/nn/init.h"
#include "megalith/nn/recompute.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/nn/tensor_parallel/linear_cross_entropy.h"
#include "megalith/ops/dropout.h"

namespace megalith::model {

at::Tensor shift_labels(const at::Tensor& labels, const ops::SequenceLayout& layout) {
  check(labels.dim() == 1 && labels.size(0) == layout.tokens(), "{} labels for {} tokens", labels.numel(),
        layout.tokens());
  at::Tensor targets = at::full_like(labels, -100);
  if (layout.tokens() > 1) targets.narrow(0, 0, labels.size(0) - 1).copy_(labels.narrow(0, 1, labels.size(0) - 1));
  const auto& ends = layout.cumulative_tensor(labels.device());
  return targets.index_fill_(0, ends.narrow(0, 1, layout.sequences()).to(at::kLong) - 1, -100);
}

GptModel::GptModel(const ModelConfig& config, const ModelOptions& options, const ChunkPlace& place,
                   parallel::ParallelContext& context)
    : config_(config),
      options_(options),
      place_(place),
      context_(context),
      tp_(model::tensor_parallel(options, context)),
      vocab_{config.vocab_size, layout::padded_vocab_size(config.vocab_size, options.vocab_multiple, tp_.size())},
      parameters_(options.dtype, options.device) {
  const nn::ParameterScope root(parameters_);
  const nn::Init init = nn::Init::normal(config.init_std);
  size_t listed = 0;
  const auto end_part = [this, &listed] {
    auto& part = parts_.emplace_back();
    for (; listed < parameters_.all().size(); ++listed) part.push_back(parameters_.all()[listed].get());
  };
  if (place.embedding) {
    embedding_.emplace(root.child("embedding"), vocab_, config.hidden_size, init, tp_);
    if (config.learned_positions)
      positions_ = &root.add({.name = "position_embedding.weight",
                              .init = init,
                              .partial_grad_over_tp = tp_.splits_tokens(),
                              .is_embedding_or_head = true,
                              .replica = tp_.rank()},
                             {config.max_positions, config.hidden_size});
  }
  end_part();
  for (int64_t i = 0; i < place.num_layers; ++i) {
    const int64_t layer = place.first_layer + i;
    layers_.push_back(std::make_unique<TransformerBlock>(root.child("layers").child(std::to_string(layer)), config,
                                                         options, layer, i, context));
    end_part();
  }
  if (config.tied_embeddings && embedding_ && !place.head) embedding_->weight().tied_over_stages = true;
  if (!place.head) return;
  final_norm_.emplace(root.child("final_norm"), norm_shape(config), tp_.splits_tokens(), tp_.rank());
  if (config.tied_embeddings && embedding_) {
    head_weight_ = &embedding_->weight();
  } else if (config.tied_embeddings) {  // the last stage's copy of what the first stage holds
    const nn::VocabParallelEmbedding copy(root.child("embedding"), vocab_, config.hidden_size, init, tp_);
    head_weight_ = &copy.weight();
    head_weight_->shared_copy = true;
    head_weight_->tied_over_stages = true;
  } else {
    const nn::ColumnParallelLinear linear(root, "head", config.hidden_size, {{"head", vocab_.size, vocab_.padded}},
                                          false, init, tp_);
    head_weight_ = &linear.weight();
    head_weight_->is_embedding_or_head = true;
  }
  end_part();
  if (embedding_ && config.tied_embeddings) parts_.back().push_back(head_weight_);
}

ops::VocabRange GptModel::vocab_range() const { return nn::vocab_range(vocab_, tp_); }

std::vector<GptModel::MoePlace> GptModel::moe_layers() const {
  std::vector<MoePlace> found;
  for (size_t i = 0; i < layers_.size(); ++i)
    if (layers_[i]->moe()) found.push_back({place_.first_layer + static_cast<int64_t>(i), layers_[i]->moe()});
  return found;
}

void GptModel::initialize_parameters(uint64_t seed) const { nn::initialize(parameters_, seed); }

at::Tensor GptModel::forward(const ModelInput& input) const {
  check<DataError>(
      !tp_.splits_tokens() || input.layout.tokens() % tp_.size() == 0,
      "{} tokens in a micro-batch cannot be split over tensor_model_parallel_size {} for sequence_parallel;"
      " pad them to a multiple",
      input.layout.tokens(), tp_.size());
  nn::LayerInput each{input.layout, {}, input.cache, input.training, aux_loss_scale_};
  if (config_.rope) each.angles = ops::rope_angles(*config_.rope, input.layout, options_.device);
  before_part(0);
  at::Tensor x = place_.embedding ? embed(input) : input.hidden;
  x = run_layers(std::move(x), each);
  if (input.cache) input.cache->advance(input.layout.tokens());
  return place_.head ? head(x, input) : x;
}

void GptModel::before_part(size_t part) const {
  if (before_part_) before_part_(parts_[part]);
}

at::Tensor GptModel::embed(const ModelInput& input) const {
  at::Tensor x = embedding_->forward(input.ids);
  if (positions_) {
    check<DataError>(input.layout.max_position() <= config_.max_positions,
                     "a sequence of {} tokens is longer than the {} positions that the model has",
                     input.layout.max_position(), config_.max_positions);
    at::Tensor where = input.layout.positions(x.device());
    if (tp_.splits_tokens()) {
      const auto [first, count] = tp_.share(where.size(0));
      where = where.narrow(0, first, count);
    }
    x = x + at::embedding(positions_->value, where);
  }
  if (!input.training || config_.embedding_dropout == 0) return x;
  const auto fork = context_.rng().fork_if(tp_.splits_tokens());
  return ops::dropout(x, config_.embedding_dropout, context_.rng().generator());
}

at::Tensor GptModel::run_group(const at::Tensor& x, const nn::LayerInput& input, size_t first, size_t count) const {
  at::Tensor out = x;
  for (size_t i = first; i < first + count; ++i) {
    before_part(1 + i);
    out = layers_[i]->forward(out, input);
  }
  return out;
}

at::Tensor GptModel::run_layers(at::Tensor x, const nn::LayerInput& input) const {
  const RecomputePlan& plan = options_.recompute;
  const bool any_random =
      config_.attention_dropout > 0 || config_.hidden_dropout > 0 || (config_.moe && config_.moe->router.jitter > 0);
  // A group of layers of which only the input is kept.
  const auto recomputed = [&](const at::Tensor& in, size_t first, size_t count) {
    const nn::KeepInputs keep{plan.split_over_tp && !tp_.splits_tokens() ? &tp_.group : nullptr};
    return nn::recompute(
        [this, input, first, count](const nn::TensorList& kept) { return run_group(kept[0], input, first, count); },
        {in}, any_random ? &context_.rng() : nullptr, keep);
  };
  const bool on = input.training && plan.layers != RecomputePlan::Layers::kNone;
  const auto step = static_cast<size_t>(plan.layers == RecomputePlan::Layers::kUniform ? plan.num_layers : 1);
  for (size_t i = 0; i < layers_.size();) {
    const size_t count = std::min(on ? step : 1, layers_.size() - i);
    const bool twice =
        on && (plan.layers == RecomputePlan::Layers::kUniform || i < static_cast<size_t>(plan.num_layers));
    x = twice ? recomputed(x, i, count) : run_group(x, input, i, count);
    i += count;
  }
  return x;
}

at::Tensor GptModel::head(const at::Tensor& x, const ModelInput& input) const {
  before_part(parts_.size() - 1);
  const at::Tensor y = final_norm_->forward(input.last_token_only ? x.narrow(0, x.size(0) - 1, 1) : x);
  if (input.targets.defined() && options_.loss_chunk > 0)
    return nn::linear_cross_entropy(y, *head_weight_, input.targets, vocab_range(), tp_, options_.loss,
                                    options_.loss_chunk);
  at::Tensor logits = nn::column_linear(y, *head_weight_, {}, tp_);  // [t, v/tp]
  if (!input.targets.defined()) return logits;
  return ops::cross_entropy(logits, input.targets, vocab_range(), tp_.group, options_.loss);
}

}  // namespace megalith::model
