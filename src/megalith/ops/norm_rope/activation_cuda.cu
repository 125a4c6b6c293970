// Gated activations and bias + activation on CUDA. Legend: t rows, f width, v elements of 16 bytes.
//
//   gated      y = a(gate) up [· w_row];   dgate = dy up a'(gate),  dup = dy a(gate)  [, dw_row = Σ dy up a(gate)]
//   bias       y = a(x + b);               dx = dy a'(x + b),  db = Σ_rows dx
//
// Who owns what: gated kernels give each thread one vector of y and the two vectors of gate_up that belong to it,
//
//   gate_up row   | gate: ... v ... | up: ... v ... |       the same column of both halves, f elements apart
//   y row         | ... v ... |
//
// except backward with row weights, where a block has a row, to sum its dw. Bias kernels give each thread v columns and
// every gridDim.y-th row, so that the bias and its gradient stay in registers; the partial sums [gridDim.y, f] are
// added in order by column_sums_cuda.
//
//   bias, thread (x, y) of the grid:   columns [x v, x v + v), rows y, y + gridDim.y, y + 2 gridDim.y, ...
//
// Memory traffic, in elements: gated 3 t f forward, 5 t f backward; bias 2 t f and 3 t f. Nothing else is stored: value
// and slope are computed again from the input. Measured on an H200 against a copy of as many bytes (docs/gpu.md):
//   SwiGLU 16384 x 8192                   1.02 both ways
//   SwiGLU times weights, 131072 x 768    forward 1.01, backward 1.02
//   bias + GELU 65536 x 3072              0.91 both ways
#include <type_traits>

#include "megalith/ops/kernel/cuda_math.cuh"
#include "megalith/ops/norm_rope/activation_internal.h"

