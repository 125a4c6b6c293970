#include "megalith/model/gpt_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/layout/vocab_split.h"
#include "megalith/model/block_shapes_internal.h"
#include "megalith/model/families/family.h"
#include "megalith/nn/attention/kv_cache.h"
#include "megalith/nn/parameter/init.h"
#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/recompute.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/nn/tensor_parallel/linear_cross_entropy.h"
#include "megalith/nn/tensor_parallel/linear_function.h"
#include "megalith/ops/norm_rope/dropout.h"

namespace megalith::model {

at::Tensor shift_labels(const at::Tensor& labels, const ops::SequenceLayout& layout) {
  return shift_tokens(labels, layout, -100);
}

at::Tensor shift_tokens(const at::Tensor& values, const ops::SequenceLayout& layout, int64_t at_end) {
  check(values.dim() == 1 && values.size(0) == layout.tokens(), "{} labels for {} tokens", values.numel(),
        layout.tokens());
  at::Tensor shifted = at::full_like(values, at_end);
  if (layout.tokens() > 1) shifted.narrow(0, 0, values.size(0) - 1).copy_(values.narrow(0, 1, values.size(0) - 1));
  const at::Tensor ends = layout.cumulative_tensor(values.device());
  return shifted.index_fill_(0, ends.narrow(0, 1, layout.sequences()).to(at::kLong) - 1, at_end);
}

namespace {

void check_context_parallel(const ModelConfig& config, int cp) {
  check<ConfigError>(cp == 1 || !config.delta_net,
                     "context_parallel_size {} splits sequences, and the linear attention layers of {} models carry a"
                     " state from each token to the next; use context_parallel_size 1",
                     cp, config.family);
  check<ConfigError>(cp == 1 || config.mtp_layers == 0,
                     "context_parallel_size {} splits sequences, and multi-token prediction looks at the tokens behind"
                     " each; use context_parallel_size 1, or a model without (num_nextn_predict_layers 0)",
                     cp);
}

}  // namespace

GptModel::GptModel(const ModelConfig& config, const ModelOptions& options, const ChunkPlace& place,
                   parallel::ParallelContext& context)
    : config_(config),
      options_(options),
      place_(place),
      context_(context),
      tp_(model::tensor_parallel(options, context)),
      vocab_{config.vocab_size, layout::padded_vocab_size(config.vocab_size, options.vocab_multiple, tp_.size())},
      parameters_(options.dtype, options.device) {
  check_context_parallel(config, context.grid().shape().cp);
  tp_.fp8.reset();  // embedding and head: what they lose in 8 bits is seen in the loss
  const nn::ParameterScope root(parameters_);
  const nn::Init init = nn::Init::normal(config.init_std);
  const bool copied = config.tied_embeddings || config.mtp_layers > 0;  // the last stage holds a copy
  if (options.adapter) adapters_ = std::make_unique<peft::Adapters>(*options.adapter, name_map(config), tp_, context);
  if (place.embedding) {
    embedding_.emplace(root.child("embedding"), vocab_, config.hidden_size, init, tp_,
                       copied && !place.head ? nn::ParameterRole::kTied : nn::ParameterRole::kWeight);
    if (config.learned_positions)
      positions_ = &root.add({.name = "position_embedding.weight",
                              .init = init,
                              .partial_grad_over_tp = tp_.splits_tokens(),
                              .is_embedding_or_head = true,
                              .replica = tp_.rank()},
                             {config.max_positions, config.hidden_size});
  }
  end_part(root);
  for (int64_t i = 0; i < place.num_layers; ++i) {
    const int64_t layer = place.first_layer + i;
    layers_.push_back(std::make_unique<TransformerBlock>(root.child("layers").child(std::to_string(layer)), config,
                                                         options, layer, i, context));
    end_part(root);
  }
  if (!place.head) return;
  make_head(root);
  end_part(root);
  if (embedding_ && place.embedding && copied) parts_.back().push_back(&embedding_->weight());
}

void GptModel::end_part(const nn::ParameterScope& root) {
  if (adapters_) {
    std::vector<nn::Parameter*> made;
    for (size_t i = listed_; i < parameters_.all().size(); ++i) made.push_back(parameters_.all()[i].get());
    adapters_->add(root, made);
  }
  auto& part = parts_.emplace_back();
  for (; listed_ < parameters_.all().size(); ++listed_) {
    part.push_back(parameters_.all()[listed_].get());
    trains_ |= part.back()->value.requires_grad();
  }
}

void GptModel::make_head(const nn::ParameterScope& root) {
  const nn::Init init = nn::Init::normal(config_.init_std);
  final_norm_.emplace(root.child("final_norm"), norm_shape(config_), tp_.splits_tokens(), tp_.rank());
  if (!place_.embedding && (config_.tied_embeddings || place_.mtp))  // of what the first stage holds
    embedding_.emplace(root.child("embedding"), vocab_, config_.hidden_size, init, tp_, nn::ParameterRole::kTiedCopy);
  if (config_.tied_embeddings) {
    head_weight_ = &embedding_->weight();
  } else {
    const nn::ColumnParallelLinear linear(root, "head", config_.hidden_size, {{"head", vocab_.size, vocab_.padded}},
                                          false, init, tp_, /*is_head=*/true);
    head_weight_ = &linear.weight();
  }
  for (int64_t depth = 0; place_.mtp && depth < config_.mtp_layers; ++depth)
    mtp_layers_.push_back(
        std::make_unique<MtpLayer>(root.child("mtp").child(std::to_string(depth)), config_, options_, depth, context_));
}

ops::VocabRange GptModel::vocab_range() const { return nn::vocab_range(vocab_, tp_); }

std::vector<GptModel::MoePlace> GptModel::moe_layers() const {
  std::vector<MoePlace> found;
  for (size_t i = 0; i < layers_.size(); ++i)
    if (layers_[i]->moe()) found.push_back({place_.first_layer + static_cast<int64_t>(i), layers_[i]->moe()});
  for (size_t depth = 0; depth < mtp_layers_.size(); ++depth)
    if (const nn::MoeLayer* moe = mtp_layers_[depth]->block().moe())
      found.push_back({config_.num_layers + static_cast<int64_t>(depth), moe});
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
  each.angles = angles(input.layout);
  before_part(0);
  if (adapters_) adapters_->state().training = input.training;
  at::Tensor x = place_.embedding ? embed(input) : input.hidden;
  // A pipeline expects gradients of every stage's output, also of one in which nothing is trained.
  if (!trains_ && !place_.head && at::GradMode::is_enabled() && !x.requires_grad()) x = x.detach().requires_grad_();
  x = run_layers(std::move(x), each);
  if (input.cache) input.cache->advance(input.layout.tokens());
  return place_.head ? head(x, input, each) : x;
}

const ops::RopeAngles& GptModel::angles(const ops::SequenceLayout& layout) const {
  const bool same = &layout.cumulative() == &angles_of_.cumulative();  // copies of a layout share what they hold
  if (!config_.rope || (angles_.defined() && same)) return angles_;
  angles_ = ops::rope_angles(*config_.rope, layout, options_.device);
  angles_of_ = layout;
  return angles_;
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
    x = x + nn::table_rows(*positions_, where);
  }
  if (!input.training || config_.embedding_dropout == 0) return x;
  const auto fork = context_.rng().fork_if(tp_.splits_tokens());
  return ops::dropout(x, config_.embedding_dropout, context_.rng().generator());
}

