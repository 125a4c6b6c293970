// A resume point from memory. The state is the same list of rectangles that a checkpoint stores; since the layout stays
// the same, each rank finds exactly the rectangles that it had.
#include "megalith/train/kept_state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/model/fp8/fp8_state.h"

namespace megalith::train {

namespace {

using nlohmann::ordered_json;

constexpr const char* kOrigin = "the state in memory";
constexpr const char* kWeights = "weights.";  // in front of the names of parameters
constexpr char kNothing = '!';                // in front of a reason for keeping nothing

// Returns why the layout itself rules out a copy from a replica; empty if it does not.
std::string obstacle(const model::VirtualModels& models, const SaveSettings& settings) {
  if (settings.sharded_optimizer) return "the optimizer's state is split over replicas (use_distributed_optimizer)";
  if (models.context().grid().shape().ep > 1) return "experts are split over replicas (expert_model_parallel_size)";
  if (!model::fp8_states(models).empty()) return "fp8 histories belong to a rank";
  return "";
}

// Returns the first reason in the answers of all ranks for not using what they keep; the same on all ranks.
std::string problem_in(const std::vector<std::string>& answers) {
  std::string step;
  for (const std::string& answer : answers) {
    if (answer.empty()) continue;
    if (answer.front() == kNothing) return answer.substr(1);
    if (!step.empty() && answer != step) return fmt::format("ranks had done {} and {} steps", step, answer);
    step = answer;
  }
  return "";
}

}  // namespace

// Reads rectangles from memory; every one that is asked for is there as a whole.
class KeptState::Source : public optim::StateSource {
 public:
  explicit Source(const std::vector<Part>& parts) {
    for (const Part& part : parts) parts_[{part.name, part.offset}] = &part;
  }
  std::string name() const override { return kOrigin; }
  std::vector<Tensor> tensors() const override {
    std::vector<Tensor> all;
    for (const auto& [key, part] : parts_) all.push_back({part->name, part->global_shape});
    return all;
  }
  void read(const parallel::ShardedTensor& wanted) const override { wanted.local.copy_(find(wanted, "").values); }
  void read_weight(const parallel::ShardedTensor& wanted) const { wanted.local.copy_(find(wanted, kWeights).values); }

