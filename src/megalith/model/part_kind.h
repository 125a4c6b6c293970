// PartKind: what a part of a transformer layer is before it exists. The library's kinds of attention and feed-forward
// (block_parts.h) are PartKinds, and a family may bring more of them (Family::attention, Family::feed_forward), from a
// program or in the library:
//
//   PartKind ─┬─ make ──────► nn::BlockPart      on every rank that holds the layer
//             ├─ footprint ─► nn::PartFootprint  for the planner; no rank exists
//             └─ facts, …                        what the rest of a run has to know about it
//
// The parameters of a part come from its ParameterScope: their names and the rectangle of each that a rank holds. That
// is all that optimizers, checkpoints, imports, exports and fresh weights need. A part that multiplies with the linear
// layers of nn/tensor_parallel has fp8, LoRA and deferred weight gradients as well.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/model/model_options.h"
#include "megalith/nn/block_part.h"
#include "megalith/nn/context_parallel/context_parallel.h"
#include "megalith/nn/footprint/part_footprint.h"
#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::model {

// Where a part is made.
struct PartSite {
  const ModelOptions& options;
  parallel::ParallelContext& context;  // outlives the part
  int64_t layer = 0;                   // over the whole model
  int64_t cache_layer = 0;             // its place in a KvCache
  nn::TensorParallel tp;               // how weights and tokens are split; with fp8 where the layer has it
  nn::ContextParallel cp;              // who holds the other tokens of its sequences
};

// What a run has to know about a part. The defaults are those of a part about which nothing is known: they refuse.
struct PartFacts {
  // Forward draws from the streams of parallel::RngTracker in training: recomputation has to put them back.
  bool random = true;
  // Forward takes a LayerInput::cache, which generation needs.
  bool cached = false;
  // Why its tokens cannot be sliced over context-parallel ranks, as a clause; empty when they can.
  std::string whole_sequences = "a part of the model's layers does not say that it can work on slices of them";
  // Why a CUDA graph cannot hold its forward and backward, as a clause; empty when it can. (Dropout of the model's own
  // configuration is known apart.)
  std::string host_work = "a part of the model's layers does not say that the device can run it alone";
  // Multiplications for each token, as FLOPs are counted (layout/model_flops.h), where the part's work does not grow
  // with the sequence. nullopt counts it as the library's part of the same ModelConfig.
  std::optional<double> multiplications;
};

// Immutable. Made for one layer of one model, and thrown away once the part or its footprint is there.
class PartKind {
 public:
  virtual ~PartKind() = default;

  // Allocates the parameters in `scope`. Throws ConfigError for sizes that the ranks do not divide.
  virtual std::unique_ptr<nn::BlockPart> make(const nn::ParameterScope& scope, const PartSite& site) const = 0;

  virtual PartFacts facts() const { return {}; }

  // Whether the block keeps only the part's input and runs the part again in backward. A part that recomputes less than
  // the whole of itself does so inside.
  virtual bool repeated(const RecomputePlan& /*plan*/) const { return false; }

  // Every reason why it cannot be split over so many tensor-parallel ranks, each with what can; empty when it can.
  virtual std::vector<std::string> tensor_parallel_problems(int /*tp*/) const { return {}; }

  // What it needs on a rank. What `scope` refers to outlives the result. nullptr when that is not known: the model then
  // trains, and the planner refuses it.
  virtual std::unique_ptr<nn::PartFootprint> footprint(const nn::FootprintScope& /*scope*/,
                                                       const ModelOptions& /*options*/) const {
    return nullptr;
  }
};

}  // namespace megalith::model
