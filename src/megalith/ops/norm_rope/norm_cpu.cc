// RMSNorm and LayerNorm on the CPU. Threads own contiguous ranges of rows; within a row the loops are vectorized over
// its h columns, in acc (fp32, or fp64 for fp64).
//
//   forward   y = (x - mean) rstd · w + b,   rstd = 1 / sqrt(avg((x - mean)²) + epsilon),   mean = 0 for RMSNorm
//
// Forward goes over a row two or three times (mean, squares, output; before that the residual sum). A row of a usual
// width stays in the first- or second-level cache in between, so that memory sees each of x, delta, sum and y once. The
// variance has a pass of its own after the mean because E[x²] - mean² would cancel.
//
//   thread 0   rows [0, t/n)         lane l of a vector has columns l, l + 16, ... (AVX-512, fp32); a sum over the row
//   thread 1   rows [t/n, 2t/n)      is 16 sums side by side, which are added at its end
//
// In bytes per element of bf16: forward 4, with a residual 8; backward 6, with a residual 8. A residual stream in fp32
// with branches in bf16: forward 6, with a residual 12; backward 10, with a residual 16.
#include <algorithm>
#include <vector>

#include "megalith/ops/kernel/cpu_math.h"
#include "megalith/ops/kernel/cpu_parallel.h"
#include "megalith/ops/norm_rope/norm_internal.h"

namespace megalith::ops {

namespace {

// Fewest elements per thread: fewer are not worth waking it.
constexpr int64_t kGrainElements = 32768;

int64_t row_grain(int64_t width) { return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, width)); }

// NormForward with its types; kernels take it by value. T is the type of the residual stream, U that of its branches.
template <typename T, typename U>
struct ForwardPointers {
  const T* x;
  const U* delta;
  T* sum;
  const acc_t<T>* weight;
  const acc_t<T>* bias;
  U* y;
  acc_t<T>* mean;
  acc_t<T>* rstd;
};

// Forward of rows [begin, end). What differs between norms is a template parameter, so that no loop has a branch.
template <typename T, typename U, bool kCentered, bool kRounded>
struct ForwardRows {
  using Acc = acc_t<T>;

  // r = x + delta, rounded to T before the statistics are taken: the norm is that of the stored r.
  MEGALITH_ALWAYS_INLINE static void add(const T* MEGALITH_RESTRICT x, const U* MEGALITH_RESTRICT delta,
                                         T* MEGALITH_RESTRICT sum, int64_t h) {
#pragma omp simd
    for (int64_t i = 0; i < h; ++i) sum[i] = from_acc<T>(to_acc(x[i]) + to_acc(delta[i]));
  }

  MEGALITH_ALWAYS_INLINE static Acc mean_of(const T* x, int64_t h) {
    Acc sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < h; ++i) sum += to_acc(x[i]);
    return sum / static_cast<Acc>(h);
  }

  // Returns the average of (x - mean)²: the variance, or for mean = 0 the mean square.
  MEGALITH_ALWAYS_INLINE static Acc square_of(const T* x, Acc mean, int64_t h) {
    Acc sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < h; ++i) {
      const Acc v = to_acc(x[i]) - mean;
      sum += v * v;
    }
    return sum / static_cast<Acc>(h);
  }

  // y = x̂ w + b; the loop without a bias may round x̂ first (NormRows::rounded).
  MEGALITH_ALWAYS_INLINE static void scale(const T* MEGALITH_RESTRICT x, Acc mean, Acc rstd,
                                           const Acc* MEGALITH_RESTRICT weight, const Acc* MEGALITH_RESTRICT bias,
                                           U* MEGALITH_RESTRICT y, int64_t h) {
    if (bias != nullptr) {
#pragma omp simd
      for (int64_t i = 0; i < h; ++i) y[i] = from_acc<U>((to_acc(x[i]) - mean) * rstd * weight[i] + bias[i]);
      return;
    }
#pragma omp simd
    for (int64_t i = 0; i < h; ++i) {
      const Acc normal = (to_acc(x[i]) - mean) * rstd;
      y[i] = from_acc<U>((kRounded ? to_acc(from_acc<T>(normal)) : normal) * weight[i]);
    }
  }

  MEGALITH_ALWAYS_INLINE static void run(ForwardPointers<T, U> p, Acc epsilon, int64_t begin, int64_t end, int64_t h) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = p.x + row * h;
      if (p.delta != nullptr) {
        add(x, p.delta + row * h, p.sum + row * h, h);
        x = p.sum + row * h;
      }
      const Acc mean = kCentered ? mean_of(x, h) : Acc(0);
      const Acc rstd = Acc(1) / std::sqrt(square_of(x, mean, h) + epsilon);
      scale(x, mean, rstd, p.weight, p.bias, p.y + row * h, h);
      if (kCentered && p.mean != nullptr) p.mean[row] = mean;
      if (p.rstd != nullptr) p.rstd[row] = rstd;
    }
  }
};

