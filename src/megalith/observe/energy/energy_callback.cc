#include "megalith/observe/energy/energy_callback.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>

namespace megalith::observe {

EnergyCallback::EnergyCallback(comm::Group world, Settings settings)
    : world_(std::move(world)), settings_(std::move(settings)) {
  if (!settings_.now)
    settings_.now = [] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    };
}

void EnergyCallback::begin_interval(const train::TrainerEvent& event) {
  joules_ = settings_.joules();
  seconds_ = settings_.now();
  step_ = event.state.global_step;
}

void EnergyCallback::on_train_begin(train::TrainerEvent& event) { begin_interval(event); }

void EnergyCallback::on_log(train::TrainerEvent& event) {
  if (!event.metrics.find("loss")) return;  // the line of an evaluation, or the totals
  const double joules = joules_, seconds = seconds_;
  const auto steps = static_cast<double>(std::max<int64_t>(event.state.global_step - step_, 1));
  begin_interval(event);
  double used = joules_ - joules, elapsed = seconds_ - seconds;
  if (world_.size() > 1) {
    const at::Tensor sums = at::tensor({used, elapsed}, at::kDouble).to(settings_.device);
    world_.all_reduce(sums, comm::ReduceOp::kSum, "energy of all ranks");
    const at::Tensor read = sums.cpu();
    used = read[0].item<double>() / world_.size();
    elapsed = read[1].item<double>() / world_.size();
  }
  event.metrics.set("energy_per_device", used / steps);
  event.metrics.set("power_per_device", elapsed > 0 ? used / elapsed : 0);
}

}  // namespace megalith::observe
