// ModelSettings: what a run decides about a model, beside what the model is (ModelConfig, from its files).
//
//   ModelSettings settings;                                  // fp32 on the CPU, as the files describe it
//   settings.options.dtype = at::kBFloat16;
//   settings.overrides.hidden_dropout = 0.1;
//   auto models = AutoModel::from_pretrained(folder, settings, context);
//
// run::model_settings makes them from the options of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "megalith/layout/layer_split.h"
#include "megalith/model/families/model_config.h"
#include "megalith/model/model_options.h"
#include "megalith/nn/moe/moe_shape.h"

namespace megalith::model {

// What a run changes in the routers of a model with experts. The experts and how they are chosen are the model's own.
struct RouterOverrides {
  struct Loss {
    nn::BalanceLoss::Kind kind = nn::BalanceLoss::Kind::kBatch;
    std::optional<double> coeff;  // absent: that of the first loss in the files, or 0, which is no loss
  };
  std::optional<std::vector<Loss>> losses;  // these in place of the files'; absent: the files' own
  bool sinkhorn = false;                    // choose by balanced logits, also where the files do not say so
  std::optional<double> z_coeff;            // of the penalty on large logits; absent: as in the files
  std::optional<double> jitter;             // of the input; absent: as in the files
  std::optional<double> bias_update_rate;   // of the bias on the choice; absent: as in the files
  std::optional<at::ScalarType> dtype;      // of the router's product; absent: as in the files

  // No file speaks of these; see nn::RouterShape.
  bool per_token_loss = false;
  std::optional<double> capacity_factor;  // absent: an expert takes all tokens that choose it
  bool pad_to_capacity = false;
  bool drop_by_position = false;
  bool replay = false;
};

// What a run changes in the configuration that a model's files hold. What is absent stays as it is there.
struct ModelOverrides {
  std::optional<double> hidden_dropout;  // also of the embedding
  std::optional<double> attention_dropout;
  std::optional<double> init_std;     // of fresh weights
  std::optional<int64_t> mtp_layers;  // multi-token-prediction layers; those that the files lack start afresh
  double mtp_loss_factor = 0.1;       // weight of their mean loss; no file speaks of it
  RouterOverrides router;             // acts on models with experts

  // The configuration of the files with these changes; applying them twice is applying them once. Throws ConfigError
  // for multi-token-prediction layers in a family that has none, and with every problem of the result.
  ModelConfig applied_to(ModelConfig in_files) const;
};

struct ModelSettings {
  ModelOptions options;         // how the model is held and run; its device is that of the ParallelContext
  ModelOverrides overrides;     // what changes in its configuration
  layout::SplitRequest stages;  // how its layers are split over pipeline stages; see chunk_places
  uint64_t seed = 42;           // of all weights that come from no file
};

}  // namespace megalith::model
