#include <ATen/ATen.h>

#include <algorithm>

#include "tests/support/reference_parts.h"

namespace megalith::testing {

namespace {

// The k best of each row of `scores`, as a mask of ones; `margin` as in reference_experts.
at::Tensor best(const at::Tensor& scores, int64_t k, double& margin) {
  const at::Tensor sorted = std::get<0>(scores.sort(-1, /*descending=*/true));
  if (k < scores.size(-1)) {
    const at::Tensor gaps = sorted.select(-1, k - 1) - sorted.select(-1, k);
    margin = std::min(margin, gaps.min().item<double>());
  }
  const at::Tensor chosen = std::get<1>(scores.topk(k, -1));
  return at::zeros_like(scores).scatter(-1, chosen, 1);
}

// Returns the weight of each expert's output: [t, e], zero for those that are not chosen. x [t, h]
at::Tensor route(const ReferenceParts& parts, const at::Tensor& x, const std::string& name, double& margin) {
  const ReferenceExperts& experts = *parts.config().experts;
  const at::Tensor logits = parts.linear(x, name + "gate").to(ReferenceParts::acc(x));
  if (!experts.sigmoid) {
    const at::Tensor scores = at::softmax(logits, -1) * best(logits.detach(), experts.topk, margin);
    return (experts.normalize ? scores / scores.sum(-1, /*keepdim=*/true) : scores) * experts.scale;
  }
  const at::Tensor scores = logits.sigmoid();
  at::Tensor choice = scores.detach() + parts.weight(name + "gate.e_score_correction_bias");
  if (experts.groups > 1) {
    const at::Tensor by_group = choice.unflatten(-1, {experts.groups, -1});  // [t, groups, e / groups]
    const at::Tensor two_best = std::get<0>(by_group.topk(2, -1)).sum(-1);
    const at::Tensor open = best(two_best, experts.group_topk, margin).unsqueeze(-1).expand_as(by_group);
    choice = choice.masked_fill(open.reshape(choice.sizes()).eq(0), -1e9);
  }
  const at::Tensor chosen = scores * best(choice, experts.topk, margin);
  return (experts.normalize ? chosen / (chosen.sum(-1, /*keepdim=*/true) + 1e-20) : chosen) * experts.scale;
}

}  // namespace

at::Tensor reference_experts(const ReferenceParts& parts, const at::Tensor& y, int64_t layer, double& margin) {
  const ReferenceConfig& config = parts.config();
  const bool mixtral = config.model_type == "mixtral";
  const std::string name = "model.layers." + std::to_string(layer) + (mixtral ? ".block_sparse_moe." : ".mlp.");
  const at::Tensor x = y.reshape({-1, y.size(-1)});
  const at::Tensor weights = route(parts, x, name, margin).to(x.scalar_type());
  at::Tensor out = at::zeros_like(x);
  for (int64_t e = 0; e < config.experts->count; ++e) {
    const std::string expert = name + "experts." + std::to_string(e) + ".";
    const at::Tensor made =
        mixtral ? parts.linear(parts.activate(parts.linear(x, expert + "w1")) * parts.linear(x, expert + "w3"),
                               expert + "w2")
                : parts.mlp(x, expert);
    out = out + made * weights.select(1, e).unsqueeze(-1);
  }
  if (config.experts->shared_width > 0) {
    const bool gated = config.experts->shared_gate;
    at::Tensor shared = parts.mlp(x, name + (gated ? "shared_expert." : "shared_experts."));
    if (gated) shared = shared * parts.linear(x, name + "shared_expert_gate").sigmoid();
    out = out + shared;
  }
  return out.view(y.sizes());
}

}  // namespace megalith::testing
