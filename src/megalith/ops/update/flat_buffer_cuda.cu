// Passes over flat buffers on CUDA: sums of squares, scaling, Adam and SGD. A thread has a vector of 16 bytes (4 fp32
// for updates); sums walk over the buffer with as many blocks as have partial sums, updates have a thread per vector.
//
//   squares   Σ x² in fp64: per thread, per block, then over blocks, always in the same order; reads the buffer
//   scale     x *= factor, and a flag if an element is not finite; reads the buffer, and writes it unless factor is 1
//   clip      {factor, 1} or {0, 0} from the sums of squares, one thread: the "gate" that updates read on the device
//   Adam      m = β₁m + (1-β₁)g,  v = β₂v + (1-β₂)g²,  p = p keep - step_size m / (√v / √(1-β₂ᵗ) + ε)
//
// Adam reads p, g, m and v and writes p, m, v and the model's bf16 copy: 30 bytes per element with fp32 gradients, each
// once. (28 with bf16 gradients; SGD moves 22: p, g, b read and p, b and the copy written.) Groups with different
// learning rates and decays share one launch: a thread finds its run by binary search in a table of at most 128 runs, a
// kernel parameter and so in constant memory.
//
//   thread i of an update   elements [4i, 4i + 4) of main, m and v (16 bytes each), of the gradient (16 or 8 bytes) and
//                           of the model's copy (16 or 8)
//   thread i of a sum       vectors i, i + 256 · blocks, ...; the number of blocks depends on n alone, and so do the
//                           order of the additions and every bit of the norm
//
// Measured on an H200 against a copy of as many bytes (docs/gpu.md), 2^28 elements: Adam 0.98, gradient norm 0.96.
#include <cmath>

#include "megalith/ops/kernel/cuda_math.cuh"
#include "megalith/ops/update/adam_cuda.cuh"
#include "megalith/ops/update/flat_buffer_internal.h"

namespace megalith::ops {

namespace {

constexpr int kThreads = 256;
constexpr int kMostBlocks = 2048;  // partial sums of squares_kernel: one block then adds 8 per thread

// Returns the sum over the block on every thread, as a tree in shared memory: always in the same order.
__device__ double block_sum(double x) {
  __shared__ double shared[kThreads];
  shared[threadIdx.x] = x;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  __syncthreads();
  return shared[0];
}

// Writes one partial sum per block, partials [gridDim.x]. Squares and sums are fp64: fp32 would overflow and round.
template <typename T, int v>
__global__ void squares_kernel(const T* flat, int64_t vectors, double* partials) {
  double sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors; i += int64_t{gridDim.x} * kThreads) {
    float x[v];
    load<v>(flat + i * v, x);
#pragma unroll
    for (int j = 0; j < v; ++j) sum += static_cast<double>(x[j]) * static_cast<double>(x[j]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// Adds the partial sums; one block, whose threads take them in the order of their numbers.
__global__ void finish_kernel(const double* partials, int n, double* sum) {
  double total = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) total += partials[i];
  total = block_sum(total);
  if (threadIdx.x == 0) *sum = total;
}

// clip_factor() on the device, from sums of squares; one thread. There is one sum per gradient buffer, a handful.
__global__ void clip_gate_kernel(const double* squares, int64_t n, ClipSettings settings, float* gate) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += squares[i];
  // Rounded as in clip_factor: without a fused multiply-add.
  const double clip = settings.clip / __dadd_rn(__dmul_rn(sqrt(sum), settings.unscale), 1e-6);
  const double factor = settings.clip > 0 && clip < 1 ? clip * settings.unscale : settings.unscale;
  const bool finite = isfinite(sum);
  gate[0] = finite ? static_cast<float>(factor) : 0;
  gate[1] = finite ? 1 : 0;
}

// All threads that find a bad element write the same 1: no atomic is needed.
template <typename T, int v>
__global__ void scale_kernel(T* flat, int64_t vectors, float factor, int* broken) {
  bool bad = false;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors; i += int64_t{gridDim.x} * kThreads) {
    float x[v];
    load<v>(flat + i * v, x);
#pragma unroll
    for (int j = 0; j < v; ++j) {
      bad = bad || !isfinite(x[j]);
      x[j] *= factor;
    }
    if (factor != 1) store<v>(x, flat + i * v);
  }
  if (bad) *broken = 1;
}

// The arrays of an update with Adam.
template <typename G, typename P>
struct AdamPointers {
  float* main;
  const G* grad;
  float *m, *s;
  P* param;
};

// v elements of an update, from element `at` on.
template <int v>
struct AdamVector {
  float value[v], g[v], first[v], second[v];

