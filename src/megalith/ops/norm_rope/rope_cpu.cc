// Split, norm and rotation of heads on the CPU. Threads own ranges of tokens and go through the groups (query, key,
// value) and heads of each; within a head the loops are vectorized over channels.
//
//   forward    out = R(x̂ w),  x̂ = x rstd,  rstd = 1 / sqrt(avg(x²) + epsilon);   R rotates pairs of channels
//   backward   u = R⁻¹ dy,  g = u w,  dx = rstd (g - x̂ avg(g x̂)),  dw = Σ u x̂ over tokens and heads
//
// A head (64 to 256 numbers) stays in the first-level cache between its sum of squares and its output, so that memory
// sees each head once on the way in and once on the way out. Backward without a norm is map_heads_cpu with the inverse
// rotation.
#include <algorithm>
#include <cstring>
#include <vector>

#include "megalith/ops/kernel/cpu_math.h"
#include "megalith/ops/kernel/cpu_parallel.h"
#include "megalith/ops/norm_rope/rope_internal.h"

namespace megalith::ops {

namespace {

// Fewest elements per thread: fewer are not worth waking it.
constexpr int64_t kGrainElements = 32768;

// Returns the fewest tokens per thread, from the size of a token's heads in all groups.
template <typename Group>
int64_t token_grain(const HeadsShape& shape, std::span<const Group> groups) {
  int64_t heads = 0;
  for (const Group& group : groups) heads += group.heads;
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, heads * shape.head_dim));
}

template <typename Acc, typename T>
MEGALITH_ALWAYS_INLINE Acc inverse_rms(const T* x, int64_t d, Acc epsilon) {
  Acc sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < d; ++i) sum += to_acc(x[i]) * to_acc(x[i]);
  return Acc(1) / std::sqrt(sum / static_cast<Acc>(d) + epsilon);
}

// The angles of one token, and how many pairs of channels rotate by them: none in groups that do not rotate (value).
template <typename T>
struct Angles {
  const float* cos;  // [half]
  const float* sin;  // [half]
  int64_t half;
  acc_t<T> sign;  // factor of sin: -1 for the inverse rotation
};

// Pairs of channels are (i, i + half), two contiguous stretches, or (2i, 2i + 1) where they are interleaved.
// One head: out = rotate(x · scale · weight), scale and weight only with kNorm. Channels from 2·half on do not rotate.
template <bool kNorm, bool kInterleaved, typename T>
MEGALITH_ALWAYS_INLINE void map_head(const T* MEGALITH_RESTRICT x, T* MEGALITH_RESTRICT out,
                                     const acc_t<T>* MEGALITH_RESTRICT weight, acc_t<T> scale, Angles<T> angles,
                                     int64_t d) {
  using Acc = acc_t<T>;
  const int64_t half = angles.half;
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const int64_t first = kInterleaved ? 2 * i : i;
    const int64_t second = kInterleaved ? 2 * i + 1 : i + half;
    Acc a = to_acc(x[first]);
    Acc b = to_acc(x[second]);
    if constexpr (kNorm) {
      a *= scale * weight[first];
      b *= scale * weight[second];
    }
    const Acc c = angles.cos[i];
    const Acc s = angles.sin[i] * angles.sign;
    out[first] = from_acc<T>(a * c - b * s);
    out[second] = from_acc<T>(b * c + a * s);
  }
#pragma omp simd
  for (int64_t i = 2 * half; i < d; ++i) {
    Acc a = to_acc(x[i]);
    if constexpr (kNorm) a *= scale * weight[i];
    out[i] = from_acc<T>(a);
  }
}

template <typename T>
MEGALITH_ALWAYS_INLINE Angles<T> angles_of(const Rotation& rotation, int64_t token, bool rotate) {
  const int64_t at = token * rotation.half;
  return {rotation.cos + at, rotation.sin + at, rotate ? rotation.half : 0, acc_t<T>(rotation.inverse ? -1 : 1)};
}

// Forward of tokens [begin, end), all groups. Groups that are only copied, such as value, are one memcpy per token if
// their heads are contiguous.
template <typename T, bool kInterleaved>
struct MapTokens {
  using Acc = acc_t<T>;

