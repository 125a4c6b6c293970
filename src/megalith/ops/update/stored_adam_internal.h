// The kernel of stored_adam.h over raw pointers.
#pragma once

#include <cstdint>
#include <span>

#include "megalith/ops/update/adam.h"

namespace megalith::ops {

// How the elements of an array are kept (stored_values.h).
enum class StoredForm : uint8_t { kAbsent, kFp32, kBf16, kFp16, kScaledFp16, kScaledFp8, kHalves };

// One array of an update.
struct StoredArray {
  StoredForm form = StoredForm::kAbsent;
  void* values = nullptr;    // [n]
  float* scales = nullptr;   // [n / 64], scaled forms
  uint16_t* high = nullptr;  // [n] bits of bf16, kHalves
};

// StoredAdamTensors as pointers; all arrays start at multiples of 16 bytes.
struct StoredAdamArrays {
  int64_t n = 0;                          // a multiple of 64
  StoredArray main, grad, first, second;  // the gradient is only read
  StoredArray param;                      // may be absent
  const float* gate = nullptr;            // [2] on the device: {grad_scale, whether there is an update}
  int multiprocessors = 0;                // the most that the kernel occupies; 0 means all
};

void stored_adam_cuda(const StoredAdamArrays& arrays, const AdamSettings& settings, std::span<const UpdateRun> runs,
                      void* stream);

}  // namespace megalith::ops