 private:
  const Part& find(const parallel::ShardedTensor& wanted, const char* prefix) const {
    const auto found = parts_.find({prefix + wanted.name, wanted.offset});
    check(found != parts_.end() && found->second->values.sizes() == wanted.local.sizes(),
          "{} does not hold this rank's part of {}", kOrigin, wanted.name);
    return *found->second;
  }
  std::map<std::pair<std::string, std::vector<int64_t>>, const Part*> parts_;
};

// Host memory: the device is needed for the next start. On the CPU nothing is copied, since nobody writes to the old
// buffers any longer.
void KeptState::keep(OptimizedModel& model, const SaveSettings& settings, const TrainerState& state,
                     RunProgress progress) {
  try {
    *this = {};
    why_not_ = obstacle(model.models(), settings);
    if (!why_not_.empty()) return;
    const at::NoGradGuard no_grad;
    const auto add = [&](const parallel::ShardedTensor& part, const char* prefix) {
      parts_.push_back({prefix + part.name, part.global_shape, part.offset, part.data().detach().to(at::kCPU)});
    };
    for (const parallel::ShardedTensor& part : model.models().sharded()) add(part, kWeights);
    for (const parallel::ShardedTensor& part : model.optimizer().sharded_state()) add(part, "");
    progress.optimizer = model.optimizer().progress_json();
    progress.scheduler = optim::to_json_text(model.scheduler().state());
    progress.scaler = optim::to_json_text(model.scaler().state());
    progress_ = progress.to_json();
    state_ = state.to_json().dump();
    step_ = state.global_step;
    rng_ = model.models().context().rng().save();
    kept_ = true;
  } catch (const std::exception& error) {
    keep_nothing(first_line(error.what()));
  }
}

void KeptState::keep_nothing(std::string why) {
  *this = {};
  why_not_ = std::move(why);
}

std::string KeptState::answer() const {
  if (kept_) return std::to_string(step_);
  return why_not_.empty() ? "" : kNothing + why_not_;
}

std::string KeptState::header() const {
  ordered_json parts = ordered_json::array();
  for (const Part& part : parts_)
    parts.push_back({part.name, part.global_shape, part.offset, part.values.sizes().vec(),
                     static_cast<int>(part.values.scalar_type())});
  return ordered_json{{"step", step_}, {"state", state_}, {"progress", progress_}, {"parts", parts}}.dump();
}

void KeptState::read_header(const std::string& text) {
  const ordered_json header = ordered_json::parse(text);
  step_ = header.at("step").get<int64_t>();
  state_ = header.at("state").get<std::string>();
  progress_ = header.at("progress").get<std::string>();
  for (const ordered_json& part : header.at("parts"))
    parts_.push_back(
        {part.at(0).get<std::string>(), part.at(1).get<std::vector<int64_t>>(), part.at(2).get<std::vector<int64_t>>(),
         at::empty(part.at(3).get<std::vector<int64_t>>(), static_cast<at::ScalarType>(part.at(4).get<int>()))});
}

// One rectangle at a time, so that the device needs room for one. All replicas take part, since broadcasts are
// collectives; those that have the state throw the copy away.
void KeptState::copy_to_lost(const comm::Group& replicas, int source, bool is_lost) {
  const std::string text = replicas.broadcast_bytes(header(), source, "state in memory");
  if (is_lost) read_header(text);
  for (Part& part : parts_) {
    const at::Tensor moved = part.values.to(replicas.device(), part.values.scalar_type(), /*non_blocking=*/false,
                                            /*copy=*/true, at::MemoryFormat::Contiguous);
    replicas.broadcast(moved, source, "state in memory");
    if (is_lost) part.values = moved.to(at::kCPU);
  }
}

// The tensors are freed as soon as the model has them.
ResumePoint KeptState::resume_point(KeptState kept) {
  const RunProgress progress = RunProgress::from_json(kept.progress_, kOrigin);
  ResumePoint point{.state = TrainerState::from_json(ordered_json::parse(kept.state_), kOrigin),
                    .data = progress.data,
                    .restore = {},
                    .sampler = progress.sampler,
                    .log = progress.log,
                    .skipped_samples = progress.skipped_samples,
                    .epoch_end_pending = progress.epoch_end_pending};
  point.restore = [parts = std::make_shared<std::vector<Part>>(std::move(kept.parts_)),
                   progress](OptimizedModel& model) {
    const Source source(*parts);
    {
      const at::NoGradGuard no_grad;
      for (const parallel::ShardedTensor& weight : model.models().sharded()) source.read_weight(weight);
    }
    model.optimizer().load_state(source, progress.optimizer);
    model.scheduler().load(optim::parse_scheduler_state(progress.scheduler, kOrigin));
    model.scaler().load(optim::parse_grad_scaler_state(progress.scaler, kOrigin));
    parts->clear();
  };
  return point;
}

std::optional<ResumePoint> KeptState::take(parallel::ParallelContext& context) {
  KeptState mine = std::exchange(*this, {});
  // Streams that have moved since they were seeded belong to a rank that may be gone.
  if (mine.kept_ && mine.rng_ != context.rng().save())
    mine.keep_nothing("training draws random numbers (dropout), and those of a lost rank are gone with it");
  const comm::Group all_ranks = context.world().world(), replicas = context.dp(/*with_cp=*/true);
  const std::vector<std::string> answers = all_ranks.all_gather_bytes(mine.answer(), "state in memory");
  const auto is_lost = [&](int rank) { return answers[static_cast<size_t>(rank)].empty(); };
  const auto lost = std::ranges::count_if(answers, [](const std::string& answer) { return answer.empty(); });
  if (lost == static_cast<int64_t>(answers.size())) return std::nullopt;  // the first start, or nobody survived
  const auto source = std::ranges::find_if_not(replicas.ranks(), is_lost);
  std::string problem = problem_in(answers);
  if (problem.empty() && source == replicas.ranks().end())
    problem = fmt::format("rank {} and all of its data-parallel replicas were lost", context.rank());
  // Only the ranks of a group that is lost know that.
  for (const std::string& other : all_ranks.all_gather_bytes(problem, "state in memory"))
    if (problem.empty()) problem = other;
  if (!problem.empty()) {
    if (context.rank() == 0) log_warning("the state in memory cannot be used: {}", problem);
    return std::nullopt;
  }
  if (std::ranges::any_of(replicas.ranks(), is_lost))
    mine.copy_to_lost(replicas, static_cast<int>(source - replicas.ranks().begin()), is_lost(context.rank()));
  if (context.rank() == 0)
    log_info("training continues after step {} with the state in memory; {} of {} ranks got theirs from a replica",
             mine.step_, lost, answers.size());
  return resume_point(std::move(mine));
}

}  // namespace megalith::train