  template <bool kNorm>
  MEGALITH_ALWAYS_INLINE static void map_group(const HeadGroup& group, const T* in, T* out, Angles<T> angles,
                                               int64_t d) {
    const auto* weight = static_cast<const Acc*>(group.norm_weight);
    for (int64_t head = 0; head < group.heads; ++head) {
      const T* x = in + head * group.in.head_stride;
      const Acc scale = kNorm ? inverse_rms<Acc>(x, d, static_cast<Acc>(group.epsilon)) : Acc(1);
      map_head<kNorm, kInterleaved>(x, out + head * group.out.head_stride, weight, scale, angles, d);
    }
  }

  MEGALITH_ALWAYS_INLINE static void run(const HeadGroup* groups, size_t count, const Rotation* rotation, int64_t begin,
                                         int64_t end, int64_t d) {
    for (int64_t token = begin; token < end; ++token) {
      for (size_t g = 0; g < count; ++g) {
        const HeadGroup& group = groups[g];
        const T* in = static_cast<const T*>(group.in.data) + token * group.in.token_stride;
        T* out = static_cast<T*>(group.out.data) + token * group.out.token_stride;
        const Angles<T> angles = angles_of<T>(*rotation, token, group.rotate);
        if (group.norm_weight != nullptr)
          map_group<true>(group, in, out, angles, d);
        else if (angles.half == 0 && group.in.head_stride == d && group.out.head_stride == d)
          std::memcpy(out, in, sizeof(T) * group.heads * d);
        else
          map_group<false>(group, in, out, angles, d);
      }
    }
  }
};

// The buffers of one thread for the backward of one group.
template <typename T>
struct BackwardPart {
  HeadGroupBackward group;
  acc_t<T>* sums;       // [d], zeros at first; out: the gradient of the weight
  acc_t<T>* block;      // [d], zeros at first: the sum over the current block of tokens
  acc_t<T>* unrotated;  // [d]: u of one head
};

// Backward of tokens [begin, end) of one group with a norm. Two passes over each head: u and the two sums, then
// outputs.
template <typename T, bool kInterleaved>
struct MapTokensBackward {
  using Acc = acc_t<T>;
  // Tokens that are summed apart before they join the total: two levels keep the rounding error of long sums small.
  static constexpr int64_t kBlockTokens = 32;

  struct Sums {
    Acc square;  // Σ x²
    Acc along;   // Σ u w x
  };

  // Writes u and returns the sums over the head.
  MEGALITH_ALWAYS_INLINE static Sums unrotate(const T* MEGALITH_RESTRICT x, const T* MEGALITH_RESTRICT grad_out,
                                              const Acc* MEGALITH_RESTRICT weight, Angles<T> angles,
                                              Acc* MEGALITH_RESTRICT u, int64_t d) {
    const int64_t half = angles.half;
    Acc square = 0;
    Acc along = 0;
#pragma omp simd reduction(+ : square, along)
    for (int64_t i = 0; i < half; ++i) {
      const int64_t first = kInterleaved ? 2 * i : i;
      const int64_t second = kInterleaved ? 2 * i + 1 : i + half;
      const Acc a = to_acc(grad_out[first]);
      const Acc b = to_acc(grad_out[second]);
      const Acc c = angles.cos[i];
      const Acc s = angles.sin[i] * angles.sign;
      const Acc ua = a * c - b * s;
      const Acc ub = b * c + a * s;
      const Acc xa = to_acc(x[first]);
      const Acc xb = to_acc(x[second]);
      u[first] = ua;
      u[second] = ub;
      square += xa * xa + xb * xb;
      along += ua * weight[first] * xa + ub * weight[second] * xb;
    }
#pragma omp simd reduction(+ : square, along)
    for (int64_t i = 2 * half; i < d; ++i) {
      const Acc v = to_acc(x[i]);
      u[i] = to_acc(grad_out[i]);
      square += v * v;
      along += u[i] * weight[i] * v;
    }
    return {square, along};
  }

