// Rotary position embedding: frequencies in every variant the families need, the angles of a micro-batch, and the fused
// operation between the query/key/value projection and attention.
//
// Legend: t tokens, n query heads, g key/value heads, d head size, r rotated channels of a head (r <= d).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "megalith/ops/norm_rope/norm.h"
#include "megalith/ops/sequence_layout.h"

namespace megalith::ops {

enum class RopeScaling { kNone, kLinear, kDynamic, kYarn, kLlama3 };

// As HF's rope_parameters: what of a head rotates, and how fast.
struct RopeSettings {
  int64_t rotary_dim = 0;    // r; even
  double theta = 10000;      // base
  bool interleaved = false;  // pairs (x[2i], x[2i+1]) in place of (x[i], x[i + r/2])
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;                       // linear, dynamic, yarn, llama3
  int64_t original_positions = 0;          // dynamic, yarn, llama3: length the model was first trained with
  double low_freq_factor = 1;              // llama3
  double high_freq_factor = 4;             // llama3
  double beta_fast = 32;                   // yarn
  double beta_slow = 1;                    // yarn
  bool truncate = true;                    // yarn: whole-numbered correction range
  std::optional<double> mscale;            // yarn
  std::optional<double> mscale_all_dim;    // yarn
  std::optional<double> attention_factor;  // yarn: multiplies cos and sin; empty: 0.1 ln(factor) + 1, or by the mscales
};

// θ_i for i < r/2, in fp32 as HF computes them. `longest`: the largest position plus one; only kDynamic looks at it.
std::vector<float> rope_frequencies(const RopeSettings& settings, int64_t longest);
// What cos and sin are multiplied with: 1, except for yarn.
double rope_attention_factor(const RopeSettings& settings);

// cos and sin of every token's angles, fp32 [t, r/2], made once a micro-batch and used by every layer.
struct RopeAngles {
  at::Tensor cos, sin;
  bool interleaved = false;
  bool defined() const { return cos.defined(); }
};
RopeAngles rope_angles(const RopeSettings& settings, const SequenceLayout& layout, at::Device device);

// Rotates the first r channels of each head; the others pass: [t, n, d] -> [t, n, d]. In fp32 whatever the dtype of x
// (HF rounds cos and sin to it). Interleaved pairs stay where they were (HF's DeepSeek sorts them apart, in q and k
// alike, which leaves q·k as it is).
at::Tensor apply_rope(const at::Tensor& x, const RopeAngles& angles);

// The sizes of a fused projection's row: n query heads, then g key heads, then g value heads, d channels each.
struct QkvHeads {
  int64_t query = 0;
  int64_t key_value = 0;
  int64_t head_dim = 0;
};

// One pass from the projection's output to what attention takes:
//   qkv [t, (n + 2g) d]  ->  q [t, n, d], k [t, g, d], v [t, g, d]
// with the norm of each query and key head (`q_norm`, `k_norm`; nullptr: none) before the rotation (`angles`; not
// defined: none). Outputs are contiguous. With norms qkv is saved for backward, otherwise nothing but the angles.
std::tuple<at::Tensor, at::Tensor, at::Tensor> split_qkv(const at::Tensor& qkv, const QkvHeads& heads,
                                                         const RopeAngles& angles, const NormWeights* q_norm = nullptr,
                                                         const NormWeights* k_norm = nullptr);

}  // namespace megalith::ops
