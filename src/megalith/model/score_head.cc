// The head of reward models and of sequence classification:
//
//   x [t, h] ─► norm ─► y ─► score.weight ─► scores [t, n]      with sequence parallelism gathered from [t/tp, n]
//                            + bias of a value head
//
// Scores of all tokens are computed, since the layer is small; the caller takes those of the last token of each
// sequence. Legend: t tokens, h hidden, n labels.
#include "megalith/base/error.h"
#include "megalith/model/block_shapes_internal.h"
#include "megalith/model/families/scores.h"
#include "megalith/model/families/value_head.h"
#include "megalith/model/head.h"
#include "megalith/nn/norm.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "megalith/nn/tensor_parallel/product.h"

namespace megalith::model {

namespace {

// Every tp rank has the whole weight, computes the same scores from it and must pass back the same gradients. The
// weight is not a target of adapters (WeightUse::kOther): peft trains such a head as a whole (modules_to_save).
class ScoreHead : public Head {
 public:
  ScoreHead(const nn::ParameterScope& root, const HeadSite& site)
      : tp_(site.tp),
        final_norm_(root.child("final_norm"), norm_shape(site.config), site.tp.splits_tokens(), site.tp.rank()),
        weight_(&root.add({.name = kScoreWeight,
                           .init = nn::Init::normal(site.config.init_std),
                           .partial_grad_over_tp = site.tp.splits_tokens(),
                           .equal_grad_over_tp = site.tp.size() > 1 && !site.tp.splits_tokens(),
                           .is_embedding_or_head = true,
                           .replica = site.tp.rank()},
                          {site.config.num_labels, site.config.hidden_size})),
        bias_(score_bias(site.config).value_or(0)) {}

  at::Tensor forward(const at::Tensor& x, const ModelInput& input,
                     const nn::LayerInput& /*layer_input*/) const override {
    check<ConfigError>(!input.targets.defined(),
                       "this model scores sequences and predicts no tokens; train and evaluate it in stage rm or cls");
    const at::Tensor y = final_norm_.forward(input.last_token_only ? x.narrow(0, x.size(0) - 1, 1) : x);
    const nn::ProductInput product{.tokens = y.size(0), .split = tp_.splits_tokens()};
    const at::Tensor scores = nn::local_linear(y, nn::make_product(*weight_, product), nullptr, {});
    // Each rank continues with the same scores of all tokens, so the gradients that come back are equal.
    const at::Tensor all =
        (tp_.splits_tokens() ? nn::gather_tokens(scores, tp_.group, nn::GatheredGrad::kSame) : scores).to(at::kFloat);
    return bias_ == 0 ? all : all.add(bias_);
  }

 private:
  const nn::TensorParallel tp_;
  nn::Norm final_norm_;
  nn::Parameter* weight_;  // [n, h]
  const double bias_;      // that a value head has (families/value_head.h)
};

}  // namespace

std::unique_ptr<Head> make_score_head(const nn::ParameterScope& root, const HeadSite& site) {
  return std::make_unique<ScoreHead>(root, site);
}

}  // namespace megalith::model
