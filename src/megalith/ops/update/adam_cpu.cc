// Adam and SGD on the CPU: threads own ranges of elements, one vectorized loop does the whole update. Per element it
// reads main, gradient and moments and writes main, moments and the model's copy, each once: 30 bytes for Adam with
// fp32 gradients and a bf16 copy, 22 for SGD with momentum. Formulas are in adam.h.
//
// The factors come from adam_factors(), rounded once from fp64, and the order of operations is that of the CUDA kernel.
// Elements do not depend on each other: there are no sums, and so no order that threads or shards could change.
#include <cmath>

#include "megalith/ops/kernel/cpu_math.h"
#include "megalith/ops/kernel/cpu_parallel.h"
#include "megalith/ops/update/flat_buffer_internal.h"

namespace megalith::ops {

namespace {

// Fewest elements per thread: fewer are not worth waking it.
constexpr int64_t kGrain = 16384;

// P is the dtype of the model's copy, void if there is none.
template <typename G, typename P>
struct Adam {
  MEGALITH_ALWAYS_INLINE static void run(float* MEGALITH_RESTRICT main, const G* MEGALITH_RESTRICT grad,
                                         float* MEGALITH_RESTRICT m, float* MEGALITH_RESTRICT v,
                                         P* MEGALITH_RESTRICT param, int64_t n, AdamFactors f) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float g = to_acc(grad[i]) * f.grad_scale + f.added_decay * main[i];
      const float first = f.beta1 * m[i] + f.one_minus_beta1 * g;
      const float second = f.beta2 * v[i] + f.one_minus_beta2 * g * g;
      const float value = main[i] * f.keep - f.step_size * first / (std::sqrt(second) * f.root_corrected + f.epsilon);
      m[i] = first;
      v[i] = second;
      main[i] = value;
      if constexpr (!std::is_void_v<P>) param[i] = from_acc<P>(value);
    }
  }
};

// b = μ b + (g + decay p),  p -= lr b.
template <typename G, typename P>
struct Sgd {
  MEGALITH_ALWAYS_INLINE static void run(float* MEGALITH_RESTRICT main, const G* MEGALITH_RESTRICT grad,
                                         float* MEGALITH_RESTRICT momentum, P* MEGALITH_RESTRICT param, int64_t n,
                                         float grad_scale, float mu, float decay, float lr) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float g = to_acc(grad[i]) * grad_scale + decay * main[i];
      const float b = mu * momentum[i] + g;
      const float value = main[i] - lr * b;
      momentum[i] = b;
      main[i] = value;
      if constexpr (!std::is_void_v<P>) param[i] = from_acc<P>(value);
    }
  }
};

// Calls f.template operator()<G, P>() with the types of the gradient and of the model's copy.
template <typename F>
void visit(const UpdateArrays& a, F&& f) {
  const auto with_grad = [&]<typename G>() {
    if (a.param == nullptr) return f.template operator()<G, void>();
    if (a.param_dtype == c10::ScalarType::BFloat16) return f.template operator()<G, c10::BFloat16>();
    return f.template operator()<G, c10::Half>();
  };
  if (a.grad_dtype == c10::ScalarType::Float) return with_grad.template operator()<float>();
  if (a.grad_dtype == c10::ScalarType::BFloat16) return with_grad.template operator()<c10::BFloat16>();
  return with_grad.template operator()<c10::Half>();
}

// Returns the model's copy from an element on; nullptr if there is none (P is void).
template <typename P>
P* at_offset(void* pointer, int64_t offset) {
  if constexpr (std::is_void_v<P>)
    return nullptr;
  else
    return static_cast<P*>(pointer) + offset;
}

}  // namespace

void adam_cpu(const UpdateArrays& a, const AdamSettings& settings, const UpdateScalars& scalars) {
  const AdamFactors f = adam_factors(settings, scalars);
  visit(a, [&]<typename G, typename P>() {
    parallel_for(a.n, kGrain, [&](int64_t begin, int64_t end) {
      run_kernel<Adam<G, P>>(a.main + begin, static_cast<const G*>(a.grad) + begin, a.first + begin, a.second + begin,
                             at_offset<P>(a.param, begin), end - begin, f);
    });
  });
}

void sgd_cpu(const UpdateArrays& a, const SgdSettings& settings, const UpdateScalars& scalars) {
  visit(a, [&]<typename G, typename P>() {
    parallel_for(a.n, kGrain, [&](int64_t begin, int64_t end) {
      run_kernel<Sgd<G, P>>(a.main + begin, static_cast<const G*>(a.grad) + begin, a.first + begin,
                            at_offset<P>(a.param, begin), end - begin, static_cast<float>(scalars.grad_scale),
                            static_cast<float>(settings.momentum), static_cast<float>(scalars.weight_decay),
                            static_cast<float>(scalars.lr));
    });
  });
}

}  // namespace megalith::ops
