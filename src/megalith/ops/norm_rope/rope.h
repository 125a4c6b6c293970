// Rotary position embedding: the frequencies in every variant that the model families need, the angles of a
// micro-batch, and the fused operation between the query/key/value projection and attention.
//
// Legend: t tokens, n query heads, g key/value heads, d head size, r rotated channels of a head (r <= d).
//
// Pair i of a head is rotated by the angle position · θ_i, θ_i = theta^(-2i/r) without scaling:
//   (a, b) -> (a cos - b sin, b cos + a sin)
// so that the product of a query and a key depends on the distance of their positions alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "megalith/ops/norm_rope/norm.h"
#include "megalith/ops/sequence_layout.h"

namespace megalith::ops {

// How frequencies are adapted to sequences longer than those of pretraining.
enum class RopeScaling {
  kNone,     // not at all
  kLinear,   // all frequencies divided by `factor`
  kDynamic,  // NTK-aware: the base grows with the longest position
  kYarn,     // YaRN: only low frequencies are interpolated, and cos and sin are scaled
  kLlama3    // Llama 3.1: long wavelengths are slowed by `factor`, with a smooth transition
};

// The channels of a head that rotate, and their speeds; the fields of HF's rope_parameters.
struct RopeSettings {
  int64_t rotary_dim = 0;    // r; even
  double theta = 10000;      // base
  bool interleaved = false;  // rotates pairs (x[2i], x[2i+1]) instead of (x[i], x[i + r/2])
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;                       // linear, dynamic, yarn, llama3
  int64_t original_positions = 0;          // dynamic, yarn, llama3: length the model was first trained with
  double low_freq_factor = 1;              // llama3: waves longer than original_positions / this are stretched
  double high_freq_factor = 4;             // llama3: waves shorter than original_positions / this are kept
  double beta_fast = 32;                   // yarn: channels with more rotations in original_positions are kept
  double beta_slow = 1;                    // yarn: channels with fewer rotations are interpolated
  bool truncate = true;                    // yarn: rounds the range between the two to whole channels
  std::optional<double> mscale;            // yarn: with mscale_all_dim, determines attention_factor
  std::optional<double> mscale_all_dim;    // yarn
  std::optional<double> attention_factor;  // yarn: multiplies cos and sin; by default computed from factor or mscales
  // mrope: the pairs that turn with time, height and width of a token (SequenceLayout::coordinates); three numbers that
  // add up to r/2. Empty if tokens have one position.
  std::vector<int64_t> sections;
  // How pairs are divided. false: the first sections[0] take time, the next sections[1] height, the others width. true:
  // pair i takes height if i mod 3 = 1 and i < 3·sections[1], width if i mod 3 = 2 and i < 3·sections[2], else time.
  bool interleaved_sections = false;
  bool operator==(const RopeSettings&) const = default;
};

// Returns θ_i for i < r/2 in fp32, bit for bit as HF computes them. `longest` is the largest position plus one; only
// kDynamic depends on it. Throws ConfigError for settings that make no sense, such as an odd r.
std::vector<float> rope_frequencies(const RopeSettings& settings, int64_t longest);
// Returns the factor of cos and sin: 1, except for yarn (0.1 ln(factor) + 1, or the ratio of its mscales).
double rope_attention_factor(const RopeSettings& settings);

// cos and sin of every token's angles, fp32 [t, r/2]; computed once per micro-batch and used by every layer.
struct RopeAngles {
  at::Tensor cos, sin;
  bool interleaved = false;
  bool defined() const { return cos.defined(); }  // false if nothing rotates
};
// Returns for each pair of channels the coordinate that it turns with: 0 time, 1 height, 2 width; [r/2]. Requires
// sections.
std::vector<int64_t> rope_axes(const RopeSettings& settings);
// Computes the angles at the positions of a layout, or with sections at its coordinates if it has them, without waiting
// for the device. Three equal coordinates give the angles of a position, bit for bit. Throws ConfigError as
// rope_frequencies does, and for coordinates without sections.
RopeAngles rope_angles(const RopeSettings& settings, const SequenceLayout& layout, at::Device device);

// Rotates the first r channels of each head and copies the others: [t, n, d] -> [t, n, d]. Computes in fp32 whatever
// the dtype of x (HF rounds cos and sin to it). Interleaved pairs stay in place (HF's DeepSeek sorts them apart, in q
// and k alike, which does not change q·k).
at::Tensor apply_rope(const at::Tensor& x, const RopeAngles& angles);

// Sizes of a row of the fused projection: n query heads, then g key heads, then g value heads, d channels each.
struct QkvHeads {
  int64_t query = 0;      // n
  int64_t key_value = 0;  // g
  int64_t head_dim = 0;   // d
};

// Splits the output of the projection into the inputs of attention, in one pass over memory:
//   qkv [t, (n + 2g) d]  ->  q [t, n, d], k [t, g, d], v [t, g, d]
// Normalizes each query and key head (`q_norm`, `k_norm`; nullptr means no norm), then rotates it (undefined `angles`
// mean no rotation). Outputs are contiguous, except on CUDA when there is nothing to compute: then they share the
// memory of qkv. With norms, qkv is saved for backward; otherwise only the angles are.
std::tuple<at::Tensor, at::Tensor, at::Tensor> split_qkv(const at::Tensor& qkv, const QkvHeads& heads,
                                                         const RopeAngles& angles, const NormWeights* q_norm = nullptr,
                                                         const NormWeights* k_norm = nullptr);

}  // namespace megalith::ops