  // dx = rstd (u w - x̂ Σ(u w x̂) / d), with Σ(u w x̂) = rstd Σ(u w x): one factor rstd of `along` is that of the sum,
  // the other that of the result.
  MEGALITH_ALWAYS_INLINE static void head(const T* MEGALITH_RESTRICT x, const T* grad_out,
                                          const Acc* MEGALITH_RESTRICT weight, Acc epsilon, Angles<T> angles,
                                          Acc* MEGALITH_RESTRICT u, T* MEGALITH_RESTRICT grad_x,
                                          Acc* MEGALITH_RESTRICT grad_weight, int64_t d) {
    const Sums sums = unrotate(x, grad_out, weight, angles, u, d);
    const Acc rstd = Acc(1) / std::sqrt(sums.square / static_cast<Acc>(d) + epsilon);
    const Acc along = sums.along * rstd * rstd / static_cast<Acc>(d);
#pragma omp simd
    for (int64_t i = 0; i < d; ++i) {
      const Acc normal = to_acc(x[i]) * rstd;
      grad_x[i] = from_acc<T>(u[i] * weight[i] * rstd - normal * along);
      grad_weight[i] += u[i] * normal;
    }
  }

  MEGALITH_ALWAYS_INLINE static void flush(Acc* MEGALITH_RESTRICT block, Acc* MEGALITH_RESTRICT total, int64_t d) {
#pragma omp simd
    for (int64_t i = 0; i < d; ++i) {
      total[i] += block[i];
      block[i] = 0;
    }
  }

  MEGALITH_ALWAYS_INLINE static void run(BackwardPart<T> part, const Rotation* rotation, int64_t begin, int64_t end,
                                         int64_t d) {
    const HeadGroupBackward& group = part.group;
    for (int64_t token = begin; token < end; ++token) {
      const T* in = static_cast<const T*>(group.in.data) + token * group.in.token_stride;
      const T* grad_out = static_cast<const T*>(group.grad_out.data) + token * group.grad_out.token_stride;
      T* grad_in = static_cast<T*>(group.grad_in.data) + token * group.grad_in.token_stride;
      const Angles<T> angles = angles_of<T>(*rotation, token, true);
      for (int64_t h = 0; h < group.heads; ++h)
        head(in + h * group.in.head_stride, grad_out + h * group.grad_out.head_stride,
             static_cast<const Acc*>(group.norm_weight), static_cast<Acc>(group.epsilon), angles, part.unrotated,
             grad_in + h * group.grad_in.head_stride, part.block, d);
      if ((token - begin) % kBlockTokens == kBlockTokens - 1 || token == end - 1) flush(part.block, part.sums, d);
    }
  }
};

// Cuts the tokens into `parts`, one per thread with its own sums, and adds the sums in the order of parts.
template <typename T>
void backward(const HeadsShape& shape, const Rotation& rotation, const HeadGroupBackward& group, int64_t parts) {
  using Acc = acc_t<T>;
  const int64_t d = shape.head_dim;
  std::vector<Acc> scratch(parts * 3 * d);  // [parts, 3, d]: sums, block, one head
  parallel_for_parts(shape.tokens, parts, [&](int64_t part, int64_t begin, int64_t end) {
    Acc* const own = scratch.data() + part * 3 * d;
    const BackwardPart<T> work{group, own, own + d, own + 2 * d};
    if (rotation.interleaved)
      run_kernel<MapTokensBackward<T, true>>(work, &rotation, begin, end, d);
    else
      run_kernel<MapTokensBackward<T, false>>(work, &rotation, begin, end, d);
  });
  auto* total = static_cast<Acc*>(group.grad_weight);
  std::fill_n(total, d, Acc(0));
  for (int64_t part = 0; part < parts; ++part)
    for (int64_t i = 0; i < d; ++i) total[i] += scratch[part * 3 * d + i];
}

}  // namespace

void map_heads_cpu(const HeadsShape& shape, const Rotation& rotation, std::span<const HeadGroup> groups) {
  visit_floating(shape.dtype, [&]<typename T>() {
    parallel_for(shape.tokens, token_grain(shape, groups), [&](int64_t begin, int64_t end) {
      if (rotation.interleaved)
        run_kernel<MapTokens<T, true>>(groups.data(), groups.size(), &rotation, begin, end, shape.head_dim);
      else
        run_kernel<MapTokens<T, false>>(groups.data(), groups.size(), &rotation, begin, end, shape.head_dim);
    });
  });
}

void map_heads_backward_cpu(const HeadsShape& shape, const Rotation& rotation, const HeadGroupBackward& group) {
  const int64_t parts = parallel_parts(shape.tokens, token_grain(shape, std::span(&group, 1)));
  visit_floating(shape.dtype, [&]<typename T>() { backward<T>(shape, rotation, group, parts); });
}

}  // namespace megalith::ops
