// Seeds of a rank's random streams, with the reference's formulas. For base seed S:
//
//   data parallel     S                            the same on all ranks: dropout outside of split regions
//   model parallel    S + 2718 + tp                differs over tp: dropout and weights of split regions
//   expert parallel   S + 1024 + 100 ep + etp      differs over experts
//
// Megatron's launcher adds 100 pp to S (and 10 dp on request); the adapter does not.
#include "megalith/layout/rng_seeds.h"

#include <limits>

#include "megalith/base/error.h"

namespace megalith::layout {
namespace {

// Reads the coordinates of the rank from both grids.
RngSeeds seeds_of_rank(int64_t base_seed, const RankGrid& grid, int rank) {
  return seeds_for_base(base_seed, grid.dense().coordinate(rank, Axis::kTp), grid.expert().coordinate(rank, Axis::kEp),
                        grid.expert().coordinate(rank, Axis::kTp));
}

}  // namespace

RngSeeds seeds_for_base(int64_t base_seed, int tp_rank, int ep_rank, int etp_rank) {
  // The offsets of the reference, so that a rank draws the same numbers as there.
  constexpr int64_t kModelParallelOffset = 2718;
  constexpr int64_t kExpertParallelOffset = 1024;
  constexpr int64_t kExpertRankStep = 100;
  RngSeeds seeds;
  seeds.cpu = seeds.default_stream = seeds.data_parallel = base_seed;
  seeds.model_parallel = base_seed + kModelParallelOffset + tp_rank;
  seeds.expert_parallel = base_seed + kExpertParallelOffset + kExpertRankStep * ep_rank + etp_rank;
  check<ConfigError>(
      seeds.model_parallel != seeds.expert_parallel,
      "seed {} gives the model-parallel and the expert-parallel random stream the same seed {} (tp_rank "
      "{}, ep_rank {}, etp_rank {}); they would draw the same numbers. No seed changes that: choose other "
      "tp, ep or etp sizes, so that 100*ep_rank + etp_rank - tp_rank is never 1694",
      base_seed, seeds.model_parallel, tp_rank, ep_rank, etp_rank);
  return seeds;
}

// The reference rejects seeds that are not positive; the upper limit keeps S plus all offsets in range.
int64_t checked_seed(std::optional<int64_t> seed) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max() / 2;  // room for the offsets
  check<ConfigError>(seed.has_value(), "no seed was given; seed must be a positive integer, e.g. 1234");
  check<ConfigError>(*seed > 0 && *seed <= kLargest,
                     "seed is {}; it must be a positive integer (at most {}), e.g. 1234", *seed, kLargest);
  return *seed;
}

RngSeeds adapter_seeds(std::optional<int64_t> seed, const RankGrid& grid, int rank) {
  return seeds_of_rank(checked_seed(seed), grid, rank);
}

RngSeeds launcher_seeds(std::optional<int64_t> seed, bool data_parallel_random_init, const RankGrid& grid, int rank) {
  constexpr int64_t kPipelineStep = 100;
  constexpr int64_t kDataParallelStep = 10;
  int64_t base = checked_seed(seed) + kPipelineStep * grid.dense().coordinate(rank, Axis::kPp);
  if (data_parallel_random_init) base += kDataParallelStep * grid.dense().coordinate(rank, Axis::kDp);
  return seeds_of_rank(base, grid, rank);
}

}  // namespace megalith::layout
