// RMSNorm and LayerNorm on CUDA. Legend: t rows, h row length, v elements in 16 bytes (8 of bf16, 4 of fp32).
//
// Who owns what: a row belongs to a warp (up to 128 vectors, 1024 columns of bf16; four rows per block) or to a block.
// A thread owns n vectors of v elements, blockDim.x vectors apart, so that a warp reads 512 contiguous bytes:
//
//   row      |v0 v1 ... v31|v32 ...            |       each vi is 16 bytes
//   thread    0  1      31  0 (n > 1, one warp)
//
//   forward   y  = x̂ w + b,  x̂ = (x - mean) rstd,  rstd = 1 / sqrt(avg((x - mean)²) + epsilon);  mean = 0 for RMSNorm
//   backward  dx = rstd (g - x̂ avg(g x̂) [- avg(g)]) [+ residual's gradient],  g = dy w
//             dw = Σ_rows dy x̂,  db = Σ_rows dy
//
// Memory traffic: every row is read once and written once (forward x, y; with a residual x, delta, sum, y; backward x,
// dy, dx and the residual's gradient); the row waits in registers between its two uses. In bytes per element of bf16:
// forward 4, with a residual 8; backward 6, with a residual 8. Statistics add 4 bytes per row (8 for LayerNorm). A
// residual stream in fp32 (T) with branches in bf16 (U: delta, y and their gradients) has vectors of 4 elements, which
// are 8 bytes in U: forward 6, with a residual 12; backward 10, with a residual 16.
//
//   backward   block 0   row 0, row B, row 2B, ...      B = blocks in the grid (times rows per block)
//              block 1   row 1, row B + 1, ...
//              partials  [B, h] -> column_sums_cuda -> dw [h]
//
// Forward, a block has its rows and ends: many small blocks hide each other's reductions, and the weights come from the
// cache. Backward, blocks stay and walk over the rows, as above: a thread always has the same columns and keeps their
// weights and their sums of dw and db in registers; rows to come are copied to shared memory meanwhile. The partial
// sums are added in a fixed order, so that results repeat bit for bit.
//
// Measured on an H200 against a copy of as many bytes (docs/gpu.md):
//   RMSNorm 16384 x 2048              forward 0.97, backward 0.82
//   RMSNorm 16384 x 4096              forward 0.98, backward 0.87
//   residual + RMSNorm 16384 x 4096   forward 0.95, backward 0.90
//   LayerNorm 65536 x 768             forward 0.93, backward 0.85
#include "megalith/ops/kernel/cuda_math.cuh"
#include "megalith/ops/norm_rope/norm_internal.h"

