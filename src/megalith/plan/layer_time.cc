#include "megalith/plan/layer_time_internal.h"

#include <algorithm>

#include "megalith/layout/vocab_split.h"

namespace megalith::plan {

PartTimes& PartTimes::operator+=(const PartTimes& other) {
  gemm += other.gemm;
  attention += other.attention;
  memory_bound += other.memory_bound;
  recompute += other.recompute;
  tp += other.tp;
  cp += other.cp;
  ep += other.ep;
  return *this;
}

LayerTimes::LayerTimes(const RunShape& run, const Cluster& cluster)
    : run_(run),
      cluster_(cluster),
      z_(run),
      fp32_(!run.half()),
      tp_(cluster, run.grid.tp, 1),
      cp_(cluster, run.grid.cp, run.grid.tp),
      ep_(cluster, run.grid.ep * run.grid.expert_tp(), 1) {
  mlp_ = mlp(z_.width, z_.up);
  self_ = self_attention(0);
  if (run.model->moe) experts_ = experts();
  if (run.model->latent) latent_ = latent_attention();
  if (run.model->delta_net) delta_ = delta_net();
  // Two norms: x in, y out; in backward x and two gradients in, one out.
  norms_.forward.memory_bound = 2 * moved(2 * z_.stream());
  norms_.backward.memory_bound = 2 * moved(4 * z_.stream());
}

void LayerTimes::add_product(Both& to, double rows, double out, double in, double hidden_by_input_grad,
                             double hidden_by_weight_grad) const {
  to.forward.gemm += cluster_.gemm_seconds(rows, out, in, fp32_);
  const double input_grad = cluster_.gemm_seconds(rows, in, out, fp32_);
  const double weight_grad = cluster_.gemm_seconds(out, in, rows, fp32_);
  to.backward.gemm += input_grad + weight_grad;
  to.backward.tp +=
      std::max(0.0, hidden_by_input_grad - input_grad) + std::max(0.0, hidden_by_weight_grad - weight_grad);
}

void LayerTimes::add_branch(Both& to, double up, double down) const {
  const double gather = tp_.all_gather(z_.whole());
  if (z_.split_tokens) {
    to.forward.tp += 2 * gather;
    to.backward.tp += gather;  // of the gradient, before anything else
    add_product(to, z_.t, up, z_.h, gather, gather);
  } else {
    const double reduce = tp_.all_reduce(z_.whole());
    to.forward.tp += reduce;
    add_product(to, z_.t, up, z_.h, 0, reduce);
  }
  add_product(to, z_.t, z_.h, down);
}

void LayerTimes::add_core(Both& to, double window) const {
  const auto length = static_cast<double>(run_.sequence_length);
  // Causal: half of the keys; a window sees about as many as it is wide.
  const double keys = window > 0 && window < length / 2 ? window : length / 2;
  const double flop = 2 * z_.t * keys * (z_.q + z_.out);
  // Speeds are those of heads of 128 channels; the kernels are slower with smaller ones.
  const double part = cluster_.cuda ? std::min(1.0, 0.2 + 0.8 * z_.q / z_.heads / 128) : 1;
  const double forward = std::max(cluster_.launch_s, flop / (part * cluster_.attention_flops));
  const double backward = std::max(cluster_.launch_s, 2.5 * flop / (part * cluster_.attention_backward_flops));
  to.forward.attention += forward;
  to.backward.attention += backward;
  if (z_.cp == 1) return;
  const double block = z_.t * (z_.k + z_.v), steps = z_.cp - 1;
  to.forward.cp += steps * std::max(0.0, cp_.message(block * z_.bytes) - forward / z_.cp);
  to.backward.cp += steps * std::max(0.0, cp_.message(block * (z_.bytes + 4)) - backward / z_.cp);
}

LayerTimes::Both LayerTimes::self_attention(double window) const {
  Both time;
  const double b = z_.t * z_.bytes;
  add_branch(time, z_.projected, z_.out);
  time.forward.memory_bound += moved(2 * b * z_.projected);
  time.backward.memory_bound += moved(2 * b * z_.projected);
  add_core(time, window);
  return time;
}

LayerTimes::Both LayerTimes::latent_attention() const {
  Both time;
  const model::LatentSizes& l = *run_.model->latent;
  const auto rank = static_cast<double>(l.q_rank > 0 ? l.q_rank : run_.model->hidden_size);
  const double kv_up = z_.heads * static_cast<double>(l.nope_dim + l.value_dim), b = z_.t * z_.bytes;
  add_product(time, z_.s, static_cast<double>(l.q_rank + l.kv_rank + l.rotary_dim), z_.h);
  add_product(time, z_.t, z_.q, rank);
  add_product(time, z_.t, kv_up, static_cast<double>(l.kv_rank));
  add_product(time, z_.t, z_.h, z_.out);
  time.forward.tp += z_.split_tokens ? 2 * tp_.all_gather(z_.whole()) : tp_.all_reduce(z_.whole());
  time.backward.tp += z_.split_tokens ? 2 * tp_.all_gather(z_.whole()) : tp_.all_reduce(z_.whole());
  time.forward.memory_bound += moved(4 * b * (z_.q + z_.k + z_.v));
  time.backward.memory_bound += moved(6 * b * (z_.q + z_.k + z_.v));
  add_core(time, 0);
  return time;
}

LayerTimes::Both LayerTimes::delta_net() const {
  Both time;
  const model::DeltaNetSizes& d = *run_.model->delta_net;
  const double keys = static_cast<double>(d.key_heads * d.key_dim) / z_.tp;
  const double values = static_cast<double>(d.value_heads * d.value_dim) / z_.tp;
  add_branch(time, 2 * (keys + values), values);
  const double bytes = 4 * z_.t * (8 * keys + 12 * values);
  time.forward.memory_bound += moved(bytes);
  time.backward.memory_bound += moved(3 * bytes);
  return time;
}

LayerTimes::Both LayerTimes::mlp(double width, double up) const {
  Both time;
  const double b = z_.t * z_.bytes;
  add_branch(time, up, width);
  time.forward.memory_bound += moved(b * (up + width));
  time.backward.memory_bound += moved(b * (2 * up + width));
  return time;
}

LayerTimes::Both LayerTimes::experts() const {
  Both time;
  const nn::MoeShape& moe = *run_.model->moe;
  const double etp = run_.grid.expert_tp(), here = static_cast<double>(moe.router.experts) / run_.grid.ep;
  const double rows = z_.s * static_cast<double>(moe.router.topk) * etp, width = static_cast<double>(moe.width) / etp;
  const double up = width * z_.up / z_.width, b = rows * z_.bytes;
  // On CUDA one kernel computes the products of all experts; elsewhere they follow one another.
  const double calls = cluster_.cuda ? 1 : here;
  Both one;
  add_product(one, rows / calls, up, z_.h);
  add_product(one, rows / calls, z_.h, width);
  time.forward.gemm = calls * one.forward.gemm;
  time.backward.gemm = calls * one.backward.gemm;
  add_product(time, z_.s, static_cast<double>(moe.router.experts), z_.h);
  // Rows are sent, sorted, activated, sorted and summed up; alone, only copied and summed up. The router is a few dozen
  // small operations.
  const double passes = run_.grid.ep * etp > 1 ? 8 : 3;
  time.forward.memory_bound += moved(passes * b * z_.h) + moved(b * (up + width)) + 30 * cluster_.launch_s;
  time.backward.memory_bound += moved(passes * b * z_.h) + moved(b * (2 * up + width)) + 30 * cluster_.launch_s;
  time.forward.ep = 2 * ep_.all_to_all(b * z_.h);
  time.backward.ep = time.forward.ep;
  if (moe.shared_width > 0) {
    const double shared = static_cast<double>(moe.shared_width) / z_.tp;
    const Both always = mlp(shared, shared * z_.up / z_.width);
    time.forward += always.forward;
    time.backward += always.backward;
  }
  return time;
}

LayerTimes::Both LayerTimes::attention(int64_t layer) const {
  if (run_.model->is_delta_net(layer)) return delta_;
  if (run_.model->latent) return latent_;
  const int64_t window = run_.model->window(layer);
  return window == 0 ? self_ : self_attention(static_cast<double>(window));
}

void LayerTimes::add_layer(int64_t layer, int64_t local, PartTimes& forward, PartTimes& backward) const {
  using Layers = model::RecomputePlan::Layers;
  const model::RecomputePlan& again = run_.options.recompute;
  const bool moe = run_.model->is_moe(layer);
  const Both mixer = attention(layer), &feed = moe ? experts_ : mlp_;
  PartTimes once = mixer.forward;
  once += feed.forward;
  once += norms_.forward;
  forward += once;
  backward += mixer.backward;
  backward += feed.backward;
  backward += norms_.backward;
  const bool whole = again.layers == Layers::kUniform || (again.layers == Layers::kBlock && local < again.num_layers);
  if (whole) {
    backward.recompute += once.total();
    return;
  }
  if (again.core_attention) backward.recompute += mixer.forward.attention + mixer.forward.cp;
  if (moe ? again.moe : again.mlp) backward.recompute += feed.forward.total();
  if (again.norms) backward.recompute += norms_.forward.total();
}

void LayerTimes::add_embedding(PartTimes& forward, PartTimes& backward) const {
  forward.memory_bound += moved(2 * z_.whole());
  backward.memory_bound += moved(z_.whole() + 8 * z_.t * z_.h);
  const double travels = z_.split_tokens ? tp_.all_gather(z_.whole()) : tp_.all_reduce(z_.whole());
  forward.tp += travels;
  backward.tp += z_.split_tokens ? travels : 0;
}

void LayerTimes::add_head(PartTimes& forward, PartTimes& backward) const {
  const double columns = static_cast<double>(layout::padded_vocab_size(run_.model->vocab_size,
                                                                       run_.options.vocab_multiple, run_.grid.tp)) /
                         z_.tp;
  const double gather = z_.split_tokens ? tp_.all_gather(z_.whole()) : 0;
  Both time;
  add_product(time, z_.t, columns, z_.h, gather, z_.split_tokens ? gather : tp_.all_reduce(z_.whole()));
  time.forward.tp += gather;
  time.forward.memory_bound += moved(z_.t * columns * z_.bytes) + moved(2 * z_.stream());
  time.backward.memory_bound += moved(2 * z_.t * columns * z_.bytes) + moved(3 * z_.stream());
  if (run_.options.loss_chunk > 0) time.backward.recompute += time.forward.gemm;
  forward += time.forward;
  backward += time.backward;
}

}  // namespace megalith::plan
