// Reading golden parallel/lr_schedule.json.
#pragma once

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/optim/schedule/lr_schedule.h"
#include "tests/layout/golden_shape.h"
#include "tests/support/golden.h"

namespace megalith::optim {

// The choice of that name, as the user's input: ConfigError when there is none.
template <typename E>
E golden_choice(const nlohmann::json& name, E unset) {
  if (name.is_null()) return unset;
  const auto choice = config::choice_of<E>(name.get<std::string>());
  check<ConfigError>(choice.has_value(), "no such choice: {}", name.dump());
  return *choice;
}

// Returns the schedule of a case in lr_schedule.json.
inline ScheduleParams golden_params(const nlohmann::json& c) {
  ScheduleParams params;
  params.init_lr = c.at("init_lr").get<double>();
  params.max_lr = c.at("max_lr").get<double>();
  params.min_lr = c.at("min_lr").get<double>();
  params.lr_warmup_steps = c.at("lr_warmup_steps").get<double>();
  params.lr_decay_steps = c.at("lr_decay_steps").get<int64_t>();
  params.lr_decay_style = golden_choice(c.at("lr_decay_style"), params.lr_decay_style);
  params.start_wd = c.at("start_wd").get<double>();
  params.end_wd = c.at("end_wd").get<double>();
  params.wd_incr_steps = c.at("wd_incr_steps").get<int64_t>();
  params.wd_incr_style = golden_choice(c.at("wd_incr_style"), params.wd_incr_style);
  params.wsd_decay_steps = layout::optional_member<int64_t>(c, "wsd_decay_steps");
  params.lr_wsd_decay_style = golden_choice(c.at("lr_wsd_decay_style"), params.lr_wsd_decay_style);
  return params;
}

// Returns the golden file of schedules.
inline nlohmann::json lr_schedule_file() { return testing::golden_json("parallel/lr_schedule.json"); }

}  // namespace megalith::optim
