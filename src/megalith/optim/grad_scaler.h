// Loss scaling for fp16: the loss is multiplied by a scale before backward, gradients by its inverse before the update.
//
// The scale lives on the host. Whether a step overflowed is known on the device first; the optimizer reads it back and
// passes it to update(). bf16 and fp32 runs use a constant scale of 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megalith::optim {

// Parameters of a dynamic scale, named as in Megatron's DynamicGradScaler. They are used as float32, as is the scale.
struct GradScalerParams {
  double initial_scale = 4294967296.0;  // initial_loss_scale
  double min_scale = 1.0;               // min_loss_scale
  double growth_factor = 2.0;           // > 1
  double backoff_factor = 0.5;          // in (0, 1)
  int64_t growth_interval = 1000;       // loss_scale_window: clean steps before the scale grows
  int64_t hysteresis = 2;               // overflows before the scale shrinks
  bool operator==(const GradScalerParams&) const = default;
};

// The part of a scaler that changes; checkpoints store it.
struct GradScalerState {
  float scale = 1;
  int64_t growth_tracker = 0;      // clean steps since the last overflow or growth
  int64_t hysteresis_tracker = 0;  // overflows left before the scale shrinks; may fall below 0
  bool operator==(const GradScalerState&) const = default;
};

// Writes one JSON object with Megatron's keys scale, growth_tracker, hysteresis_tracker.
std::string to_json_text(const GradScalerState& state);
// Reads it back. Throws a DataError that names `origin` (the file) and the key.
GradScalerState parse_grad_scaler_state(std::string_view json_text, const std::string& origin);

// A constant scale, or a dynamic one that changes after each step:
//   overflow: the growth tracker is reset to 0 and the hysteresis tracker falls by 1; while it is 0 or less, the scale
//             is multiplied by backoff_factor, down to min_scale
//   clean:    the growth tracker rises by 1; at growth_interval it is reset to 0, the scale is multiplied by
//             growth_factor and the hysteresis tracker is restored (only then)
// As in Megatron, the scale may grow to infinity. No later overflow brings it back, so the training loop should stop
// when is_finite() is false.
class GradScaler {
 public:
  // Throws a ConfigError for a scale that is not a positive finite float32.
  static GradScaler constant(double scale);
  // Throws a ConfigError that lists every problem of the parameters.
  static GradScaler dynamic(const GradScalerParams& params);

  // Whether update() may change the scale.
  bool is_dynamic() const { return params_.has_value(); }
  float scale() const { return state_.scale; }
  // Returns 1 / scale, the factor that undoes the scaling, and whether the scale is still usable.
  float inverse_scale() const;
  bool is_finite() const;

  // Call after every step. `found_inf` says whether a gradient overflowed. Has no effect on a constant scale.
  void update(bool found_inf);

  const GradScalerState& state() const { return state_; }
  // Restores a saved state. Throws a DataError for values that no scaler can have. A constant scale ignores it.
  void load(const GradScalerState& state);

 private:
  explicit GradScaler(GradScalerState state) : state_(state) {}

  std::optional<GradScalerParams> params_;  // std::nullopt for a constant scale
  GradScalerState state_;
};

}  // namespace megalith::optim
