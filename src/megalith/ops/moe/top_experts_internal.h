// CUDA kernels of top_experts.h over raw pointers; `stream` is a cudaStream_t.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "megalith/ops/moe/top_experts.h"

namespace megalith::ops {

// The logits of a call and how to choose.
struct ExpertRows {
  c10::ScalarType dtype = c10::ScalarType::Float;  // type of the logits and their gradient: fp32, bf16 or fp16
  int64_t tokens = 0, experts = 0;                 // t, E
  const void* logits = nullptr;                    // [t, E]
  ExpertChoice choice;
};
// Whether the kernels can take these sizes: at most 1024 experts, 32 per token and 32 groups.
inline bool fits_top_experts_cuda(int64_t experts, const ExpertChoice& choice) {
  return experts <= 1024 && choice.topk <= 32 && choice.groups <= 32;
}

// Writes chosen [t, k], or reads it if `decided`, and writes weights [t, k]. bias is [E] or nullptr.
void top_experts_cuda(const ExpertRows& rows, const float* bias, bool decided, int64_t* chosen, float* weights,
                      void* stream);
// Computes grad_logits [t, E] from grad_weights [t, k].
void top_experts_backward_cuda(const ExpertRows& rows, const int64_t* chosen, const float* grad_weights,
                               void* grad_logits, void* stream);

}  // namespace megalith::ops