namespace megalith::ops {

namespace {

constexpr int kThreads = 128;  // small blocks: a width of 768 in bf16 (96 vectors) still fills most of one

// An activation and its derivative at one point.
struct Slope {
  float value, slope;  // a(x), a'(x)
};

// e^x for rows of type T: rounding to 16 bits hides the error of the fast function, fp32 would show it.
template <typename T>
__device__ inline float exp_for(float x) {
  return std::is_same_v<T, float> ? expf(x) : __expf(x);
}

// A sigmoid with its complement: the slope of every sigmoid-like activation needs both.
struct Sigmoid {
  float value, rest;  // s(x), and 1 - s(x) = s(-x)
};
// Rows in fp32 pay for two exponentials. 16-bit rows take one and the fast division, whose errors, a few units in the
// last place of fp32, vanish when the result is rounded to 8 or 11 bits.
template <typename T>
__device__ inline Sigmoid sigmoid(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return {1 / (1 + expf(-x)), 1 / (1 + expf(x))};  // a difference from 1 would lose digits
  } else {
    const float s = __fdividef(1.0F, 1.0F + __expf(-x));
    return {s, 1 - s};
  }
}

// Value and slope together; the compiler drops the one that a kernel does not use.
template <typename T, Activation activation>
__device__ inline Slope activate(float x) {
  if constexpr (activation == Activation::kSilu) {
    const auto [s, rest] = sigmoid<T>(x);
    return {x * s, s * (1 + x * rest)};
  } else if constexpr (activation == Activation::kGelu) {
    // x Φ(x), Φ(x) = (1 + erf(x / √2)) / 2, Φ'(x) = e^(-x²/2) / √(2π). In fp32 erfc keeps the digits of a small Φ.
    const float z = x * 0.70710678118654752F;
    const float cdf = 0.5F * (std::is_same_v<T, float> ? erfcf(-z) : 1 + erff(z));
    return {x * cdf, cdf + x * 0.39894228040143268F * exp_for<T>(-0.5F * x * x)};
  } else if constexpr (activation == Activation::kGeluTanh) {
    // (1 + tanh z) / 2 is the sigmoid of 2z, with z = √(2/π) (x + 0.044715 x³).
    const auto [s, rest] = sigmoid<T>(2 * 0.79788456080286536F * (x + 0.044715F * x * x * x));
    const float dz = 0.79788456080286536F * (1 + 3 * 0.044715F * x * x);
    return {x * s, s + 2 * x * s * rest * dz};
  } else if constexpr (activation == Activation::kQuickGelu) {
    const auto [s, rest] = sigmoid<T>(1.702F * x);
    return {x * s, s * (1 + 1.702F * x * rest)};
  } else if constexpr (activation == Activation::kRelu) {
    return {fmaxf(x, 0), x > 0 ? 1.0F : 0.0F};
  } else {
    const float r = fmaxf(x, 0);
    return {r * r, 2 * r};
  }
}

// Calls run.template operator()<activation>(): one kernel per activation, without a branch per element.
template <typename Run>
void for_activation(Activation activation, const Run& run) {
  switch (activation) {
    case Activation::kSilu:
      return run.template operator()<Activation::kSilu>();
    case Activation::kGelu:
      return run.template operator()<Activation::kGelu>();
    case Activation::kGeluTanh:
      return run.template operator()<Activation::kGeluTanh>();
    case Activation::kQuickGelu:
      return run.template operator()<Activation::kQuickGelu>();
    case Activation::kRelu:
      return run.template operator()<Activation::kRelu>();
    case Activation::kSquaredRelu:
      break;
  }
  run.template operator()<Activation::kSquaredRelu>();
}

// One thread per vector of y. `row_vectors` is f / v.
template <typename T, int v, Activation activation>
__global__ void gated_forward_kernel(const T* gate_up, const float* weights, T* y, int64_t vectors,
                                     int64_t row_vectors) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const int64_t row = i / row_vectors, column = i - row * row_vectors;
  const T* in = gate_up + (row * 2 * row_vectors + column) * v;
  float gate[v], up[v];
  load<v>(in, gate);
  load<v>(in + row_vectors * v, up);
#pragma unroll
  for (int j = 0; j < v; ++j) gate[j] = activate<T, activation>(gate[j]).value * up[j];
  if (weights != nullptr) {
    const float weight = weights[row];
#pragma unroll
    for (int j = 0; j < v; ++j) gate[j] *= weight;
  }
  store<v>(gate, y + i * v);
}

// One thread per vector of dy, and the two of `grad` that belong to it. `grad` has the layout of gate_up, so that the
// up projection takes it as it is: no concatenation of two gradients.
template <typename T, int v, Activation activation>
__global__ void gated_backward_kernel(const T* gate_up, const T* grad_y, T* grad, int64_t vectors,
                                      int64_t row_vectors) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const int64_t row = i / row_vectors, column = i - row * row_vectors;
  const int64_t at = (row * 2 * row_vectors + column) * v;
  float gate[v], up[v], dy[v];
  load<v>(gate_up + at, gate);
  load<v>(gate_up + at + row_vectors * v, up);
  load<v>(grad_y + i * v, dy);
#pragma unroll
  for (int j = 0; j < v; ++j) {
    const Slope s = activate<T, activation>(gate[j]);
    gate[j] = dy[j] * up[j] * s.slope;
    up[j] = dy[j] * s.value;
  }
  store<v>(gate, grad + at);
  store<v>(up, grad + at + row_vectors * v);
}

// One block per row, which also sums the gradient of the row's weight, in a fixed order. (The unweighted kernels sum
// nothing, so that their blocks need not end where rows do.)
template <typename T, int v, Activation activation>
__global__ void weighted_backward_kernel(const T* gate_up, const float* weights, const T* grad_y, T* grad,
                                         float* grad_weights, int width) {
  __shared__ float scratch[33];
  const int64_t row = blockIdx.x;
  const float weight = weights[row];
  float sum = 0;
  for (int column = static_cast<int>(threadIdx.x) * v; column < width; column += static_cast<int>(blockDim.x) * v) {
    const int64_t at = row * 2 * width + column;
    float gate[v], up[v], dy[v];
    load<v>(gate_up + at, gate);
    load<v>(gate_up + at + width, up);
    load<v>(grad_y + row * width + column, dy);
#pragma unroll
    for (int j = 0; j < v; ++j) {
      const Slope s = activate<T, activation>(gate[j]);
      sum += dy[j] * up[j] * s.value;  // before dy is scaled: dw_row takes dy itself
      dy[j] *= weight;
      gate[j] = dy[j] * up[j] * s.slope;
      up[j] = dy[j] * s.value;
    }
    store<v>(gate, grad + at);
    store<v>(up, grad + at + width);
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) grad_weights[row] = sum;
}

