// TimeMeter receives the work of a part (products, attention, bytes moved, collectives) and converts it into seconds of
// forward and backward. Communication that overlaps with a product counts only as far as it is longer than the product.
// A layer that is recomputed adds its forward to the backward pass under `recompute`.
#include "megalith/plan/layer_time_internal.h"

#include <algorithm>

#include "megalith/nn/tensor_parallel/sliced_product.h"

namespace megalith::plan {

namespace {

// Converts the work that one part states into seconds.
class TimeMeter : public nn::WorkMeter {
 public:
  explicit TimeMeter(const RankSpeeds& speeds) : speeds_(speeds), rank_(speeds.rank) {}
  const PassTimes& time() const { return time_; }

  void product(double rows, double out, double in) override { speeds_.add_product(time_, rows, out, in); }

  // A column-parallel product up and a row-parallel one down. With sequence parallelism forward all-gathers the input
  // and reduce-scatters the output (equal times), each beside its product if they overlap. Backward gathers the
  // output's gradient, the input again, beside the product of the input's gradient, and scatters that gradient: if they
  // overlap, beside weight gradients of any layer, otherwise beside its own alone. Without sequence parallelism forward
  // all-reduces the output, and backward the input's gradient while it computes the weight gradient.
  void branch(double up, double down) override {
    if (rank_.split_tokens) {
      const double gather = speeds_.tp.all_gather(rank_.whole());
      time_.forward.tp += speeds_.exposed_beside(up, rank_.h) + speeds_.exposed_beside(rank_.h, down);
      if (speeds_.holds_weight_grads()) {
        const bool fp32 = rank_.bytes == 4;
        const double weight_grads = speeds_.cluster.gemm_seconds(up, rank_.h, rank_.t, fp32) +
                                    speeds_.cluster.gemm_seconds(rank_.h, down, rank_.t, fp32);
        time_.backward.tp += std::max(0.0, 2 * gather - weight_grads);
        speeds_.add_product(time_, rank_.t, up, rank_.h, gather);
      } else {
        time_.backward.tp += speeds_.exposed_beside(down, rank_.h);
        if (speeds_.slices(down) > 1) moves(0, 2 * rank_.t * down * rank_.bytes);  // the input, in the order of slices
        speeds_.add_product(time_, rank_.t, up, rank_.h, gather, gather);
      }
    } else {
      const double reduce = speeds_.tp.all_reduce(rank_.whole());
      time_.forward.tp += reduce;
      speeds_.add_product(time_, rank_.t, up, rank_.h, 0, reduce);
    }
    product(rank_.t, rank_.h, down);
  }

  // A pair of collectives around a part that is not split: gather and scatter the tokens, or all-reduce.
  void stream_collectives() override {
    const double seconds =
        rank_.split_tokens ? 2 * speeds_.tp.all_gather(rank_.whole()) : speeds_.tp.all_reduce(rank_.whole());
    time_.forward.tp += seconds;
    time_.backward.tp += seconds;
  }

  void grouped_products(double groups, double rows, std::initializer_list<Weight> weights) override {
    const double calls = speeds_.cluster.cuda ? 1 : groups;  // CUDA has one kernel for all groups
    PassTimes one;
    for (const Weight& weight : weights) speeds_.add_product(one, rows / calls, weight.out, weight.in);
    time_.forward.gemm += calls * one.forward.gemm;
    time_.backward.gemm += calls * one.backward.gemm;
  }

