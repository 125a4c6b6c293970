// ModelSettings: what a run decides about a model, in contrast to what the model is (ModelConfig, from its files).
//
//   ModelSettings settings;                                  // fp32 on the CPU, as the files describe it
//   settings.options.dtype = at::kBFloat16;
//   settings.overrides.hidden_dropout = 0.1;
//   auto models = AutoModel::from_pretrained(folder, settings, context);
//
// run::model_settings derives them from the options of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "megalith/layout/layer_split.h"
#include "megalith/model/families/model_config.h"
#include "megalith/model/families/scores.h"
#include "megalith/model/model_options.h"
#include "megalith/nn/moe/moe_shape.h"

namespace megalith::model {

// The changes that a run makes to the routers of a model with experts. nullopt means the value in the files. The
// experts themselves, and how they are scored, belong to the model.
struct RouterOverrides {
  // A balancing loss and its weight.
  struct Loss {
    nn::BalanceLoss::Kind kind = nn::BalanceLoss::Kind::kBatch;
    std::optional<double> coeff;  // nullopt = that of the first loss in the files, or 0, which disables it
  };
  std::optional<std::vector<Loss>> losses;  // replace those of the files
  bool sinkhorn = false;                    // choose by balanced logits, even if the files do not say so
  std::optional<double> z_coeff;            // weight of the penalty on large logits
  std::optional<double> jitter;             // relative noise on the router's input
  std::optional<double> bias_update_rate;   // step of the balancing bias on the choice
  std::optional<at::ScalarType> dtype;      // type of the router's matrix product

  // These are not in any file; see nn::RouterShape.
  bool per_token_loss = false;
  // An expert takes at most ⌈T k/E · capacity_factor⌉ tokens of a rank; others are dropped, by weight or position.
  std::optional<double> capacity_factor;  // nullopt = an expert takes all tokens that choose it
  bool pad_to_capacity = false;
  bool drop_by_position = false;
  bool replay = false;
};

// The changes that a run makes to the configuration of a model's files. nullopt keeps the value of the files.
struct ModelOverrides {
  std::optional<double> hidden_dropout;  // also for the embedding
  std::optional<double> attention_dropout;
  std::optional<double> init_std;     // standard deviation of initial weights
  std::optional<int64_t> mtp_layers;  // multi-token-prediction layers; those missing in the files get initial weights
  double mtp_loss_factor = 0.1;       // weight of their mean loss; not in any file
  // Rows of embedding and head to which the vocabulary grows; one that is as large already stays as it is.
  std::optional<int64_t> vocab_size;
  RouterOverrides router;  // for models with experts
  // The head becomes one that scores sequences; nullopt = as in the files.
  std::optional<ScoreOverride> scores;
  TowerChoice towers{};  // the towers that are kept of a model that sees or hears

  // Returns the configuration of the files with these changes; idempotent. Throws ConfigError for
  // multi-token-prediction layers in a family that has none, and with every problem of the result.
  ModelConfig applied_to(ModelConfig in_files) const;
};

// All decisions of a run about its model.
struct ModelSettings {
  ModelOptions options;         // how the model is stored and executed; its device is that of the ParallelContext
  ModelOverrides overrides;     // changes to its configuration
  layout::SplitRequest stages;  // how its layers are split over pipeline stages; see chunk_places
  uint64_t seed = 42;           // seed of all weights that do not come from files
  // Tokens, by ascending ids, whose rows are new even where the files of a model folder have some: load_weights.
  std::vector<int64_t> new_tokens{};
};

}  // namespace megalith::model
