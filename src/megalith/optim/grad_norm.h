// The global gradient norm: counts every gradient of the model once, however it is sharded or replicated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megalith/optim/optimizer_state.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::optim {

// Statistics of all gradients of a step, still multiplied by the loss scale.
struct GradStats {
  double squares = 0;       // sum of the squared gradients
  double norm = 0;          // square root of `squares`
  bool non_finite = false;  // some gradient is NaN or infinite; `squares` and `norm` are then NaN
  int64_t zeros = 0;        // elements that are exactly zero; counted only on request
};

// Whether this rank counts the dense parameters that it holds (or, with `expert`, its experts) in a sum over the world
// in which each element of the model counts once. Copies within a replica are told apart by StatePiece::counted.
// `sharded` says that ranks own shards of the buffers (ZeRO-1).
bool counts_in_model(bool expert, bool sharded, const parallel::ParallelContext& context);

// Returns this rank's share of the statistics as fp64 numbers on the device of the run. The shares of all ranks, added
// up elementwise (one all-reduce over the world, together with whatever else has to travel), are the argument of the
// two functions below. Does not wait for a device. Zeros are 0 unless `count_zeros`.
at::Tensor norm_terms(const std::vector<StateBlock>& blocks, bool sharded, bool count_zeros,
                      const parallel::ParallelContext& context);
// Returns the sum of squares from added-up terms, one fp64 number on their device, NaN or infinite if a gradient is.
// Does not wait for a device.
at::Tensor squares_of(const at::Tensor& terms);
// Returns the statistics from added-up terms in the host's memory.
GradStats stats_of(std::span<const double> terms);

// Does all of this at once: collective over the world. The result is identical bit for bit on all ranks, and on the CPU
// also for every way to cut the buffers into shards.
GradStats gradient_stats(const std::vector<StateBlock>& blocks, bool sharded, bool count_zeros,
                         const parallel::ParallelContext& context);

// Returns the L2 norm of the parameters, each counted once, taken from the fp32 main parameters. Collective as above.
double parameter_norm(const std::vector<StateBlock>& blocks, bool sharded, const parallel::ParallelContext& context);

}  // namespace megalith::optim