namespace megalith::ops {

namespace {

// The columns of a thread: `n` vectors of v elements, `blockDim.x` vectors apart. A block has blockDim.x threads per
// row and blockDim.y rows at once; if it has more than one row, the threads of a row are a warp.
template <int v, int n>
struct Columns {
  int width;
  __device__ int first(int i) const { return (static_cast<int>(threadIdx.x) + i * static_cast<int>(blockDim.x)) * v; }
  __device__ bool here(int i) const { return first(i) < width; }
};

// The first row of a thread, and the distance to its next one in backward.
__device__ inline int64_t first_row() { return int64_t{blockIdx.x} * blockDim.y + threadIdx.y; }
__device__ inline int64_t row_step() { return int64_t{gridDim.x} * blockDim.y; }

// A thread's part of a row, in the row's own type; zeros where it has no columns.
template <typename T, int v, int n>
struct RowPart {
  Raw<T, v> vectors[n];
  __device__ void read(const T* row, const Columns<v, n>& columns) {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      vectors[i] = {};
      if (columns.here(i)) vectors[i] = load_raw<v>(row + columns.first(i));
    }
  }
};

// Sums x over the threads of a row and leaves the sums on each of them: shuffles inside a warp, then shared memory. Has
// only one barrier, so that a fast warp may still be writing while slow ones read: consecutive calls need different
// `scratch` (shared).
template <int most_warps, int count>
__device__ inline void row_sums(float (&x)[count], float (&scratch)[count][most_warps]) {
#pragma unroll
  for (int c = 0; c < count; ++c) x[c] = warp_sum(x[c]);
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (warps == 1) return;
  if (threadIdx.x % 32 == 0)
#pragma unroll
    for (int c = 0; c < count; ++c) scratch[c][threadIdx.x / 32] = x[c];
  __syncthreads();
#pragma unroll
  for (int c = 0; c < count; ++c) {
    x[c] = 0;
#pragma unroll
    for (int w = 0; w < most_warps; ++w) x[c] += w < warps ? scratch[c][w] : 0;
  }
}

// Compile-time shape of the work: at most `threads` threads per block, n vectors of v elements each.
template <int v_, int n_, int threads_>
struct Dealt {
  static constexpr int v = v_, n = n_, threads = threads_;
};

// Blocks that must fit on a multiprocessor, which limits the registers of a thread: the most that spill nothing. A
// multiprocessor has 65536 registers, so that 1536 threads have 40 each, 1280 have 48 and 1024 have 64.
template <typename D, bool centered>
inline constexpr int kForwardBlocks = (D::n > 2   ? 1024
                                       : centered ? 1280
                                                  : 1536) /
                                      D::threads;

// y = norm(x [+ delta]), and with a delta also sum = x + delta; one row per blockDim.x threads. Each of `delta`, `bias`
// and `rstd` may be nullptr; without rstd (no backward to come) the statistics stay in registers. `rounded` rounds x̂
// to T before the weight, as HF's Llama does, at the cost of one more pack and unpack.
template <typename T, typename U, typename D, bool centered, bool rounded>
__global__ void __launch_bounds__(D::threads, kForwardBlocks<D, centered>)
    forward_kernel(NormForward args, NormRows shape) {
  constexpr int v = D::v, n = D::n;
  // One scratch array per call of row_sums: there is no barrier between the two calls that would free the first one.
  __shared__ float scratch[2][1][D::threads / 32];
  const int width = static_cast<int>(shape.width);
  const Columns<v, n> columns{width};
  const int64_t row = first_row(), start = row * width;
  if (row >= shape.rows) return;  // whole warps, and only where a row is a warp's: no barrier waits for them
  RowPart<T, v, n> part;
  part.read(static_cast<const T*>(args.x) + start, columns);
  if (args.delta != nullptr) {  // r = x + delta, rounded to T; the norm is that of the stored r
    RowPart<U, v, n> delta;
    delta.read(static_cast<const U*>(args.delta) + start, columns);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!columns.here(i)) continue;
      float x[v], added[v];
      unpack<T, v>(part.vectors[i], x);
      unpack<U, v>(delta.vectors[i], added);
      for (int j = 0; j < v; ++j) x[j] += added[j];
      part.vectors[i] = pack<T, v>(x);
      *reinterpret_cast<Raw<T, v>*>(static_cast<T*>(args.sum) + start + columns.first(i)) = part.vectors[i];
    }
  }
  // First sum: of x for LayerNorm, of x² for RMSNorm. Long parts are unpacked again rather than kept as floats.
  float sum[1] = {}, mean = 0;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    float x[v];
    unpack<T, v>(part.vectors[i], x);
    for (int j = 0; j < v; ++j) sum[0] += centered ? x[j] : x[j] * x[j];
    if (n > 3) forget(part.vectors[i]);
  }
  row_sums(sum, scratch[0]);
  const float inverse = 1.0F / static_cast<float>(width);
  if constexpr (centered) {
    // The variance takes a second sum over the registers: E[x²] - mean² would cancel.
    mean = sum[0] * inverse;
    sum[0] = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!columns.here(i)) continue;
      float x[v];
      unpack<T, v>(part.vectors[i], x);
      for (int j = 0; j < v; ++j) sum[0] += (x[j] - mean) * (x[j] - mean);
      if (n > 3) forget(part.vectors[i]);
    }
    row_sums(sum, scratch[1]);
  }
  // Not rsqrtf: its error would show where x̂ is rounded.
  const float rstd = 1.0F / sqrtf(sum[0] * inverse + static_cast<float>(args.epsilon));
  if (threadIdx.x == 0 && args.rstd != nullptr) {
    static_cast<float*>(args.rstd)[row] = rstd;
    if (centered) static_cast<float*>(args.mean)[row] = mean;
  }
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if (!columns.here(i)) continue;
    const int column = columns.first(i);
    float x[v], w[v], b[v] = {};
    load_small<U>(args.weight, shape.raw_weights, column, w);
    if (centered && args.bias != nullptr) load_small<U>(args.bias, shape.raw_weights, column, b);
    unpack<T, v>(part.vectors[i], x);
    for (int j = 0; j < v; ++j) x[j] = (x[j] - mean) * rstd;
    if (rounded) unpack<T, v>(pack<T, v>(x), x);
    for (int j = 0; j < v; ++j) x[j] = x[j] * (w[j] + shape.weight_shift) + b[j];
    store<v>(x, static_cast<U*>(args.y) + start + column);
  }
}

