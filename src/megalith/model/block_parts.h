// The parts of a model's layers: which kind each layer has, and what all of them together allow. A kind comes from the
// model's family if that defines one; otherwise it is the first of the library's kinds that fits the ModelConfig.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megalith/model/families/model_config.h"
#include "megalith/model/part_kind.h"

namespace megalith::model {

// One of the library's kinds.
struct KnownKind {
  // Returns whether a layer is of this kind; make() is called only if so.
  bool (*fits)(const ModelConfig& config, int64_t layer);
  std::unique_ptr<PartKind> (*make)(const ModelConfig& config, int64_t layer);
};

// Kinds that mix tokens: linear attention, latent attention, self-attention. The last one fits every layer.
std::span<const KnownKind> known_attention();
// Kinds that work on each token alone: experts, MLP. The last one fits every layer.
std::span<const KnownKind> known_feed_forward();

// Return the kinds of the two parts of a layer.
std::unique_ptr<PartKind> attention_kind(const ModelConfig& config, int64_t layer);
std::unique_ptr<PartKind> feed_forward_kind(const ModelConfig& config, int64_t layer);

// Returns every reason why the model cannot be split over so many tensor-parallel ranks, each with the allowed values;
// empty if it can. Experts are checked by nn::problems.
std::vector<std::string> tensor_parallel_problems(const ModelConfig& config, int tp);
// Returns every reason why sequences cannot be split over so many context-parallel ranks beside `tp` tensor-parallel
// ones, which the model allows; empty if they can.
std::vector<std::string> context_parallel_problems(const ModelConfig& config, int tp, int cp);
// Returns why a CUDA graph cannot hold the layers, as a clause; empty if it can.
std::string capture_problem(const ModelConfig& config);

// Return the footprints of the parts of a layer. What `scope` refers to outlives them. Throw ConfigError for a part
// that does not state its footprint.
std::unique_ptr<nn::PartFootprint> attention_footprint(const nn::FootprintScope& scope, const ModelConfig& config,
                                                       const ModelOptions& options, int64_t layer);
std::unique_ptr<nn::PartFootprint> feed_forward_footprint(const nn::FootprintScope& scope, const ModelConfig& config,
                                                          const ModelOptions& options, int64_t layer);

}  // namespace megalith::model
