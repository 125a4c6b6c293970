// Legend: t rows, h row length. A block works on one row at a time and goes on to the next: a thread always has the
// same columns, so that it keeps their weights, and the sums of their gradients, in registers.
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
__global__ void __launch_bounds__(kMostThreads<n>) forward_kernel(NormForward args, int64_t rows, int width) {
  __shared__ float scratch[32];
  const Columns<v, n> columns{width};
  const auto *x = static_cast<const T*>(args.x), *delta = static_cast<const T*>(args.delta);
  const auto *weight = static_cast<const float*>(args.weight), *bias = static_cast<const float*>(args.bias);
  float w[n][v], b[n][v];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if (!columns.here(i)) continue;
    for (int j = 0; j < v; ++j) w[i][j] = weight[columns.first(i) + j];
    if (centered)
      for (int j = 0; j < v; ++j) b[i][j] = bias == nullptr ? 0 : bias[columns.first(i) + j];
  }
  const float inverse = 1.0F / static_cast<float>(width);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t start = row * width;
    float value[n][v];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!columns.here(i)) continue;
      const int64_t at = start + columns.first(i);
      load<v>(x + at, value[i]);
      if (delta != nullptr) {
        float added[v];
        load<v>(delta + at, added);
        for (int j = 0; j < v; ++j) value[i][j] = rounded_to<T>(value[i][j] + added[j]);
        store<v>(value[i], static_cast<T*>(args.sum) + at);
      }
      for (int j = 0; j < v; ++j) sum += centered ? value[i][j] : value[i][j] * value[i][j];
    }
    float mean = 0, square = block_sum(sum, scratch) * inverse;
    if (centered) {
      mean = square;
      float deviation = 0;
#pragma unroll
      for (int i = 0; i < n; ++i) {
        if (!columns.here(i)) continue;
        for (int j = 0; j < v; ++j) deviation += (value[i][j] - mean) * (value[i][j] - mean);
      }
      square = block_sum(deviation, scratch) * inverse;
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

// partial_weight, partial_bias [blocks, h].
template <typename T, int v, int n, bool centered>
__global__ void __launch_bounds__(kMostThreads<n>)
    backward_kernel(NormBackward args, int64_t rows, int width, float* partial_weight, float* partial_bias) {
  __shared__ float scratch[32];
  const Columns<v, n> columns{width};
  const auto *x = static_cast<const T*>(args.x), *dy = static_cast<const T*>(args.grad_y);
  const auto* residual = static_cast<const T*>(args.grad_residual);
  const auto* weight = static_cast<const float*>(args.weight);
  float w[n][v], dw[n][v], db[n][v];
#pragma unroll
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < v; ++j) {
      w[i][j] = columns.here(i) ? weight[columns.first(i) + j] : 0;
      dw[i][j] = db[i][j] = 0;
    }
  const float inverse = 1.0F / static_cast<float>(width);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t start = row * width;
    const float rstd = static_cast<const float*>(args.rstd)[row];
    const float mean = centered ? static_cast<const float*>(args.mean)[row] : 0;
    float normal[n][v], slope[n][v];  // x̂, and the gradient with respect to it
    float along = 0, sum = 0;
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
        along += slope[i][j] * normal[i][j];
        sum += slope[i][j];
      }
    }
    along = block_sum(along, scratch) * inverse;
    sum = centered ? block_sum(sum, scratch) * inverse : 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!columns.here(i)) continue;
      const int64_t at = start + columns.first(i);
      float grad[v];
      for (int j = 0; j < v; ++j) grad[j] = (slope[i][j] - normal[i][j] * along - sum) * rstd;
      if (residual != nullptr) {
        float added[v];
        load<v>(residual + at, added);
        for (int j = 0; j < v; ++j) grad[j] += added[j];
      }
      store<v>(grad, static_cast<T*>(args.grad_x) + at);
    }
  }
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if (!columns.here(i)) continue;
    const int64_t at = int64_t{blockIdx.x} * width + columns.first(i);
    for (int j = 0; j < v; ++j) {
      partial_weight[at + j] = dw[i][j];
      if (partial_bias != nullptr) partial_bias[at + j] = db[i][j];
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
    if (shape.vectors == 4) return run.template operator()<v, 4>();
    run.template operator()<v, 8>();
  };
  if (shape.vector == 1) return with_vector.template operator()<1>();
  with_vector.template operator()<kVector<T>>();
}

int blocks_for(int64_t rows, int threads) {
  const int64_t fit = int64_t{multiprocessors()} * std::max(1, 2048 / threads / 2);
  return static_cast<int>(std::min<int64_t>(rows, fit));
}

template <typename T>
bool vectors_fit(int64_t width, std::initializer_list<const void*> pointers) {
  if (width % kVector<T> != 0) return false;
  for (const void* p : pointers)
    if (!aligned(p)) return false;
  return true;
}

}  // namespace

void norm_forward_cuda(const NormRows& shape, const NormForward& args, void* stream) {
  if (shape.rows == 0 || shape.width == 0) return;
  const int width = static_cast<int>(shape.width);
  for_dtype(shape.dtype, [&]<typename T>(T) {
    const bool fits = vectors_fit<T>(width, {args.x, args.delta, args.sum, args.y});
    const Shape threads = shape_for(width, fits ? kVector<T> : 1);
    const int blocks = blocks_for(shape.rows, threads.threads);
    for_shape<T>(threads, [&]<int v, int n>() {
      const auto launch = [&](auto kernel) {
        kernel<<<blocks, threads.threads, 0, stream_from(stream)>>>(args, shape.rows, width);
      };
      if (shape.centered) return launch(forward_kernel<T, v, n, true, false>);
      if (shape.rounded) return launch(forward_kernel<T, v, n, false, true>);
      launch(forward_kernel<T, v, n, false, false>);
    });
  });
  check_launch("norm_forward");
}

int64_t norm_backward_workspace_cuda(const NormRows& shape) {
  // As many blocks as there can be at most.
  return 2 * int64_t{multiprocessors()} * 32 * shape.width;
}

void norm_backward_cuda(const NormRows& shape, const NormBackward& args, float* workspace, void* stream) {
  if (shape.width == 0) return;
  const int width = static_cast<int>(shape.width);
  int blocks = 0;
  for_dtype(shape.dtype, [&]<typename T>(T) {
    const bool fits = vectors_fit<T>(width, {args.x, args.grad_y, args.grad_residual, args.grad_x});
    const Shape threads = shape_for(width, fits ? kVector<T> : 1);
    blocks = blocks_for(shape.rows, threads.threads);
    if (blocks == 0) return;
    float* biases = args.grad_bias == nullptr ? nullptr : workspace + int64_t{blocks} * width;
    for_shape<T>(threads, [&]<int v, int n>() {
      const auto launch = [&](auto kernel) {
        kernel<<<blocks, threads.threads, 0, stream_from(stream)>>>(args, shape.rows, width, workspace, biases);
      };
      if (shape.centered) return launch(backward_kernel<T, v, n, true>);
      launch(backward_kernel<T, v, n, false>);
    });
  });
  check_launch("norm_backward");
  column_sums_cuda(workspace, blocks, width, static_cast<float*>(args.grad_weight), stream_from(stream));
  if (args.grad_bias != nullptr)
    column_sums_cuda(workspace + int64_t{blocks} * width, blocks, width, static_cast<float*>(args.grad_bias),
                     stream_from(stream));
}

}  // namespace megalith::ops
