// Cross-entropy on the CPU. Threads own ranges of rows; loops over columns are vectorized, with exp from cpu_math.h.
//
//   stats   max, Σ exp(x - max), Σ x of a row: one pass over memory, in chunks that are read twice from the cache
//   losses  t numbers: fp64, one thread
//   grads   x = g (1 + 2 z lse) exp(x - lse) - g·off_target [- g·on_target at the label], in place: one pass
//
// In bytes per logit of bf16: stats 2, grads 4. The maximum of a chunk is found before its exponentials, so that the
// running sum is rescaled once per chunk rather than per vector.
#include <algorithm>
#include <limits>

#include "megalith/ops/kernel/cpu_math.h"
#include "megalith/ops/kernel/cpu_parallel.h"
#include "megalith/ops/loss/cross_entropy_internal.h"

namespace megalith::ops {

namespace {

// Columns that are read twice, for their maximum and for the sum: they stay in the first-level cache in between.
constexpr int64_t kChunk = 4096;  // 8 KiB of bf16, 16 KiB of fp32
// Fewest elements per thread: fewer are not worth waking it.
constexpr int64_t kGrainElements = 32768;

int64_t row_grain(const LogitRows& rows) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, rows.columns));
}

// Maximum, Σ exp(x - max) and Σ x of the part of a row seen so far.
template <typename Acc>
struct RowStats {
  Acc max, sum, total;
};

// Statistics of rows [begin, end); kTotal also sums the logits.
template <typename T, bool kTotal>
struct Stats {
  using Acc = acc_t<T>;

  MEGALITH_ALWAYS_INLINE static RowStats<Acc> row(const T* MEGALITH_RESTRICT x, int64_t n) {
    RowStats<Acc> r{-std::numeric_limits<Acc>::infinity(), 0, 0};
    for (int64_t begin = 0; begin < n; begin += kChunk) {
      const int64_t end = std::min(n, begin + kChunk);
      Acc max = r.max;
#pragma omp simd reduction(max : max)
      for (int64_t i = begin; i < end; ++i) max = to_acc(x[i]) > max ? to_acc(x[i]) : max;
      Acc sum = 0, total = 0;
#pragma omp simd reduction(+ : sum, total)
      for (int64_t i = begin; i < end; ++i) {
        sum += exp_fast(to_acc(x[i]) - max);
        if constexpr (kTotal) total += to_acc(x[i]);
      }
      // The sum so far is rescaled to the new maximum; before the first chunk that would be 0 · exp(-inf).
      r.sum = (r.sum == 0 ? 0 : r.sum * exp_fast(r.max - max)) + sum;
      r.max = max;
      r.total += total;
    }
    return r;
  }

  MEGALITH_ALWAYS_INLINE static void run(const LogitRows* rows, const T* logits, const LogitStats* stats, int64_t begin,
                                         int64_t end) {
    auto* max = static_cast<Acc*>(stats->max);
    auto* sum = static_cast<Acc*>(stats->sum);
    auto* target = static_cast<Acc*>(stats->target);
    auto* total = static_cast<Acc*>(stats->total);
    for (int64_t i = begin; i < end; ++i) {
      const T* x = logits + i * rows->distance;
      const bool ignored = rows->labels[i] == rows->ignore_index;
      const int64_t column = rows->labels[i] - rows->first_id;
      const RowStats<Acc> r = ignored ? RowStats<Acc>{0, 0, 0} : row(x, rows->valid);
      max[i] = r.max;
      sum[i] = r.sum;
      target[i] = !ignored && column >= 0 && column < rows->valid ? to_acc(x[column]) : Acc{0};
      if constexpr (kTotal) total[i] = r.total;
    }
  }
};

// Overwrites rows [begin, end) with their gradients.
template <typename T>
struct Grads {
  using Acc = acc_t<T>;