// Rows that backward copies ahead to a ring in shared memory. 0 means that rows are read when they are needed: for
// single elements (cp.async copies no 2 bytes) and for rows that are too wide for the ring.
template <typename D>
// Example: 4096 columns of bf16 are 512 threads of one vector; three stages of x and dy take 3 · 2 · 512 · 16 bytes,
// 48 KiB, and the memory system has up to three rows of a block to work on while the block sums the current one.
inline constexpr int kStages = D::v == 1 || D::threads * D::n > 1024 ? 0
                               : D::threads* D::n > 512              ? 2
                                                                     : 3;

// The rows that backward reads: x, the gradient of y and, if there is one, the residual's gradient. A thread reads only
// what it has copied itself, so that the ring needs no barrier.
template <typename T, typename U, typename D>
struct Rows {
  static constexpr int v = D::v, n = D::n, stages = kStages<D>;
  const T *x, *grad_residual;  // grad_residual may be nullptr
  const U* grad_y;
  int64_t rows;
  Columns<v, n> columns;

  // Places of a thread's vector: in memory, and in the ring [stages, 2 or 3, n, threads], whose slots have 16 bytes.
  template <typename E>
  __device__ const E* at(const E* from, int64_t row, int i) const {
    return from + row * columns.width + columns.first(i);
  }
  template <typename E>
  __device__ Raw<E, v>* slot(int which, int stage, int i) const {
    const int threads = static_cast<int>(blockDim.x * blockDim.y), count = grad_residual == nullptr ? 2 : 3;
    const int me = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
    return reinterpret_cast<Raw<E, v>*>(dynamic_shared<uint4>() + ((stage * count + which) * n + i) * threads + me);
  }
  template <typename E>
  __device__ void copy(const E* from, int which, int64_t row, int stage, int i) const {
    copy_async<v* static_cast<int>(sizeof(E))>(slot<E>(which, stage, i), at(from, row, i));
  }
  // Starts the copies of a row. Commits a group even when there is nothing left to copy, so that wait() can count.
  __device__ void ask(int64_t row, int stage) const {
    if constexpr (stages > 0) {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        if (row >= rows || !columns.here(i)) continue;
        copy(x, 0, row, stage, i);
        copy(grad_y, 1, row, stage, i);
        if (grad_residual != nullptr) copy(grad_residual, 2, row, stage, i);
      }
      commit_copies();
    }
  }
  // Waits for the oldest row of the ring.
  __device__ void wait() const {
    if constexpr (stages > 0) wait_copies<stages - 1>();
  }
  // The n-th vector of a row that the ring has, as its `which`-th array.
  template <typename E>
  __device__ Raw<E, v> read(const E* from, int which, int64_t row, int stage, int i) const {
    if constexpr (stages > 0) return *slot<E>(which, stage, i);
    return load_raw<v>(at(from, row, i));
  }
};

