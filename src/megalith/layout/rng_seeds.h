// Formulas for the seeds of a rank's random streams.
#pragma once

#include <cstdint>
#include <optional>

#include "megalith/layout/rank_grid.h"

namespace megalith::layout {

// One seed per stream. Ranks of a tp group share `default_stream` and differ in `model_parallel`; replicas of a
// parameter share both (unless data_parallel_random_init).
struct RngSeeds {
  int64_t cpu = 0;              // host generators
  int64_t default_stream = 0;   // the device generator outside any named stream
  int64_t data_parallel = 0;    // "data-parallel-rng"
  int64_t model_parallel = 0;   // "model-parallel-rng": differs between tp ranks
  int64_t expert_parallel = 0;  // "expert-parallel-rng": differs between ep and etp ranks
  bool operator==(const RngSeeds&) const = default;
};

// Returns the seeds for base seed S on a rank: S, S, S + 2718 + tp_rank, S + 1024 + 100*ep_rank + etp_rank. The sign of
// S is not checked. Throws ConfigError if two named streams would share one seed and so draw the same numbers.
RngSeeds seeds_for_base(int64_t base_seed, int tp_rank, int ep_rank, int etp_rank);

// Returns the seed. Throws ConfigError unless it is given and positive.
int64_t checked_seed(std::optional<int64_t> seed);

// Seeds of the adapter entry point: S = seed, the same on all ranks (data loading relies on it).
RngSeeds adapter_seeds(std::optional<int64_t> seed, const RankGrid& grid, int rank);

// Seeds of the Megatron-LM entry point: S = seed + 100*pp_rank, plus 10*dp_rank (dp without cp) with
// data_parallel_random_init.
RngSeeds launcher_seeds(std::optional<int64_t> seed, bool data_parallel_random_init, const RankGrid& grid, int rank);

}  // namespace megalith::layout
