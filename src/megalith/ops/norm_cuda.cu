// Legend: t rows, h row length. The threads of a block, or for narrow rows a warp each, work on one row at a time and
// go on to the next, which is read while the sums of this one are made. A thread always has the same columns, so that
// it keeps their weights, and the sums of their gradients, in registers.
#include "megalith/ops/cuda_math.cuh"
#include "megalith/ops/norm_internal.h"

namespace megalith::ops {

namespace {

// A block has blockDim.x threads a row and blockDim.y rows at once; with more than one, a row's threads are a warp.
// A thread's columns: `n` vectors of v elements, `blockDim.x` vectors apart.
template <int v, int n>
struct Columns {
  int width;
  __device__ int first(int i) const { return (static_cast<int>(threadIdx.x) + i * static_cast<int>(blockDim.x)) * v; }
  __device__ bool here(int i) const { return first(i) < width; }
};

__device__ inline int64_t first_row() { return int64_t{blockIdx.x} * blockDim.y + threadIdx.y; }
__device__ inline int64_t row_step() { return int64_t{gridDim.x} * blockDim.y; }

// A thread's part of a row, as it lies in memory.
template <typename T, int v, int n>
struct RowPart {
  Raw<T, v> vectors[n];
  __device__ void read(const T* row, const Columns<v, n>& columns) {
#pragma unroll
    for (int i = 0; i < n; ++i)
      if (columns.here(i)) vectors[i] = load_raw<v>(row + columns.first(i));
  }
};

// Threads that shape_for() may ask for, and blocks of a multiprocessor that must fit: both limit a thread's registers.
// Three vectors are a warp's only; eight, the widest rows'.
template <int n>
inline constexpr int kMostThreads = n == 3  ? 128
                                    : n < 8 ? 256
                                            : 1024;
template <int n>
inline constexpr int kLeastBlocks = n == 2  ? 2
                                    : n < 4 ? 3
                                            : 1;

template <typename T, int v, int n, bool centered, bool rounded>
__global__ void __launch_bounds__(kMostThreads<n>, kLeastBlocks<n>) forward_kernel(NormForward args, NormRows shape) {
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
  RowPart<T, v, n> next_x, next_delta;
  const auto fetch = [&](int64_t row) {
    if (row >= shape.rows) return;
    next_x.read(x + row * width, columns);
    if (delta != nullptr) next_delta.read(delta + row * width, columns);
  };
  fetch(first_row());
  int turn = 0;
  for (int64_t row = first_row(); row < shape.rows; row += row_step()) {
    const int64_t start = row * width;
    float value[n][v];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!columns.here(i)) continue;
      unpack<T, v>(next_x.vectors[i], value[i]);
      if (delta != nullptr) {
        float added[v];
        unpack<T, v>(next_delta.vectors[i], added);
        for (int j = 0; j < v; ++j) value[i][j] = rounded_to<T>(value[i][j] + added[j]);
        store<v>(value[i], static_cast<T*>(args.sum) + start + columns.first(i));
      }
      for (int j = 0; j < v; ++j) sum += centered ? value[i][j] : value[i][j] * value[i][j];
    }
    fetch(row + row_step());
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

// partials[0 .. width) = the sums of the rows that a block has at once, added in their order. `shared`: [width].
template <int v, int n>
__device__ inline void put_sums(const float (&sums)[n][v], const Columns<v, n>& columns, float* shared,
                                float* partials) {
  for (int slot = 0; slot < static_cast<int>(blockDim.y); ++slot) {
    const bool last = slot + 1 == static_cast<int>(blockDim.y);
    if (static_cast<int>(threadIdx.y) == slot)
#pragma unroll
      for (int i = 0; i < n; ++i) {
        if (!columns.here(i)) continue;
        for (int j = 0; j < v; ++j) {
          const int column = columns.first(i) + j;
          const float sum = slot == 0 ? sums[i][j] : shared[column] + sums[i][j];
          (last ? partials : shared)[column] = sum;
        }
      }
    if (!last) __syncthreads();
  }
}

// partials [blocks, h], or [blocks, 2h] with the bias' behind the weight's.
template <typename T, int v, int n, bool centered>
__global__ void __launch_bounds__(kMostThreads<n>, kLeastBlocks<n>)
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
  RowPart<T, v, n> next_x, next_dy, next_residual;
  float next_rstd = 0, next_mean = 0;
  const auto fetch = [&](int64_t row) {
    if (row >= shape.rows) return;
    next_x.read(x + row * width, columns);
    next_dy.read(dy + row * width, columns);
    if (residual != nullptr) next_residual.read(residual + row * width, columns);
    next_rstd = static_cast<const float*>(args.rstd)[row];
    if (centered) next_mean = static_cast<const float*>(args.mean)[row];
  };
  fetch(first_row());
  int turn = 0;
  for (int64_t row = first_row(); row < shape.rows; row += row_step()) {
    const float rstd = next_rstd, mean = next_mean;
    RowPart<T, v, n> row_x = next_x, row_dy = next_dy;
    const RowPart<T, v, n> row_residual = next_residual;
    fetch(row + row_step());
    float2 sums{0, 0};  // of slope · x̂, of slope
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!columns.here(i)) continue;
      float normal[v], slope[v];  // x̂, and the gradient with respect to it
      unpack<T, v>(row_x.vectors[i], normal);
      unpack<T, v>(row_dy.vectors[i], slope);
      for (int j = 0; j < v; ++j) {
        normal[j] = (normal[j] - mean) * rstd;
        dw[i][j] += slope[j] * normal[j];
        if (centered) db[i][j] += slope[j];
        slope[j] *= w[i][j];
        sums.x += slope[j] * normal[j];
        if (centered) sums.y += slope[j];
      }
      forget(row_x.vectors[i]);
      forget(row_dy.vectors[i]);
    }
    sums = block_sum2(sums, scratch[turn ^= 1]);
    const float along = sums.x * inverse, sum = sums.y * inverse;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!columns.here(i)) continue;
      float normal[v], grad[v];
      unpack<T, v>(row_x.vectors[i], normal);
      unpack<T, v>(row_dy.vectors[i], grad);
      for (int j = 0; j < v; ++j) {
        normal[j] = (normal[j] - mean) * rstd;
        grad[j] = (grad[j] * w[i][j] - normal[j] * along - sum) * rstd;
      }
      if (residual != nullptr) {
        float more[v];
        unpack<T, v>(row_residual.vectors[i], more);
        for (int j = 0; j < v; ++j) grad[j] += more[j];
      }
      store<v>(grad, static_cast<T*>(args.grad_x) + row * width + columns.first(i));
    }
  }
  float* out = partials + int64_t{blockIdx.x} * (with_bias ? 2 * width : width);
  auto* const shared = dynamic_shared<float>();  // [h], with several rows at once
  put_sums(dw, columns, shared, out);
  if (!with_bias) return;
  __syncthreads();
  put_sums(db, columns, shared, out + width);
}