  void core_attention(const nn::CoreWork& work) override {
    const Cluster& cluster = speeds_.cluster;
    // A causal query sees half of the keys on average, one with a window about as many as the window is wide.
    const double keys = work.window > 0 && work.window < rank_.length / 2 ? work.window : rank_.length / 2;
    const double flop = 2 * rank_.t * keys * (work.q + work.out);
    const double part = cluster.cuda ? attention_part(work.q / work.heads, work.window > 0) : 1;
    const double forward = std::max(cluster.launch_s, flop / (part * cluster.attention_flops));
    const double backward = std::max(cluster.launch_s, 2.5 * flop / (part * cluster.attention_backward_flops));
    time_.forward.attention += forward;
    time_.backward.attention += backward;
    if (rank_.cp == 1) return;
    // Ring attention: each step computes with one block while the next one arrives, so only the excess is exposed. In
    // backward a block travels with its fp32 gradient.
    const auto ranks = static_cast<double>(rank_.cp);
    const double block = rank_.t * work.kv;
    const double message = speeds_.cp.message(block * rank_.bytes);
    const double grad_message = speeds_.cp.message(block * (rank_.bytes + 4));
    time_.forward.cp += (ranks - 1) * std::max(0.0, message - forward / ranks);
    time_.backward.cp += (ranks - 1) * std::max(0.0, grad_message - backward / ranks);
  }

  void moves(double forward_bytes, double backward_bytes) override {
    time_.forward.memory_bound += speeds_.moved(forward_bytes);
    time_.backward.memory_bound += speeds_.moved(backward_bytes);
  }

  // Kernels so small that only their launch counts.
  void launches(double count) override {
    time_.forward.memory_bound += count * speeds_.cluster.launch_s;
    time_.backward.memory_bound += count * speeds_.cluster.launch_s;
  }

  // Two exchanges per pass: tokens to their experts, and results back.
  void expert_exchange(double bytes) override {
    time_.forward.ep += 2 * speeds_.ep.all_to_all(bytes);
    time_.backward.ep += 2 * speeds_.ep.all_to_all(bytes);
  }

  // Nothing can start before it, so that all of it is exposed.
  void head_exchange(double bytes) override {
    time_.forward.cp += speeds_.cp.all_to_all(bytes);
    time_.backward.cp += speeds_.cp.all_to_all(bytes);
  }

  void part(const nn::PartFootprint& inner) override {
    TimeMeter meter(speeds_);
    inner.work(meter);
    time_.forward += meter.time().forward;
    time_.backward += meter.time().backward;
  }

 private:
  // Returns the speed of attention's kernels relative to that of the cluster, which is measured with heads of 128
  // channels and sequences of 4096 tokens. They are slower with smaller heads, and with fewer keys: tiles on the
  // diagonal are half empty, and every query pays for its start, so that n keys reach n / (n + 1200) of full speed. A
  // ring computes with one block of keys at a time. Windows and larger heads, such as those of latent attention, are
  // left to flash-2 (ops::choose_attention_kernel), for which 0.45 of cuDNN's speed is taken. Both numbers are fitted
  // to rehearsals (docs/rehearse.md).
  double attention_part(double channels, bool window) const {
    const auto by_length = [](double keys) { return keys / (keys + 1200); };
    const double kernel = window || channels > 128 ? 0.45 : std::min(1.0, 0.2 + 0.8 * channels / 128);
    return kernel * by_length(rank_.length / static_cast<double>(rank_.cp)) / by_length(4096);
  }

