// Legend: t rows, h row length. A block works on one row at a time and goes on to the next: a thread always has the
// same columns, so that it keeps their weights, and the sums of their gradients, in registers. Narrow rows have a warp
// each, which needs no barriers.
#include "megalith/ops/cuda_math.cuh"
#include "megalith/ops/norm_internal.h"

namespace megalith::ops {

namespace {

// A thread's columns: `n` vectors of v elements, `blockDim.x` vectors apart.
template <int v, int n>
struct Columns {
  int width;
  __device__ int first(int i) const { return (static_cast<int>(threadIdx.x) + i * static_cast<int>(blockDim.x)) * v; }
  __device__ bool here(int i) const { return first(i) < width; }
};

// What shape_for() may ask for: wide rows have many registers a thread, the widest also many threads.
template <int n>
inline constexpr int kMostThreads = n < 8 ? 256 : 1024;
template <typename T, int v, int n, bool centered, bool rounded>
__global__ void __launch_bounds__(kMostThreads<n>) forward_kernel(NormForward args, NormRows shape) {
  __shared__ float2 scratch[2][32];
  const int width = static_cast<int>(shape.width);
  const Columns<v, n> columns{width};
  float w[n][v], b[n][v];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if (!columns.here(i)) continue;
    for (int j = 0; j < v; ++j) {
      const int column = columns.first(i) + j;
      w[i][j] = small_element<T>(args.weight, shape.raw_weights, column) + shape.weight_shift;
      if (centered) b[i][j] = args.bias == nullptr ? 0 : small_element<T>(args.bias, shape.raw_weights, column);
    }
  }
  const float inverse = 1.0F / static_cast<float>(width);
  const auto *x = static_cast<const T*>(args.x), *delta = static_cast<const T*>(args.delta);
  int turn = 0;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const int64_t start = row * width;
    float value[n][v];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!columns.here(i)) continue;
      load<v>(x + start + columns.first(i), value[i]);
      if (delta != nullptr) {
        float added[v];
        load<v>(delta + start + columns.first(i), added);
        for (int j = 0; j < v; ++j) value[i][j] = rounded_to<T>(value[i][j] + added[j]);
        store<v>(value[i], static_cast<T*>(args.sum) + start + columns.first(i));
      }
      for (int j = 0; j < v; ++j) sum += centered ? value[i][j] : value[i][j] * value[i][j];
    }
    float mean = 0, square = block_sum2({sum, 0}, scratch[turn ^= 1]).x * inverse;
    if (centered) {
      mean = square;
      float deviation = 0;
#pragma unroll
      for (int i = 0; i < n; ++i) {
        if (!columns.here(i)) continue;
        for (int j = 0; j < v; ++j) deviation += (value[i][j] - mean) * (value[i][j] - mean);
      }
      square = block_sum2({deviation, 0}, scratch[turn ^= 1]).x * inverse;
    }
    const float rstd = 1.0F / sqrtf(square + static_cast<float>(args.epsilon));
    if (threadIdx.x == 0 && args.rstd != nullptr) {
      static_cast<float*>(args.rstd)[row] = rstd;
      if (centered) static_cast<float*>(args.mean)[row] = mean;
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!columns.here(i)) continue;
      for (int j = 0; j < v; ++j) {
        float normal = (value[i][j] - mean) * rstd;
        if (rounded) normal = rounded_to<T>(normal);
        value[i][j] = normal * w[i][j] + (centered ? b[i][j] : 0);
      }
      store<v>(value[i], static_cast<T*>(args.y) + start + columns.first(i));
    }
  }
}

// partials [blocks, h], or [blocks, 2h] with the bias' behind the weight's.
template <typename T, int v, int n, bool centered>
__global__ void __launch_bounds__(kMostThreads<n>)
    backward_kernel(NormBackward args, NormRows shape, float* partials, bool with_bias) {
  __shared__ float2 scratch[2][32];
  const int width = static_cast<int>(shape.width);
  const Columns<v, n> columns{width};
  float w[n][v], dw[n][v], db[n][v];
#pragma unroll
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < v; ++j) {
      w[i][j] = columns.here(i) ? small_element<T>(args.weight, shape.raw_weights, columns.first(i) + j) : 0;
      if (columns.here(i)) w[i][j] += shape.weight_shift;
      dw[i][j] = db[i][j] = 0;
    }
  const float inverse = 1.0F / static_cast<float>(width);
  const auto *x = static_cast<const T*>(args.x), *dy = static_cast<const T*>(args.grad_y);
  const auto* residual = static_cast<const T*>(args.grad_residual);
  int turn = 0;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const int64_t start = row * width;
    const float rstd = static_cast<const float*>(args.rstd)[row];
    const float mean = centered ? static_cast<const float*>(args.mean)[row] : 0;
    float normal[n][v], slope[n][v];  // x̂, and the gradient with respect to it
    float2 sums{0, 0};                // of slope · x̂, of slope
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!columns.here(i)) continue;
      load<v>(x + start + columns.first(i), normal[i]);
      load<v>(dy + start + columns.first(i), slope[i]);
      for (int j = 0; j < v; ++j) {
        normal[i][j] = (normal[i][j] - mean) * rstd;
        dw[i][j] += slope[i][j] * normal[i][j];
        if (centered) db[i][j] += slope[i][j];
        slope[i][j] *= w[i][j];
        sums.x += slope[i][j] * normal[i][j];
        if (centered) sums.y += slope[i][j];
      }
    }
    sums = block_sum2(sums, scratch[turn ^= 1]);
    const float along = sums.x * inverse, sum = sums.y * inverse;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!columns.here(i)) continue;
      float grad[v];
      for (int j = 0; j < v; ++j) grad[j] = (slope[i][j] - normal[i][j] * along - sum) * rstd;
      if (residual != nullptr) {
        float added[v];
        load<v>(residual + start + columns.first(i), added);
        for (int j = 0; j < v; ++j) grad[j] += added[j];
      }
      store<v>(grad, static_cast<T*>(args.grad_x) + start + columns.first(i));
    }
  }
  const int64_t row_length = with_bias ? 2 * shape.width : shape.width;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if (!columns.here(i)) continue;
    float* at = partials + int64_t{blockIdx.x} * row_length + columns.first(i);
    for (int j = 0; j < v; ++j) {
      at[j] = dw[i][j];
      if (with_bias) at[shape.width + j] = db[i][j];
    }
  }
}

