// Dropout on the CPU. Threads own ranges of blocks of 64 elements. The 16 counters of a block are computed side by
// side, one per vector lane (16 words are one AVX-512 register), and word w of counter l belongs to element 16 w + l,
// so that random words and elements have the same order in memory:
//
//   words of a block   c0[0 ... 15] | c1[0 ... 15] | c2[0 ... 15] | c3[0 ... 15]      word w of all counters
//   elements            0 ... 15    | 16 ... 31    | 32 ... 47    | 48 ... 63
//
// Forward reads x, writes y and one byte of mask per element: 5 bytes per element of bf16. (The CUDA kernel draws the
// mask again in backward; here backward reads the byte instead of computing ten rounds of Philox.)
#include "megalith/ops/kernel/cpu_math.h"
#include "megalith/ops/kernel/cpu_parallel.h"
#include "megalith/ops/norm_rope/dropout_internal.h"

namespace megalith::ops {

namespace {

// Fewest elements per thread: fewer are not worth waking it.
constexpr int64_t kGrainElements = 16384;

// Philox4x32-10 (Salmon et al., SC'11): random bits as a function of seed and position, so that neither the number of
// threads nor the width of a vector changes them. A block is 16 counters with 4 words each.
constexpr int64_t kLanes = 16;
constexpr int64_t kBlock = 4 * kLanes;

// Writes the 64 random words of a block. Keys and multipliers are Philox's; its 64-bit products become pairs of vector
// multiplications.
MEGALITH_ALWAYS_INLINE void random_block(uint64_t seed, int64_t block, uint32_t* MEGALITH_RESTRICT words) {
  uint32_t* const c0 = words;
  uint32_t* const c1 = words + kLanes;
  uint32_t* const c2 = words + 2 * kLanes;
  uint32_t* const c3 = words + 3 * kLanes;
  const uint64_t first = static_cast<uint64_t>(block) * kLanes;  // a multiple of 16: no carry into the upper half
  for (int64_t l = 0; l < kLanes; ++l) {
    c0[l] = static_cast<uint32_t>(first) + static_cast<uint32_t>(l);
    c1[l] = static_cast<uint32_t>(first >> 32);
    c2[l] = c3[l] = 0;
  }
  auto k0 = static_cast<uint32_t>(seed);
  auto k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int64_t l = 0; l < kLanes; ++l) {
      const uint64_t a = uint64_t{0xD2511F53} * c0[l];
      const uint64_t b = uint64_t{0xCD9E8D57} * c2[l];
      c0[l] = static_cast<uint32_t>(b >> 32) ^ c1[l] ^ k0;
      c1[l] = static_cast<uint32_t>(b);
      c2[l] = static_cast<uint32_t>(a >> 32) ^ c3[l] ^ k1;
      c3[l] = static_cast<uint32_t>(a);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

// Blocks [begin, end). An element is kept when its random word is at least p · 2^32.
template <typename T, bool kResidual>
struct Forward {
  MEGALITH_ALWAYS_INLINE static void run(DropoutForward args, int64_t begin, int64_t end) {
    using Acc = acc_t<T>;
    const auto threshold = static_cast<uint32_t>(args.p * 4294967296.0);
    const Acc scale = static_cast<Acc>(1 / (1 - args.p));
    const uint64_t seed = value_of(args.seed);
    alignas(64) uint32_t words[kBlock];
    for (int64_t block = begin; block < end; ++block) {
      random_block(seed, block, words);
      const int64_t first = block * kBlock;
      const int64_t count = first + kBlock <= args.elements ? kBlock : args.elements - first;
      const T* MEGALITH_RESTRICT x = static_cast<const T*>(args.x) + first;
      const T* MEGALITH_RESTRICT residual = kResidual ? static_cast<const T*>(args.residual) + first : nullptr;
      T* MEGALITH_RESTRICT y = static_cast<T*>(args.y) + first;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        Acc v = words[i] >= threshold ? to_acc(x[i]) * scale : Acc(0);
        // Rounded as dropout's own result, so that a fused and a separate addition agree.
        if constexpr (kResidual) v = to_acc(from_acc<T>(v)) + to_acc(residual[i]);
        y[i] = from_acc<T>(v);
      }
      if (args.mask == nullptr) continue;
      uint8_t* MEGALITH_RESTRICT mask = args.mask + first;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) mask[i] = words[i] >= threshold ? 1 : 0;
    }
  }
};

// dx = dy / (1 - p) where the mask is set. The mask is bytes in the order of elements: no Philox here.
template <typename T>
struct Backward {
  MEGALITH_ALWAYS_INLINE static void run(const T* MEGALITH_RESTRICT grad_y, const uint8_t* MEGALITH_RESTRICT mask,
                                         T* MEGALITH_RESTRICT grad_x, acc_t<T> scale, int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i)
      grad_x[i] = from_acc<T>(mask[i] != 0 ? to_acc(grad_y[i]) * scale : acc_t<T>(0));
  }
};

}  // namespace

void dropout_forward_cpu(const DropoutForward& args) {
  const int64_t blocks = (args.elements + kBlock - 1) / kBlock;
  visit_floating(args.dtype, [&]<typename T>() {
    parallel_for(blocks, kGrainElements / kBlock, [&](int64_t begin, int64_t end) {
      if (args.residual != nullptr)
        run_kernel<Forward<T, true>>(args, begin, end);
      else
        run_kernel<Forward<T, false>>(args, begin, end);
    });
  });
}

void dropout_backward_cpu(c10::ScalarType dtype, int64_t elements, double p, const void* grad_y, const uint8_t* mask,
                          void* grad_x) {
  visit_floating(dtype, [&]<typename T>() {
    parallel_for(elements, kGrainElements, [&](int64_t begin, int64_t end) {
      run_kernel<Backward<T>>(static_cast<const T*>(grad_y), mask, static_cast<T*>(grad_x),
                              static_cast<acc_t<T>>(1 / (1 - p)), begin, end);
    });
  });
}

}  // namespace megalith::ops