// Writes partials[0 .. width): the column sums of the block's blockDim.y rows of threads, added in order. `shared` is
// [rows, width] and used only where there are several. It is the ring's memory, which is large enough: a thread has at
// least 2 · stages slots of 16 bytes per vector there, and needs 4 v bytes, at most 32, for its sums.
template <int v, int n>
__device__ inline void write_sums(const float (&sums)[n][v], const Columns<v, n>& columns, float* shared,
                                  float* partials) {
  const int rows = static_cast<int>(blockDim.y), row = static_cast<int>(threadIdx.y), width = columns.width;
  float* to = rows == 1 ? partials : shared + row * width;
  __syncthreads();  // `shared` was the ring, or held the sums of the call before
#pragma unroll
  for (int i = 0; i < n; ++i)
    if (columns.here(i)) store_all(sums[i], to + columns.first(i));
  if (rows == 1) return;
  __syncthreads();
  for (int c = row * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x); c < width;
       c += rows * static_cast<int>(blockDim.x)) {
    float sum = 0;
    for (int r = 0; r < rows; ++r) sum += shared[r * width + c];
    partials[c] = sum;
  }
}

// Like kForwardBlocks, for backward: the weights and two sums per column take more registers.
template <typename D, bool centered>
inline constexpr int kBackwardBlocks = D::threads == 128                             ? (D::n < 4 ? 3 : 2)
                                       : D::threads == 512 && D::n == 1 && !centered ? 2
                                                                                     : 1;

// Writes grad_x and `partials`: [blocks, h] of the weight, or [blocks, 2h] with those of the bias after them.
template <typename T, typename U, typename D, bool centered>
__global__ void __launch_bounds__(D::threads, kBackwardBlocks<D, centered>)
    backward_kernel(NormBackward args, NormRows shape, float* partials, bool with_bias) {
  constexpr int v = D::v, n = D::n, stages = kStages<D>;
  constexpr int kSums = centered ? 2 : 1;
  __shared__ float scratch[2][kSums][D::threads / 32];
  const int width = static_cast<int>(shape.width);
  const Columns<v, n> columns{width};
  const bool residual = args.grad_residual != nullptr;
  const Rows<T, U, D> rows{static_cast<const T*>(args.x), static_cast<const T*>(args.grad_residual),
                           static_cast<const U*>(args.grad_y), shape.rows, columns};
#pragma unroll
  for (int s = 0; s < stages; ++s) rows.ask(first_row() + s * row_step(), s);
  float w[n][v] = {}, dw[n][v] = {}, db[n][v] = {};
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if (!columns.here(i)) continue;
    load_small<U>(args.weight, shape.raw_weights, columns.first(i), w[i]);
    for (int j = 0; j < v; ++j) w[i][j] += shape.weight_shift;
  }
  // Statistics are read one row ahead into registers: four or eight bytes per row are not worth a slot in the ring.
  float next_rstd = 0, next_mean = 0;
  const auto fetch_statistics = [&](int64_t row) {
    if (row >= shape.rows) return;
    next_rstd = static_cast<const float*>(args.rstd)[row];
    if (centered) next_mean = static_cast<const float*>(args.mean)[row];
  };
  fetch_statistics(first_row());
  const float inverse = 1.0F / static_cast<float>(width);
  int stage = 0, turn = 0;
  for (int64_t row = first_row(); row < shape.rows; row += row_step()) {
    const float rstd = next_rstd, shift = -next_mean * next_rstd;  // x̂ = x rstd + shift: one fused multiply-add
    fetch_statistics(row + row_step());
    rows.wait();
    RowPart<T, v, n> x;
    RowPart<U, v, n> dy;
    float sums[kSums] = {};  // Σ slope · x̂, and for LayerNorm Σ slope
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!columns.here(i)) continue;
      x.vectors[i] = rows.read(rows.x, 0, row, stage, i);
      dy.vectors[i] = rows.read(rows.grad_y, 1, row, stage, i);
      float normal[v], slope[v];  // x̂, and the gradient with respect to it
      unpack<T, v>(x.vectors[i], normal);
      unpack<U, v>(dy.vectors[i], slope);
      for (int j = 0; j < v; ++j) {
        normal[j] = normal[j] * rstd + shift;
        dw[i][j] += slope[j] * normal[j];
        if (centered) db[i][j] += slope[j];
        slope[j] *= w[i][j];
        sums[0] += slope[j] * normal[j];
        if (centered) sums[kSums - 1] += slope[j];
      }
      forget(x.vectors[i]);
      forget(dy.vectors[i]);
    }
    // The stage is free now, unless the residual's gradient is still to be read from it. Two scratch arrays take turns:
    // see row_sums.
    if (!residual) rows.ask(row + stages * row_step(), stage);
    row_sums(sums, scratch[turn ^= 1]);
    // dx = rstd g + x̂ along + sum: the two averages of the formula at the top of the file, times -rstd.
    const float along = -sums[0] * inverse * rstd, sum = centered ? -sums[kSums - 1] * inverse * rstd : 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!columns.here(i)) continue;
      float normal[v], grad[v];
      unpack<T, v>(x.vectors[i], normal);
      unpack<U, v>(dy.vectors[i], grad);
      for (int j = 0; j < v; ++j) {
        normal[j] = normal[j] * rstd + shift;
        grad[j] = grad[j] * w[i][j] * rstd + (normal[j] * along + sum);
      }
      if (residual) {
        float more[v];
        unpack<T, v>(rows.read(rows.grad_residual, 2, row, stage, i), more);
        for (int j = 0; j < v; ++j) grad[j] += more[j];
      }
      const int64_t to = row * width + columns.first(i);
      store<v>(grad, static_cast<T*>(args.grad_x) + to);
      if constexpr (!std::is_same_v<T, U>)
        if (args.grad_delta != nullptr) store<v>(grad, static_cast<U*>(args.grad_delta) + to);
    }
    if (residual) rows.ask(row + stages * row_step(), stage);
    stage = stage + 1 < stages ? stage + 1 : 0;
  }
  if constexpr (stages > 0) wait_copies<0>();  // empty groups at the end; the ring's memory is used again
  float* out = partials + int64_t{blockIdx.x} * (with_bias ? 2 * width : width);
  auto* const shared = dynamic_shared<float>();
  write_sums(dw, columns, shared, out);
  if (centered && with_bias) write_sums(db, columns, shared, out + width);
}