  template <typename G, typename P>
  __device__ void read(const AdamPointers<G, P>& a, int64_t at) {
    load<v>(a.main + at, value);
    load<v>(a.grad + at, g);
    load<v>(a.m + at, first);
    load<v>(a.s + at, second);
  }
  template <typename G, typename P>
  __device__ void update(const AdamPointers<G, P>& a, int64_t at, const AdamFactors& f) {
    adam_elements(value, g, first, second, f);
    store<v>(value, a.main + at);
    store<v>(first, a.m + at);
    store<v>(second, a.s + at);
    if (a.param != nullptr) store<v>(value, a.param + at);
  }
};

// Updates v elements. All four loads come before the arithmetic.
template <int v, typename G, typename P>
__device__ inline void adam_step(const AdamPointers<G, P>& a, int64_t at, const AdamFactors& f) {
  AdamVector<v> x;
  x.read(a, at);
  x.update(a, at, f);
}

// One thread per v elements, all with the same factors; v = 1 for the elements after the last whole vector.
template <typename G, typename P, int v>
__global__ void adam_kernel(float* main, const G* grad, float* m, float* s, P* param, int64_t vectors, AdamFactors f,
                            const float* gate) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < vectors && passes(gate, f.grad_scale)) adam_step<v>(AdamPointers<G, P>{main, grad, m, s, param}, i * v, f);
}

template <typename G, typename P, int v>
__global__ void adam_runs_kernel(AdamPointers<G, P> a, int64_t begin, int64_t end, AdamFactors f, const float* gate,
                                 const __grid_constant__ RunTable table) {
  const int64_t at = begin + (int64_t{blockIdx.x} * kThreads + threadIdx.x) * v;
  if (at >= end || !passes(gate, f.grad_scale)) return;
  table.take_factors(at, f);
  adam_step<v>(a, at, f);
}

// The same on few multiprocessors: a block for each, which walks over all elements.
template <typename G, typename P, int v>
__global__ __launch_bounds__(kConfinedThreads, 1) void confined_adam_kernel(AdamPointers<G, P> a, int64_t begin,
                                                                            int64_t end, AdamFactors f,
                                                                            const float* gate,
                                                                            const __grid_constant__ RunTable table) {
  if (!passes(gate, f.grad_scale)) return;
  const int64_t step = int64_t{gridDim.x} * kConfinedThreads * v;
  for (int64_t at = begin + (int64_t{blockIdx.x} * kConfinedThreads + threadIdx.x) * v; at < end; at += 2 * step) {
    const int64_t next = at + step;
    AdamVector<v> x{}, y{};
    x.read(a, at);
    if (next < end) y.read(a, next);
    table.take_factors(at, f);
    x.update(a, at, f);
    if (next >= end) return;
    table.take_factors(next, f);
    y.update(a, next, f);
  }
}

// b = μ b + (g + decay p),  p -= lr b, one thread per v elements.
template <typename G, typename P, int v>
__global__ void sgd_kernel(float* main, const G* grad, float* momentum, P* param, int64_t vectors, float grad_scale,
                           float mu, float decay, float lr, const float* gate) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= vectors || !passes(gate, grad_scale)) return;
  float value[v], g[v], b[v];
  load<v>(main + i * v, value);
  load<v>(grad + i * v, g);
  load<v>(momentum + i * v, b);
#pragma unroll
  for (int j = 0; j < v; ++j) {
    b[j] = mu * b[j] + (g[j] * grad_scale + decay * value[j]);
    value[j] -= lr * b[j];
  }
  store<v>(value, main + i * v);
  store<v>(b, momentum + i * v);
  if (param != nullptr) store<v>(value, param + i * v);
}

// Calls run.template operator()<G, P, v>(first, count) for the whole vectors of 4 and then for the rest with v = 1.
template <typename Run>
void for_arrays(const UpdateArrays& a, const Run& run) {
  constexpr int kFour = 4;  // fp32 in 16 bytes
  const bool fits = aligned(a.main) && aligned(a.grad) && aligned(a.first) && aligned(a.second) && aligned(a.param);
  const int64_t vectors = fits ? a.n / kFour : 0, rest = a.n - vectors * kFour;
  for_dtype(a.grad_dtype, [&]<typename G>(G) {
    for_dtype(a.param_dtype, [&]<typename P>(P) {
      if (vectors > 0) run.template operator()<G, P, kFour>(0, vectors);
      if (rest > 0) run.template operator()<G, P, 1>(a.n - rest, rest);
    });
  });
}

// Returns the number of blocks of kThreads threads.
unsigned blocks_for(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

// Returns the address of an element of an array that may be nullptr.
template <typename T>
T* behind(void* array, int64_t elements) {
  return array == nullptr ? nullptr : static_cast<T*>(array) + elements;
}

}  // namespace

int64_t add_squares_workspace_cuda() { return kMostBlocks; }

