// Kernels of cross_entropy.h over raw pointers.
//
// Three passes, with the reductions over ranks between the first two: statistics of a row, its loss, its gradient.
//
// Legend: t rows, v valid columns on this rank. "acc" is the type that a kernel computes in: fp64 for fp64, otherwise
// fp32.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace megalith::ops {

// The logits and labels of one call; the logits themselves are passed beside it.
struct LogitRows {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t rows = 0;
  int64_t columns = 0;              // with padding
  int64_t valid = 0;                // v: the columns before the padding
  int64_t distance = 0;             // between rows, in elements
  const int64_t* labels = nullptr;  // [t]
  int64_t first_id = 0;             // token id of column 0
  int64_t ignore_index = 0;
};

// Statistics of a row over this rank's columns, acc [t] each. Rows with the ignored label are not read and get zeros.
struct LogitStats {
  void* max = nullptr;     // -inf if there are no columns
  void* sum = nullptr;     // Σ exp(logit - max)
  void* target = nullptr;  // logit of the label; 0 where another rank holds it
  void* total = nullptr;   // Σ logit, for label smoothing; may be nullptr
};
// Reads every valid logit once.
void logit_stats_cpu(const LogitRows& rows, const void* logits, const LogitStats& stats);

// loss = log_sum_exp - on_target · target logit - off_target · Σ logits + z · log_sum_exp², over the whole vocabulary.
struct LossWeights {
  double on_target = 1;   // 1 - s with label smoothing
  double off_target = 0;  // s / K with label smoothing; 0 means that the sum of logits is not needed
  double z = 0;           // coefficient of the z-loss
};
// Computes log_sum_exp, fp64 [t], and loss, acc [t], from the statistics of the whole vocabulary; 0 for ignored labels.
void losses_cpu(const LogitRows& rows, const LogitStats& stats, const LossWeights& weights, double* log_sum_exp,
                void* loss);

// Overwrites the logits with the gradient of Σ grad_loss · loss. grad_loss: acc [t].
void logit_grads_cpu(const LogitRows& rows, void* logits, const double* log_sum_exp, const void* grad_loss,
                     const LossWeights& weights);

// CUDA twins (fp32, bf16, fp16) on `stream`, a cudaStream_t.
void logit_stats_cuda(const LogitRows& rows, const void* logits, const LogitStats& stats, void* stream);
void losses_cuda(const LogitRows& rows, const LogitStats& stats, const LossWeights& weights, double* log_sum_exp,
                 void* loss, void* stream);
void logit_grads_cuda(const LogitRows& rows, void* logits, const double* log_sum_exp, const void* grad_loss,
                      const LossWeights& weights, void* stream);
// Computes losses and overwrites the logits with the gradient of grad · Σ loss in one pass, for a rank that has the
// whole vocabulary. A label outside the vocabulary ends the program with a message.
void losses_and_grads_cuda(const LogitRows& rows, void* logits, double grad, const LossWeights& weights, void* loss,
                           void* stream);
// The same by clusters of blocks; there is at least one row. Returns false, having done nothing, if the device has no
// clusters or the rows do not suit them.
bool losses_and_grads_clusters_cuda(const LogitRows& rows, void* logits, double grad, const LossWeights& weights,
                                    void* loss, void* stream);

}  // namespace megalith::ops