template <typename T, typename U, bool kCentered, bool kRounded>
void forward(const NormRows& shape, const NormForward& args) {
  using Acc = acc_t<T>;
  const ForwardPointers<T, U> p{static_cast<const T*>(args.x),      static_cast<const U*>(args.delta),
                                static_cast<T*>(args.sum),          static_cast<const Acc*>(args.weight),
                                static_cast<const Acc*>(args.bias), static_cast<U*>(args.y),
                                static_cast<Acc*>(args.mean),       static_cast<Acc*>(args.rstd)};
  parallel_for(shape.rows, row_grain(shape.width), [&](int64_t begin, int64_t end) {
    run_kernel<ForwardRows<T, U, kCentered, kRounded>>(p, static_cast<Acc>(args.epsilon), begin, end, shape.width);
  });
}

// NormBackward with its types, without the sums over rows, which each thread has for itself.
template <typename T, typename U>
struct BackwardPointers {
  const T* x;
  const U* grad_y;
  const T* grad_residual;
  const acc_t<T>* weight;
  const acc_t<T>* mean;
  const acc_t<T>* rstd;
  T* grad_x;
  U* grad_delta;
};

// With g = grad_y · w and averages over the row:
//   grad_x = rstd (g - x̂ avg(g x̂) [- avg(g)]) [+ grad_residual]     avg(g) for LayerNorm only
//   grad_weight += grad_y x̂,  grad_bias += grad_y
// Two passes over a row: the averages, then the outputs. x̂ is computed in both from x, mean and rstd.
template <typename T, typename U, bool kCentered>
struct BackwardRows {
  using Acc = acc_t<T>;
  // Rows that are summed apart before they join the total: two levels keep the rounding error of long sums small.
  static constexpr int64_t kBlockRows = 64;

  template <bool kResidual>
  MEGALITH_ALWAYS_INLINE static void row(const T* MEGALITH_RESTRICT x, const U* MEGALITH_RESTRICT grad_y,
                                         const T* MEGALITH_RESTRICT grad_residual, const Acc* MEGALITH_RESTRICT weight,
                                         Acc mean, Acc rstd, T* MEGALITH_RESTRICT grad_x,
                                         Acc* MEGALITH_RESTRICT grad_weight, Acc* MEGALITH_RESTRICT grad_bias,
                                         int64_t h) {
    Acc along = 0;  // Σ g x̂
    Acc total = 0;  // Σ g
#pragma omp simd reduction(+ : along, total)
    for (int64_t i = 0; i < h; ++i) {
      const Acc g = to_acc(grad_y[i]) * weight[i];
      along += g * ((to_acc(x[i]) - mean) * rstd);
      if constexpr (kCentered) total += g;
    }
    const Acc scale = rstd / static_cast<Acc>(h);
    along *= scale;
    total *= scale;
#pragma omp simd
    for (int64_t i = 0; i < h; ++i) {
      const Acc dy = to_acc(grad_y[i]);
      const Acc normal = (to_acc(x[i]) - mean) * rstd;
      Acc dx = dy * weight[i] * rstd - normal * along;
      if constexpr (kCentered) dx -= total;
      if constexpr (kResidual) dx += to_acc(grad_residual[i]);
      grad_x[i] = from_acc<T>(dx);
      grad_weight[i] += dy * normal;
      if constexpr (kCentered) grad_bias[i] += dy;
    }
  }

  // Copies a row that is still in the cache.
  MEGALITH_ALWAYS_INLINE static void narrow(const T* MEGALITH_RESTRICT from, U* MEGALITH_RESTRICT to, int64_t h) {
#pragma omp simd
    for (int64_t i = 0; i < h; ++i) to[i] = from_acc<U>(to_acc(from[i]));
  }

