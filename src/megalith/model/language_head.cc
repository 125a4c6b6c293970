// Final norm, projection and loss. The projection's weight is the embedding's if they are tied; on a pipeline's last
// stage that is a copy (kTiedCopy), whose gradient is summed with the first stage's. Multi-token-prediction layers form
// a chain: each takes the hidden states of the previous depth, and the ids and targets one more token ahead, which the
// caller shifts: with context parallelism only it has the tokens beyond the borders of a slice.
#include "megalith/model/language_head.h"

#include <algorithm>

#include "megalith/model/block_shapes_internal.h"
#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/recompute.h"
#include "megalith/nn/tensor_parallel/linear_cross_entropy.h"
#include "megalith/nn/tensor_parallel/linear_function.h"

namespace megalith::model {

LanguageHead::LanguageHead(const nn::ParameterScope& root, const HeadSite& site, const nn::VocabSize& vocab,
                           const nn::VocabParallelEmbedding* embedding, bool mtp)
    : site_(site),
      range_(nn::vocab_range(vocab, site.tp)),
      final_norm_(root.child("final_norm"), norm_shape(site.config), site.tp.splits_tokens(), site.tp.rank()),
      embedding_(embedding) {
  const ModelConfig& config = site.config;
  const nn::Init init = nn::Init::normal(config.init_std);
  // Last stage of a pipeline: the embedding is on the first one, and here is a copy with the same initial values.
  if (!embedding_ && (config.tied_embeddings || mtp)) {
    copy_.emplace(root.child("embedding"), vocab, config.hidden_size, init, site.tp, nn::ParameterRole::kTiedCopy);
    embedding_ = &*copy_;
  }
  if (config.tied_embeddings) {
    weight_ = &embedding_->weight();
  } else {
    const nn::ColumnParallelLinear linear(root, "head", config.hidden_size, {{"head", vocab.size, vocab.padded}}, false,
                                          init, site.tp, /*is_head=*/true);
    weight_ = &linear.weight();
  }
  for (int64_t depth = 0; mtp && depth < config.mtp_layers; ++depth)
    mtp_layers_.push_back(std::make_unique<MtpLayer>(root.child("mtp").child(std::to_string(depth)), config,
                                                     site.options, depth, site.context));
  // Only layers that draw random numbers need the generator's state saved for recomputation.
  mtp_is_random_ = (site.options.adapter && site.options.adapter->dropout > 0) ||
                   std::ranges::any_of(blocks(), [](const TransformerBlock* block) { return block->is_random(); });
}

std::vector<const TransformerBlock*> LanguageHead::blocks() const {
  std::vector<const TransformerBlock*> all;
  for (const auto& layer : mtp_layers_) all.push_back(&layer->block());
  return all;
}

at::Tensor LanguageHead::forward(const at::Tensor& x, const ModelInput& input,
                                 const nn::LayerInput& layer_input) const {
  // A norm works per token, so cutting to the last token first saves the others.
  const at::Tensor y = final_norm_.forward(input.last_token_only ? x.narrow(0, x.size(0) - 1, 1) : x);
  if (!input.targets.defined()) return nn::column_linear(y, *weight_, nullptr, site_.tp);  // [t, v/tp]
  if (input.mtp_losses) run_mtp(y, input, layer_input);
  if (input.head_loss) return (*input.head_loss)(y, *weight_);
  return token_losses(y, input.targets, input.loss_grad);
}

at::Tensor LanguageHead::token_losses(const at::Tensor& y, const at::Tensor& targets,
                                      std::optional<double> grad) const {
  const ModelOptions& options = site_.options;
  // The chunked loss multiplies by the weight alone, so that a head with an adapter takes the other way.
  if (options.loss_chunk > 0 && !nn::active_update(*weight_))
    return nn::linear_cross_entropy(y, *weight_, targets, range_, site_.tp, options.loss, options.loss_chunk, grad,
                                    options.fp8_head ? options.fp8 : std::nullopt);
  return ops::cross_entropy(nn::column_linear(y, *weight_, nullptr, site_.tp), targets, range_, site_.tp.group,
                            options.loss);
}

// Depth d predicts token i + d + 2 from the hidden state of i and the embedding of token i + d + 1. The final norm's
// output is the first input of the chain; each layer's own final norm makes the next one.
void LanguageHead::run_mtp(const at::Tensor& y, const ModelInput& input, const nn::LayerInput& layer_input) const {
  check(input.ahead.size() == mtp_layers_.size(),
        "{} multi-token-prediction layers got the tokens ahead for {}; ModelInput::ahead needs one entry per layer",
        mtp_layers_.size(), input.ahead.size());
  const bool recomputes = input.training && site_.options.recompute.layers != RecomputePlan::Layers::kNone;
  at::Tensor hidden = y;
  for (size_t depth = 0; depth < mtp_layers_.size(); ++depth) {
    const std::unique_ptr<MtpLayer>& layer = mtp_layers_[depth];
    const at::Tensor embedded = embedding_->forward(input.ahead[depth].ids);
    if (recomputes) {
      hidden = nn::recompute([&layer = *layer, layer_input](
                                 const nn::TensorList& kept) { return layer.forward(kept[0], kept[1], layer_input); },
                             {embedded, hidden}, mtp_is_random_ ? &site_.context.rng() : nullptr);
    } else {
      hidden = layer->forward(embedded, hidden, layer_input);
    }
    input.mtp_losses->push_back(token_losses(hidden, input.ahead[depth].targets, std::nullopt));
  }
}

}  // namespace megalith::model
