// The parts of a ReferenceModel's layers, in plain ATen: see reference_model.h.
//
// Legend: b sequences of a batch, s tokens of a row, h hidden, n heads, g heads of keys and values, d head.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>

#include "tests/support/reference_config.h"

namespace megalith::testing {

// Positions of tokens.
struct ReferencePlaces {
  at::Tensor sequence;                       // int64 [s]: which sequence of the row a token belongs to
  std::pair<at::Tensor, at::Tensor> angles;  // cos, sin; of models with rotary embedding
};

// The weights of a pass. Both arguments outlive it.
class ReferenceParts {
 public:
  using Tensors = std::map<std::string, at::Tensor>;
  ReferenceParts(const ReferenceConfig& config, const Tensors& tensors) : config_(config), tensors_(tensors) {}

  const ReferenceConfig& config() const { return config_; }
  const at::Tensor& weight(const std::string& name) const { return tensors_.at(name); }
  bool has(const std::string& name) const { return tensors_.contains(name); }

  // Names without ".weight" and ".bias". y = x Wᵀ + b; gpt2 stores Wᵀ.
  at::Tensor linear(const at::Tensor& x, const std::string& name) const;
  at::Tensor rms_norm(const at::Tensor& x, const std::string& name) const;
  at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) const;
  at::Tensor layer_norm(const at::Tensor& x, const std::string& name) const;
  at::Tensor norm(const at::Tensor& x, const std::string& name) const;  // the kind that the configuration says
  at::Tensor activate(const at::Tensor& x) const;
  at::Tensor mlp(const at::Tensor& x, const std::string& name) const;  // with name + "up_proj" and so on

  // Causal, within sequences. q [b, n, s, d], k [b, g, s, d], v [b, g, s, e] -> [b, s, n e]. window 0: none.
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale, int64_t window,
                    const at::Tensor& sequence) const;

  static at::ScalarType acc(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

 private:
  const ReferenceConfig& config_;
  const Tensors& tensors_;
};

// A replacement of attention: y [b, s, h] after the norm -> the same shape. name: "model.layers.3.".
at::Tensor reference_attention(const ReferenceParts& parts, const at::Tensor& y, int64_t layer,
                               const ReferencePlaces& places);
at::Tensor reference_latent_attention(const ReferenceParts& parts, const at::Tensor& y, int64_t layer,
                                      const ReferencePlaces& places);
at::Tensor reference_delta_net(const ReferenceParts& parts, const at::Tensor& y, int64_t layer,
                               const ReferencePlaces& places);

// Experts in place of the MLP; every expert computes every token. margin: lowered to the smallest gap between a chosen
// expert and the best that was not (logits of a softmax router, biased scores of the others; groups alike).
at::Tensor reference_experts(const ReferenceParts& parts, const at::Tensor& y, int64_t layer, double& margin);

}  // namespace megalith::testing
