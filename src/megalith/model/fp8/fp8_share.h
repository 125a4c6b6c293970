// The share of a model's FLOPs that is multiplied in fp8, and the products that stay in bf16: for the summary of a run,
// so that nobody has to guess what `fp8` covers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megalith/layout/grid_shape.h"
#include "megalith/model/families/model_config.h"
#include "megalith/model/model_options.h"

namespace megalith::model {

// Shares of the FLOPs of one step; all of them add up to 1.
struct Fp8Share {
  // Products that stay in bf16 for one reason.
  struct Rest {
    std::string what;  // "head", "layers.*.mlp.down.weight"
    std::string why;   // a clause
    double share = 0;
    bool operator==(const Rest&) const = default;
  };
  double in_fp8 = 0;
  std::vector<Rest> rest;  // the largest share first
};

// Counts the products of a step as layout::model_flops does: forward, both gradients, causal attention over sequences
// of `length` tokens, no recomputation. It counts the products that run: a frozen weight has no gradient, and those of
// adapters and routers are included. `options.fp8` must be set. Builds one rank's model without memory.
Fp8Share fp8_share(const ModelConfig& config, const ModelOptions& options, const layout::GridShape& grid,
                   int64_t length);

// Returns "9.1 % head: its rounding errors would go straight into the loss".
std::string text_of(const Fp8Share::Rest& rest);
// Returns "71.2 %", or "< 0.1 %" for a share that would read 0.0 % without being 0.
std::string percent_text(double share);

}  // namespace megalith::model