// How a width is dealt to threads.
struct Shape {
  int vector = 1;   // elements a thread reads at once
  int vectors = 1;  // of them a thread
  int threads = 32;
};

Shape shape_for(int width, int vector) {
  const int count = (width + vector - 1) / vector;
  if (vector > 1 && count <= 32 * 4) return {vector, (count + 31) / 32, 32};
  int vectors = 1;
  while (vectors < 8 && count > 256 * vectors) vectors *= 2;
  const int threads = ((count + vectors - 1) / vectors + 31) / 32 * 32;
  if (threads > 1024) fail_kernel("norm", "the rows are too wide");
  return {vector, vectors, threads};
}

// run.template operator()<v, n>()
template <typename T, typename Run>
void for_shape(const Shape& shape, const Run& run) {
  const auto with_vector = [&]<int v>() {
    if (shape.vectors == 1) return run.template operator()<v, 1>();
    if (shape.vectors == 2) return run.template operator()<v, 2>();
    if (shape.vectors == 3) return run.template operator()<v, 3>();
    if (shape.vectors == 4) return run.template operator()<v, 4>();
    run.template operator()<v, 8>();
  };
  if (shape.vector == 1) return with_vector.template operator()<1>();
  with_vector.template operator()<kVector<T>>();
}

template <typename T>
bool vectors_fit(int64_t width, std::initializer_list<const void*> pointers) {
  if (width % kVector<T> != 0) return false;
  for (const void* p : pointers)
    if (!aligned(p)) return false;
  return true;
}

constexpr int kMostBlocksEach = 32;  // of a multiprocessor: more of them only make more partial sums

template <typename Kernel>
unsigned blocks_for(Kernel kernel, int64_t rows, int threads) {
  const int64_t most = int64_t{multiprocessors()} * kMostBlocksEach;
  return static_cast<unsigned>(std::min({rows, resident_blocks(kernel, threads), most}));
}

}  // namespace

void norm_forward_cuda(const NormRows& shape, const NormForward& args, void* stream) {
  if (shape.rows == 0 || shape.width == 0) return;
  const int width = static_cast<int>(shape.width);
  for_dtype(shape.dtype, [&]<typename T>(T) {
    const bool fits = vectors_fit<T>(width, {args.x, args.delta, args.sum, args.y});
    const Shape threads = shape_for(width, fits ? kVector<T> : 1);
    for_shape<T>(threads, [&]<int v, int n>() {
      const auto run = [&](auto kernel) {
        const unsigned blocks = blocks_for(kernel, shape.rows, threads.threads);
        launch("norm_forward", kernel, {blocks, static_cast<unsigned>(threads.threads), stream}, args, shape);
      };
      if (shape.centered) return run(forward_kernel<T, v, n, true, false>);
      if (shape.rounded) return run(forward_kernel<T, v, n, false, true>);
      run(forward_kernel<T, v, n, false, false>);
    });
  });
}

int64_t norm_backward_workspace_cuda(const NormRows& shape) {
  return 2 * std::min(shape.rows, int64_t{multiprocessors()} * kMostBlocksEach) * shape.width;
}

void norm_backward_cuda(const NormRows& shape, const NormBackward& args, float* workspace, void* stream) {
  if (shape.width == 0) return;
  const int width = static_cast<int>(shape.width);
  unsigned blocks = 0;
  for_dtype(shape.dtype, [&]<typename T>(T) {
    const bool fits = vectors_fit<T>(width, {args.x, args.grad_y, args.grad_residual, args.grad_x});
    const Shape threads = shape_for(width, fits ? kVector<T> : 1);
    for_shape<T>(threads, [&]<int v, int n>() {
      const auto run = [&](auto kernel) {
        blocks = blocks_for(kernel, shape.rows, threads.threads);
        if (blocks == 0) return;
        launch("norm_backward", kernel, {blocks, static_cast<unsigned>(threads.threads), stream}, args, shape,
               workspace, args.grad_bias != nullptr);
      };
      if (shape.centered) return run(backward_kernel<T, v, n, true>);
      run(backward_kernel<T, v, n, false>);
    });
  });
  const SumsOut weight{static_cast<float*>(args.grad_weight), shape.width, args.add_weight};
  const SumsOut bias{static_cast<float*>(args.grad_bias), args.grad_bias == nullptr ? 0 : shape.width, args.add_bias};
  column_sums_cuda(workspace, blocks, weight, bias, stream);
}

}  // namespace megalith::ops
