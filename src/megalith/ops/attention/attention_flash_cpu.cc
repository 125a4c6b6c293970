// Flash attention in fp32 on vector registers; bf16 and fp16 are widened when they are loaded. A call has one key/value
// head of one sequence and walks over blocks of 64 queries; keys and values are widened once per call, and go by in
// panels of 256 whose scores [keys, 64] stay in the second-level cache. Scores are transposed, so that softmax works on
// 64 queries side by side and each lane of a vector has its own running maximum and sum:
//
//                 64 queries (lanes)
//   256 keys    | Sᵀ = K Qᵀ         |  ->  Pᵀ = exp(scale Sᵀ - max)     rows are keys, columns are queries
//
//   forward    O = O·decay + P V,  decay = exp(old max - new max);  at the end O / sum and lse = max + log(sum)
//   backward   Pᵀ = exp(scale K Qᵀ - lse),  dPᵀ = V dOᵀ,  dSᵀ = Pᵀ (dPᵀ - delta),  delta = Σ dO·O
//              dV += Pᵀ dO,  dK += dSᵀ Q,  dQ += dS K;  dQ and dK are multiplied by scale when they are stored
//
// Sizes of a block for d = e = 128: Q and Qᵀ 32 KiB each, 256 keys and values 256 KiB (read from the task's copy),
// scores 64 KiB. A block reads keys and values once, and each of their numbers takes part in 64 multiply-adds: the
// arithmetic, not memory, is the limit.
//
// Products skip what is outside the band of the mask. Queries that pad a block have scores of 0 in forward, where their
// rows are not stored, and lse = 1e30 in backward, so that their probabilities are 0.
#include <algorithm>
#include <limits>

#include "megalith/ops/attention/attention_block_internal.h"
#include "megalith/ops/attention/attention_flash_internal.h"
#include "megalith/ops/gemm/small_gemm.h"
#include "megalith/ops/kernel/cpu_math.h"

