// A resume point from memory. All ranks agree on whether what they keep is the whole state; then those that were lost
// get theirs, one rectangle after the other.
#include "megalith/train/kept_state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
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
constexpr char kNothing = '!';  // in front of a reason for keeping nothing

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

// Host memory: the device is needed for the next start. On the CPU nothing is copied, since nobody writes to the old
// buffers any longer.
void KeptState::keep(OptimizedModel& model, const SaveSettings& settings, const TrainerState& state,
                     RunProgress progress) {
  try {
    *this = {};
    why_not_ = obstacle(model.models(), settings);
    if (!why_not_.empty()) return;
    const at::NoGradGuard no_grad;
    for (const parallel::ShardedTensor& part : state_tensors(model))
      parts_.push_back({part.name, part.global_shape, part.offset, part.data().detach().to(at::kCPU)});
    texts_ = state_texts(model, state, std::move(progress));
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
  if (kept_) return std::to_string(texts_.step);
  return why_not_.empty() ? "" : kNothing + why_not_;
}

std::string KeptState::header() const {
  ordered_json parts = ordered_json::array();
  for (const StatePart& part : parts_)
    parts.push_back({part.name, part.global_shape, part.offset, part.values.sizes().vec(),
                     static_cast<int>(part.values.scalar_type())});
  return ordered_json{{"step", texts_.step}, {"state", texts_.state}, {"progress", texts_.progress}, {"parts", parts}}
      .dump();
}

void KeptState::read_header(const std::string& text) {
  const ordered_json header = ordered_json::parse(text);
  texts_.step = header.at("step").get<int64_t>();
  texts_.state = header.at("state").get<std::string>();
  texts_.progress = header.at("progress").get<std::string>();
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
  for (StatePart& part : parts_) {
    const at::Tensor moved = part.values.to(replicas.device(), part.values.scalar_type(), /*non_blocking=*/false,
                                            /*copy=*/true, at::MemoryFormat::Contiguous);
    replicas.broadcast(moved, source, "state in memory");
    if (is_lost) part.values = moved.to(at::kCPU);
  }
}

std::optional<ResumePoint> KeptState::take(parallel::ParallelContext& context) {
  KeptState mine = std::exchange(*this, {});
  // Streams that have moved since they were seeded belong to a rank that may be gone.
  if (mine.kept_ && mine.texts_.rng != context.rng().save())
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
             mine.texts_.step, lost, answers.size());
  mine.texts_.rng.clear();
  return resume_point(mine.texts_, std::move(mine.parts_), kOrigin);
}

}  // namespace megalith::train
