// Flash attention in bf16 on the matrix registers of x86_64 (AMX). The second operand of a product on them must be in
// pairs of rows (Bf16Pair), so keys, values and queries are rearranged, once per task or once per block of queries. The
// first operand is always plain rows. All loops over keys go in panels of kPanel:
//
//   forward    S = Q Kᵀ         O = P V
//   backward   Sᵀ = K Qᵀ        dPᵀ = V dOᵀ        dV = Pᵀ dO        dK = dSᵀ Q        dQᵀ = Kᵀ dSᵀ
//
// Forward computes scores by rows of queries, up to 512 keys at a time, with a running maximum and sum per row;
// backward computes them transposed, a panel of 64 keys at a time, as the fp32 kernel does (attention_flash_cpu.cc).
// Softmax and sums are fp32; probabilities and their gradients are rounded to bf16 before they are multiplied.
//
//   task       one key/value head of one sequence: keys and values are rearranged once, [keys, d] -> panels of 64
//   block      64 queries of one query head against all keys that they see
//   panel      64 keys; forward takes eight of them (512 keys) per softmax
//
//   forward, one block    Q [64, d]  x  panel Kᵀ [d, 64]  ->  S [64, 64]   up to eight panels side by side: S [64, 512]
//                         P [64, 512]  x  V [512, e]      ->  O [64, e]    O stays in fp32 until the last keys
//
// Scores and probabilities fit the second-level cache: 64 x 528 floats are 132 KiB, and P in bf16 is 68 KiB.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "megalith/ops/attention/attention_block_internal.h"
#include "megalith/ops/attention/attention_flash_internal.h"
#include "megalith/ops/gemm/amx_gemm.h"
#include "megalith/ops/kernel/cpu_math.h"

namespace megalith::ops {

namespace {

using namespace flash;
using Bf16 = c10::BFloat16;

constexpr int64_t kPanel = 64;
constexpr int64_t kForwardKeys = 512;  // keys whose scores are held at once
// Distances between rows of scores and probabilities: a little more than needed, so that rows do not compete for the
// same cache sets.
constexpr int64_t kScoreRow = kForwardKeys + 16;
constexpr int64_t kProbabilityRow = kForwardKeys + 32;

// Returns the number of panels that hold so many keys; the last one is padded with zeros.
int64_t panels_of(int64_t keys) { return (keys + kPanel - 1) / kPanel; }

// ---- Layouts -------------------------------------------------------------------------------------------------------

// Copies rows one after the other, followed by zeros up to kPanel rows.
struct CopyRows {
  MEGALITH_ALWAYS_INLINE static void run(const Bf16* from, int64_t distance, int64_t rows, int64_t columns, Bf16* to) {
    constexpr int64_t kAhead = 8;  // rows are far apart: the hardware prefetcher does not see the next one coming
    for (int64_t i = 0; i < rows; ++i) {
      const Bf16* x = from + i * distance;
      for (int64_t j = 0; j < columns; j += 32) __builtin_prefetch(x + kAhead * distance + j);
      std::memcpy(to + i * columns, x, static_cast<size_t>(columns) * sizeof(Bf16));
    }
    std::memset(to + rows * columns, 0, static_cast<size_t>((kPanel - rows) * columns) * sizeof(Bf16));
  }
};

// Interleaves two rows at a time: [kPanel, columns] -> pairs [kPanel/2, columns].
struct PairRows {
  MEGALITH_ALWAYS_INLINE static void run(const Bf16* from, int64_t columns, Bf16Pair* to) {
    for (int64_t i = 0; i < kPanel / 2; ++i) {
      const Bf16* MEGALITH_RESTRICT x = from + 2 * i * columns;
      Bf16Pair* MEGALITH_RESTRICT y = to + i * columns;
      for (int64_t j = 0; j < columns; ++j)
        y[j] = static_cast<uint32_t>(x[j].x) | (static_cast<uint32_t>(x[j + columns].x) << 16);
    }
  }
};

// Transposes [kPanel, columns] into pairs [columns/2, kPanel]. Two neighbors of a row are a pair of the transposed
// matrix already, so that this is a transposition of 32-bit words.
void turn_rows(const Bf16* from, int64_t columns, Bf16Pair* to) {
  run_kernel<Transpose>(reinterpret_cast<const float*>(from), columns / 2, kPanel, columns / 2,
                        reinterpret_cast<float*>(to), kPanel);
}

// Splits pairs [columns/2, kPanel] into rows [columns, kPanel].
struct SplitPairs {
  MEGALITH_ALWAYS_INLINE static void run(const Bf16Pair* from, int64_t columns, Bf16* to) {
    for (int64_t i = 0; i < columns / 2; ++i) {
      const Bf16Pair* MEGALITH_RESTRICT x = from + i * kPanel;
      auto* MEGALITH_RESTRICT low = reinterpret_cast<uint16_t*>(to + 2 * i * kPanel);
      auto* MEGALITH_RESTRICT high = low + kPanel;
      for (int64_t j = 0; j < kPanel; ++j) low[j] = static_cast<uint16_t>(x[j]);
      for (int64_t j = 0; j < kPanel; ++j) high[j] = static_cast<uint16_t>(x[j] >> 16);
    }
  }
};

// ---- Softmax -------------------------------------------------------------------------------------------------------

// Processes the scores [rows, kScoreRow] of `n` more keys (a multiple of 16), of which each row sees its band but none
// from `valid` on. Updates the running maximum and sum of each row, writes probabilities relative to the maximum, and
// the factor of older sums to `decay`.
struct SoftmaxRows {
  static constexpr int32_t kLanes = 16;

