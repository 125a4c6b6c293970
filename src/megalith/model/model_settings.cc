// Applies a run's choices to the configuration of a model's files. std::nullopt always means "as in the files"; fields
// without an optional are not in any file, so the run's value simply wins. The result is validated as if it were read.
#include "megalith/model/model_settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/model/families/family.h"

namespace megalith::model {

namespace {

// Replaces the losses of the files; those with a coefficient of 0 are dropped.
void replace_losses(nn::RouterShape& router, const std::vector<RouterOverrides::Loss>& losses) {
  const double coeff_in_files = router.losses.empty() ? 0 : router.losses[0].coeff;
  router.losses.clear();
  for (const RouterOverrides::Loss& loss : losses) {
    const double coeff = loss.coeff ? *loss.coeff : coeff_in_files;
    if (coeff != 0) router.losses.push_back({loss.kind, coeff});
  }
}

// Assigns `value` to `target` unless it is absent.
template <typename Target, typename Value>
void override_with(const std::optional<Value>& value, Target& target) {
  if (value) target = *value;
}

// The second half has no counterpart in config.json.
void apply_overrides(const RouterOverrides& overrides, nn::RouterShape& router) {
  if (overrides.losses) replace_losses(router, *overrides.losses);
  router.sinkhorn = router.sinkhorn || overrides.sinkhorn;
  override_with(overrides.z_coeff, router.z_coeff);
  override_with(overrides.jitter, router.jitter);
  override_with(overrides.bias_update_rate, router.bias_update_rate);
  override_with(overrides.dtype, router.dtype);
  router.per_token_loss = overrides.per_token_loss;
  router.capacity_factor = overrides.capacity_factor;
  router.pad_to_capacity = overrides.pad_to_capacity;
  router.drop_by_position = overrides.drop_by_position;
  router.replay = overrides.replay;
}

}  // namespace

ModelConfig ModelOverrides::applied_to(ModelConfig in_files) const {
  ModelConfig config = with_towers(std::move(in_files), towers);
  if (scores) config = with_scores(std::move(config), *scores);
  override_with(hidden_dropout, config.hidden_dropout);
  // Megatron's hidden_dropout also acts on the embedding, so one option sets both.
  override_with(hidden_dropout, config.embedding_dropout);
  override_with(attention_dropout, config.attention_dropout);
  override_with(init_std, config.init_std);
  override_with(mtp_layers, config.mtp_layers);
  config.mtp_loss_factor = mtp_loss_factor;
  config.vocab_size = std::max(config.vocab_size, vocab_size.value_or(0));
  if (config.moe) apply_overrides(router, config.moe->router);
  check<ConfigError>(config.mtp_layers == 0 || family_of(config).add_mtp_names != nullptr,
                     "mtp_num_layers is {}, but {} models have no multi-token-prediction layers; leave it out, or train"
                     " a deepseek_v3, glm4_moe, qwen3_next or qwen3_5 model",
                     config.mtp_layers, config.family);
  check<ConfigError>(config.mtp_layers == 0 || config.num_labels == 0,
                     "mtp_num_layers is {}, but a model that scores sequences predicts no tokens; leave it out",
                     config.mtp_layers);
  const auto found = problems(config);
  check<ConfigError>(found.empty(), "{}", fmt::join(found, "; "));
  return config;
}

}  // namespace megalith::model
