// Parameters: the layers record theirs (nn/footprint/footprint_scope.h); embedding, final norm, head and multi-token
// prediction are listed here in the order of gpt_model.cc and mtp_layer.cc.
#include "megalith/model/footprint/model_footprint.h"

#include <algorithm>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/layout/vocab_split.h"
#include "megalith/model/block_shapes_internal.h"
#include "megalith/model/families/family.h"
#include "megalith/model/families/scores.h"
#include "megalith/nn/audio/audio_footprint.h"
#include "megalith/nn/vision/vision_footprint.h"
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

// Marks the parameters from `first` on, a norm that is trained as a whole beside updates.
void mark_trained(std::vector<nn::ParameterSize>& list, size_t first) {
  for (size_t i = first; i < list.size(); ++i) list[i].trained = true;
}

// Returns which parts of towers a run trains. `updates` is nullptr without adapters.
nn::TowerTraining tower_training(const ModelOptions& options, const nn::UpdateSizes* updates) {
  return {.tower = !options.freeze.vision_tower,
          .merger = !options.freeze.projector,
          .updates = updates,
          .recompute = options.recompute.layers != RecomputePlan::Layers::kNone};
}

// Whether a run trains this weight of the language model, which has no low-rank update.
bool trains_whole(const ModelConfig& config, const ModelOptions& options, const std::optional<TrainedLayers>& choice,
                  const char* weight) {
  if (options.freeze.language_model) return false;
  if (choice) return choice->trains(weight);
  return !options.adapter || peft::is_saved(peft::module_of(module_names(config), weight), *options.adapter);
}

nn::RankSizes frozen(nn::RankSizes rank) {
  rank.frozen = true;
  return rank;
}

std::optional<TrainedLayers> choice_of(const ModelConfig& config, const ModelOptions& options) {
  if (!options.trained_layers) return std::nullopt;
  return TrainedLayers(*options.trained_layers, config);
}

}  // namespace