  MEGALITH_ALWAYS_INLINE static void run(float* scores, int64_t rows, int64_t n, int64_t valid, GemmBand band,
                                         float scale, float* max, float* sum, float* decay, Bf16* probabilities) {
    for (int64_t i = 0; i < rows; ++i) {
      const auto first = static_cast<int32_t>(std::clamp<int64_t>(i + band.lo, 0, valid));
      const auto last = static_cast<int32_t>(std::clamp<int64_t>(i + band.hi, first, valid));
      one_row(scores + i * kScoreRow, static_cast<int32_t>(n), first, last, scale, max[i], sum[i], decay[i],
              probabilities + i * kProbabilityRow);
    }
  }

  // Hidden scores become -inf where they share a vector with visible ones, so that the loops need no conditions.
  MEGALITH_ALWAYS_INLINE static void one_row(float* MEGALITH_RESTRICT s, int32_t n, int32_t first, int32_t last,
                                             float scale, float& max, float& sum, float& decay,
                                             Bf16* MEGALITH_RESTRICT p) {
    const int32_t begin = first / kLanes * kLanes, end = (last + kLanes - 1) / kLanes * kLanes;
    for (int32_t j = begin; j < first; ++j) s[j] = -std::numeric_limits<float>::infinity();
    for (int32_t j = last; j < end; ++j) s[j] = -std::numeric_limits<float>::infinity();
    const float before = max;
    float largest = kNoScore, total = 0;
#pragma omp simd reduction(max : largest)
    for (int32_t j = begin; j < end; ++j) largest = s[j] > largest ? s[j] : largest;
    const float now = largest * scale > before ? largest * scale : before;
#pragma omp simd reduction(+ : total)
    for (int32_t j = begin; j < end; ++j) {
      s[j] = exp_fast(s[j] * scale - now);
      total += s[j];
    }
    std::memset(p, 0, static_cast<size_t>(begin) * sizeof(Bf16));
    for (int32_t j = begin; j < end; ++j) p[j] = to_bfloat16(s[j]);
    std::memset(p + end, 0, static_cast<size_t>(n - end) * sizeof(Bf16));
    max = now;
    decay = exp_fast(before - now);
    sum = sum * decay + total;
  }
};

// Results of backward for one panel, all [kPanel keys, kQ queries].
struct PanelGrads {
  Bf16* probabilities;
  Bf16* grad_scores;
  Bf16Pair* grad_score_pairs;  // [kPanel/2, kQ]
};

// Turns scores s and gradients g of probabilities into probabilities p and gradients p (g - delta) of scores; 0 for
// what the band hides and for keys from `valid` on.
struct SoftmaxBackward {
  MEGALITH_ALWAYS_INLINE static void run(float* scores, float* grads, int64_t n, int64_t valid, GemmBand band,
                                         float scale, const float* MEGALITH_RESTRICT log_sum_exp,
                                         const float* MEGALITH_RESTRICT delta, PanelGrads out) {
    for (int64_t i = 0; i < kPanel; ++i) {
      float* MEGALITH_RESTRICT s = scores + i * kQ;
      float* MEGALITH_RESTRICT g = grads + i * kQ;
      const auto first = static_cast<int32_t>(i < valid ? std::clamp<int64_t>(i + band.lo, 0, n) : n);
      const auto last = static_cast<int32_t>(std::clamp<int64_t>(i + band.hi, first, n));
      for (int64_t j = 0; j < n; ++j) {
        const float p = exp_fast(s[j] * scale - log_sum_exp[j]);
        s[j] = p;
        g[j] = p * (g[j] - delta[j]);
      }
      if (first > 0 || last < n)
        for (int32_t j = 0; j < n; ++j) {
          const bool seen = (j >= first) & (j < last);
          s[j] = seen ? s[j] : 0;
          g[j] = seen ? g[j] : 0;
        }
      Bf16* MEGALITH_RESTRICT p = out.probabilities + i * kQ;
      for (int64_t j = 0; j < n; ++j) p[j] = to_bfloat16(s[j]);
      Bf16* MEGALITH_RESTRICT q = out.grad_scores + i * kQ;
      for (int64_t j = 0; j < n; ++j) q[j] = to_bfloat16(g[j]);
    }
    PairRows::run(out.grad_scores, kQ, out.grad_score_pairs);
  }
};

// ---- Forward -------------------------------------------------------------------------------------------------------

// Scratch memory of a task in forward. Small buffers of a block come first, so that they stay in the cache; keys and
// values, whose size depends on the sequence, come last. With nullptr the constructor only counts `floats`.
struct ForwardScratch {
  Bf16 *rows, *probabilities;
  Bf16Pair* k;  // transposed: a panel is [d/2, kPanel]
  Bf16Pair* v;  // pairs: [keys/2, e]
  float *scores, *out, *max, *sum, *decay;
  int64_t floats;

