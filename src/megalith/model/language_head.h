// LanguageHead: final norm, projection to the vocabulary and cross-entropy, with the multi-token-prediction layers,
// which share the projection.
//
//   x [t, h] ─► norm ─► y ─┬─► projection ─► cross-entropy with targets            ─► losses [t]
//                          └─► MtpLayer ─► projection ─► cross-entropy, one later  ─► mtp_losses[0] [t] ─► …
//
// Legend: t tokens, h hidden, v padded vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "megalith/model/head.h"
#include "megalith/model/mtp_layer.h"
#include "megalith/nn/norm.h"
#include "megalith/nn/tensor_parallel/embedding.h"

namespace megalith::model {

// The head of every family that does not define its own. Logits stay split over tp: no rank ever holds [t, v].
class LanguageHead : public Head {
 public:
  // Its parameters in `root` are final_norm, head and mtp.N. If the chunk has no embedding (`embedding` is nullptr) but
  // the head or the multi-token-prediction layers (`mtp`) read it, it also has a copy of the first stage's embedding.
  LanguageHead(const nn::ParameterScope& root, const HeadSite& site, const nn::VocabSize& vocab,
               const nn::VocabParallelEmbedding* embedding, bool mtp);

  at::Tensor forward(const at::Tensor& x, const ModelInput& input, const nn::LayerInput& layer_input) const override;
  bool predicts_tokens() const override { return true; }
  bool takes_loss() const override { return true; }
  nn::Parameter* projection() const override { return weight_; }
  std::vector<const TransformerBlock*> blocks() const override;

 private:
  // y, after the final norm -> losses fp32 [t]. `grad` is ModelInput::loss_grad.
  at::Tensor token_losses(const at::Tensor& y, const at::Tensor& targets, std::optional<double> grad) const;
  // Appends the losses of every multi-token-prediction layer to input.mtp_losses.
  void run_mtp(const at::Tensor& y, const ModelInput& input, const nn::LayerInput& layer_input) const;

  // Constant after construction.
  const HeadSite site_;
  const ops::VocabRange range_;  // token ids whose logits are this rank's columns
  nn::Norm final_norm_;
  std::optional<nn::VocabParallelEmbedding> copy_;  // copy of the first stage's embedding
  const nn::VocabParallelEmbedding* embedding_;     // the chunk's or copy_; nullptr if nothing reads it
  nn::Parameter* weight_ = nullptr;                 // [v/tp, h]; the embedding's if they are tied
  std::vector<std::unique_ptr<MtpLayer>> mtp_layers_;
  bool mtp_is_random_ = false;  // mtp_layers_ draw random numbers in training
};

}  // namespace megalith::model
