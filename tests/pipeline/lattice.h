// Layouts for parity tests: each comes with other options, so that few cases meet all of them.
#pragma once

#include <vector>

#include "tests/pipeline/pipeline_case.h"

namespace megalith::testing {

// A small model with 8 layers; `variant` picks family, tied embeddings and the rest.
ReferenceConfig small_config(int variant);
inline constexpr int kSmallConfigs = 3;

// A case, its model and its data.
struct LatticePoint {
  int variant = 0;  // variant of the model
  int microbatches = 1;
  bool unequal = false;  // micro-batches of unequal lengths
  PipelineCase how;
  std::string name() const;
  std::vector<Lengths> data() const;
};

// pp × schedule × tp × dp × micro-batch counts from `counts` that the schedule takes.
std::vector<LatticePoint> lattice(const std::vector<int>& pp, const std::vector<int>& tp, const std::vector<int>& dp,
                                  const std::vector<int>& counts);

// Runs all of them against the reference model; fails with the name of a point that differs.
void expect_parity(const std::vector<LatticePoint>& points);

// Runs `count` random small configurations (layers, stages, chunks, micro-batches, lengths, options), by seed.
void expect_random_parity(uint64_t first_seed, int count);

}  // namespace megalith::testing
