// Cases that are one pass over a buffer: each states its bytes, runs the kernel, and compares with a formula in fp32 or
// fp64. Passes that work in place restore their input in `prepare`, which is not timed.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "bench/kernel_cases.h"
#include "megalith/comm/world.h"
#include "megalith/nn/tensor_parallel/linear_cross_entropy.h"
#include "megalith/ops/gemm/fp8.h"
#include "megalith/ops/gemm/fp8_blocks.h"
#include "megalith/ops/gemm/grouped_gemm.h"
#include "megalith/ops/loss/cross_entropy.h"
#include "megalith/ops/update/adam.h"
#include "megalith/ops/update/flat_buffer.h"
#include "megalith/ops/update/gradient_sums.h"
#include "megalith/ops/update/stored_adam.h"

namespace megalith::bench {

namespace {

using at::Tensor;

// Llama 3's vocabulary, and a flat buffer of 2^28 elements: 1 GiB in fp32, far beyond the caches.
constexpr int64_t kVocab = 128256, kFlat = int64_t{1} << 28;

at::TensorOptions cuda(at::ScalarType dtype) { return at::TensorOptions(at::kCUDA).dtype(dtype); }

// A group of one rank, for operations that take a group.
struct Alone {
  std::vector<std::unique_ptr<comm::World>> worlds = comm::World::in_process(1);
  comm::Group group = worlds[0]->world();
};

// Returns the losses and the gradient of grad · Σ loss, with ATen's operations in fp32.
std::pair<Tensor, Tensor> exact_loss(const Tensor& logits, const Tensor& labels, double grad) {
  const Tensor wide = logits.to(at::kFloat).requires_grad_();
  const Tensor loss = at::cross_entropy_loss(wide, labels, {}, at::Reduction::None);
  return {loss.detach(), torch::autograd::grad({loss.sum() * grad}, {wide})[0]};
}

// Losses of logits with the gradient in place: in one pass, and as the two halves of the vocabulary-parallel form.
std::vector<KernelCase> cross_entropy() {
  const int64_t rows = 4096;
  const double bytes = static_cast<double>(rows * kVocab) * 2, grad = 0.25;
  const auto alone = std::make_shared<Alone>();
  const Tensor original = random_values({rows, kVocab}) * 4, logits = original.clone();
  const Tensor labels = at::randint(kVocab, {rows}, cuda(at::kLong));
  const ops::VocabRange range{0, kVocab, kVocab};
  const Tensor grads = at::full({rows}, grad, cuda(at::kFloat));
  // The two halves share the logarithm of the sum, which the first computes.
  const Tensor log_sums = ops::cross_entropy_forward(original, labels, range, alone->group, {}).log_sum_exp;
  const auto restore = [=] { logits.copy_(original); };
  const auto error = [=](bool at_once) {
    logits.copy_(original);
    const auto [loss, slope] = exact_loss(original, labels, grad);
    Tensor ours;
    if (at_once) {
      ours = ops::cross_entropy_with_grad_(logits, labels, range, alone->group, {}, grad);
    } else {
      ours = ops::cross_entropy_forward(logits, labels, range, alone->group, {}).loss;
      ops::cross_entropy_backward_(logits, labels, log_sums, grads, range, {});
    }
    return std::max(relative_error(ours, loss), relative_error(logits, slope));
  };
  KernelCase all{"cross_entropy", "all", {rows, kVocab}, 2 * bytes, 0, restore};
  all.run = [=] { ops::cross_entropy_with_grad_(logits, labels, range, alone->group, {}, grad); };
  all.error = [=] { return error(true); };
  KernelCase forward{"cross_entropy", "forward", {rows, kVocab}, bytes};
  forward.run = [=] { ops::cross_entropy_forward(original, labels, range, alone->group, {}); };
  forward.error = [=] { return error(false); };
  KernelCase backward{"cross_entropy", "backward", {rows, kVocab}, 2 * bytes, 0, restore};
  backward.run = [=] { ops::cross_entropy_backward_(logits, labels, log_sums, grads, range, {}); };
  backward.error = [] { return 0.0; };  // forward's check covers both
  return {all, forward, backward};
}

// Projection and loss 4096 tokens at a time, with the gradients of both factors.
std::vector<KernelCase> linear_cross_entropy() {
  struct Head {
    Alone alone;
    nn::ParameterSet set{at::kBFloat16, at::kCUDA};
    nn::Parameter* weight = nullptr;
    Tensor hidden, labels, losses, grad;
  };
  // The reference is computed for 256 tokens only: all logits in fp32 would take 8 GB, and their gradient as much.
  const int64_t h = 2048, looked_at = 256;
  const double slope = 1.0 / static_cast<double>(kTokens);
  const auto head = std::make_shared<Head>();
  head->weight = &nn::ParameterScope(head->set).add({.name = "head"}, {kVocab, h});
  {
    const at::NoGradGuard no_grad;
    head->weight->value.copy_(random_values({kVocab, h}) * 0.1);
  }
  head->weight->grad.main_grad = at::zeros({kVocab, h}, cuda(at::kFloat));
  head->hidden = random_values({kTokens, h}).requires_grad_();
  head->labels = at::randint(kVocab, {kTokens}, cuda(at::kLong));
  const auto run = [=] {
    head->weight->grad.stale = true;
    head->losses = nn::linear_cross_entropy(head->hidden, *head->weight, head->labels, {0, kVocab, kVocab},
                                            {head->alone.group, false}, {}, 4096, slope);
    const Tensor sum = head->losses.sum() * slope;
    head->grad = torch::autograd::grad({sum}, {head->hidden})[0];
  };
  KernelCase all{"linear_cross_entropy", "all", {kTokens, h, kVocab}};
  // Three products: logits, the gradient of the hidden states, the gradient of the weight.
  all.flops = 3 * 2.0 * static_cast<double>(kTokens * h) * static_cast<double>(kVocab);
  all.bytes = static_cast<double>(kTokens * h) * 4 + static_cast<double>(kVocab * h) * 6;
  all.run = run;
  all.error = [=] {
    run();
    const Tensor x = head->hidden.detach().narrow(0, 0, looked_at).to(at::kFloat);
    const Tensor w = head->weight->value.detach().to(at::kFloat);
    const auto [loss, dlogits] = exact_loss(x.mm(w.t()), head->labels.narrow(0, 0, looked_at), slope);
    return std::max(relative_error(head->losses.detach().narrow(0, 0, looked_at), loss),
                    relative_error(head->grad.narrow(0, 0, looked_at), dlogits.mm(w)));
  };
  return {all};
}

// Reads 2 bytes, and reads and writes 4 bytes of the fp32 sums, per element.
std::vector<KernelCase> embedding_grad() {
  const int64_t h = 2048;
  const Tensor dy = random_values({kTokens, h}), sums = at::zeros({kVocab, h}, cuda(at::kFloat));
  const Tensor rows = at::randint(kVocab, {kTokens}, cuda(at::kLong));
  KernelCase all{"embedding_grad", "all", {kTokens, h, kVocab}, static_cast<double>(kTokens * h) * (2 + 4 + 4)};
  all.run = [=] { ops::add_to_rows_(sums, rows, dy); };
  all.error = [=] {
    sums.zero_();
    ops::add_to_rows_(sums, rows, dy);
    return relative_error(sums, at::zeros_like(sums).index_add_(0, rows, dy.to(at::kFloat)));
  };
  return {all};
}

// Adds the gradients of a projection of 64 experts to fp32 sums.
std::vector<KernelCase> group_products() {
  const int64_t g = 64, o = 1024, i = 2048;
  const ops::GroupCounts counts(std::vector<int64_t>(g, 1));
  const Tensor products = random_values({g, o, i}), dw = random_values({g, o, i}, at::kFloat);
  KernelCase all{"group_products", "all", {g, o, i}, static_cast<double>(g * o * i) * (2 + 4 + 4)};
  all.run = [=] { ops::add_group_products(dw, products, counts, 1); };
  all.error = [=] {
    const Tensor expected = dw + products;
    ops::add_group_products(dw, products, counts, 1);
    return relative_error(dw, expected);
  };
  return {all};
}

// A sum over rows: reads everything, writes one row.
std::vector<KernelCase> bias_grad() {
  const int64_t t = 65536, h = 3072;
  const Tensor dy = random_values({t, h});
  KernelCase all{"bias_grad", "all", {t, h}, static_cast<double>(t * h) * 2};
  all.run = [=] { ops::bias_grad(dy); };
  all.error = [=] { return relative_error(ops::bias_grad(dy), dy.to(at::kFloat).sum(0)); };
  return {all};
}

// fp32 parameters and moments, fp32 gradients, a bf16 copy: 30 bytes per element.
std::vector<KernelCase> adam() {
  const auto zeros = [] { return at::zeros({kFlat}, cuda(at::kFloat)); };
  const ops::UpdateTensors tensors{random_values({kFlat}, at::kFloat), random_values({kFlat}, at::kFloat), zeros(),
                                   zeros(), at::zeros({kFlat}, cuda(at::kBFloat16))};
  const ops::UpdateScalars scalars{.lr = 1e-3, .weight_decay = 0.1, .grad_scale = 0.5, .step = 1};
  KernelCase all{"adam", "all", {kFlat}, static_cast<double>(kFlat) * 30};
  all.run = [=] { ops::adam_update(tensors, {}, scalars); };
  all.error = [=] {
    const Tensor before = tensors.main.clone(), g = tensors.grad * 0.5;
    tensors.exp_avg.zero_();
    tensors.exp_avg_sq.zero_();
    ops::adam_update(tensors, {}, scalars);  // in a first step m̂ = g and v̂ = g²
    const Tensor moved = before * (1 - 1e-4) - g / (g.abs() + 1e-8) * 1e-3;
    return std::max(relative_error(tensors.main - before, moved - before), relative_error(tensors.param, moved));
  };
  return {all};
}

// State of a bf16 model in fewer bits, main parameters as halves. The error is that of the moment, which is rounded to
// its format: 2 % in fp8, so divided by 5.
KernelCase adam_stored(const char* name, at::ScalarType moments, double bytes) {
  const auto stored = [](at::ScalarType format) {
    ops::StoredValues values{.values = at::zeros({kFlat}, cuda(format))};
    if (ops::has_scales(format)) values.scales = at::zeros({kFlat / ops::kScaleBlock}, cuda(at::kFloat));
    return values;
  };
  ops::StoredAdamTensors tensors{.main = stored(at::kShort),
                                 .grad = random_values({kFlat}),
                                 .exp_avg = stored(moments),
                                 .exp_avg_sq = stored(moments)};
  tensors.main.high = random_values({kFlat});
  const auto update = [tensors] {
    const ops::UpdateScalars scalars{.lr = 1e-3, .weight_decay = 0.1, .grad_scale = 0.5, .step = 1};
    ops::adam_update_stored(tensors, {}, std::vector<ops::UpdateRun>{{0, kFlat, scalars}});
  };
  KernelCase all{name, "all", {kFlat}, static_cast<double>(kFlat) * bytes};
  all.run = update;
  all.error = [=] {
    tensors.exp_avg.values.zero_();
    if (tensors.exp_avg.scales.defined()) tensors.exp_avg.scales.zero_();
    update();
    const Tensor moment = at::empty({kFlat}, cuda(at::kFloat));
    ops::read_values(tensors.exp_avg, moment);
    return relative_error(moment, tensors.grad.to(at::kFloat) * 0.05) / 5;
  };
  return all;
}
std::vector<KernelCase> adam_over_stored_state() {
  return {adam_stored("adam_bf16_state", at::kBFloat16, 18), adam_stored("adam_fp8_state", at::kFloat8_e4m3fn, 14.25)};
}

// Squares are summed exactly (ExactSum), so the result does not depend on the order of blocks.
std::vector<KernelCase> grad_norm() {
  const Tensor flat = random_values({kFlat}, at::kFloat);
  const auto squares = [=] {
    ExactSum sum;
    ops::add_squares(flat, sum);
    return sum.value();
  };
  KernelCase all{"grad_norm", "all", {kFlat}, static_cast<double>(kFlat) * 4};
  all.run = [=] { squares(); };
  all.error = [=] {
    const auto exact = flat.to(at::kDouble).square().sum().item<double>();
    return std::abs(squares() - exact) / exact;
  };
  return {all};
}

// The roof for the others: what a plain fill and a plain cast reach.
std::vector<KernelCase> fills_and_casts() {
  const Tensor flat = random_values({kFlat}, at::kFloat), narrow = at::empty({kFlat}, cuda(at::kBFloat16));
  KernelCase zero{"zero", "all", {kFlat}, static_cast<double>(kFlat) * 4};
  const Tensor target = at::ones_like(flat);
  zero.run = [=] { target.zero_(); };
  zero.error = [=] { return target.zero_().abs().max().item<double>(); };
  KernelCase cast{"cast", "all", {kFlat}, static_cast<double>(kFlat) * 6};
  cast.run = [=] { narrow.copy_(flat); };
  cast.error = [=] { return relative_error(narrow.copy_(flat), flat); };
  return {zero, cast};
}

// Reads two bytes per element and writes the matrix in both orders, one byte per element each. Finding the scale first
// costs another read of two bytes.
std::vector<KernelCase> fp8_casts() {
  const int64_t h = 4096;
  const Tensor x = random_values({kTokens, h}), scale = at::full({1}, 100.0, cuda(at::kFloat)),
               seen = at::zeros_like(scale);
  const auto strips = [x] { return ops::to_fp8_blocks(x, ops::Fp8Kind::kE4m3, ops::Fp8Blocks::kStrips); };
  const auto wide = [](const Tensor& bytes, const Tensor& inverse) {
    return bytes.to(at::kFloat) * (inverse.numel() == 1 ? inverse : inverse.repeat_interleave(ops::kFp8Block, 1));
  };
  const auto error = [x, wide](const ops::Fp8Matrix& cast) {  // 3 bits of mantissa: 2 % on average, so divided by 5
    return std::max(relative_error(wide(cast.rows, cast.inverse_scale), x),
                    relative_error(wide(cast.columns, cast.columns_inverse_scale).t(), x)) /
           5;
  };
  const auto elements = static_cast<double>(kTokens * h);
  KernelCase searched{"fp8_cast", "all", {kTokens, h}, elements * 6};
  searched.run = [=] { ops::to_fp8(x, {}); };
  searched.error = [=] { return error(ops::to_fp8(x, {})); };
  KernelCase given{"fp8_cast_delayed", "all", {kTokens, h}, elements * 4};
  given.run = [=] { ops::to_fp8(x, {.scale = scale, .seen = seen}); };
  given.error = [=] { return error(ops::to_fp8(x, {.scale = scale, .seen = seen})); };
  KernelCase blocks{"fp8_cast_blocks", "all", {kTokens, h}, elements * (4 + 2 * 4.0 / ops::kFp8Block)};
  blocks.run = [=] { strips(); };
  blocks.error = [=] { return error(strips()); };
  return {searched, given, blocks};
}

}  // namespace

std::vector<MakeCases> pass_cases() {
  return {cross_entropy, linear_cross_entropy,   embedding_grad, group_products,  bias_grad,
          adam,          adam_over_stored_state, grad_norm,      fills_and_casts, fp8_casts};
}

}  // namespace megalith::bench