// How a row is distributed over threads, at run time.
struct Shape {
  int vectors = 1;   // per thread
  int threads = 32;  // per row
  int rows = 1;      // per block, at once
  dim3 block() const { return {static_cast<unsigned>(threads), static_cast<unsigned>(rows)}; }
};

constexpr int kWarpsOfRows = 4;  // rows per block where a row is a warp's: 128 threads
// The widest rows: 8 vectors on each of 1024 threads, 65536 columns of bf16 or 32768 of fp32.
constexpr int kMostVectors = 8, kMostThreads = 1024;

// Calls run(shape, dealt) with the smallest shape that covers `width`. A row of a block starts with `fewest` vectors
// per thread and up to `threads` threads: forward with two, backward with one, since each of its columns keeps a weight
// and one or two sums in registers.
template <int v, int fewest, int threads, typename Run>
void for_shape(int width, const Run& run) {
  const int count = (width + v - 1) / v;
  const auto block_of = [&]<int n, int most>() {
    const int needed = ((count + n - 1) / n + 31) / 32 * 32;
    if (needed > most) return false;
    run(Shape{n, needed, 1}, Dealt<v, n, most>{});
    return true;
  };
  if constexpr (v > 1) {
    const auto warp_of = [&]<int n>() { run(Shape{n, 32, kWarpsOfRows}, Dealt<v, n, 32 * kWarpsOfRows>{}); };
    if (count <= 32) return warp_of.template operator()<1>();
    if (count <= 64) return warp_of.template operator()<2>();
    if (count <= 96) return warp_of.template operator()<3>();
    if (count <= 128) return warp_of.template operator()<4>();
  }
  if constexpr (fewest == 1)
    if (block_of.template operator()<1, threads>()) return;
  if (block_of.template operator()<2, threads>() || block_of.template operator()<4, 512>()) return;
  if (!block_of.template operator()<kMostVectors, kMostThreads>()) fail_kernel("norm", "the rows are too wide");
}

// Calls run.template operator()<v>() with vectors of 16 bytes where width and pointers allow, else single elements.
template <typename T, typename Run>
void for_vector(int64_t width, std::initializer_list<const void*> pointers, const Run& run) {
  if (width % kVector<T> == 0 && std::ranges::all_of(pointers, aligned)) return run.template operator()<kVector<T>>();
  run.template operator()<1>();
}

constexpr int kMostBlocksEach = 32;  // blocks per multiprocessor: more would only make more partial sums

