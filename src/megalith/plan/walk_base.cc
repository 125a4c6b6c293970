#include <algorithm>

#include "megalith/plan/layer_walk_internal.h"

namespace megalith::plan {

using Collectives = Machinery::Collectives;

namespace {

// Bytes of the CPU kernel's scratch of one thread (ops/attention/attention_flash_cpu.cc): keys and values of a sequence
// in fp32, and in backward their gradients.
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
  frozen = run.options.adapter.has_value();
  adapter_dropout = frozen ? run.options.adapter->dropout : 0;
  for (int64_t layer = 0; frozen && layer < m.num_layers; ++layer) updates.push_back(layer_updates(run, layer));
}

const LayerUpdates& LayerSizes::updates_of(int64_t layer) const {
  static const LayerUpdates kNone;
  return updates.empty() ? kNone : updates.at(static_cast<size_t>(layer));
}

void WalkBase::all_reduce(double bytes) {
  if (z_.tp > 1 && z_.machinery.collectives == Collectives::kThreads) w_.touch(bytes, Use::kCommunication);
}

void WalkBase::reduce_scatter(double bytes_in) {
  if (z_.machinery.collectives != Collectives::kNccl) w_.touch(bytes_in, Use::kCommunication);
}

void WalkBase::weight_grad(double elements) {
  if (!z_.frozen) trained_grad(elements);
}

void WalkBase::trained_grad(double elements) {
  if (z_.machinery.cuda || z_.bytes == 4 || defer_) return;
  // The product in 16 bits; added to fp32, ATen widens it first.
  w_.touch(elements * (z_.accumulates ? 6 : 2), Use::kWorkspace);
}

void WalkBase::update_forward(const UpdateSize& update, double rows, double mask, bool keep) {
  if (!update.any()) return;
  const double hidden = rows * static_cast<double>(update.hidden) * z_.bytes, half = z_.bytes == 4 ? 0 : 2;
  const double masked = z_.adapter_dropout > 0 ? mask : 0;
  w_.take(masked);
  w_.touch(masked + half * static_cast<double>(update.a), Use::kWorkspace);
  w_.take(hidden);
  w_.touch(half * static_cast<double>(update.b), Use::kWorkspace);
  if (!keep) w_.give(hidden + masked);
}

void WalkBase::take_hidden_grad(const UpdateSize& update, double rows) {
  if (!update.any()) return;
  const double half = z_.bytes == 4 ? 0 : 2;
  w_.touch(half * static_cast<double>(update.b), Use::kWorkspace);
  w_.take(rows * static_cast<double>(update.hidden) * z_.bytes);
}

void WalkBase::give_hidden(const UpdateSize& update, double rows, double mask) {
  if (!update.any()) return;
  const double half = z_.bytes == 4 ? 0 : 2;
  const double masked = z_.adapter_dropout > 0 ? mask : 0;
  w_.touch(masked + half * static_cast<double>(update.a), Use::kWorkspace);
  trained_grad(static_cast<double>(update.b));
  trained_grad(static_cast<double>(update.a));
  w_.give(2 * rows * static_cast<double>(update.hidden) * z_.bytes + masked);
}

void WalkBase::column_forward(double in, double out) {
  if (z_.split_tokens) w_.take(z_.t * in * z_.bytes, Use::kCommunication);
  w_.take(z_.t * out * z_.bytes);
  if (z_.split_tokens) w_.give(z_.t * in * z_.bytes, Use::kCommunication);
}

void WalkBase::column_backward(double in, double out, double weight, const UpdateSize& update, bool wanted) {
  const double whole = z_.t * in * z_.bytes, grad = z_.t * out * z_.bytes;
  const double share = z_.s * in * z_.bytes, shard = keeps_input(update) ? share : 0;  // the kept input
  const bool gathers = z_.split_tokens && !defer_ && !z_.frozen;
  take_hidden_grad(update, z_.t);
  if (gathers) w_.take(whole, Use::kCommunication);
  if (wanted) {
    w_.take(whole);
    if (z_.split_tokens) {
      w_.take(share, Use::kCommunication);
      reduce_scatter(whole);
    } else {
      all_reduce(whole);
    }
  }
  weight_grad(weight);
  if (gathers) w_.give(whole, Use::kCommunication);
  if (wanted && z_.split_tokens) {
    w_.give(whole);
    w_.give(share, Use::kCommunication);
    w_.take(share);
  }
  give_hidden(update, z_.t, share);
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

void WalkBase::row_backward(double in, double weight, bool give_input, double made_again, const UpdateSize& update) {
  if (z_.split_tokens) w_.take(z_.whole(), Use::kCommunication);
  if (made_again > 0 && !defer_) w_.take(made_again, Use::kWorkspace);
  weight_grad(weight);
  take_hidden_grad(update, z_.t);
  if (made_again > 0 && !defer_) w_.give(made_again, Use::kWorkspace);
  w_.take(z_.t * in * z_.bytes);
  give_hidden(update, z_.t, z_.t * in * z_.bytes);
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