  MEGALITH_ALWAYS_INLINE static void run(const LogitRows* rows, T* logits, const double* log_sum_exp,
                                         const Acc* grad_loss, const LossWeights* weights, int64_t begin, int64_t end) {
    const auto on_target = static_cast<Acc>(weights->on_target), off_target = static_cast<Acc>(weights->off_target);
    const auto z = static_cast<Acc>(weights->z);
    for (int64_t i = begin; i < end; ++i) {
      T* MEGALITH_RESTRICT x = logits + i * rows->distance;
      const bool ignored = rows->labels[i] == rows->ignore_index;
      // log Σ exp in two parts: the logits that matter are near it, and the difference must keep its digits.
      const auto high = static_cast<Acc>(log_sum_exp[i]);
      const auto low = static_cast<Acc>(log_sum_exp[i] - static_cast<double>(high));
      const Acc g = grad_loss[i];
      const int64_t valid = ignored ? 0 : rows->valid;
      const int64_t column = rows->labels[i] - rows->first_id;
      const bool here = !ignored && column >= 0 && column < valid;
      const Acc factor = g * (1 + 2 * z * high), less = g * off_target;
      // The column of the label is computed apart, before its logit is overwritten, and rounded once.
      const Acc target = here ? factor * exp_fast(to_acc(x[column]) - high - low) - less - g * on_target : Acc{0};
#pragma omp simd
      for (int64_t j = 0; j < valid; ++j) x[j] = from_acc<T>(factor * exp_fast(to_acc(x[j]) - high - low) - less);
      if (here) x[column] = from_acc<T>(target);
      for (int64_t j = valid; j < rows->columns; ++j) x[j] = T(0);
    }
  }
};

// Calls body(zero) with a zero of the element type.
template <typename Body>
void dispatch(c10::ScalarType dtype, const Body& body) {
  switch (dtype) {
    case c10::ScalarType::Double:
      return body(double{});
    case c10::ScalarType::BFloat16:
      return body(c10::BFloat16{});
    case c10::ScalarType::Half:
      return body(c10::Half{});
    default:
      return body(float{});
  }
}

}  // namespace

void logit_stats_cpu(const LogitRows& rows, const void* logits, const LogitStats& stats) {
  dispatch(rows.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* x = static_cast<const T*>(logits);
    parallel_for(rows.rows, row_grain(rows), [&](int64_t begin, int64_t end) {
      if (stats.total != nullptr)
        run_kernel<Stats<T, true>>(&rows, x, &stats, begin, end);
      else
        run_kernel<Stats<T, false>>(&rows, x, &stats, begin, end);
    });
  });
}

void losses_cpu(const LogitRows& rows, const LogitStats& stats, const LossWeights& weights, double* log_sum_exp,
                void* loss) {
  dispatch(rows.dtype, [&](auto zero) {
    using Acc = acc_t<decltype(zero)>;
    const auto value = [](const void* x, int64_t i) { return static_cast<double>(static_cast<const Acc*>(x)[i]); };
    for (int64_t i = 0; i < rows.rows; ++i) {
      const bool ignored = rows.labels[i] == rows.ignore_index;
      const double max = ignored ? 0 : value(stats.max, i), log_sum = ignored ? 0 : std::log(value(stats.sum, i));
      const double off_target = stats.total == nullptr ? 0 : weights.off_target * value(stats.total, i);
      const double lse = max + log_sum;
      const double result =
          log_sum + (max - weights.on_target * value(stats.target, i) - off_target) + weights.z * lse * lse;
      log_sum_exp[i] = lse;
      static_cast<Acc*>(loss)[i] = static_cast<Acc>(ignored ? 0 : result);
    }
  });
}

void logit_grads_cpu(const LogitRows& rows, void* logits, const double* log_sum_exp, const void* grad_loss,
                     const LossWeights& weights) {
  dispatch(rows.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto* x = static_cast<T*>(logits);
    const auto* grads = static_cast<const acc_t<T>*>(grad_loss);
    parallel_for(rows.rows, row_grain(rows), [&](int64_t begin, int64_t end) {
      run_kernel<Grads<T>>(&rows, x, log_sum_exp, grads, &weights, begin, end);
    });
  });
}

}  // namespace megalith::ops