  ForwardScratch(const FlashShape& s, float* memory) {
    Scratch scratch(memory);
    const int64_t keys = panels_of(s.keys) * kPanel;
    rows = scratch.take_as<Bf16>(kPanel * std::max(s.d, s.e));
    max = scratch.take(kQ);
    sum = scratch.take(kQ);
    decay = scratch.take(kQ);
    out = scratch.take(kQ * s.e);
    scores = scratch.take(kQ * kScoreRow);
    probabilities = scratch.take_as<Bf16>(kQ * kProbabilityRow);
    k = scratch.take_as<Bf16Pair>(keys * s.d / 2);
    v = scratch.take_as<Bf16Pair>(keys * s.e / 2);
    floats = scratch.used();
  }
};

// Rearranges all keys and values of the task, once.
void lay_out_keys(const FlashForward<Bf16>& call, const ForwardScratch& w) {
  const FlashShape& s = call.shape;
  for (int64_t key = 0; key < s.keys; key += kPanel) {
    const int64_t rows = std::min(kPanel, s.keys - key);
    run_kernel<CopyRows>(static_cast<const Bf16*>(at(call.k, 0, key)), call.k.token, rows, s.d, w.rows);
    turn_rows(w.rows, s.d, w.k + key * s.d / 2);
    run_kernel<CopyRows>(static_cast<const Bf16*>(at(call.v, 0, key)), call.v.token, rows, s.e, w.rows);
    run_kernel<PairRows>(static_cast<const Bf16*>(w.rows), s.e, w.v + key * s.e / 2);
  }
}

// Computes one block of queries: for up to 512 keys at a time scores, softmax with a running maximum, O += P V. When
// the maximum of a row grows, its old sums are multiplied by decay = exp(old maximum - new maximum).
void forward_block(const FlashForward<Bf16>& call, const Block& b, const ForwardScratch& w) {
  const FlashShape& s = call.shape;
  const int64_t m = amx_padded(b.rows);
  run_kernel<CopyRows>(at(call.q, b.head, b.first), call.q.token, b.rows, s.d, w.rows);
  std::fill_n(w.max, kQ, kNoScore);
  std::fill_n(w.sum, kQ, 0.0F);
  const int64_t begin = b.key_begin / kPanel * kPanel;
  for (int64_t key = begin; key < b.key_end; key += kForwardKeys) {
    const int64_t valid = std::min(kForwardKeys, b.key_end - key), n = panels_of(valid) * kPanel;
    for (int64_t p = 0; p < n; p += kPanel)  // S = Q Kᵀ
      amx_gemm({.a = w.rows,
                .a_row = s.d,
                .b = w.k + (key + p) * s.d / 2,
                .b_row = kPanel,
                .c = w.scores + p,
                .c_row = kScoreRow,
                .m = m,
                .n = kPanel,
                .k = s.d,
                .accumulate = false,
                .columns = b.queries_to_keys(s, key + p)});
    run_kernel<SoftmaxRows>(w.scores, b.rows, n, valid, b.queries_to_keys(s, key), s.scale, w.max, w.sum, w.decay,
                            w.probabilities);
    const bool more = key > begin;
    if (more) run_kernel<ScaleRows>(w.out, b.rows, s.e, static_cast<const float*>(w.decay));
    // O += P V
    amx_gemm({.a = w.probabilities,
              .a_row = kProbabilityRow,
              .b = w.v + key * s.e / 2,
              .b_row = s.e,
              .c = w.out,
              .c_row = s.e,
              .m = m,
              .n = s.e,
              .k = n,
              .accumulate = more,
              .depth = b.queries_to_keys(s, key)});
  }
  for (int64_t i = 0; i < b.rows; ++i) {
    *at(call.log_sum_exp, b.head, b.first + i) = w.max[i] + std::log(w.sum[i]);
    w.sum[i] = 1 / w.sum[i];
  }
  run_kernel<StoreRows<Bf16>>(static_cast<const float*>(w.out), s.e, b.rows, s.e, at(call.out, b.head, b.first),
                              call.out.token, static_cast<const float*>(w.sum), 1.0F);
}

// ---- Backward ------------------------------------------------------------------------------------------------------

// The queries of a block, or the gradients of its output: transposed [columns/2, kQ] and in pairs [kQ/2, columns].
struct BlockOperand {
  Bf16Pair *turned, *pairs;
};

// Scratch memory of a task in backward. Gradients of keys and values are fp32 sums over all blocks of the task.
struct BackwardScratch {
  Bf16 *rows, *k, *v;  // k and v are plain rows
  Bf16* k_turned;      // transposed: a panel is [d, kPanel]
  Bf16Pair* turned;    // the keys of one panel while they are transposed
  BlockOperand q, grad_out;
  PanelGrads panel;
  float *scores, *grad_scores, *grad_q_turned, *grad_q, *grad_k, *grad_v, *log_sum_exp, *delta;
  int64_t floats;