namespace megalith::ops {

namespace {

using namespace flash;

constexpr int64_t kForwardKeys = 256;  // keys whose scores are held at once
constexpr int64_t kBackwardKeys = 256;

// ---- Kernels -------------------------------------------------------------------------------------------------------

// Widens rows x columns of any dtype to fp32, with columns padded with zeros to `padded`.
template <typename T>
struct LoadRows {
  MEGALITH_ALWAYS_INLINE static void run(const T* from, int64_t distance, int64_t rows, int64_t columns, float* to,
                                         int64_t padded) {
    // The rows of a head are far apart in memory: the hardware prefetcher does not see the next one coming.
    constexpr int64_t kAhead = 8;
    for (int64_t i = 0; i < rows; ++i) {
      const T* MEGALITH_RESTRICT x = from + i * distance;
      float* MEGALITH_RESTRICT y = to + i * padded;
      for (int64_t j = 0; j < columns; j += 64 / static_cast<int64_t>(sizeof(T)))
        __builtin_prefetch(x + kAhead * distance + j);
      for (int64_t j = 0; j < columns; ++j) y[j] = to_acc(x[j]);
      for (int64_t j = columns; j < padded; ++j) y[j] = 0;
    }
  }
};

// Updates the running maximum and sum of a block's columns with `rows` more keys, and turns their scores into
// probabilities relative to the new maximum, 0 for hidden ones. Writes the factor of older sums to `decay`.
struct SoftmaxKeys {
  MEGALITH_ALWAYS_INLINE static void run(float* scores, int64_t rows, int64_t n, GemmBand band, float scale,
                                         float* MEGALITH_RESTRICT max, float* MEGALITH_RESTRICT sum,
                                         float* MEGALITH_RESTRICT decay) {
    constexpr float kHidden = -std::numeric_limits<float>::infinity();
    for (int64_t j = 0; j < n; ++j) decay[j] = max[j];
    for (int64_t i = 0; i < rows; ++i) {
      float* MEGALITH_RESTRICT s = scores + i * kQ;
      const auto first = static_cast<int32_t>(std::clamp<int64_t>(i + band.lo, 0, n));
      const auto last = static_cast<int32_t>(std::clamp<int64_t>(i + band.hi, 0, n));
      if (first > 0 || last < n)
        for (int32_t j = 0; j < n; ++j) s[j] = ((j >= first) & (j < last)) ? s[j] : kHidden;
      for (int64_t j = 0; j < n; ++j) max[j] = s[j] * scale > max[j] ? s[j] * scale : max[j];
    }
    for (int64_t j = 0; j < n; ++j) decay[j] = exp_fast(decay[j] - max[j]);
    for (int64_t j = 0; j < n; ++j) sum[j] *= decay[j];
    for (int64_t i = 0; i < rows; ++i) {
      float* MEGALITH_RESTRICT s = scores + i * kQ;
      for (int64_t j = 0; j < n; ++j) {
        const float p = exp_fast(s[j] * scale - max[j]);
        s[j] = p;
        sum[j] += p;
      }
    }
  }
};

// Turns scores into probabilities p, and gradients dp of those into p (dp - delta), both [rows, kQ]; 0 for hidden ones.
struct SoftmaxBackward {
  MEGALITH_ALWAYS_INLINE static void run(float* scores, float* grads, int64_t rows, int64_t n, GemmBand band,
                                         float scale, const float* MEGALITH_RESTRICT log_sum_exp,
                                         const float* MEGALITH_RESTRICT delta) {
    for (int64_t i = 0; i < rows; ++i) {
      float* MEGALITH_RESTRICT s = scores + i * kQ;
      float* MEGALITH_RESTRICT g = grads + i * kQ;
      const auto first = static_cast<int32_t>(std::clamp<int64_t>(i + band.lo, 0, n));
      const auto last = static_cast<int32_t>(std::clamp<int64_t>(i + band.hi, 0, n));
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
    }
  }
};

// ---- Blocks --------------------------------------------------------------------------------------------------------

// A matrix of fp32 rows, padded to a multiple of kGemmColumns.
struct Rows {
  const float* data;
  int64_t distance;
};

// Widens rows of one head from a token on into `scratch`.
template <typename T>
Rows load_rows(const FlashHeads<const T>& heads, int64_t head, int64_t token, int64_t rows, int64_t columns,
               float* scratch) {
  run_kernel<LoadRows<T>>(at(heads, head, token), heads.token, rows, columns, scratch, gemm_padded(columns));
  return {scratch, gemm_padded(columns)};
}

// Loads the queries of a block as rows [padded, d] and transposed [d, kQ]; the padding is 0.
template <typename T>
Rows load_block(const FlashHeads<const T>& heads, const Block& b, int64_t columns, float* scratch, float* turned) {
  const Rows rows = load_rows(heads, b.head, b.first, b.rows, columns, scratch);
  std::fill_n(scratch + b.rows * rows.distance, (b.padded - b.rows) * rows.distance, 0.0F);
  run_kernel<Transpose>(static_cast<const float*>(scratch), rows.distance, b.padded, rows.distance, turned, kQ);
  return rows;
}

// Scratch memory of a task: the buffers of a block first, then keys and values, whose size depends on the sequence.
struct ForwardScratch {
  float *k, *v, *q, *q_turned, *scores, *out, *max, *sum, *decay;
  int64_t floats;

  ForwardScratch(const FlashShape& s, float* memory) {
    Scratch scratch(memory);
    max = scratch.take(kQ);
    sum = scratch.take(kQ);
    decay = scratch.take(kQ);
    q = scratch.take(gemm_padded(s.d) * kQ);
    q_turned = scratch.take(gemm_padded(s.d) * kQ);
    out = scratch.take(kQ * gemm_padded(s.e));
    scores = scratch.take(kForwardKeys * kQ);
    k = scratch.take(s.keys * gemm_padded(s.d));
    v = scratch.take(s.keys * gemm_padded(s.e));
    floats = scratch.used();
  }
};

// Computes one block: panel by panel of keys, with running maximum and sum, then stores out and log_sum_exp.
template <typename T>
void forward_block(const FlashForward<T>& call, const Block& b, const Rows& k, const Rows& v, const ForwardScratch& w) {
  const FlashShape& s = call.shape;
  const int64_t out_row = gemm_padded(s.e);
  load_block(call.q, b, s.d, w.q, w.q_turned);
  std::fill_n(w.max, kQ, kNoScore);
  std::fill_n(w.sum, kQ, 0.0F);
  for (int64_t key = b.key_begin; key < b.key_end; key += kForwardKeys) {
    const int64_t keys = std::min(kForwardKeys, b.key_end - key);
    const GemmBand seen_by = b.keys_to_queries(s, key);
    // Sᵀ = K Qᵀ
    small_gemm({.a = k.data + key * k.distance,
                .a_row = k.distance,
                .a_column = 1,
                .b = w.q_turned,
                .b_row = kQ,
                .c = w.scores,
                .c_row = kQ,
                .m = keys,
                .n = b.padded,
                .k = s.d,
                .accumulate = false,
                .columns = seen_by});
    run_kernel<SoftmaxKeys>(w.scores, keys, b.padded, seen_by, s.scale, w.max, w.sum, w.decay);
    const bool more = key > b.key_begin;
    if (more) run_kernel<ScaleRows>(w.out, b.rows, out_row, static_cast<const float*>(w.decay));
    // O += P V; P is read transposed
    small_gemm({.a = w.scores,
                .a_row = 1,
                .a_column = kQ,
                .b = v.data + key * v.distance,
                .b_row = v.distance,
                .c = w.out,
                .c_row = out_row,
                .m = b.rows,
                .n = out_row,
                .k = keys,
                .accumulate = more,
                .depth = b.queries_to_keys(s, key)});
  }
  for (int64_t i = 0; i < b.rows; ++i) {
    *at(call.log_sum_exp, b.head, b.first + i) = w.max[i] + std::log(w.sum[i]);
    w.sum[i] = 1 / w.sum[i];
  }
  run_kernel<StoreRows<T>>(static_cast<const float*>(w.out), out_row, b.rows, s.e, at(call.out, b.head, b.first),
                           call.out.token, static_cast<const float*>(w.sum), 1.0F);
}

// Scratch memory of a task in backward: as in forward, and fp32 sums of the gradients of keys and values.
struct BackwardScratch {
  float *k, *v, *grad_k, *grad_v, *q, *grad_out, *q_turned, *grad_out_turned, *scores, *grad_scores, *grad_q;
  float *log_sum_exp, *delta;
  int64_t floats;

