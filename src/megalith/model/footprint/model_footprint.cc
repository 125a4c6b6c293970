// Parameters: the layers record theirs (nn/footprint/footprint_scope.h); embedding, final norm, head and multi-token
// prediction are listed here in the order of gpt_model.cc and mtp_layer.cc.
#include "megalith/model/footprint/model_footprint.h"

#include <algorithm>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/layout/vocab_split.h"
#include "megalith/model/block_shapes_internal.h"
#include "megalith/model/families/family.h"
#include "megalith/nn/audio/audio_tower.h"
#include "megalith/peft/adapter_sizes.h"
#include "megalith/peft/names.h"
#include "megalith/peft/targets.h"

namespace megalith::model {

namespace {

// Weights first, then their low-rank updates: GptModel creates them in this order, part by part.
void append(std::vector<nn::ParameterSize>& list, const nn::ParameterSizes& more) {
  list.insert(list.end(), more.weights.begin(), more.weights.end());
  list.insert(list.end(), more.updates.begin(), more.updates.end());
}

// The parts of the tower that a run does not train. Adapters are on the language model.
nn::FrozenVision frozen_vision(const ModelOptions& options) {
  const bool all = options.adapter.has_value();
  return {.tower = all || options.freeze.vision_tower, .merger = all || options.freeze.projector};
}

// Whether a run trains this weight of the language model, which has no low-rank update.
bool trains_whole(const ModelConfig& config, const ModelOptions& options, const char* weight) {
  if (options.freeze.language_model) return false;
  return !options.adapter || peft::is_saved(peft::module_of(module_names(config), weight), *options.adapter);
}

}  // namespace

ModelFootprint::ModelFootprint(const ModelConfig& config, const ModelOptions& options, const nn::RankSizes& rank)
    : config_(config),
      options_(options),
      rank_(rank),
      vocab_rows_(layout::padded_vocab_size(config.vocab_size, options.vocab_multiple, static_cast<int>(rank.tp)) /
                  rank.tp),
      trains_embedding_(trains_whole(config, options, "embedding.weight")),
      trains_head_(config.tied_embeddings ? trains_embedding_ : trains_whole(config, options, "head.weight")),
      trains_final_bias_(options.adapter &&
                         peft::trains_bias(module_names(config), "final_norm.bias", *options.adapter)),
      final_norm_(norm_shape(config)),
      head_(rank.h, static_cast<double>(vocab_rows_)) {
  const Family* family = find_family(config);
  check<ConfigError>(!family || !family->head,
                     "{} models cannot be planned: their family defines its own head, whose memory and work are not"
                     " known",
                     config.family);
  if (config.vision)
    vision_.emplace(rank_, *config.vision, frozen_vision(options),
                    options.recompute.layers != RecomputePlan::Layers::kNone);
  std::optional<peft::AdapterSizes> updates;
  if (options.adapter) updates.emplace(*options.adapter, module_names(config));
  // One scope per layer, so that parameters() can give any range of layers without walking them again.
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    nn::ParameterSizes parameters;
    const nn::FootprintScope root(rank_, updates ? &*updates : nullptr, parameters);
    TransformerBlockFootprint block(root.child("layers").child(std::to_string(layer)), config, options, layer);
    if (!uses_fp8(config, options, layer))
      for (nn::ParameterSize& p : parameters.weights) p.in_fp8 = false;
    layers_.push_back({std::move(parameters), std::move(block)});
  }
}

std::vector<nn::ParameterSize> ModelFootprint::parameters(const layout::Stage& stage) const {
  const int64_t h = config_.hidden_size, table = vocab_rows_ * h;
  const bool copied = config_.tied_embeddings || config_.mtp_layers > 0;  // the last stage holds a copy
  std::vector<nn::ParameterSize> list;
  nn::ParameterSizes own;
  const nn::FootprintScope scope(rank_, nullptr, own);
  // Adapters sit on layers only, so the parameters listed here need no updates.
  const auto flush = [&] {
    for (nn::ParameterSize& p : own.weights) p.trained &= !options_.adapter && !options_.freeze.language_model;
    append(list, std::exchange(own, {}));
  };
  const auto add_table = [&](bool own_bucket, bool trained) {
    flush();
    list.push_back({.numel = table, .own_bucket = own_bucket, .trained = trained});
  };
  const auto append_layer = [&](size_t layer) {
    const size_t first = list.size();
    append(list, layers_[layer].parameters);
    if (!options_.freeze.language_model) return;
    for (size_t i = first; i < list.size(); ++i) list[i].trained = false;
  };
  const auto add_norm = [&] { nn::NormFootprint(scope, norm_shape(config_)); };
  if (stage.has_embedding()) {
    if (config_.vision) {
      nn::add_parameters(scope.child("vision"), *config_.vision, frozen_vision(options_));
      append(list, std::exchange(own, {}));
    }
    if (config_.audio) {
      nn::add_parameters(scope.child("audio"), *config_.audio);
      // The last two products, each with a bias, are the projector.
      const size_t tower = own.weights.size() - 4;
      for (size_t i = 0; i < own.weights.size(); ++i)
        own.weights[i].trained = !(i < tower ? options_.freeze.vision_tower : options_.freeze.projector);
      append(list, std::exchange(own, {}));
    }
    add_table(copied && !stage.has_loss(), trains_embedding_);
    if (config_.learned_positions) scope.add(config_.max_positions * h);
  }
  flush();
  for (const int layer : stage.layers()) append_layer(static_cast<size_t>(layer));
  if (stage.has_loss()) {
    add_norm();
    flush();
    list.back().trained |= trains_final_bias_;
    // The copy's gradient is summed with the first stage's, so it gets a bucket of its own.
    if (!stage.has_embedding() && (config_.tied_embeddings || !stage.mtp_layers.empty()))
      add_table(/*own_bucket=*/true, trains_embedding_);
    if (!config_.tied_embeddings) add_table(/*own_bucket=*/false, trains_head_);
    for (size_t depth = 0; depth < stage.mtp_layers.size(); ++depth) {
      add_norm();
      add_norm();
      nn::ReplicatedFootprint(scope, 2 * h, {{"projection", h}}, false);
      flush();
      append_layer(layers_.size() - 1);  // the block is of the kind of the last layer
      add_norm();
    }
    flush();
  }
  return list;
}

bool ModelFootprint::counts_updates() const {
  // An adapter may be on a tower that is not frozen.
  return config_.mtp_layers == 0 && !config_.audio &&
         (!config_.vision || (options_.freeze.vision_tower && options_.freeze.projector)) &&
         std::ranges::all_of(layers_, [](const Layer& layer) {
           return layer.block.attention().part->counts_updates() && layer.block.feed_forward().part->counts_updates();
         });
}

}  // namespace megalith::model