  BackwardScratch(const FlashShape& s, float* memory) {
    Scratch scratch(memory);
    const int64_t keys = panels_of(s.keys) * kPanel;
    rows = scratch.take_as<Bf16>(kQ * std::max(s.d, s.e));
    turned = scratch.take_as<Bf16Pair>(kPanel * s.d / 2);
    q = {scratch.take_as<Bf16Pair>(kQ * s.d / 2), scratch.take_as<Bf16Pair>(kQ * s.d / 2)};
    grad_out = {scratch.take_as<Bf16Pair>(kQ * s.e / 2), scratch.take_as<Bf16Pair>(kQ * s.e / 2)};
    panel = {scratch.take_as<Bf16>(kPanel * kQ), scratch.take_as<Bf16>(kPanel * kQ),
             scratch.take_as<Bf16Pair>(kPanel * kQ / 2)};
    scores = scratch.take(kPanel * kQ);
    grad_scores = scratch.take(kPanel * kQ);
    grad_q_turned = scratch.take(s.d * kQ);
    grad_q = scratch.take(s.d * kQ);
    log_sum_exp = scratch.take(kQ);
    delta = scratch.take(kQ);
    k = scratch.take_as<Bf16>(keys * s.d);
    k_turned = scratch.take_as<Bf16>(keys * s.d);
    v = scratch.take_as<Bf16>(keys * s.e);
    grad_k = scratch.take(keys * s.d);
    grad_v = scratch.take(keys * s.e);
    floats = scratch.used();
  }
};

// Lays out keys as rows (for Sᵀ) and transposed (for dQᵀ), values as rows (for dPᵀ).
void lay_out_keys(const FlashBackward<Bf16>& call, const BackwardScratch& w) {
  const FlashShape& s = call.shape;
  for (int64_t key = 0; key < s.keys; key += kPanel) {
    const int64_t rows = std::min(kPanel, s.keys - key);
    run_kernel<CopyRows>(static_cast<const Bf16*>(at(call.k, 0, key)), call.k.token, rows, s.d, w.k + key * s.d);
    turn_rows(w.k + key * s.d, s.d, w.turned);
    run_kernel<SplitPairs>(static_cast<const Bf16Pair*>(w.turned), s.d, w.k_turned + key * s.d);
    run_kernel<CopyRows>(static_cast<const Bf16*>(at(call.v, 0, key)), call.v.token, rows, s.e, w.v + key * s.e);
  }
}

// Lays out the queries of a block, or the gradients of its output, in the two forms of a second operand; `rows` keeps
// the plain rows.
void lay_out_block(const FlashHeads<const Bf16>& heads, const Block& b, int64_t columns, Bf16* rows,
                   const BlockOperand& to) {
  run_kernel<CopyRows>(at(heads, b.head, b.first), heads.token, b.rows, columns, rows);
  turn_rows(rows, columns, to.turned);
  run_kernel<PairRows>(static_cast<const Bf16*>(rows), columns, to.pairs);
}

// One panel of keys against the queries of a block.
void backward_panel(const FlashShape& s, const Block& b, int64_t key, bool first, const BackwardScratch& w) {
  const GemmBand seen_by = b.keys_to_queries(s, key);
  const int64_t n = amx_padded(b.rows);
  // Sᵀ = K Qᵀ
  amx_gemm({.a = w.k + key * s.d,
            .a_row = s.d,
            .b = w.q.turned,
            .b_row = kQ,
            .c = w.scores,
            .c_row = kQ,
            .m = kPanel,
            .n = n,
            .k = s.d,
            .accumulate = false,
            .columns = seen_by});
  // dPᵀ = V dOᵀ
  amx_gemm({.a = w.v + key * s.e,
            .a_row = s.e,
            .b = w.grad_out.turned,
            .b_row = kQ,
            .c = w.grad_scores,
            .c_row = kQ,
            .m = kPanel,
            .n = n,
            .k = s.e,
            .accumulate = false,
            .columns = seen_by});
  run_kernel<SoftmaxBackward>(w.scores, w.grad_scores, n, s.keys - key, seen_by, s.scale,
                              static_cast<const float*>(w.log_sum_exp), static_cast<const float*>(w.delta), w.panel);
  // dV += Pᵀ dO
  amx_gemm({.a = w.panel.probabilities,
            .a_row = kQ,
            .b = w.grad_out.pairs,
            .b_row = s.e,
            .c = w.grad_v + key * s.e,
            .c_row = s.e,
            .m = kPanel,
            .n = s.e,
            .k = n,
            .accumulate = true,
            .depth = seen_by});
  // dK += dSᵀ Q
  amx_gemm({.a = w.panel.grad_scores,
            .a_row = kQ,
            .b = w.q.pairs,
            .b_row = s.d,
            .c = w.grad_k + key * s.d,
            .c_row = s.d,
            .m = kPanel,
            .n = s.d,
            .k = n,
            .accumulate = true,
            .depth = seen_by});
  // dQᵀ += Kᵀ dSᵀ: transposed, since dSᵀ is at hand in pairs
  amx_gemm({.a = w.k_turned + key * s.d,
            .a_row = kPanel,
            .b = w.panel.grad_score_pairs,
            .b_row = kQ,
            .c = w.grad_q_turned,
            .c_row = kQ,
            .m = s.d,
            .n = n,
            .k = kPanel,
            .accumulate = !first});
}

// Computes one block: adds its part to the gradients of keys and values, panel by panel, and stores that of its
// queries. grad_out comes last into w.rows, since delta = Σ dO · O reads it from there.
void backward_block(const FlashBackward<Bf16>& call, const Block& b, const BackwardScratch& w) {
  const FlashShape& s = call.shape;
  lay_out_block(call.q, b, s.d, w.rows, w.q);
  lay_out_block(call.grad_out, b, s.e, w.rows, w.grad_out);
  std::fill_n(w.delta, kQ, 0.0F);
  run_kernel<RowDots<Bf16>>(at(call.out, b.head, b.first), call.out.token, static_cast<const Bf16*>(w.rows), s.e,
                            b.rows, s.e, w.delta);
  std::fill_n(w.log_sum_exp, kQ, -kNoScore);  // padding: probability 0
  for (int64_t i = 0; i < b.rows; ++i) w.log_sum_exp[i] = *at(call.log_sum_exp, b.head, b.first + i);
  const int64_t begin = b.key_begin / kPanel * kPanel;
  for (int64_t key = begin; key < b.key_end; key += kPanel) backward_panel(s, b, key, key == begin, w);
  run_kernel<Transpose>(static_cast<const float*>(w.grad_q_turned), kQ, s.d, kQ, w.grad_q, s.d);
  run_kernel<StoreRows<Bf16>>(static_cast<const float*>(w.grad_q), s.d, b.rows, s.d, at(call.grad_q, b.head, b.first),
                              call.grad_q.token, static_cast<const float*>(nullptr), s.scale);
}

}  // namespace

// With half a panel of keys or less, most of the work would be padding: the fp32 kernel is faster.
bool flash_amx_usable(const FlashShape& s) {
  return s.d % kAmxTile == 0 && s.e % kAmxTile == 0 && s.keys > kPanel / 2 && amx_available();
}

int64_t flash_amx_scratch(const FlashShape& s) {
  return std::max(ForwardScratch(s, nullptr).floats, BackwardScratch(s, nullptr).floats);
}

void flash_forward_amx(const FlashForward<Bf16>& call, int64_t begin, int64_t end, float* scratch) {
  const AmxSession session;
  const ForwardScratch memory(call.shape, scratch);
  lay_out_keys(call, memory);
  for (int64_t i = begin; i < end; ++i) forward_block(call, Block(call.shape, i), memory);
}

void flash_backward_amx(const FlashBackward<Bf16>& call, int64_t begin, int64_t end, float* scratch) {
  const AmxSession session;
  const FlashShape& s = call.shape;
  const BackwardScratch memory(s, scratch);
  lay_out_keys(call, memory);
  std::fill_n(memory.grad_k, s.keys * s.d, 0.0F);
  std::fill_n(memory.grad_v, s.keys * s.e, 0.0F);
  for (int64_t i = begin; i < end; ++i) backward_block(call, Block(s, i), memory);
  store_grads(memory.grad_k, s.keys, s.d, s.scale, call.grad_k, call.partial_k);
  store_grads(memory.grad_v, s.keys, s.e, 1.0F, call.grad_v, call.partial_v);
}

}  // namespace megalith::ops