ModelFootprint::ModelFootprint(const ModelConfig& config, const ModelOptions& options, const nn::RankSizes& rank)
    : config_(config),
      options_(options),
      rank_(rank),
      frozen_rank_(frozen(rank)),
      choice_(choice_of(config, options)),
      vocab_rows_(layout::padded_vocab_size(config.vocab_size, options.vocab_multiple, static_cast<int>(rank.tp)) /
                  rank.tp),
      trains_embedding_(trains_whole(config, options, choice_, "embedding.weight")),
      trains_head_(config.tied_embeddings
                       ? trains_embedding_
                       : trains_whole(config, options, choice_, config.num_labels > 0 ? kScoreWeight : "head.weight")),
      trains_final_bias_(options.adapter && !options.freeze.language_model &&
                         peft::trains_bias(module_names(config), "final_norm.bias", *options.adapter)),
      final_norm_(norm_shape(config)),
      head_(rank.h, static_cast<double>(config.num_labels > 0 ? config.num_labels : vocab_rows_)) {
  const Family* family = find_family(config);
  check<ConfigError>(!family || !family->head,
                     "{} models cannot be planned: their family defines its own head, whose memory and work are not"
                     " known",
                     config.family);
  if (options.adapter) updates_ = std::make_unique<peft::AdapterSizes>(*options.adapter, module_names(config));
  const nn::UpdateSizes* const updates = updates_.get();
  const nn::TowerTraining training = tower_training(options, updates);
  if (config.vision) towers_.push_back(std::make_unique<nn::VisionFootprint>(rank_, *config.vision, training));
  if (config.audio) towers_.push_back(std::make_unique<nn::AudioFootprint>(rank_, *config.audio, training));
  // One scope per layer, so that parameters() can give any range of layers without walking them again.
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    nn::ParameterSizes parameters;
    // "layers.3.mlp.experts." -> "mlp"
    const nn::FootprintScope::Trains trains = [&](std::string_view scope) {
      const size_t part = std::string_view("layers.").size() + std::to_string(layer).size() + 1;
      return choice_->trains_part(layer, scope.substr(part, scope.find('.', part) - part));
    };
    const nn::FootprintScope root(trains_layer(layer) ? rank_ : frozen_rank_,
                                  options.freeze.language_model ? nullptr : updates, parameters,
                                  choice_ ? &trains : nullptr);
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
  // Multi-token prediction alone may have updates among the parameters listed here.
  const auto flush = [&](bool trained = true) {
    for (nn::ParameterSize& p : own.weights)
      p.trained &= trained && !options_.adapter && !options_.freeze.language_model;
    append(list, std::exchange(own, {}));
  };
  // Whether weights outside of layers are chosen; multi-token prediction never is.
  const auto chosen = [&](const char* weight) { return !choice_ || choice_->trains(weight); };
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
  // Multi-token prediction has updates like layers do.
  const nn::FootprintScope mtp_scope(rank_, updates_.get(), own);
  const auto flush_mtp = [&] {
    if (!updates_) return flush(!choice_);
    append(list, std::exchange(own, {}));
  };
  const auto add_norm = [&] { nn::NormFootprint(scope, norm_shape(config_)); };
  if (stage.has_embedding()) {
    for (const auto& tower : towers_) append(list, {.weights = tower->parts().parameters().weights, .updates = {}});
    add_table(copied && !stage.has_loss(), trains_embedding_);
    if (config_.learned_positions) scope.add(config_.max_positions * h);
    flush(chosen("position_embedding.weight"));
    for (const auto& tower : towers_) append(list, {.weights = {}, .updates = tower->parts().parameters().updates});
  }
  for (const int layer : stage.layers()) append_layer(static_cast<size_t>(layer));
  if (stage.has_loss()) {
    const size_t before = list.size();
    add_norm();
    flush(chosen("final_norm.weight"));
    list.back().trained |= trains_final_bias_;
    if (options_.adapter && trains_whole(config_, options_, choice_, "final_norm.weight")) mark_trained(list, before);
    // The copy's gradient is summed with the first stage's, so it gets a bucket of its own.
    if (!stage.has_embedding() && (config_.tied_embeddings || !stage.mtp_layers.empty()))
      add_table(/*own_bucket=*/true, trains_embedding_);
    if (config_.num_labels > 0) {
      flush();
      list.push_back({.numel = config_.num_labels * h, .trained = trains_head_});
    } else if (!config_.tied_embeddings) {
      add_table(/*own_bucket=*/false, trains_head_);
    }
    for (size_t depth = 0; depth < stage.mtp_layers.size(); ++depth) {
      const nn::FootprintScope mtp = mtp_scope.child("mtp").child(std::to_string(depth));
      nn::NormFootprint(mtp.child("embedding_norm"), norm_shape(config_));
      nn::NormFootprint(mtp.child("hidden_norm"), norm_shape(config_));
      nn::ReplicatedFootprint(mtp, 2 * h, {{"projection", h}}, false);
      flush_mtp();
      const size_t first = list.size();
      append_layer(layers_.size() - 1);  // the block is of the kind of the last layer
      if (options_.adapter && !options_.adapter->on_mtp)
        std::erase_if(list, [&](const nn::ParameterSize& p) { return &p >= &list[first] && p.adapter; });
      for (size_t i = first; i < list.size(); ++i) {
        list[i].quantized_rows = 0;
        if (choice_) list[i].trained = false;
      }
      nn::NormFootprint(mtp.child("norm"), norm_shape(config_));
      flush_mtp();
    }
  }
  return list;
}

bool ModelFootprint::trains_below() const {
  return trains_embedding_ || std::ranges::any_of(towers_, [](const auto& tower) {
           return tower->parts().runs() && tower->parts().trains();
         });
}

bool ModelFootprint::counts_updates() const {
  return std::ranges::all_of(layers_, [](const Layer& layer) {
    return layer.block.attention().part->counts_updates() && layer.block.feed_forward().part->counts_updates();
  });
}

}  // namespace megalith::model
