// Rectangles are found by name and offset: in the same layout a rank holds the same ones again.
#include "megalith/train/state_parts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/model/fp8/fp8_state.h"

namespace megalith::train {

namespace {

constexpr const char* kWeights = "weights.";

class PartSource : public optim::StateSource {
 public:
  PartSource(const std::vector<StatePart>& parts, std::string origin) : origin_(std::move(origin)) {
    for (const StatePart& part : parts) parts_[{part.name, part.offset}] = &part;
  }
  std::string name() const override { return origin_; }
  std::vector<Tensor> tensors() const override {
    std::vector<Tensor> all;
    std::set<std::string> seen;
    for (const auto& [key, part] : parts_)
      if (seen.insert(part->name).second) all.push_back({part->name, part->global_shape});
    return all;
  }
  void read(const parallel::ShardedTensor& wanted) const override { read(wanted, ""); }
  void read_weight(const parallel::ShardedTensor& wanted) const { read(wanted, kWeights); }
  bool holds(const parallel::ShardedTensor& wanted) const { return parts_.contains({wanted.name, wanted.offset}); }

 private:
  void read(const parallel::ShardedTensor& wanted, const char* prefix) const {
    if (wanted.local.numel() == 0) return;
    const auto found = parts_.find({prefix + wanted.name, wanted.offset});
    check<DataError>(found != parts_.end() && found->second->values.sizes() == wanted.local.sizes(),
                     "{} does not hold this rank's part of {}: it belongs to another run", origin_, wanted.name);
    wanted.local.copy_(found->second->values);
  }

  std::string origin_;
  std::map<std::pair<std::string, std::vector<int64_t>>, const StatePart*> parts_;
};

// Histories of another recipe or length do not fit; scales are then found again from scratch.
void restore_histories(const PartSource& source, const model::VirtualModels& models) {
  const std::vector<parallel::ShardedTensor> histories = model::fp8_states(models);
  if (histories.empty()) return;
  for (const parallel::ShardedTensor& history : histories)
    if (!source.holds(history)) return;
  for (const parallel::ShardedTensor& history : histories) source.read(history);
  model::use_fp8_states(models);
}

}  // namespace

std::vector<parallel::ShardedTensor> state_tensors(OptimizedModel& model) {
  std::vector<parallel::ShardedTensor> all;
  const auto add = [&](parallel::ShardedTensor part, const char* prefix) {
    if (part.local.numel() == 0) return;
    part.name = prefix + part.name;
    all.push_back(std::move(part));
  };
  for (parallel::ShardedTensor& part : model.models().sharded()) add(std::move(part), kWeights);
  for (parallel::ShardedTensor& part : model.optimizer().sharded_state()) add(std::move(part), "");
  for (parallel::ShardedTensor& part : model::fp8_states(model.models())) add(std::move(part), "");
  return all;
}

StateTexts state_texts(OptimizedModel& model, const TrainerState& state, RunProgress progress) {
  progress.optimizer = model.optimizer().progress_json();
  progress.scheduler = optim::to_json_text(model.scheduler().state());
  progress.scaler = optim::to_json_text(model.scaler().state());
  return {.step = state.global_step,
          .state = state.to_json().dump(),
          .progress = progress.to_json(),
          .rng = model.models().context().rng().save()};
}

ResumePoint resume_point(const StateTexts& texts, std::vector<StatePart> parts, const std::string& origin) {
  const RunProgress progress = RunProgress::from_json(texts.progress, origin);
  ResumePoint point{.state = TrainerState::from_json(nlohmann::ordered_json::parse(texts.state), origin),
                    .data = progress.data,
                    .restore = {},
                    .sampler = progress.sampler,
                    .log = progress.log,
                    .skipped_samples = progress.skipped_samples,
                    .epoch_end_pending = progress.epoch_end_pending};
  point.restore = [held = std::make_shared<std::vector<StatePart>>(std::move(parts)), progress, origin,
                   rng = texts.rng](OptimizedModel& model) {
    const PartSource source(*held, origin);
    {
      const at::NoGradGuard no_grad;
      for (const parallel::ShardedTensor& weight : model.models().sharded()) source.read_weight(weight);
      restore_histories(source, model.models());
    }
    model.optimizer().load_state(source, progress.optimizer);
    model.scheduler().load(optim::parse_scheduler_state(progress.scheduler, origin));
    model.scaler().load(optim::parse_grad_scaler_state(progress.scaler, origin));
    if (!rng.empty()) model.models().context().rng().restore(rng);
    held->clear();
  };
  return point;
}

}  // namespace megalith::train