// A thread has v columns and every gridDim.y-th row; unrolled, so that four rows are on their way at once. The bias is
// read once per thread instead of once per element.
template <typename T, int v, Activation activation>
__global__ void bias_forward_kernel(const T* x, const void* bias, bool raw_bias, T* y, int64_t rows, int64_t width) {
  const int64_t column = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * v;
  if (column >= width) return;
  float b[v];
#pragma unroll
  for (int j = 0; j < v; ++j) b[j] = bias == nullptr ? 0 : small_element<T>(bias, raw_bias, column + j);
#pragma unroll 4
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    float value[v];
    load<v>(x + row * width + column, value);
#pragma unroll
    for (int j = 0; j < v; ++j) value[j] = activate<T, activation>(value[j] + b[j]).value;
    store<v>(value, y + row * width + column);
  }
}

// A thread has v columns and every gridDim.y-th row. partials: [gridDim.y, f], or nullptr without a bias gradient.
template <typename T, int v, Activation activation>
__global__ void bias_backward_kernel(const T* x, const void* bias, bool raw_bias, const T* grad_y, T* grad_x,
                                     float* partials, int64_t rows, int64_t width) {
  const int64_t column = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * v;
  if (column >= width) return;
  float b[v], sums[v];
#pragma unroll
  for (int j = 0; j < v; ++j) {
    b[j] = bias == nullptr ? 0 : small_element<T>(bias, raw_bias, column + j);
    sums[j] = 0;
  }
  Raw<T, v> next_x{}, next_dy{};
  // Loads the next row before this one is stored. The compiler may not do so itself, since grad_x may be grad_y.
  const auto fetch = [&](int64_t row) {
    if (row >= rows) return;
    next_x = load_raw<v>(x + row * width + column);
    next_dy = load_raw<v>(grad_y + row * width + column);
  };
  fetch(blockIdx.y);
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    float value[v], dy[v];
    unpack<T, v>(next_x, value);
    unpack<T, v>(next_dy, dy);
    fetch(row + gridDim.y);
#pragma unroll
    for (int j = 0; j < v; ++j) {
      dy[j] *= activate<T, activation>(value[j] + b[j]).slope;
      sums[j] += dy[j];
    }
    store<v>(dy, grad_x + row * width + column);
  }
  if (partials == nullptr) return;
#pragma unroll
  for (int j = 0; j < v; ++j) partials[blockIdx.y * width + column + j] = sums[j];
}

// Calls run.template operator()<T, v, activation>(), with single elements (v = 1) where vectors do not fit.
template <typename Run>
void for_rows(const ActivationRows& shape, bool in_vectors, const Run& run) {
  for_dtype(shape.dtype, [&]<typename T>(T) {
    for_activation(shape.activation, [&]<Activation activation>() {
      if (in_vectors && shape.width % kVector<T> == 0)
        run.template operator()<T, kVector<T>, activation>();
      else
        run.template operator()<T, 1, activation>();
    });
  });
}

// Returns the number of blocks of kThreads threads.
unsigned blocks_for(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

constexpr int64_t kMostRowParts = 1024;  // bounds the workspace

// Returns the number of parts that the rows are cut into: 16 blocks per multiprocessor, and no more partial sums than
// that takes.
int64_t row_parts(int64_t rows, int64_t row_vectors) {
  const int64_t wanted = int64_t{multiprocessors()} * 16 / blocks_for(row_vectors);
  return std::clamp<int64_t>(wanted, 1, std::clamp<int64_t>(rows, 1, kMostRowParts));
}

}  // namespace

