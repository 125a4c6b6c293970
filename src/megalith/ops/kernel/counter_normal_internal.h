// Philox-4x32-10 (Salmon et al., 2011), a keyed bijection on 128-bit counters whose outputs are random numbers, for
// host and device, and the CUDA kernel of counter_normal.h.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MEGALITH_HOST_DEVICE __host__ __device__
#else
#define MEGALITH_HOST_DEVICE
#endif

namespace megalith::ops {

// Four words of 32 random bits.
struct PhiloxBlock {
  uint32_t word[4];
};

// Returns the four words of `counter` (the upper 64 bits of the counter are 0).
MEGALITH_HOST_DEVICE inline PhiloxBlock philox(uint64_t counter, uint64_t key) {
  PhiloxBlock x{{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}};
  auto key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * x.word[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * x.word[2];
    x = {{static_cast<uint32_t>(b >> 32) ^ x.word[1] ^ key0, static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ x.word[3] ^ key1, static_cast<uint32_t>(a)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return x;
}

// The numbers to draw: rows x width; row r and column c has the index first + r · stride + c.
struct CounterRows {
  uint64_t key = 0, first = 0;              // the stream, and the index of the first element
  int64_t rows = 0, width = 0, stride = 0;  // stride: columns of the whole matrix
  double mean = 0, std = 0;
};

// Fills out, fp32 [rows, width]. Lists the elements whose rounding to fp32 depends on the last bits of logarithm and
// cosine in doubtful [most] and counts them in *count, which may exceed `most`. All pointers are on the device;
// `stream` is a cudaStream_t.
void counter_normal_cuda(const CounterRows& what, float* out, int64_t* doubtful, int64_t most, int* count,
                         void* stream);

}  // namespace megalith::ops
