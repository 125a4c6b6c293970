// A host-side state machine of three numbers. The arithmetic is Megatron's to the last bit: the scale is a float32 and
// is multiplied in float32, so that a run that continues a Megatron checkpoint takes the same steps.
#include "megalith/optim/grad_scaler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/io/json_text.h"

namespace megalith::optim {
namespace {

using io::Json;

constexpr int64_t kMostSteps = int64_t{1} << 53;  // bound on counters read from files: increments cannot overflow

// Whether the value is positive and finite after rounding to float32.
bool is_positive_float(double value) {
  return std::isfinite(static_cast<float>(value)) && static_cast<float>(value) > 0;
}

// All problems at once, under the names of the options.
std::vector<std::string> problems(const GradScalerParams& params) {
  std::vector<std::string> out;
  const auto require = [&out](bool holds, std::string problem) {
    if (!holds) out.push_back(std::move(problem));
  };
  const bool initial = is_positive_float(params.initial_scale);
  const bool least = is_positive_float(params.min_scale);
  require(initial, fmt::format("initial_loss_scale is {}; it must be a positive float32", params.initial_scale));
  require(least, fmt::format("min_loss_scale is {}; it must be a positive float32", params.min_scale));
  require(!initial || !least || params.min_scale <= params.initial_scale,
          fmt::format("min_loss_scale is {}, more than initial_loss_scale {}; lower the first or raise the second",
                      params.min_scale, params.initial_scale));
  require(std::isfinite(params.growth_factor) && params.growth_factor > 1,
          fmt::format("the growth factor is {}; it must be more than 1", params.growth_factor));
  require(params.backoff_factor > 0 && params.backoff_factor < 1,
          fmt::format("the backoff factor is {}; it must lie between 0 and 1", params.backoff_factor));
  require(params.growth_interval >= 1,
          fmt::format("loss_scale_window is {}; it must be 1 or more", params.growth_interval));
  require(params.hysteresis >= 1, fmt::format("hysteresis is {}; it must be 1 or more", params.hysteresis));
  return out;
}

// Reads an integer field. The hysteresis tracker may be negative.
int64_t whole_number(const Json& object, const char* key, const std::string& origin) {
  const auto field = object.find(key);
  check<DataError>(field != object.end() && field->is_number_integer() && *field >= -kMostSteps && *field <= kMostSteps,
                   "{}: \"{}\" of the loss scaler's state is {}; expected a whole number", origin, key,
                   field != object.end() ? io::json_in_words(*field) : "missing");
  return field->get<int64_t>();
}

}  // namespace

// {"scale":65536.0,"growth_tracker":12,"hysteresis_tracker":2}.
std::string to_json_text(const GradScalerState& state) {
  Json json{{"scale", state.scale},
            {"growth_tracker", state.growth_tracker},
            {"hysteresis_tracker", state.hysteresis_tracker}};
  if (!std::isfinite(state.scale)) json["scale"] = "inf";  // JSON has no infinity
  return json.dump();
}

// An infinite scale is valid: a checkpoint may have been written just after it overflowed.
GradScalerState parse_grad_scaler_state(std::string_view json_text, const std::string& origin) {
  const Json object = io::parse_json(json_text, origin);
  check<DataError>(object.is_object(), "{}: the loss scaler's state is {}; expected an object", origin,
                   io::json_in_words(object));
  const Json scale = object.value("scale", Json());
  check<DataError>(scale == "inf" || (scale.is_number() && is_positive_float(scale.get<double>())),
                   "{}: \"scale\" of the loss scaler's state is {}; expected a positive number", origin,
                   io::json_in_words(scale));
  return {scale == "inf" ? std::numeric_limits<float>::infinity() : scale.get<float>(),
          whole_number(object, "growth_tracker", origin), whole_number(object, "hysteresis_tracker", origin)};
}

GradScaler GradScaler::constant(double scale) {
  check<ConfigError>(is_positive_float(scale), "loss_scale is {}; it must be a positive float32", scale);
  return GradScaler({static_cast<float>(scale), 0, 0});
}

GradScaler GradScaler::dynamic(const GradScalerParams& params) {
  const std::vector<std::string> found = problems(params);
  check<ConfigError>(found.empty(), "invalid loss scaling: {}", fmt::join(found, "\n"));
  GradScaler scaler({static_cast<float>(params.initial_scale), 0, params.hysteresis});
  scaler.params_ = params;
  return scaler;
}

float GradScaler::inverse_scale() const {
  // Divided in double and rounded once, as Megatron does.
  return static_cast<float>(1.0 / static_cast<double>(state_.scale));
}

bool GradScaler::is_finite() const { return std::isfinite(state_.scale); }

void GradScaler::update(bool found_inf) {
  if (!params_) return;
  if (found_inf) {
    state_.growth_tracker = 0;
    --state_.hysteresis_tracker;  // not reset at 0: until a growth restores it, every overflow shrinks the scale
    if (state_.hysteresis_tracker <= 0)
      state_.scale =
          std::max(state_.scale * static_cast<float>(params_->backoff_factor), static_cast<float>(params_->min_scale));
    return;
  }
  if (++state_.growth_tracker < params_->growth_interval) return;
  state_.growth_tracker = 0;
  state_.hysteresis_tracker = params_->hysteresis;
  state_.scale *= static_cast<float>(params_->growth_factor);
}

// A run with a constant scale may continue a checkpoint of a dynamic one: it keeps its own scale.
void GradScaler::load(const GradScalerState& state) {
  if (!params_) return;
  check<DataError>(state.scale > 0 && state.growth_tracker >= 0,
                   "the checkpoint's loss scale cannot be used: scale {}, growth_tracker {}; expected a positive scale "
                   "and a tracker >= 0",
                   state.scale, state.growth_tracker);
  state_ = state;
}

}  // namespace megalith::optim