void add_squares_cuda(c10::ScalarType dtype, const void* flat, int64_t n, double* sum, double* workspace,
                      void* stream) {
  int blocks = 0;
  for_dtype(dtype, [&]<typename T>(T) {
    const auto run = [&]<int v>() {
      const int64_t vectors = n / v;
      blocks = static_cast<int>(std::min<int64_t>(kMostBlocks, (vectors + kThreads - 1) / kThreads));
      if (blocks > 0)
        launch("add_squares", squares_kernel<T, v>, {static_cast<unsigned>(blocks), kThreads, stream},
               static_cast<const T*>(flat), vectors, workspace);
    };
    if (aligned(flat) && n % kVector<T> == 0)
      run.template operator()<kVector<T>>();
    else
      run.template operator()<1>();
  });
  launch("add_squares", finish_kernel, {1, kThreads, stream}, workspace, blocks, sum);
}

void scale_and_check_cuda(c10::ScalarType dtype, void* flat, int64_t n, double factor, int* broken, void* stream) {
  if (n == 0) return;
  for_dtype(dtype, [&]<typename T>(T) {
    const auto run = [&]<int v>() {
      const int64_t vectors = n / v, wanted = (vectors + kThreads - 1) / kThreads;
      const int64_t blocks = std::min(wanted, resident_blocks(scale_kernel<T, v>, kThreads));
      launch("scale_and_check", scale_kernel<T, v>, {static_cast<unsigned>(blocks), kThreads, stream},
             static_cast<T*>(flat), vectors, static_cast<float>(factor), broken);
    };
    if (aligned(flat) && n % kVector<T> == 0)
      run.template operator()<kVector<T>>();
    else
      run.template operator()<1>();
  });
}

void clip_gate_cuda(const double* squares, int64_t n, const ClipSettings& settings, float* gate, void* stream) {
  launch("clip_gate", clip_gate_kernel, {1, 1, stream}, squares, n, settings, gate);
}

void adam_cuda(const UpdateArrays& a, const AdamSettings& settings, const UpdateScalars& scalars, void* stream) {
  const AdamFactors factors = adam_factors(settings, scalars);
  for_arrays(a, [&]<typename G, typename P, int v>(int64_t first, int64_t count) {
    launch("adam", adam_kernel<G, P, v>, {blocks_for(count), kThreads, stream}, a.main + first,
           static_cast<const G*>(a.grad) + first, a.first + first, a.second + first, behind<P>(a.param, first), count,
           factors, a.gate);
  });
}

bool adam_runs_fit_cuda(const UpdateArrays& a) {
  return a.n % 4 == 0 && aligned(a.main) && aligned(a.grad) && aligned(a.first) && aligned(a.second) &&
         aligned(a.param);
}

void adam_runs_cuda(const UpdateArrays& a, const AdamSettings& settings, std::span<const UpdateRun> runs,
                    void* stream) {
  for (size_t first = 0; first < runs.size(); first += RunTable::kMost) {
    const size_t count = std::min<size_t>(RunTable::kMost, runs.size() - first);
    const RunTable table = run_table(settings, runs.subspan(first, count));
    // Ends may lie inside a vector: its other elements are padding, which Adam leaves at zero.
    const int64_t begin = runs[first].begin, end = (runs[first + count - 1].end + 3) / 4 * 4;
    for_dtype(a.grad_dtype, [&]<typename G>(G) {
      for_dtype(a.param_dtype, [&]<typename P>(P) {
        const auto start = [&](auto kernel, const Launch& how) {
          const AdamPointers<G, P> arrays{a.main, static_cast<const G*>(a.grad), a.first, a.second,
                                          static_cast<P*>(a.param)};
          launch("adam_runs", kernel, how, arrays, begin, end, adam_factors(settings, runs[first].scalars), a.gate,
                 table);
        };
        if (a.multiprocessors > 0)
          start(confined_adam_kernel<G, P, 4>, {static_cast<unsigned>(a.multiprocessors), kConfinedThreads, stream});
        else
          start(adam_runs_kernel<G, P, 4>, {blocks_for((end - begin) / 4), kThreads, stream});
      });
    });
  }
}

void sgd_cuda(const UpdateArrays& a, const SgdSettings& settings, const UpdateScalars& u, void* stream) {
  const auto f = [](double x) { return static_cast<float>(x); };
  for_arrays(a, [&]<typename G, typename P, int v>(int64_t first, int64_t count) {
    launch("sgd", sgd_kernel<G, P, v>, {blocks_for(count), kThreads, stream}, a.main + first,
           static_cast<const G*>(a.grad) + first, a.first + first, behind<P>(a.param, first), count, f(u.grad_scale),
           f(settings.momentum), f(u.weight_decay), f(u.lr), a.gate);
  });
}

}  // namespace megalith::ops
