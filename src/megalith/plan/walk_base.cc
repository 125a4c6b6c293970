#include <algorithm>

#include "megalith/plan/layer_walk_internal.h"

namespace megalith::plan {

using Collectives = Machinery::Collectives;

namespace {

// Bytes of the CPU kernel's scratch of one thread (ops/attention_flash_cpu.cc): keys and values of a sequence in fp32,
// and in backward their gradients.
double scratch_bytes(const RunShape& run, double key_dim, double value_dim, bool backward) {
  if (run.machinery.cuda) return 0;
  const double keys = static_cast<double>(run.sequence_length) / run.grid.cp;
  const double blocks = 64 * (backward ? 3 : 2) * (key_dim + value_dim) + 3 * 64 * 64;
  return 4 * (keys * (key_dim + value_dim) * (backward ? 2 : 1) + blocks);
}

}  // namespace

LayerSizes::LayerSizes(const RunShape& run) {
  const model::ModelConfig& m = *run.model;
  t = run.tokens();
  s = run.shard_tokens();
  h = static_cast<double>(m.hidden_size);
  bytes = run.element_bytes();
  tp = run.grid.tp;
  cp = run.grid.cp;
  split_tokens = run.options.sequence_parallel && run.grid.tp > 1;
  heads = static_cast<double>(m.num_heads) / tp;
  auto key_dim = static_cast<double>(m.head_dim), value_dim = key_dim;
  const double kv_heads = std::max(1.0, static_cast<double>(m.num_kv_heads) / tp);
  q = heads * key_dim;
  k = v = kv_heads * key_dim;
  if (m.latent) {
    value_dim = static_cast<double>(m.latent->value_dim);
    k = q;
    v = heads * value_dim;
  }
  out = heads * value_dim;
  projected = q * (m.attention_output_gate ? 2 : 1) + 2 * static_cast<double>(m.num_kv_heads) * key_dim / tp;
  shared_kv = tp > static_cast<double>(m.num_kv_heads) ? static_cast<double>(m.num_kv_heads) * key_dim : 0;
  forward_scratch = scratch_bytes(run, key_dim, value_dim, false);
  grad_scratch = scratch_bytes(run, key_dim, value_dim, true);
  stats = m.norm == ops::NormKind::kLayer ? 8 : 4;
  width = static_cast<double>(m.mlp_width) / tp;
  up = width * (m.gated_mlp ? 2 : 1);
  dropout = m.hidden_dropout;
  machinery = run.machinery;
  accumulates = run.microbatches > 1;
}

void WalkBase::all_reduce(double bytes) {
  if (z_.tp > 1 && z_.machinery.collectives == Collectives::kThreads) w_.touch(bytes, Use::kCommunication);
}

void WalkBase::reduce_scatter(double bytes_in) {
  if (z_.machinery.collectives != Collectives::kNccl) w_.touch(bytes_in, Use::kCommunication);
}

void WalkBase::weight_grad(double elements) {
  if (z_.machinery.cuda || z_.bytes == 4 || defer_) return;
  // The product in 16 bits; added to fp32, ATen widens it first.
  w_.touch(elements * (z_.accumulates ? 6 : 2), Use::kWorkspace);
}

void WalkBase::column_forward(double in, double out) {
  if (z_.split_tokens) w_.take(z_.t * in * z_.bytes, Use::kCommunication);
  w_.take(z_.t * out * z_.bytes);
  if (z_.split_tokens) w_.give(z_.t * in * z_.bytes, Use::kCommunication);
}

void WalkBase::column_backward(double in, double out, double weight) {
  const double whole = z_.t * in * z_.bytes, shard = z_.s * in * z_.bytes, grad = z_.t * out * z_.bytes;
  const bool gathers = z_.split_tokens && !defer_;
  if (gathers) w_.take(whole, Use::kCommunication);
  w_.take(whole);
  if (z_.split_tokens) {
    w_.take(shard, Use::kCommunication);
    reduce_scatter(whole);
  } else {
    all_reduce(whole);
  }
  weight_grad(weight);
  if (gathers) w_.give(whole, Use::kCommunication);
  if (z_.split_tokens) {
    w_.give(whole);
    w_.give(shard, Use::kCommunication);
    w_.take(shard);
  }
  if (defer_) {
    deferred_ += grad + shard;
    return;
  }
  w_.give(grad);
  w_.give(shard);
}

void WalkBase::row_forward() {
  if (z_.split_tokens) {
    w_.take(z_.whole(), Use::kCommunication);
    w_.take(z_.stream());
    reduce_scatter(z_.whole());
    w_.give(z_.whole(), Use::kCommunication);
  } else {
    w_.take(z_.whole());
    all_reduce(z_.whole());
  }
}

void WalkBase::row_backward(double in, double weight, bool give_input, double made_again) {
  if (z_.split_tokens) w_.take(z_.whole(), Use::kCommunication);
  if (made_again > 0 && !defer_) w_.take(made_again, Use::kWorkspace);
  weight_grad(weight);
  if (made_again > 0 && !defer_) w_.give(made_again, Use::kWorkspace);
  w_.take(z_.t * in * z_.bytes);
  if (defer_) {
    if (give_input) deferred_ += z_.t * in * z_.bytes;
    if (z_.split_tokens) {
      w_.give(z_.whole(), Use::kCommunication);
      w_.take(z_.whole());
      deferred_ += z_.whole();
    } else {
      stream_grad_held_ = true;
    }
    return;
  }
  if (z_.split_tokens) w_.give(z_.whole(), Use::kCommunication);
  if (give_input) w_.give(z_.t * in * z_.bytes);
}

void WalkBase::norm_forward(bool keep) {
  w_.take(z_.stream());
  if (keep) w_.take(z_.s * z_.stats);
}

void WalkBase::norm_backward(bool give_stream_grad, bool give_input) {
  w_.take(z_.stream());
  w_.give(z_.stream());
  if (std::exchange(stream_grad_held_, false))
    deferred_ += give_stream_grad ? z_.stream() : 0;
  else if (give_stream_grad)
    w_.give(z_.stream());
  if (give_input) w_.give(z_.stream());
  w_.give(z_.s * z_.stats);
}

}  // namespace megalith::plan
