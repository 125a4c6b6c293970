// Attention of a layer: nn/attention/self_attention.cc, latent_attention.cc, nn/context_parallel.
#include <algorithm>

#include "megalith/plan/layer_walk_internal.h"

namespace megalith::plan {

namespace {

// Linear attention is made of many small operations; what they keep is estimated, in fp32 columns of a token.
double delta_net_columns(const RunShape& run) {
  const model::DeltaNetSizes& d = *run.model->delta_net;
  const double keys = static_cast<double>(d.key_heads * d.key_dim) / run.grid.tp;
  const double values = static_cast<double>(d.value_heads * d.value_dim) / run.grid.tp;
  const double spread = static_cast<double>(d.value_heads * d.key_dim) / run.grid.tp;
  return 3 * (2 * keys + values) + 4 * keys + 4 * spread + 6 * values;
}

}  // namespace

// Log-sum-exp of every query and head, in fp32.
double LayerWalk::kept_by_core() const { return 4 * z_.t * z_.heads; }

void LayerWalk::attention_forward(bool keep) {
  norm_forward(keep && !bottom_);
  if (delta_) {
    const double held = 4 * z_.t * delta_net_columns(run_);
    w_.take(held);
    row_forward();
    if (!keep) w_.give(held);
  } else if (run_.model->latent) {
    latent_forward(keep);
  } else {
    self_attention_forward(keep);
  }
  end_branch(keep);
}

void LayerWalk::attention_backward() {
  if (again_.norms && keeps_input(updates_.qkv)) w_.take(z_.stream());
  if (z_.dropout > 0) w_.take(z_.stream());
  if (delta_) {
    const double held = 4 * z_.t * delta_net_columns(run_);
    w_.touch(held / 3, Use::kWorkspace);
    w_.give(held);
    w_.take(z_.stream());
    w_.give(z_.stream());  // the norm's output
    w_.take(z_.stream());  // its gradient
  } else if (run_.model->latent) {
    latent_backward();
  } else {
    self_attention_backward();
  }
  if (z_.dropout > 0) w_.give(z_.stream() + z_.s * z_.h);
}

void LayerWalk::self_attention_forward(bool keep) {
  const double b = z_.t * z_.bytes, fused = b * z_.projected, parts = b * (z_.q + z_.k + z_.v);
  const bool gate = run_.model->attention_output_gate, norms = run_.model->qk_norm;
  column_forward(z_.h, z_.projected);
  update_forward(updates_.qkv, z_.t, z_.stream(), keep);
  if (keep && !keeps_input(updates_.qkv) && !again_.norms) w_.give(z_.stream());
  if (z_.shared_kv > 0) w_.touch(b * 5 * z_.shared_kv, Use::kCommunication);
  if (gate) w_.take(parts);  // the projection without the gates
  w_.take(parts);
  if (!keep || !norms) w_.give(gate ? parts : fused);
  core_forward(keep && !again_.core_attention);
  if (gate) w_.take(2 * b * z_.q);
  row_forward();
  update_forward(updates_.out, z_.t, b * z_.out, keep);
  if (gate) w_.give(fused);
  if (keep) {
    if (ring_ && !again_.core_attention) w_.give(b * (z_.k + z_.v));  // a copy of both is kept
    return;
  }
  w_.give(parts + b * z_.out + (gate ? 2 * b * z_.q : 0));
}

void LayerWalk::self_attention_backward() {
  const double b = z_.t * z_.bytes, parts = b * (z_.q + z_.k + z_.v);
  const bool gate = run_.model->attention_output_gate, norms = run_.model->qk_norm;
  row_backward(z_.out, z_.out * z_.h, false, 0, updates_.out);
  if (gate) {
    w_.touch(2 * b * z_.q);
    w_.give(2 * b * z_.q);
  }
  core_backward();
  w_.take(b * z_.projected);
  w_.give(parts);
  if (norms) w_.give(gate ? parts : b * z_.projected);
  if (z_.shared_kv > 0) w_.touch(b * (5 * z_.shared_kv + z_.projected), Use::kCommunication);
  column_backward(z_.h, z_.projected, z_.projected * z_.h, updates_.qkv, !bottom_);
}

// Estimated where it is made of small operations (rotation, concatenation).
void LayerWalk::latent_forward(bool keep) {
  const model::LatentSizes& l = *run_.model->latent;
  const double b = z_.t * z_.bytes, latents = z_.s * z_.bytes * static_cast<double>(l.q_rank + l.kv_rank);
  w_.take(2 * latents);
  w_.touch(b * (z_.q + z_.k + z_.v), Use::kWorkspace);  // before they are rotated
  w_.take(b * (z_.q + z_.k + z_.v));
  core_forward(keep && !again_.core_attention);
  row_forward();
  if (keep) {
    if (ring_ && !again_.core_attention) w_.give(b * (z_.k + z_.v));
    return;
  }
  w_.give(2 * latents + b * (z_.q + z_.k + z_.v + z_.out));
}

void LayerWalk::latent_backward() {
  const model::LatentSizes& l = *run_.model->latent;
  const double b = z_.t * z_.bytes, latents = z_.s * z_.bytes * static_cast<double>(l.q_rank + l.kv_rank);
  row_backward(z_.out, z_.out * z_.h, false);
  core_backward();
  w_.touch(2 * b * (z_.q + z_.k + z_.v), Use::kWorkspace);
  w_.give(b * (z_.q + z_.k + z_.v));
  w_.touch(2 * latents);
  w_.give(2 * latents);
  w_.take(z_.stream());
  w_.give(z_.stream());
}

void LayerWalk::core_forward(bool keep) {
  if (ring_) return ring_forward(keep);
  w_.take(z_.t * z_.out * z_.bytes);
  w_.take(kept_by_core());
  w_.touch(z_.forward_scratch, Use::kWorkspace);
  if (!keep) w_.give(kept_by_core());
}

void LayerWalk::core_backward() {
  const double b = z_.t * z_.bytes, parts = b * (z_.q + z_.k + z_.v);
  if (again_.core_attention) core_forward(/*keep=*/true);
  if (ring_) {
    ring_backward();
    if (again_.core_attention) w_.give(b * (z_.k + z_.v));
  } else {
    w_.take(parts);
    w_.touch(z_.grad_scratch, Use::kWorkspace);
    w_.give(parts + kept_by_core());
  }
  w_.give(b * z_.out);  // the gradient that came
  if (again_.core_attention) w_.give(b * z_.out);
  if (defer_)
    deferred_ += b * z_.out;  // kept as the input of the projection behind
  else
    w_.give(b * z_.out);
}

// PartialAttention: sums in fp32, blocks of keys and values that come and go. Trading heads (a2a) holds about as much.
void LayerWalk::ring_forward(bool keep) {
  const double b = z_.t * z_.bytes, block = b * (z_.k + z_.v), rows = z_.t * z_.out;
  const double blocks = block * std::min(z_.cp - 1, 2.0);
  w_.take(block);
  w_.take(4 * rows + kept_by_core());
  w_.take(blocks, Use::kCommunication);
  w_.touch(b * z_.out + 2 * kept_by_core() + 4 * rows * (z_.bytes == 4 ? 1 : 2) + z_.forward_scratch, Use::kWorkspace);
  w_.give(blocks, Use::kCommunication);
  if (z_.bytes != 4) {
    w_.take(b * z_.out);
    w_.give(4 * rows);
  }
  if (!keep) w_.give(block + kept_by_core());
}

void LayerWalk::ring_backward() {
  const double b = z_.t * z_.bytes, block = b * (z_.k + z_.v), grads = 4 * z_.t * (z_.k + z_.v);
  w_.take(4 * z_.t * z_.q);
  const double travelling = 2 * grads + block * std::min(z_.cp - 1, 2.0);
  w_.take(travelling + grads, Use::kCommunication);
  w_.touch(b * (z_.q + z_.k + z_.v) + z_.grad_scratch, Use::kWorkspace);
  w_.give(travelling + grads, Use::kCommunication);
  w_.take(b * (z_.q + z_.k + z_.v));
  w_.give(4 * z_.t * z_.q);
  w_.give(b * z_.q + block + kept_by_core());
}

}  // namespace megalith::plan
