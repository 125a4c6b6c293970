#include "megalith/plan/parameter_sizes.h"

#include <algorithm>
#include <cmath>

#include "megalith/layout/vocab_split.h"
#include "megalith/optim/buffer_rules.h"
#include "megalith/optim/optimizer_settings.h"
#include "megalith/plan/adapter_sizes.h"

namespace megalith::plan {

namespace {

using List = std::vector<ParameterSize>;

void add(List& list, int64_t numel) { list.push_back({.numel = numel}); }

void add_linear(List& list, int64_t rows, int64_t columns, int64_t bias) {
  add(list, rows * columns);
  if (bias > 0) add(list, bias);
}

void add_norm(List& list, const model::ModelConfig& m, int64_t size) {
  add(list, size);
  if (m.norm == ops::NormKind::kLayer) add(list, size);
}

void add_self_attention(List& list, const model::ModelConfig& m, int64_t tp) {
  const int64_t q = m.num_heads * m.head_dim / tp, kv = m.num_kv_heads * m.head_dim / tp;
  const int64_t rows = (m.attention_output_gate ? 2 : 1) * q + 2 * kv;
  add_linear(list, rows, m.hidden_size, m.qkv_bias ? rows : 0);
  for (int i = 0; m.qk_norm && i < 2; ++i) add_norm(list, m, m.head_dim);
  add_linear(list, m.hidden_size, q, m.out_bias ? m.hidden_size : 0);
}

void add_latent_attention(List& list, const model::ModelConfig& m, int64_t tp) {
  const model::LatentSizes& l = *m.latent;
  const int64_t down = l.q_rank + l.kv_rank + l.rotary_dim;
  add_linear(list, down, m.hidden_size, m.out_bias ? down : 0);
  add(list, l.kv_rank);
  add(list, m.num_heads * (l.nope_dim + l.rotary_dim) / tp * (l.q_rank > 0 ? l.q_rank : m.hidden_size));
  add(list, m.num_heads * (l.nope_dim + l.value_dim) / tp * l.kv_rank);
  add_linear(list, m.hidden_size, m.num_heads * l.value_dim / tp, m.out_bias ? m.hidden_size : 0);
  if (l.q_rank > 0) add(list, l.q_rank);
}

void add_delta_net(List& list, const model::ModelConfig& m, int64_t tp) {
  const model::DeltaNetSizes& d = *m.delta_net;
  const int64_t keys = d.key_heads * d.key_dim / tp, values = d.value_heads * d.value_dim / tp,
                heads = d.value_heads / tp;
  add(list, (2 * (keys + values) + 2 * heads) * m.hidden_size);
  add(list, (2 * keys + values) * d.conv_kernel);
  add(list, heads);
  add(list, heads);
  add(list, d.value_dim);
  add(list, m.hidden_size * values);
}

void add_mlp(List& list, int64_t hidden, int64_t width, bool gated, bool bias) {
  const int64_t rows = (gated ? 2 : 1) * width;
  add_linear(list, rows, hidden, bias ? rows : 0);
  add_linear(list, hidden, width, bias ? hidden : 0);
}

void add_experts(List& list, const RunShape& run) {
  const model::ModelConfig& m = *run.model;
  const nn::MoeShape& moe = *m.moe;
  add(list, moe.router.experts * m.hidden_size);
  if (moe.router.expert_bias) list.push_back({.numel = moe.router.experts, .buffer = true, .trained = false});
  const int64_t here = moe.router.experts / run.grid.ep, width = moe.width / run.grid.expert_tp();
  list.push_back({.numel = here * (m.gated_mlp ? 2 : 1) * width * m.hidden_size, .expert = true});
  list.push_back({.numel = here * m.hidden_size * width, .expert = true});
  if (moe.shared_width == 0) return;
  add_mlp(list, m.hidden_size, moe.shared_width / run.grid.tp, m.gated_mlp, false);
  if (moe.shared_gate) add(list, m.hidden_size);
}

int64_t padded_rows(const RunShape& run) {
  return layout::padded_vocab_size(run.model->vocab_size, run.options.vocab_multiple, run.grid.tp) / run.grid.tp;
}

void append(List& list, const List& more) { list.insert(list.end(), more.begin(), more.end()); }

// With adapters the weights are frozen, and A and B of each stand behind them.
void freeze(const RunShape& run, List& list) {
  if (!run.options.adapter) return;
  for (ParameterSize& p : list) p.trained = p.adapter;
}

void add_update(List& list, const UpdateSize& update, bool expert = false) {
  if (!update.any()) return;
  list.push_back({.numel = update.a, .expert = expert, .adapter = true});
  list.push_back({.numel = update.b, .expert = expert, .adapter = true});
}

void add_updates(const RunShape& run, int64_t layer, List& list) {
  const LayerUpdates updates = layer_updates(run, layer);
  add_update(list, updates.qkv);
  add_update(list, updates.out);
  add_update(list, updates.experts_up, /*expert=*/true);
  add_update(list, updates.experts_down, /*expert=*/true);
  add_update(list, updates.up);
  add_update(list, updates.down);
}

}  // namespace

List layer_parameters(const RunShape& run, int64_t layer) {
  const model::ModelConfig& m = *run.model;
  List list;
  add_norm(list, m, m.hidden_size);
  if (m.is_delta_net(layer))
    add_delta_net(list, m, run.grid.tp);
  else if (m.latent)
    add_latent_attention(list, m, run.grid.tp);
  else
    add_self_attention(list, m, run.grid.tp);
  add_norm(list, m, m.hidden_size);
  if (m.is_moe(layer))
    add_experts(list, run);
  else
    add_mlp(list, m.hidden_size, m.mlp_width / run.grid.tp, m.gated_mlp, m.mlp_bias);
  add_updates(run, layer, list);
  freeze(run, list);
  return list;
}

List stage_parameters(const RunShape& run, const layout::Stage& stage) {
  const model::ModelConfig& m = *run.model;
  const bool copied = m.tied_embeddings || m.mtp_layers > 0;
  const bool mtp = !stage.mtp_layers.empty();
  List list;
  if (stage.has_embedding()) {
    list.push_back({.numel = padded_rows(run) * m.hidden_size, .own_bucket = copied && !stage.has_loss()});
    if (m.learned_positions) add(list, m.max_positions * m.hidden_size);
  }
  for (const int layer : stage.layers()) append(list, layer_parameters(run, layer));
  if (!stage.has_loss()) {
    freeze(run, list);
    return list;
  }
  add_norm(list, m, m.hidden_size);
  if (!stage.has_embedding() && (m.tied_embeddings || mtp))
    list.push_back({.numel = padded_rows(run) * m.hidden_size, .own_bucket = true});
  if (!m.tied_embeddings) add(list, padded_rows(run) * m.hidden_size);
  for (size_t depth = 0; depth < stage.mtp_layers.size(); ++depth) {
    add_norm(list, m, m.hidden_size);
    add_norm(list, m, m.hidden_size);
    add(list, 2 * m.hidden_size * m.hidden_size);
    append(list, layer_parameters(run, m.num_layers - 1));
    add_norm(list, m, m.hidden_size);
  }
  freeze(run, list);
  return list;
}

namespace {

// The flat buffer of the dense or of the expert parameters of a chunk.
struct Buffer {
  std::vector<optim::BufferItem> items;
  int64_t elements = 0;
};

Buffer buffer_of(const List& parameters, bool expert) {
  Buffer buffer;
  for (const ParameterSize& p : parameters) {
    if (!p.trained || p.expert != expert) continue;
    buffer.items.push_back({p.numel, p.own_bucket});
    buffer.elements += p.numel;
  }
  return buffer;
}

void add_buffer(const RunShape& run, const Buffer& buffer, bool expert, const optim::DdpSettings& settings,
                StateBytes& bytes) {
  if (buffer.items.empty()) return;
  const int instances = run.grid.num_distributed_optimizer_instances;
  const int shards = (expert ? run.grid.edp() : run.dp() * run.grid.cp) / instances;
  const optim::BufferLayout layout = optim::plan_buffer(
      buffer.items,
      optim::buffer_rules(settings, {buffer.elements, run.dp() * run.grid.cp,
                                     settings.use_distributed_optimizer ? shards : 1, run.machinery.cuda}));
  const auto numel = static_cast<double>(layout.numel());
  const double grad_bytes = run.half() && settings.grad_dtype != at::kFloat ? 2 : 4;
  bytes.parameters += numel * (run.options.adapter ? 4 : run.element_bytes());
  bytes.gradients += numel * grad_bytes;
  bytes.elements += static_cast<double>(buffer.elements);
  bytes.owned += numel / layout.shards;
  for (const auto& bucket : layout.buckets)
    bytes.largest_bucket = std::max(bytes.largest_bucket, static_cast<double>(bucket.numel()) * grad_bytes);
}

}  // namespace

StateBytes state_bytes(const RunShape& run, const layout::LayerSplit& split, int pp_rank) {
  StateBytes bytes;
  for (int chunk = 0; chunk < split.chunks(); ++chunk) {
    const List parameters = stage_parameters(run, split.stage(pp_rank, chunk));
    const optim::DdpSettings settings = optim::ddp_settings(
        run.args.ddp, run.args.precision, run.args.optimizer.use_distributed_optimizer, pp_rank == 0, chunk);
    for (const bool expert : {false, true}) add_buffer(run, buffer_of(parameters, expert), expert, settings, bytes);
    for (const ParameterSize& p : parameters) {
      const double held = static_cast<double>(p.numel) * (p.buffer || p.adapter ? 4 : run.element_bytes());
      if (!p.trained) bytes.frozen += held;
      if (run.reference && !p.adapter) bytes.reference += held;
    }
  }
  bytes.parameters += bytes.frozen;
  const double hosted = optim::optimizer_settings(run.args.optimizer).offload_fraction;
  // An offloaded element has its fp32 parameter on the host in any case.
  const bool copies = run.half() && !run.options.adapter;  // adapters are fp32 already
  bytes.optimizer = bytes.owned * (1 - hosted) * (run.optimizer_state_bytes + (copies ? 4 : 0));
  bytes.optimizer_host = bytes.owned * hosted * (run.optimizer_state_bytes + 4);
  return bytes;
}

}  // namespace megalith::plan