// Returns the blocks of a backward launch: as many as run at once, but no more than there are rows for.
template <typename Kernel>
unsigned backward_blocks(Kernel kernel, int64_t rows, const Shape& shape, size_t shared) {
  const int64_t most = int64_t{multiprocessors()} * kMostBlocksEach;
  const int64_t resident = resident_blocks(kernel, shape.threads * shape.rows, shared);
  return static_cast<unsigned>(std::min({(rows + shape.rows - 1) / shape.rows, resident, most}));
}

// Calls run.template operator()<T, U>() with the types of the residual stream and of its branches.
template <typename Run>
void for_types(const NormRows& shape, const Run& run) {
  if (shape.branch() == shape.dtype)
    return for_dtype(shape.dtype, [&]<typename T>(T) { run.template operator()<T, T>(); });
  if (shape.dtype != c10::ScalarType::Float) fail_kernel("norm", "only rows in fp32 have branches in another type");
  if (shape.branch() == c10::ScalarType::Half) return run.template operator()<float, __half>();
  run.template operator()<float, __nv_bfloat16>();
}

}  // namespace

void norm_forward_cuda(const NormRows& shape, const NormForward& args, void* stream) {
  if (shape.rows == 0 || shape.width == 0) return;
  const int width = static_cast<int>(shape.width);
  for_types(shape, [&]<typename T, typename U>() {
    for_vector<T>(width, {args.x, args.delta, args.sum, args.y, args.weight, args.bias}, [&]<int v>() {
      for_shape<v, 2, 256>(width, [&]<typename D>(const Shape& threads, D) {
        const auto blocks = static_cast<unsigned>((shape.rows + threads.rows - 1) / threads.rows);
        const auto run = [&](auto kernel) {
          launch("norm_forward", kernel, {blocks, threads.block(), stream}, args, shape);
        };
        if (shape.centered) return run(forward_kernel<T, U, D, true, false>);
        if constexpr (!std::is_same_v<T, float>)  // rounding to fp32 changes nothing
          if (shape.rounded) return run(forward_kernel<T, U, D, false, true>);
        run(forward_kernel<T, U, D, false, false>);
      });
    });
  });
}

// Two sums (dw and db) per column and block.
int64_t norm_backward_workspace_cuda(const NormRows& shape) {
  return 2 * std::min(shape.rows, int64_t{multiprocessors()} * kMostBlocksEach) * shape.width;
}

void norm_backward_cuda(const NormRows& shape, const NormBackward& args, float* workspace, void* stream) {
  if (shape.width == 0) return;
  const int width = static_cast<int>(shape.width);
  unsigned blocks = 0;
  const auto run_shape = [&]<typename T, typename U, typename D>(const Shape& threads) {
    // For the ring, and at the end for the sums of rows that share a block (write_sums).
    const int copies = kStages<D> * (args.grad_residual == nullptr ? 2 : 3) * D::n;
    const size_t shared = size_t{16} * static_cast<size_t>(copies * threads.threads * threads.rows);
    const auto run = [&](auto kernel) {
      allow_shared(kernel, shared);
      blocks = backward_blocks(kernel, shape.rows, threads, shared);
      if (blocks == 0) return;
      launch("norm_backward", kernel, {blocks, threads.block(), stream, shared}, args, shape, workspace,
             args.grad_bias != nullptr);
    };
    if (shape.centered) return run(backward_kernel<T, U, D, true>);
    run(backward_kernel<T, U, D, false>);
  };
  for_types(shape, [&]<typename T, typename U>() {
    for_vector<T>(
        width, {args.x, args.grad_y, args.grad_residual, args.grad_x, args.grad_delta, args.weight}, [&]<int v>() {
          for_shape<v, 1, 512>(
              width, [&]<typename D>(const Shape& threads, D) { run_shape.template operator()<T, U, D>(threads); });
        });
  });
  column_sums_cuda(workspace, blocks, {args.grad_weight, args.grad_weight_dtype, shape.width, args.add_weight},
                   {args.grad_bias, args.grad_bias_dtype, args.grad_bias == nullptr ? 0 : shape.width, args.add_bias},
                   stream);
}

}  // namespace megalith::ops
