// The library's kinds of parts that work on each token alone: an MLP, or experts in layers of moe_layers. As in
// attention_kinds.cc, one nn shape per kind serves the layer, its footprint and the checks. Fields that a run chooses
// (recomputation, dispatch) come from ModelOptions when the part is made, since a kind belongs to the model alone.
#include <fmt/format.h>

#include <array>

#include "megalith/model/block_parts.h"
#include "megalith/model/block_shapes_internal.h"
#include "megalith/nn/moe/moe_layer.h"

namespace megalith::model {

namespace {

nn::MlpShape mlp_shape(const ModelConfig& config) {
  return {.hidden = config.hidden_size,
          .width = config.mlp_width,
          .gated = config.gated_mlp,
          .bias = config.mlp_bias,
          .activation = config.activation,
          .init = nn::Init::normal(config.init_std),
          .out_init = output_init(config)};
}

// The family sets what is special to its experts (router, widths, shared gate); sizes that follow from the model are
// filled in here, so that no family can forget one.
nn::MoeShape moe_shape(const ModelConfig& config) {
  nn::MoeShape shape = config.moe.value();
  shape.hidden = config.hidden_size;
  shape.gated = config.gated_mlp;
  shape.activation = config.activation;
  shape.init = nn::Init::normal(config.init_std);
  shape.out_init = output_init(config);
  return shape;
}

// Gated (down(act(gate x) · up x)) or plain (down(act(up x))).
class MlpKind : public PartKind {
 public:
  explicit MlpKind(const ModelConfig& config) : shape_(mlp_shape(config)) {}

  std::unique_ptr<nn::BlockPart> make(const nn::ParameterScope& scope, const PartSite& site) const override {
    return std::make_unique<nn::Mlp>(scope, shape(site.options), site.tp);
  }
  PartFacts facts() const override { return {.random = false, .cached = true, .whole_sequences = "", .host_work = ""}; }
  bool repeated(const RecomputePlan& plan) const override { return plan.mlp; }
  std::vector<std::string> tensor_parallel_problems(int tp) const override {
    if (shape_.width % tp == 0) return {};
    return {fmt::format("tensor_model_parallel_size {} does not divide the MLP's width {}", tp, shape_.width)};
  }
  std::unique_ptr<nn::PartFootprint> footprint(const nn::FootprintScope& scope,
                                               const ModelOptions& options) const override {
    return nn::make_footprint(scope, shape(options));
  }

 private:
  // The recomputed activation is the run's choice, so it is added to the model's shape here.
  nn::MlpShape shape(const ModelOptions& options) const {
    nn::MlpShape result = shape_;
    result.recompute_activation = options.recompute.mlp_activation;
    return result;
  }

  const nn::MlpShape shape_;
};

// Routed and shared experts. Divisibility by ep and etp is checked by nn::problems, which knows the expert layout, so
// tensor_parallel_problems stays empty.
class ExpertsKind : public PartKind {
 public:
  explicit ExpertsKind(const ModelConfig& config) : shape_(moe_shape(config)) {}

  std::unique_ptr<nn::BlockPart> make(const nn::ParameterScope& scope, const PartSite& site) const override {
    return std::make_unique<nn::MoeLayer>(scope, shape_, site.options.moe, site.tp, site.context);
  }
  PartFacts facts() const override {
    return {.random = shape_.router.jitter > 0, .cached = true, .whole_sequences = "", .host_work = host_work()};
  }
  bool repeated(const RecomputePlan& plan) const override { return plan.moe; }
  std::unique_ptr<nn::PartFootprint> footprint(const nn::FootprintScope& scope,
                                               const ModelOptions& options) const override {
    return nn::make_footprint(scope, shape_, options.moe);
  }

 private:
  // Whether the experts of a layer are on one rank, and in bf16, is a matter of the run (train::graph_obstacle).
  std::string host_work() const {
    const nn::RouterShape& router = shape_.router;
    if (router.capacity_factor) return "moe_expert_capacity_factor drops tokens of experts on the host";
    if (router.sinkhorn) return "the host decides when Sinkhorn's balancing of experts has converged";
    for (const nn::BalanceLoss& loss : router.losses) {
      if (loss.kind == nn::BalanceLoss::Kind::kSequence)
        return "seq_aux_loss numbers the sequences of tokens for the experts on the host";
      if (loss.kind == nn::BalanceLoss::Kind::kGlobal)
        return "global_aux_loss counts the choices of experts over the micro-batches of a step on the host";
    }
    return "";
  }

  const nn::MoeShape shape_;
};

template <typename Kind>
std::unique_ptr<PartKind> make_feed_forward(const ModelConfig& config, int64_t /*layer*/) {
  return std::make_unique<Kind>(config);
}

}  // namespace

std::span<const KnownKind> known_feed_forward() {
  static constexpr std::array kKinds{
      KnownKind{[](const ModelConfig& config, int64_t layer) { return config.is_moe(layer); },
                make_feed_forward<ExpertsKind>},
      KnownKind{[](const ModelConfig&, int64_t) { return true; }, make_feed_forward<MlpKind>}};
  return kKinds;
}

}  // namespace megalith::model
