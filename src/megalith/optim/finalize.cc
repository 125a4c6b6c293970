// The order is Megatron's. All sums are linear, so another order would give the same numbers up to rounding; keeping
// this one makes losses comparable to the last digits.
#include "megalith/optim/finalize.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace megalith::optim {

using layout::GroupKind;

namespace {

// Sums many small gradients in place with a single collective: latency, not bandwidth, dominates here.
void all_reduce_together(const std::vector<at::Tensor>& gradients, const comm::Group& group, const char* label) {
  if (gradients.empty() || group.size() == 1) return;
  std::vector<at::Tensor> flat;
  flat.reserve(gradients.size());
  for (const at::Tensor& gradient : gradients) flat.push_back(gradient.reshape(-1));
  const at::Tensor joined = at::cat(flat);
  group.all_reduce(joined, comm::ReduceOp::kSum, label);
  int64_t at = 0;
  for (const at::Tensor& gradient : gradients) {
    gradient.copy_(joined.narrow(0, at, gradient.numel()).view(gradient.sizes()));
    at += gradient.numel();
  }
}

// Returns main_grad of every parameter for which `wanted` is true, in the same order on all ranks of a group.
std::vector<at::Tensor> gradients_where(const std::vector<DistributedDataParallel*>& chunks,
                                        bool (*wanted)(const nn::Parameter&)) {
  std::vector<at::Tensor> gradients;
  for (const DistributedDataParallel* chunk : chunks)
    for (const auto& buffer : chunk->buffers())
      for (const nn::Parameter* p : buffer->parameters())
        if (wanted(*p)) gradients.push_back(p->grad.main_grad);
  return gradients;
}

// Divides by the sum of the token counts of all replicas. Only the last stage computes the loss, so its count is
// broadcast first. The sum stays on the device: the host would have to wait for backward to read it.
void divide_by_tokens(int64_t own, const std::vector<DistributedDataParallel*>& chunks,
                      const parallel::ParallelContext& context) {
  const comm::Group pp = context.pp(), replicas = context.dp(/*with_cp=*/true);
  if (pp.size() == 1 && replicas.size() == 1) {
    const double factor = 1.0 / static_cast<double>(std::max<int64_t>(1, own));
    for (DistributedDataParallel* chunk : chunks) chunk->scale_gradients(factor);
    return;
  }
  const at::Tensor count = at::full({1}, own, at::TensorOptions(at::kLong).device(context.device()));
  pp.broadcast(count, pp.size() - 1, "tokens of the step");
  replicas.all_reduce(count, comm::ReduceOp::kSum, "tokens of the step");
  const at::Tensor factor = count.squeeze(0).clamp_min(1).to(at::kDouble).reciprocal();
  for (DistributedDataParallel* chunk : chunks) chunk->scale_gradients(factor);
}

}  // namespace

void finalize_gradients(const std::vector<DistributedDataParallel*>& chunks, const parallel::ParallelContext& context,
                        std::optional<int64_t> tokens) {
  const at::NoGradGuard no_grad;
  for (DistributedDataParallel* chunk : chunks) chunk->finish_grad_sync();
  // With ZeRO-1 the parts of a gradient that other ranks own hold stale values here. They are summed as well: no one
  // reads them, and this is simpler than leaving them out.
  all_reduce_together(
      gradients_where(chunks, [](const nn::Parameter& p) { return p.spec.partial_grad_over_tp && !p.spec.expert; }),
      context.tp(), "gradients of replicated parameters");
  all_reduce_together(
      gradients_where(chunks, [](const nn::Parameter& p) { return p.spec.partial_grad_over_tp && p.spec.expert; }),
      context.etp(), "gradients of replicated parts of experts");
  if (context.grid().shape().pp > 1 && context.in_group(GroupKind::kEmbedding))
    all_reduce_together(gradients_where(chunks, [](const nn::Parameter& p) { return p.spec.tied_over_stages(); }),
                        context.group(GroupKind::kEmbedding), "gradients of tied embeddings");
  if (tokens) divide_by_tokens(*tokens, chunks, context);
}

}  // namespace megalith::optim
