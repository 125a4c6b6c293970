// PartKind: the description and factory of one part of a transformer layer. The library's kinds of attention and
// feed-forward (block_parts.h) are PartKinds, and a family, in a program or in the library, may add more
// (Family::attention, Family::feed_forward):
//
//   PartKind ─┬─ make ──────► nn::BlockPart      on every rank that holds the layer
//             ├─ footprint ─► nn::PartFootprint  for the planner, without ranks
//             └─ facts, …                        what the rest of a run must know about it
//
// A part declares its parameters through its ParameterScope: their names, and the rectangle of each that a rank holds.
// Optimizers, checkpoints, imports, exports and initial weights need nothing else. A part that multiplies with the
// linear layers of nn/tensor_parallel also gets fp8, LoRA and deferred weight gradients.
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

// The surroundings of a part.
struct PartSite {
  const ModelOptions& options;
  parallel::ParallelContext& context;  // outlives the part
  int64_t layer = 0;                   // over the whole model
  int64_t cache_layer = 0;             // its index in a KvCache
  nn::TensorParallel tp;               // how weights and tokens are split; with fp8 if the layer uses it
  nn::ContextParallel cp;              // the ranks that hold the other tokens of its sequences
};

// Properties of a part that a run must know. The defaults are for a part about which nothing is known: they refuse.
struct PartFacts {
  // Forward draws from the streams of parallel::RngTracker in training: recomputation must reset them.
  bool random = true;
  // Forward supports LayerInput::cache, which generation needs.
  bool cached = false;
  // Why its sequences cannot be sliced over context-parallel ranks, as a clause; empty if they can.
  std::string whole_sequences = "a part of the model's layers does not say that it can work on slices of them";
  // Why a CUDA graph cannot hold its forward and backward, as a clause; empty if it can. (Dropout of the model's own
  // configuration is handled separately.)
  std::string host_work = "a part of the model's layers does not say that the device can run it alone";
  // Multiplications per token, as FLOPs are counted (layout/flops/model_flops.h), if the part's work per token does not
  // grow with the sequence. nullopt counts it like the library's part of the same ModelConfig.
  std::optional<double> multiplications;
};

// Immutable. Created for one layer of one model, and discarded once the part or its footprint exists.
class PartKind {
 public:
  virtual ~PartKind() = default;

  // Allocates the parameters in `scope`. Throws ConfigError for sizes that the ranks do not divide.
  virtual std::unique_ptr<nn::BlockPart> make(const nn::ParameterScope& scope, const PartSite& site) const = 0;

  virtual PartFacts facts() const { return {}; }

  // Whether the block keeps only the part's input and repeats the part in backward. A part that recomputes only some of
  // its activations does so internally.
  virtual bool repeated(const RecomputePlan& /*plan*/) const { return false; }

  // Returns every reason why it cannot be split over so many tensor-parallel ranks, each with the allowed values; empty
  // if it can.
  virtual std::vector<std::string> tensor_parallel_problems(int /*tp*/) const { return {}; }

  // Returns every reason why its heads cannot be split over so many context-parallel ranks beside `tp` tensor-parallel
  // ones, each with the allowed values; empty if they can, or if it does not split them. For parts that work on slices
  // (PartFacts::whole_sequences is empty).
  virtual std::vector<std::string> context_parallel_problems(int /*tp*/, int /*cp*/) const { return {}; }

  // Returns its memory and work on a rank. What `scope` refers to outlives the result. nullptr means unknown: the model
  // can be trained, but the planner refuses it.
  virtual std::unique_ptr<nn::PartFootprint> footprint(const nn::FootprintScope& /*scope*/,
                                                       const ModelOptions& /*options*/) const {
    return nullptr;
  }
};

}  // namespace megalith::model
