// run() mirrors ops::attention on one rank, run_ring() and ring_backward() ring_attention.cc with partial_attention.cc.
// The kernels keep q, k, v, the result and one float per query and head; q, k and v belong to the caller.
#include "megalith/nn/context_parallel/context_attention_footprint.h"

#include <algorithm>

namespace megalith::nn {

// Scratch of one thread of the CPU kernel (ops/attention/attention_flash_cpu.cc): keys and values of a sequence in fp32
// and, in backward, their gradients. Its blocks are 64 queries by 64 keys.
double ContextAttentionFootprint::scratch(const RankSizes& rank, bool backward) const {
  if (rank.machinery.cuda) return 0;
  const double keys = rank.length / static_cast<double>(rank.cp), dims = heads_.key_dim + heads_.value_dim;
  const double blocks = 64 * (backward ? 3 : 2) * dims + 3 * 64 * 64;
  return 4 * (keys * dims * (backward ? 2 : 1) + blocks);
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