void gated_forward_cuda(const ActivationRows& shape, const void* gate_up, const float* weights, void* y, void* stream) {
  if (shape.rows * shape.width == 0) return;
  for_rows(shape, aligned(gate_up) && aligned(y), [&]<typename T, int v, Activation activation>() {
    const int64_t row = shape.width / v, all = shape.rows * row;
    launch("gated_forward", gated_forward_kernel<T, v, activation>, {blocks_for(all), kThreads, stream},
           static_cast<const T*>(gate_up), weights, static_cast<T*>(y), all, row);
  });
}

void gated_backward_cuda(const ActivationRows& shape, const void* gate_up, const float* weights, const void* grad_y,
                         void* grad, float* grad_weights, void* stream) {
  if (shape.rows * shape.width == 0) return;
  const bool fits = aligned(gate_up) && aligned(grad_y) && aligned(grad);
  for_rows(shape, fits, [&]<typename T, int v, Activation activation>() {
    const int64_t row = shape.width / v, all = shape.rows * row;
    if (weights != nullptr) {
      // Whole warps, as many as the row has vectors for, at most 8.
      const auto threads = static_cast<unsigned>(std::clamp<int64_t>((row + 31) / 32 * 32, 32, 256));
      return launch("weighted_backward", weighted_backward_kernel<T, v, activation>,
                    {static_cast<unsigned>(shape.rows), threads, stream}, static_cast<const T*>(gate_up), weights,
                    static_cast<const T*>(grad_y), static_cast<T*>(grad), grad_weights, static_cast<int>(shape.width));
    }
    launch("gated_backward", gated_backward_kernel<T, v, activation>, {blocks_for(all), kThreads, stream},
           static_cast<const T*>(gate_up), static_cast<const T*>(grad_y), static_cast<T*>(grad), all, row);
  });
}

void bias_forward_cuda(const ActivationRows& shape, const void* x, const void* bias, void* y, void* stream) {
  if (shape.rows * shape.width == 0) return;
  for_rows(shape, aligned(x) && aligned(y), [&]<typename T, int v, Activation activation>() {
    const int64_t row = shape.width / v;
    const dim3 blocks(blocks_for(row), static_cast<unsigned>(row_parts(shape.rows, row)));
    launch("bias_forward", bias_forward_kernel<T, v, activation>, {blocks, kThreads, stream}, static_cast<const T*>(x),
           bias, shape.raw_bias, static_cast<T*>(y), shape.rows, shape.width);
  });
}

int64_t bias_backward_workspace_cuda(const ActivationRows& shape) { return kMostRowParts * shape.width; }

void bias_backward_cuda(const ActivationRows& shape, const void* x, const void* bias, const void* grad_y, void* grad_x,
                        void* grad_bias, bool add_bias, float* workspace, void* stream) {
  if (shape.width == 0) return;
  int64_t parts = 0;
  const bool fits = aligned(x) && aligned(grad_y) && aligned(grad_x);
  if (shape.rows > 0)
    for_rows(shape, fits, [&]<typename T, int v, Activation activation>() {
      parts = row_parts(shape.rows, shape.width / v);
      const dim3 blocks(blocks_for(shape.width / v), static_cast<unsigned>(parts));
      launch("bias_backward", bias_backward_kernel<T, v, activation>, {blocks, kThreads, stream},
             static_cast<const T*>(x), bias, shape.raw_bias, static_cast<const T*>(grad_y), static_cast<T*>(grad_x),
             grad_bias == nullptr ? nullptr : workspace, shape.rows, shape.width);
    });
  if (grad_bias != nullptr)
    column_sums_cuda(workspace, parts, {grad_bias, c10::ScalarType::Float, shape.width, add_bias}, {}, stream);
}

}  // namespace megalith::ops
