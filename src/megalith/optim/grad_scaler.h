// Loss scaling for fp16: the loss is multiplied by a scale before backward, gradients by its inverse before the update.
//
// The scale lives on the host. Whether a step overflowed is a device flag; the optimizer hands it over when it has read
// it. bf16 and fp32 runs use a constant scale of 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megalith::optim {

// Named as Megatron's DynamicGradScaler takes them. Numbers are float32, as is the scale itself.
struct GradScalerParams {
  double initial_scale = 4294967296.0;  // initial_loss_scale
  double min_scale = 1.0;               // min_loss_scale
  double growth_factor = 2.0;           // > 1
  double backoff_factor = 0.5;          // in (0, 1)
  int64_t growth_interval = 1000;       // loss_scale_window: clean steps before the scale grows
  int64_t hysteresis = 2;               // overflows before it shrinks
  bool operator==(const GradScalerParams&) const = default;
};

struct GradScalerState {
  float scale = 1;
  int64_t growth_tracker = 0;      // clean steps since the last overflow or growth
  int64_t hysteresis_tracker = 0;  // overflows left before the scale shrinks; negative while overflows go on
  bool operator==(const GradScalerState&) const = default;
};

// One JSON object with Megatron's keys scale, growth_tracker, hysteresis_tracker.
std::string to_json_text(const GradScalerState& state);
// Throws DataError naming `origin` (the file) and the key.
GradScalerState parse_grad_scaler_state(std::string_view json_text, const std::string& origin);

// A constant scale, or a dynamic one:
//   overflow: the growth tracker starts anew and the hysteresis tracker falls by 1; at 0 and below the scale is
//             multiplied by backoff_factor, but not below min_scale
//   clean:    the growth tracker rises by 1; at growth_interval it starts anew, the scale is multiplied by
//   growth_factor
//             and the hysteresis is whole again (only then)
// The scale may grow to infinity, as in the reference; the overflow that follows does not bring it back, so whoever
// steps should stop there: see is_finite().
class GradScaler {
 public:
  // Throws ConfigError for a scale that is not a positive finite float32.
  static GradScaler constant(double scale);
  // Throws ConfigError with every problem of the parameters.
  static GradScaler dynamic(const GradScalerParams& params);

  bool is_dynamic() const { return params_.has_value(); }
  float scale() const { return state_.scale; }
  float inverse_scale() const;
  bool is_finite() const;

  // After every step; without effect on a constant scale.
  void update(bool found_inf);

  const GradScalerState& state() const { return state_; }
  // Throws DataError for values that no scaler has. A constant scale stays what it is.
  void load(const GradScalerState& state);

 private:
  explicit GradScaler(GradScalerState state) : state_(state) {}

  std::optional<GradScalerParams> params_;  // empty: constant
  GradScalerState state_;
};

}  // namespace megalith::optim
