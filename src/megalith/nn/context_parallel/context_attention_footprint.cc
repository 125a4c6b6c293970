// run() mirrors ops::attention on one rank, run_ring() and ring_backward() ring_attention.cc with partial_attention.cc.
// The kernels keep q, k, v, the result and one float per query and head; q, k and v belong to the caller.
#include "megalith/nn/context_parallel/context_attention_footprint.h"

#include <algorithm>

#include "megalith/ops/attention/attention.h"

namespace megalith::nn {

// Scratch of one thread of the CPU kernel (ops/attention/attention_flash_cpu.cc): keys and values of a sequence in fp32
// and, in backward, their gradients. Its blocks are 64 queries by 64 keys.
double ContextAttentionFootprint::scratch(const RankSizes& rank, bool backward) const {
  if (rank.machinery.cuda) return cuda_scratch(rank, backward);
  const double keys = rank.length / static_cast<double>(rank.cp), dims = heads_.key_dim + heads_.value_dim;
  const double blocks = 64 * (backward ? 3 : 2) * dims + 3 * 64 * 64;
  return 4 * (keys * dims * (backward ? 2 : 1) + blocks);
}

// cuDNN and flash-2, for 16 bits, take nothing worth counting. The memory-efficient kernel repeats k and v for the
// query heads of a group (ops/attention/attention_efficient.cc); its backward also holds the gradients of the copies, a
// sum of the queries' gradients in fp32 and, before that, the products of the result with its gradient.
double ContextAttentionFootprint::cuda_scratch(const RankSizes& rank, bool backward) const {
  const ops::AttentionKernel kernel =
      ops::choose_attention_kernel({.device = at::kCUDA,
                                    .dtype = rank.dtype,
                                    .head_size = static_cast<int64_t>(heads_.key_dim),
                                    .value_size = static_cast<int64_t>(heads_.value_dim),
                                    .window = heads_.window > 0});
  if (kernel == ops::AttentionKernel::kEfficient) {
    const double copies = heads_.query > heads_.key_value ? rank.t * rank.bytes * (q() + out()) : 0;
    return backward ? 2 * copies + 4 * rank.t * std::max(q(), out()) + kept(rank) : copies;
  }
  if (kernel != ops::AttentionKernel::kMath) return 0;
  // Scores, probabilities and their temporaries; in backward their gradients, too.
  const double keys = rank.length / static_cast<double>(rank.cp);
  const double scores = std::min(heads_.query * keys * keys, static_cast<double>(ops::kMostScores));
  return 4 * scores * (backward ? 5 : 3);
}

void ContextAttentionFootprint::forward(LayerWalk& walk, bool keep) const { run(walk, keep && !recomputes_); }

void ContextAttentionFootprint::run(LayerWalk& walk, bool keep) const {
  const RankSizes& rank = walk.rank();
  if (rank.cp > 1) return run_ring(walk, keep);
  walk.take(rank.t * out() * rank.bytes);
  walk.take(kept(rank));
  walk.touch(scratch(rank, false), Use::kWorkspace);
  if (!keep) walk.give(kept(rank));
}

void ContextAttentionFootprint::release_copied(LayerWalk& walk) const {
  const RankSizes& rank = walk.rank();
  if (rank.cp > 1 && !recomputes_) walk.give(rank.t * rank.bytes * (k() + v()));
}

void ContextAttentionFootprint::backward(LayerWalk& walk) const {
  const RankSizes& rank = walk.rank();
  const double b = rank.t * rank.bytes;
  if (recomputes_) run(walk, /*keep=*/true);
  if (rank.cp > 1) {
    ring_backward(walk);
    if (recomputes_) walk.give(b * (k() + v()));
  } else {
    walk.take(b * parts());
    walk.touch(scratch(rank, true), Use::kWorkspace);
    walk.give(b * parts() + kept(rank));
  }
  walk.give(b * out());  // the gradient of the result
  if (recomputes_) walk.give(b * out());
  walk.give_or_defer(b * out());  // kept as the input of the output projection
}

// Mirrors PartialAttention: sums in fp32, and up to two blocks of keys and values in transit. The head all-to-all (a2a)
// holds about as much.
void ContextAttentionFootprint::run_ring(LayerWalk& walk, bool keep) const {
  const RankSizes& rank = walk.rank();
  const double b = rank.t * rank.bytes, block = b * (k() + v()), rows = rank.t * out();
  const double blocks = block * std::min(static_cast<double>(rank.cp - 1), 2.0);
  walk.take(block);
  walk.take(4 * rows + kept(rank));
  walk.take(blocks, Use::kCommunication);
  walk.touch(b * out() + 2 * kept(rank) + 4 * rows * (rank.bytes == 4 ? 1 : 2) + scratch(rank, false), Use::kWorkspace);
  walk.give(blocks, Use::kCommunication);
  if (rank.bytes != 4) {  // the fp32 sum is converted to the dtype of q
    walk.take(b * out());
    walk.give(4 * rows);
  }
  if (!keep) walk.give(block + kept(rank));
}

// Two gradients of blocks travel (one being added to, one arriving), besides this rank's share; all fp32.
void ContextAttentionFootprint::ring_backward(LayerWalk& walk) const {
  const RankSizes& rank = walk.rank();
  const double b = rank.t * rank.bytes, block = b * (k() + v()), grads = 4 * rank.t * (k() + v());
  const double travelling = 2 * grads + block * std::min(static_cast<double>(rank.cp - 1), 2.0);
  walk.take(4 * rank.t * q());
  walk.take(travelling + grads, Use::kCommunication);
  walk.touch(b * parts() + scratch(rank, true), Use::kWorkspace);
  walk.give(travelling + grads, Use::kCommunication);
  walk.take(b * parts());
  walk.give(4 * rank.t * q());
  walk.give(b * q() + block + kept(rank));
}

void ContextAttentionFootprint::work(WorkMeter& meter) const {
  meter.core_attention({.q = q(), .kv = k() + v(), .out = out(), .heads = heads_.query, .window = heads_.window});
}

}  // namespace megalith::nn