at::Tensor GptModel::run_group(const at::Tensor& x, const nn::LayerInput& input, size_t first, size_t count) const {
  at::Tensor out = x;
  if (adapters_) adapters_->state().training = input.training;  // this may be a second run, in backward
  for (size_t i = first; i < first + count; ++i) {
    before_part(1 + i);
    out = layers_[i]->forward(out, input);
  }
  return out;
}

bool GptModel::is_random() const {
  return config_.attention_dropout > 0 || config_.hidden_dropout > 0 ||
         (config_.moe && config_.moe->router.jitter > 0) || (adapters_ && adapters_->config().dropout > 0);
}

at::Tensor GptModel::run_layers(at::Tensor x, const nn::LayerInput& input) const {
  const RecomputePlan& plan = options_.recompute;
  // A group of layers of which only the input is kept.
  const auto recomputed = [&](const at::Tensor& in, size_t first, size_t count) {
    const nn::KeepInputs keep{plan.split_over_tp && !tp_.splits_tokens() ? &tp_.group : nullptr};
    return nn::recompute(
        [this, input, first, count](const nn::TensorList& kept) { return run_group(kept[0], input, first, count); },
        {in}, is_random() ? &context_.rng() : nullptr, keep);
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

at::Tensor GptModel::head(const at::Tensor& x, const ModelInput& input, const nn::LayerInput& each) const {
  before_part(parts_.size() - 1);
  const at::Tensor y = final_norm_->forward(input.last_token_only ? x.narrow(0, x.size(0) - 1, 1) : x);
  if (!input.targets.defined()) return nn::column_linear(y, *head_weight_, nullptr, tp_);  // [t, v/tp]
  if (input.mtp_losses && place_.mtp) run_mtp(y, input, each);
  return token_losses(y, input.targets, input.loss_grad);
}

at::Tensor GptModel::token_losses(const at::Tensor& y, const at::Tensor& targets, std::optional<double> grad) const {
  if (options_.loss_chunk > 0 && !nn::active_update(*head_weight_))
    return nn::linear_cross_entropy(y, *head_weight_, targets, vocab_range(), tp_, options_.loss, options_.loss_chunk,
                                    grad);
  return ops::cross_entropy(nn::column_linear(y, *head_weight_, nullptr, tp_), targets, vocab_range(), tp_.group,
                            options_.loss);
}

void GptModel::run_mtp(const at::Tensor& y, const ModelInput& input, const nn::LayerInput& each) const {
  const bool again = input.training && options_.recompute.layers != RecomputePlan::Layers::kNone;
  at::Tensor hidden = y, ids = input.ids, targets = input.targets;
  for (const auto& layer : mtp_layers_) {
    ids = shift_tokens(ids, input.layout, 0);  // behind the end stands any id: nothing is predicted from there
    targets = shift_labels(targets, input.layout);
    const at::Tensor embedded = embedding_->forward(ids);
    if (again) {
      hidden = nn::recompute(
          [&layer = *layer, each](const nn::TensorList& kept) { return layer.forward(kept[0], kept[1], each); },
          {embedded, hidden}, is_random() ? &context_.rng() : nullptr);
    } else {
      hidden = layer->forward(embedded, hidden, each);
    }
    input.mtp_losses->push_back(token_losses(hidden, targets, std::nullopt));
  }
}

}  // namespace megalith::model
