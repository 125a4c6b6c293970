// FLOPs of a training step by Megatron's formula, so that MFU is comparable: 6 per weight and token (2 forward, 4
// backward), and attention in the square of each sequence's length, halved for the causal mask. Embedding look-ups,
// norms, activations and recomputation do not count.
#include "megalith/layout/flops/model_flops.h"

#include <algorithm>
#include <numeric>

#include "megalith/base/error.h"

namespace megalith::layout {
namespace {

// A multiplication and an addition per weight and token, once forward and twice backward.
constexpr double kPerWeight = 6;

struct LayerCounts {
  double dense = 0, moe = 0;
};

// A depth of multi-token prediction has a layer like the last one.
LayerCounts count_layers(const ModelFlopsShape& shape) {
  check(!shape.layer_is_moe.empty(), "a model without layers");
  LayerCounts counts;
  counts.moe = static_cast<double>(std::ranges::count(shape.layer_is_moe, true));
  counts.dense = static_cast<double>(shape.layer_is_moe.size()) - counts.moe;
  (shape.layer_is_moe.back() ? counts.moe : counts.dense) += static_cast<double>(shape.mtp_layers);
  return counts;
}

// Weights that a token meets in the feed-forward parts of all layers.
double mlp_weights(const ModelFlopsShape& shape, const LayerCounts& layers) {
  const double matrices = shape.gated_mlp ? 3 : 2;
  const auto expert_width =
      static_cast<double>(shape.expert_ffn_hidden_size * shape.experts_per_token + shape.shared_expert_ffn_hidden_size);
  const auto other = static_cast<double>(shape.other_feed_forwards.size());
  return static_cast<double>(shape.hidden_size) * matrices *
             (static_cast<double>(shape.ffn_hidden_size) * (layers.dense - other) + expert_width * layers.moe) +
         std::accumulate(shape.other_feed_forwards.begin(), shape.other_feed_forwards.end(), 0.0);
}

// Weights of one layer's attention.
double projection_weights(const ModelFlopsShape& shape) {
  const auto hidden = static_cast<double>(shape.hidden_size);
  const auto heads = static_cast<double>(shape.num_heads);
  if (!shape.mla) {
    const auto head = static_cast<double>(shape.head_dim);
    const double q = heads * head, kv = static_cast<double>(shape.num_kv_heads) * head;
    return hidden * (q + 2 * kv + (shape.output_gate ? q : 0)) + q * hidden;
  }
  const auto& mla = *shape.mla;
  const auto qk = static_cast<double>(mla.qk_head_dim), rotary = static_cast<double>(mla.rotary_head_dim),
             v = static_cast<double>(mla.v_head_dim), kv_rank = static_cast<double>(mla.kv_rank);
  // The + 1 is the norm of the compressed vector, as Megatron counts it.
  const double q_weights = mla.q_rank ? static_cast<double>(*mla.q_rank) * (hidden + heads * (qk + rotary) + 1)
                                      : hidden * heads * (qk + rotary);
  return q_weights + kv_rank * (hidden + heads * (qk + v) + 1) + hidden * rotary + heads * v * hidden;
}

// Returns the multiplications of scores and values per pair of positions and layer, halved for the causal mask.
double attention_width(const ModelFlopsShape& shape) {
  const auto heads = static_cast<double>(shape.num_heads);
  if (!shape.mla) return heads * static_cast<double>(shape.head_dim);
  return heads * static_cast<double>(shape.mla->qk_head_dim + shape.mla->rotary_head_dim + shape.mla->v_head_dim) / 2;
}

// Returns the sum of the squares of the pieces of `length` that are `side` long, the last one shorter.
double squared_pieces(int64_t length, int64_t side) {
  double sum = 0;
  for (int64_t begin = 0; begin < length; begin += side) {
    const auto piece = static_cast<double>(std::min(side, length - begin));
    sum += piece * piece;
  }
  return sum;
}

// A frozen part runs forward alone: a third of kPerWeight.
double per_weight(bool frozen) { return frozen ? kPerWeight / 3 : kPerWeight; }

// The length after so many convolutions that halve it and round up.
int64_t convolved(int64_t length, int times) {
  for (; times > 0; --times) length = (length + 1) / 2;
  return length;
}

}  // namespace

double model_flops(const ModelFlopsShape& shape, double tokens, double squared_lengths) {
  const LayerCounts counts = count_layers(shape);
  const double layers = counts.dense + counts.moe;
  const auto hidden = static_cast<double>(shape.hidden_size), mtp = static_cast<double>(shape.mtp_layers);
  const auto recurrent = static_cast<double>(shape.recurrent_layers.size());
  // Layers of linear attention have weights of their own and no square of the length.
  const double recurrent_weights = std::accumulate(shape.recurrent_layers.begin(), shape.recurrent_layers.end(), 0.0);
  const double weights = mlp_weights(shape, counts) + (layers - recurrent) * projection_weights(shape) +
                         recurrent_weights + mtp * (3 * hidden + 2 * hidden * hidden) +
                         hidden * static_cast<double>(shape.padded_vocab_size) * (mtp + 1);
  return kPerWeight * (tokens * weights + squared_lengths * attention_width(shape) * (layers - recurrent));
}

double model_flops(const ModelFlopsShape& shape, int64_t sequences, int64_t length) {
  const double tokens = static_cast<double>(sequences) * static_cast<double>(length);
  return model_flops(shape, tokens, tokens * static_cast<double>(length));
}

void VisionWork::add(const VisionFlopsShape& shape, int64_t time, int64_t height, int64_t width) {
  const auto frames = static_cast<double>(time), frame = static_cast<double>(height * width);
  patches += frames * frame;
  frame_pairs += frames * frame * frame;
  if (shape.window_side == 0) return;
  // Windows are rectangles of output rows, each of merge² patches.
  const auto merged = static_cast<double>(shape.merge * shape.merge);
  window_pairs += frames * merged * merged * squared_pieces(height / shape.merge, shape.window_side) *
                  squared_pieces(width / shape.merge, shape.window_side);
}

double vision_flops(const VisionFlopsShape& shape, const VisionWork& work, bool frozen_tower, bool frozen_merger) {
  const auto width = static_cast<double>(shape.width), depth = static_cast<double>(shape.depth);
  const auto merged = static_cast<double>(shape.merge * shape.merge);
  const double matrices = shape.gated_mlp ? 3 : 2;
  // Queries, keys, values, the output projection, and the MLP.
  const double block = 4 * width * width + matrices * width * static_cast<double>(shape.mlp_width);
  const double per_patch = static_cast<double>(shape.patch_numbers) * width + depth * block;
  const double full = shape.window_side == 0 ? depth : static_cast<double>(shape.full_blocks);
  // Scores and values, each `width` multiplications per pair.
  const double attention = 2 * width * (full * work.frame_pairs + (depth - full) * work.window_pairs);
  const double merger =
      work.patches / merged * (merged * width * merged * width + merged * width * static_cast<double>(shape.out_width));
  const double tower = work.patches * per_patch + attention + static_cast<double>(shape.deepstack) * merger;
  return per_weight(frozen_tower) * tower + per_weight(frozen_merger) * merger;
}

void AudioWork::add(const AudioFlopsShape& shape, int64_t frames) {
  const int64_t whole = frames / shape.chunk, rest = frames % shape.chunk;
  const int64_t of_sound = whole * convolved(shape.chunk, 3) + convolved(rest, 3);
  chunks += static_cast<double>(whole + (rest > 0 ? 1 : 0));
  rows += static_cast<double>(of_sound);
  window_pairs += squared_pieces(of_sound, shape.window_rows);
}

double audio_flops(const AudioFlopsShape& shape, const AudioWork& work, bool frozen_tower, bool frozen_projector) {
  const auto width = static_cast<double>(shape.width), channels = static_cast<double>(shape.channels);
  const double block = 4 * width * width + 2 * width * static_cast<double>(shape.mlp_width);
  // Each convolution halves both sides; the first one reads a single channel.
  double per_chunk = 0;
  for (const int number : {1, 2, 3}) {
    const auto places = static_cast<double>(convolved(shape.mel_bins, number) * convolved(shape.chunk, number));
    per_chunk += places * channels * 9 * (number == 1 ? 1 : channels);
  }
  const double frame = channels * static_cast<double>(convolved(shape.mel_bins, 3)) * width;
  const double tower = work.chunks * per_chunk + work.rows * (frame + static_cast<double>(shape.depth) * block) +
                       static_cast<double>(shape.depth) * 2 * width * work.window_pairs;
  const double projector = work.rows * (width * width + width * static_cast<double>(shape.out_width));
  return per_weight(frozen_tower) * tower + per_weight(frozen_projector) * projector;
}

}  // namespace megalith::layout