  const RankSpeeds& speeds_;
  const nn::RankSizes& rank_;
  PassTimes time_;
};

// Adds both passes `times` times.
void add_times(PassTimes& to, const PassTimes& more, double times) {
  for (const auto& [sum, part] : {std::pair(&to.forward, &more.forward), std::pair(&to.backward, &more.backward)}) {
    sum->gemm += times * part->gemm;
    sum->attention += times * part->attention;
    sum->memory_bound += times * part->memory_bound;
    sum->recompute += times * part->recompute;
    sum->tp += times * part->tp;
    sum->cp += times * part->cp;
    sum->ep += times * part->ep;
  }
}

// Returns the seconds of one part in both passes.
PassTimes time_of(const nn::PartFootprint& part, const RankSpeeds& speeds) {
  TimeMeter meter(speeds);
  part.work(meter);
  return meter.time();
}

}  // namespace

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

// Forward: rows x in x out. Backward has two products of the same size: dx = dy W and dW = dyᵀ x.
void RankSpeeds::add_product(PassTimes& to, double rows, double out, double in, double beside_input_grad,
                             double beside_weight_grad) const {
  const bool fp32 = rank.bytes == 4;
  to.forward.gemm += cluster.gemm_seconds(rows, out, in, fp32);
  const double input_grad = cluster.gemm_seconds(rows, in, out, fp32);
  const double weight_grad = cluster.gemm_seconds(out, in, rows, fp32);
  to.backward.gemm += input_grad + weight_grad;
  to.backward.tp += std::max(0.0, beside_input_grad - input_grad) + std::max(0.0, beside_weight_grad - weight_grad);
}

bool RankSpeeds::holds_weight_grads() const { return rank.tp_overlap && rank.split_tokens && !rank.frozen; }

int64_t RankSpeeds::slices(double columns) const {
  if (!rank.tp_overlap || rank.fp8 || rank.tp == 1) return 1;
  return nn::slice_count(static_cast<int64_t>(rank.s), rank.tp, static_cast<int64_t>(columns), rank.machinery.cuda,
                         rank.tp_slices);
}

// With slices of the collective that take c and of the product that take p each, either the product is longer, and all
// but one slice of the collective is hidden, or the collective is, and all but one slice of the product hides it.
double RankSpeeds::exposed_beside(double out, double in) const {
  const auto n = static_cast<double>(slices(out));
  const double collective = tp.all_gather(rank.whole() / n);
  const double product = cluster.gemm_seconds(rank.t / n, out, in, rank.bytes == 4);
  return std::max(collective, n * collective - (n - 1) * product);
}

LayerTimes::LayerTimes(const model::ModelFootprint& model, const Cluster& cluster)
    : model_(model),
      speeds_{.cluster = cluster,
              .rank = model.rank(),
              .tp = {cluster, static_cast<int>(model.rank().tp), 1},
              .cp = {cluster, static_cast<int>(model.rank().cp), static_cast<int>(model.rank().tp)},
              .ep = {cluster, static_cast<int>(model.rank().ep * model.rank().etp), 1}} {
  // Two norms per layer. Forward reads x and writes y; backward reads x and two gradients and writes one.
  const double stream = model.rank().stream(), residual = model.rank().residual();
  norms_.forward.memory_bound = 2 * speeds_.moved(residual + stream);
  norms_.backward.memory_bound = 2 * speeds_.moved(3 * residual + stream);
  if (!model.rank().wide_stream) return;
  // The second norm also reads what attention adds to the stream, writes the sum, and its gradient in 16 bits; the end
  // of the layer adds the other part by itself and narrows the gradient.
  norms_.forward.memory_bound += speeds_.moved(stream + residual) + speeds_.moved(2 * residual + stream);
  norms_.backward.memory_bound += speeds_.moved(stream) + speeds_.moved(residual + stream);
}

void LayerTimes::add_layer(int64_t layer, int64_t local, PassTimes& to) const {
  using Layers = model::RecomputePlan::Layers;
  const model::RecomputePlan& plan = model_.options().recompute;
  const model::TransformerBlockFootprint& block = model_.layer(layer);
  const PassTimes attention = time_of(*block.attention().part, speeds_),
                  feed = time_of(*block.feed_forward().part, speeds_);
  PartTimes once = attention.forward;
  once += feed.forward;
  once += norms_.forward;
  to.forward += once;
  to.backward += attention.backward;
  to.backward += feed.backward;
  to.backward += norms_.backward;
  const bool repeats_layer =
      plan.layers == Layers::kUniform || (plan.layers == Layers::kBlock && local < plan.num_layers);
  if (repeats_layer) {
    to.backward.recompute += once.total();
    return;
  }
  // Selective recomputation repeats parts of the layer, each with its own communication.
  if (block.attention().repeated)
    to.backward.recompute += attention.forward.total();
  else if (plan.core_attention)
    to.backward.recompute += attention.forward.attention + attention.forward.cp;
  if (block.feed_forward().repeated) to.backward.recompute += feed.forward.total();
  if (plan.norms) to.backward.recompute += norms_.forward.total();
}

// A lookup is bound by memory; the vocabulary is split over tp, so partial rows are summed.
void LayerTimes::add_embedding(PassTimes& to) const {
  const nn::RankSizes& rank = model_.rank();
  to.forward.memory_bound += speeds_.moved(2 * rank.whole());
  // Backward reads the gradient and adds it to rows of the fp32 gradient: 4 bytes read and 4 written per element.
  to.backward.memory_bound += speeds_.moved(rank.whole() + 8 * rank.t * rank.h);
  const double sum = rank.split_tokens ? speeds_.tp.all_gather(rank.whole()) : speeds_.tp.all_reduce(rank.whole());
  to.forward.tp += sum;
  to.backward.tp += rank.split_tokens ? sum : 0;
}

void LayerTimes::add_towers(PassTimes& to) const {
  for (const auto& tower : model_.towers())
    if (tower->parts().runs()) add_tower(*tower, to);
}

// A part in which nothing is trained runs forward alone. Output rows are gathered from all ranks that share a
// micro-batch, and their gradients are returned.
void LayerTimes::add_tower(const nn::TowerFootprint& footprint, PassTimes& to) const {
  const nn::TowerParts& parts = footprint.parts();
  const auto speeds_of = [&](bool whole_frame) {
    const Cluster& cluster = speeds_.cluster;
    return RankSpeeds{cluster, parts.rank(whole_frame), {cluster, 1, 1}, {cluster, 1, 1}, {cluster, 1, 1}};
  };
  PassTimes tower, merger;
  for (const bool whole : {true, false}) {
    if (parts.count(whole) == 0) continue;
    const RankSpeeds speeds = speeds_of(whole);
    PassTimes block = time_of(*parts.attention(whole), speeds);
    add_times(block, time_of(*parts.mlp(whole), speeds), 1);
    block.forward.memory_bound += 2 * speeds.moved(2 * parts.stream());  // the norms
    block.backward.memory_bound += 2 * speeds.moved(4 * parts.stream());
    add_times(tower, block, static_cast<double>(parts.count(whole)));
  }
  const RankSpeeds speeds = speeds_of(/*whole_frame=*/true);
  TimeMeter input(speeds);
  footprint.input_work(input);
  add_times(tower, input.time(), 1);
  const nn::VisionShape& shape = parts.shape();
  const double merged = static_cast<double>(shape.merged() * shape.width),
               rows = speeds.rank.t / static_cast<double>(shape.merged());
  PassTimes one;
  speeds.add_product(one, rows, merged, merged);
  speeds.add_product(one, rows, static_cast<double>(shape.out_width), merged);
  add_times(tower, one, static_cast<double>(shape.deepstack_blocks.size()));
  add_times(merger, one, 1);
  if (parts.recomputes()) tower.backward.recompute += tower.forward.total();
  const double gather = speeds_.tp.all_gather(parts.rows_bytes()) + speeds_.cp.all_gather(parts.rows_bytes());
  to.forward += tower.forward;
  to.forward += merger.forward;
  to.forward.tp += gather;
  if (parts.trains_blocks()) to.backward += tower.backward;
  if (parts.trains_merger()) to.backward += merger.backward;
  if (parts.trains()) to.backward.tp += gather;
}

void LayerTimes::add_head(PassTimes& to) const {
  const nn::RankSizes& rank = model_.rank();
  const double columns = model_.head().out(), logits = rank.t * columns * rank.bytes;
  const double gather = rank.split_tokens ? speeds_.tp.all_gather(rank.whole()) : 0;
  PassTimes time;
  speeds_.add_product(time, rank.t, columns, rank.h, gather,
                      rank.split_tokens ? gather : speeds_.tp.all_reduce(rank.whole()));
  time.forward.tp += gather;
  time.forward.memory_bound += speeds_.moved(logits) + speeds_.moved(rank.residual() + rank.stream());
  time.backward.memory_bound += speeds_.moved(2 * logits) + speeds_.moved(2 * rank.residual() + rank.stream());
  // A loss in chunks computes its logits twice instead of keeping them.
  if (model_.options().loss_chunk > 0) time.backward.recompute += time.forward.gemm;
  to.forward += time.forward;
  to.backward += time.backward;
}

}  // namespace megalith::plan