  BackwardScratch(const FlashShape& s, float* memory) {
    const int64_t d = gemm_padded(s.d), e = gemm_padded(s.e);
    Scratch scratch(memory);
    log_sum_exp = scratch.take(kQ);
    delta = scratch.take(kQ);
    q_turned = scratch.take(gemm_padded(s.d) * kQ);
    grad_out_turned = scratch.take(e * kQ);
    q = scratch.take(kQ * d);
    grad_out = scratch.take(kQ * e);
    grad_q = scratch.take(kQ * d);
    scores = scratch.take(kBackwardKeys * kQ);
    grad_scores = scratch.take(kBackwardKeys * kQ);
    k = scratch.take(s.keys * d);
    v = scratch.take(s.keys * e);
    grad_k = scratch.take(s.keys * d);
    grad_v = scratch.take(s.keys * e);
    floats = scratch.used();
  }
};

// Adds a block's part to grad_k and grad_v of the task, and stores its grad_q.
template <typename T>
void backward_block(const FlashBackward<T>& call, const Block& b, const Rows& k, const Rows& v,
                    const BackwardScratch& w) {
  const FlashShape& s = call.shape;
  const int64_t d = gemm_padded(s.d), e = gemm_padded(s.e);
  const Rows q = load_block(call.q, b, s.d, w.q, w.q_turned);
  const Rows grad_out = load_block(call.grad_out, b, s.e, w.grad_out, w.grad_out_turned);
  std::fill_n(w.delta, kQ, 0.0F);
  run_kernel<RowDots<T>>(at(call.out, b.head, b.first), call.out.token, at(call.grad_out, b.head, b.first),
                         call.grad_out.token, b.rows, s.e, w.delta);
  std::fill_n(w.log_sum_exp, kQ, -kNoScore);  // padding: probability 0
  for (int64_t i = 0; i < b.rows; ++i) w.log_sum_exp[i] = *at(call.log_sum_exp, b.head, b.first + i);
  for (int64_t key = b.key_begin; key < b.key_end; key += kBackwardKeys) {
    const int64_t keys = std::min(kBackwardKeys, b.key_end - key);
    const GemmBand seen_by = b.keys_to_queries(s, key);
    // Both operands of the softmax's backward first; Pᵀ and dSᵀ then replace them in the same memory.
    // Sᵀ = K Qᵀ
    small_gemm({.a = k.data + key * k.distance,
                .a_row = k.distance,
                .a_column = 1,
                .b = w.q_turned,
                .b_row = kQ,
                .c = w.scores,
                .c_row = kQ,
                .m = keys,
                .n = b.padded,
                .k = s.d,
                .accumulate = false,
                .columns = seen_by});
    // dPᵀ = V dOᵀ
    small_gemm({.a = v.data + key * v.distance,
                .a_row = v.distance,
                .a_column = 1,
                .b = w.grad_out_turned,
                .b_row = kQ,
                .c = w.grad_scores,
                .c_row = kQ,
                .m = keys,
                .n = b.padded,
                .k = s.e,
                .accumulate = false,
                .columns = seen_by});
    run_kernel<SoftmaxBackward>(w.scores, w.grad_scores, keys, b.padded, seen_by, s.scale,
                                static_cast<const float*>(w.log_sum_exp), static_cast<const float*>(w.delta));
    // dV += Pᵀ dO
    small_gemm({.a = w.scores,
                .a_row = kQ,
                .a_column = 1,
                .b = grad_out.data,
                .b_row = grad_out.distance,
                .c = w.grad_v + key * e,
                .c_row = e,
                .m = keys,
                .n = e,
                .k = b.rows,
                .accumulate = true,
                .depth = seen_by});
    // dK += dSᵀ Q
    small_gemm({.a = w.grad_scores,
                .a_row = kQ,
                .a_column = 1,
                .b = q.data,
                .b_row = q.distance,
                .c = w.grad_k + key * d,
                .c_row = d,
                .m = keys,
                .n = d,
                .k = b.rows,
                .accumulate = true,
                .depth = seen_by});
    // dQ += dS K; dS is read transposed
    small_gemm({.a = w.grad_scores,
                .a_row = 1,
                .a_column = kQ,
                .b = k.data + key * k.distance,
                .b_row = k.distance,
                .c = w.grad_q,
                .c_row = d,
                .m = b.rows,
                .n = d,
                .k = keys,
                .accumulate = key > b.key_begin,
                .depth = b.queries_to_keys(s, key)});
  }
  run_kernel<StoreRows<T>>(static_cast<const float*>(w.grad_q), d, b.rows, s.d, at(call.grad_q, b.head, b.first),
                           call.grad_q.token, static_cast<const float*>(nullptr), s.scale);
}

}  // namespace

int64_t flash_forward_scratch(const FlashShape& s) {
  const int64_t floats = ForwardScratch(s, nullptr).floats;
  return flash_amx_usable(s) ? std::max(floats, flash_amx_scratch(s)) : floats;
}

int64_t flash_backward_scratch(const FlashShape& s) {
  const int64_t floats = BackwardScratch(s, nullptr).floats;
  return flash_amx_usable(s) ? std::max(floats, flash_amx_scratch(s)) : floats;
}

template <typename T>
void flash_forward(const FlashForward<T>& call, int64_t begin, int64_t end, float* scratch) {
  const FlashShape& s = call.shape;
  if constexpr (std::is_same_v<T, c10::BFloat16>)
    if (flash_amx_usable(s)) return flash_forward_amx(call, begin, end, scratch);
  const ForwardScratch memory(s, scratch);
  const Rows k = load_rows(call.k, 0, 0, s.keys, s.d, memory.k);
  const Rows v = load_rows(call.v, 0, 0, s.keys, s.e, memory.v);
  for (int64_t i = begin; i < end; ++i) forward_block(call, Block(s, i), k, v, memory);
}

template <typename T>
void flash_backward(const FlashBackward<T>& call, int64_t begin, int64_t end, float* scratch) {
  const FlashShape& s = call.shape;
  if constexpr (std::is_same_v<T, c10::BFloat16>)
    if (flash_amx_usable(s)) return flash_backward_amx(call, begin, end, scratch);
  const int64_t d = gemm_padded(s.d), e = gemm_padded(s.e);
  const BackwardScratch memory(s, scratch);
  const Rows k = load_rows(call.k, 0, 0, s.keys, s.d, memory.k);
  const Rows v = load_rows(call.v, 0, 0, s.keys, s.e, memory.v);
  std::fill_n(memory.grad_k, s.keys * d, 0.0F);
  std::fill_n(memory.grad_v, s.keys * e, 0.0F);
  for (int64_t i = begin; i < end; ++i) backward_block(call, Block(s, i), k, v, memory);
  store_grads(memory.grad_k, s.keys, s.d, s.scale, call.grad_k, call.partial_k);
  store_grads(memory.grad_v, s.keys, s.e, 1.0F, call.grad_v, call.partial_v);
}

template void flash_forward<float>(const FlashForward<float>&, int64_t, int64_t, float*);
template void flash_forward<c10::BFloat16>(const FlashForward<c10::BFloat16>&, int64_t, int64_t, float*);
template void flash_forward<c10::Half>(const FlashForward<c10::Half>&, int64_t, int64_t, float*);
template void flash_backward<float>(const FlashBackward<float>&, int64_t, int64_t, float*);
template void flash_backward<c10::BFloat16>(const FlashBackward<c10::BFloat16>&, int64_t, int64_t, float*);
template void flash_backward<c10::Half>(const FlashBackward<c10::Half>&, int64_t, int64_t, float*);

}  // namespace megalith::ops