  // Adds the sums of a block of rows to the total and clears them.
  MEGALITH_ALWAYS_INLINE static void flush(Acc* MEGALITH_RESTRICT block, Acc* MEGALITH_RESTRICT total, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      total[i] += block[i];
      block[i] = 0;
    }
  }

  // `sums` is [4, h], zeros at first: on return [0] holds the gradient of the weight and [1] that of the bias; [2] and
  // [3] are the sums of the current block of rows.
  MEGALITH_ALWAYS_INLINE static void run(BackwardPointers<T, U> p, Acc* sums, int64_t begin, int64_t end, int64_t h) {
    Acc* const block = sums + 2 * h;
    for (int64_t first = begin; first < end; first += kBlockRows) {
      const int64_t last = first + kBlockRows < end ? first + kBlockRows : end;
      for (int64_t r = first; r < last; ++r) {
        const Acc mean = kCentered ? p.mean[r] : Acc(0);
        const int64_t at = r * h;
        if (p.grad_residual == nullptr)
          row<false>(p.x + at, p.grad_y + at, nullptr, p.weight, mean, p.rstd[r], p.grad_x + at, block, block + h, h);
        else
          row<true>(p.x + at, p.grad_y + at, p.grad_residual + at, p.weight, mean, p.rstd[r], p.grad_x + at, block,
                    block + h, h);
        if (p.grad_delta != nullptr) narrow(p.grad_x + at, p.grad_delta + at, h);
      }
      flush(block, sums, 2 * h);
    }
  }
};

template <typename T, typename U, bool kCentered>
void backward(const NormRows& shape, const NormBackward& args) {
  using Acc = acc_t<T>;
  const int64_t h = shape.width;
  const BackwardPointers<T, U> p{static_cast<const T*>(args.x),
                                 static_cast<const U*>(args.grad_y),
                                 static_cast<const T*>(args.grad_residual),
                                 static_cast<const Acc*>(args.weight),
                                 static_cast<const Acc*>(args.mean),
                                 static_cast<const Acc*>(args.rstd),
                                 static_cast<T*>(args.grad_x),
                                 static_cast<U*>(args.grad_delta)};
  const int64_t parts = parallel_parts(shape.rows, row_grain(h));
  std::vector<Acc> sums(parts * 4 * h);  // [parts, 4, h]
  parallel_for_parts(shape.rows, parts, [&](int64_t part, int64_t begin, int64_t end) {
    run_kernel<BackwardRows<T, U, kCentered>>(p, sums.data() + part * 4 * h, begin, end, h);
  });
  // In the order of the parts, on one thread: h · parts additions are nothing beside t · h.
  const auto reduce = [&](void* out, int64_t which) {
    auto* total = static_cast<Acc*>(out);
    std::fill_n(total, h, Acc(0));
    for (int64_t part = 0; part < parts; ++part)
      for (int64_t i = 0; i < h; ++i) total[i] += sums[(part * 4 + which) * h + i];
  };
  if (args.grad_weight != nullptr) reduce(args.grad_weight, 0);
  if (args.grad_bias != nullptr) reduce(args.grad_bias, 1);
}

// Calls run with the types of the residual stream and of its branches.
template <typename Run>
void visit_types(const NormRows& shape, const Run& run) {
  if (shape.branch() == shape.dtype)
    return visit_floating(shape.dtype, [&]<typename T>() { run.template operator()<T, T>(); });
  if (shape.branch() == c10::ScalarType::Half) return run.template operator()<float, c10::Half>();
  run.template operator()<float, c10::BFloat16>();
}

}  // namespace

void norm_forward_cpu(const NormRows& shape, const NormForward& args) {
  visit_types(shape, [&]<typename T, typename U>() {
    if (shape.centered) return forward<T, U, true, false>(shape, args);
    if (shape.rounded) return forward<T, U, false, true>(shape, args);
    return forward<T, U, false, false>(shape, args);
  });
}

void norm_backward_cpu(const NormRows& shape, const NormBackward& args) {
  visit_types(shape, [&]<typename T, typename U>() {
    if (shape.centered) return backward<T, U, true>(shape, args);
    return backward<T, U, false>(shape, args);
  });
}

}  // namespace megalith::ops