// How a width is dealt to threads.
struct Shape {
  int vector = 1;   // elements a thread reads at once
  int vectors = 1;  // of them a thread
  int threads = 32;
  int rows = 1;  // of a block, at once
  dim3 block() const { return {static_cast<unsigned>(threads), static_cast<unsigned>(rows)}; }
};

constexpr int kWarpsOfRows = 4;  // of a block, where a row is a warp's

// At least `fewest` vectors a thread, where rows are wide enough.
Shape shape_for(int width, int vector, int fewest) {
  const int count = (width + vector - 1) / vector;
  if (vector > 1 && count <= 32 * 4) return {vector, (count + 31) / 32, 32, kWarpsOfRows};
  int vectors = fewest;
  while (vectors < 8 && count > 256 * vectors) vectors *= 2;
  const int threads = ((count + vectors - 1) / vectors + 31) / 32 * 32;
  if (threads > kMostThreads<8>) fail_kernel("norm", "the rows are too wide");
  return {vector, vectors, threads, 1};
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
unsigned blocks_for(Kernel kernel, int64_t rows, const Shape& shape, size_t shared) {
  const int64_t most = int64_t{multiprocessors()} * kMostBlocksEach;
  const int64_t resident = resident_blocks(kernel, shape.threads * shape.rows, shared);
  return static_cast<unsigned>(std::min({(rows + shape.rows - 1) / shape.rows, resident, most}));
}

}  // namespace

void norm_forward_cuda(const NormRows& shape, const NormForward& args, void* stream) {
  if (shape.rows == 0 || shape.width == 0) return;
  const int width = static_cast<int>(shape.width);
  for_dtype(shape.dtype, [&]<typename T>(T) {
    const bool fits = vectors_fit<T>(width, {args.x, args.delta, args.sum, args.y});
    const Shape threads = shape_for(width, fits ? kVector<T> : 1, 1);
    for_shape<T>(threads, [&]<int v, int n>() {
      const auto run = [&](auto kernel) {
        const unsigned blocks = blocks_for(kernel, shape.rows, threads, 0);
        launch("norm_forward", kernel, {blocks, threads.block(), stream}, args, shape);
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
    const Shape threads = shape_for(width, fits ? kVector<T> : 1, 2);  // two: more is on its way from memory at once
    const size_t shared = threads.rows > 1 ? sizeof(float) * static_cast<size_t>(width) : 0;
    for_shape<T>(threads, [&]<int v, int n>() {
      const auto run = [&](auto kernel) {
        blocks = blocks_for(kernel, shape.rows, threads, shared);
        if (blocks == 0) return;
        launch("norm_backward", kernel, {blocks, threads.block(), stream, shared}, args, shape, workspace,
               args.grad_bias != nullptr);
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
