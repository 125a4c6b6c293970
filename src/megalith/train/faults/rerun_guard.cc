// Runs a pass until the RerunMachine accepts it, and turns the machine's demand to leave into one exception with the
// same text on all ranks.
//
// A rerun must see the same random numbers, so the streams are saved before each step and restored before a rerun and
// before leaving. The data needs no such care: the caller still holds the batch.
#include "megalith/train/faults/rerun_guard.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "megalith/base/env.h"
#include "megalith/base/log.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::train {

using config::RerunMode;

namespace {

constexpr int64_t kStatisticsEvery = 2;  // steps between two reports

// The machine and GPU of this rank: a rerun elsewhere is recognized by them.
ResultPlace place_of(const parallel::ParallelContext& context) {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) name[0] = '?';
  return {.rank = context.rank(), .node = name.data(), .device = std::to_string(context.world().place().local_rank)};
}

// Without any check there is nothing to rerun for, and the random streams need not be saved.
bool looks_at_something(const RerunSettings& settings) {
  return settings.check_for_nan || settings.check_for_spiky_loss || settings.check_for_large_grads;
}

std::optional<RejectionTracker> tracker_of(const std::filesystem::path& file, const ResultPlace& place) {
  if (file.empty()) return std::nullopt;
  return RejectionTracker(file, place, env_string("SLURM_JOBID").value_or("N/A"));
}

}  // namespace

RerunGuard::RerunGuard(const RerunSettings& settings, const std::filesystem::path& tracker,
                       parallel::ParallelContext& context)
    : context_(context),
      settings_(settings),
      reruns_(settings.mode != RerunMode::kDisabled && looks_at_something(settings)),
      place_(place_of(context)),
      tracker_file_(tracker),
      tracker_(tracker_of(tracker_file_, place_)),
      machine_(
          {.mode = reruns_ ? settings_.mode : RerunMode::kDisabled,
           .injection_rate = settings_.injection_rate,
           .injection = settings_.injection,
           .place = place_},
          [this](const std::vector<bool>& mine) { return any_rank(mine); }, tracker_ ? &*tracker_ : nullptr),
      check_(settings_, machine_, tracker_ ? &*tracker_ : nullptr, place_.rank) {}

std::vector<int64_t> RerunGuard::iterations_to_skip() const {
  return tracker_file_.empty() ? std::vector<int64_t>{} : train::iterations_to_skip(tracker_file_);
}

// Large gradients, injected faults and statistics all need the pass to be judged before the update.
bool RerunGuard::update_may_be_queued() const {
  if (!reruns_) return true;
  return settings_.mode == RerunMode::kValidateResults && settings_.injection_rate == 0 &&
         !settings_.check_for_large_grads && machine_.state() == RerunState::kInitialRun;
}

// One all-reduce for all questions; a single rank needs none. After a first run the only question is the verdict, which
// has travelled with the step's totals.
std::vector<bool> RerunGuard::any_rank(const std::vector<bool>& mine) {
  const std::optional<bool> verdict = std::exchange(verdict_, std::nullopt);
  if (context_.world().world().size() == 1) return mine;
  if (verdict && machine_.state() == RerunState::kInitialRun) return {*verdict};
  at::Tensor flags = at::zeros({static_cast<int64_t>(mine.size())}, at::kFloat);
  for (size_t i = 0; i < mine.size(); ++i) flags.mutable_data_ptr<float>()[i] = mine[i] ? 1 : 0;
  flags = ops::to_device(flags, context_.device());
  context_.world().world().all_reduce(flags, comm::ReduceOp::kMax, "validation of the step");
  const ops::HostTensor read(flags);
  std::vector<bool> any;
  for (size_t i = 0; i < mine.size(); ++i) any.push_back(read.value().const_data_ptr<float>()[i] > 0);
  return any;
}

void RerunGuard::resume(const std::string& state, const std::string& origin) {
  if (!state.empty()) machine_.resume(rejected_from_json(state, origin));
}

// Asks the machine what to do until it accepts the pass.
void RerunGuard::run(int64_t number, const std::function<void()>& pass) {
  using Next = RerunMachine::Next;
  for (Next next = machine_.next(number); next != Next::kUpdate; next = machine_.next(number)) {
    if (next == Next::kRun && reruns_) random_streams_ = context_.rng().save();
    if (next != Next::kRun) context_.rng().restore(random_streams_);
    if (next == Next::kLeave) leave();
    verdict_.reset();
    pass();
  }
  const bool collects = reruns_ && settings_.mode == RerunMode::kReportDeterminismStats;
  if (collects && number % kStatisticsEvery == 0) report_statistics(number);
}

// Any number of ranks may have rejected something; all of them throw the same error, about the likeliest culprit.
void RerunGuard::leave() {
  const RerunMachine::Demand& demand = machine_.demand();
  std::vector<RejectedResult> own_results;
  if (machine_.rejected()) own_results.push_back(*machine_.rejected());
  const comm::Group world = context_.world().world();
  std::vector<RejectedResult> all;
  for (const std::string& text : world.all_gather_bytes(rejected_to_json(own_results), "rejected results"))
    for (RejectedResult& each : rejected_from_json(text, "another rank")) all.push_back(std::move(each));
  const std::vector<std::string> texts = world.all_gather_bytes(demand.text, "rejected results");
  // A bad loss on the last stage causes bad gradients on the others, so a rank that rejected a loss is named first.
  const auto is_of_loss = [](const RejectedResult& result) { return ResultCheck::is_of_loss(result.message); };
  const RejectedResult* culprit = nullptr;
  for (const RejectedResult& each : all)
    if (!texts[static_cast<size_t>(each.rank)].empty() &&
        (culprit == nullptr || (is_of_loss(each) && !is_of_loss(*culprit))))
      culprit = &each;
  check(culprit != nullptr, "a step was rejected by no rank");
  throw RerunExit({demand.exit_code, demand.save, culprit->rank, rejected_to_json(all)},
                  fmt::format("{} (exit code {})", texts[static_cast<size_t>(culprit->rank)], demand.exit_code));
}

void RerunGuard::report_statistics(int64_t number) {
  const nlohmann::json own_differences = machine_.take_differences();
  std::map<std::string, std::vector<double>> all;
  for (const std::string& text :
       context_.world().world().all_gather_bytes(own_differences.dump(), "determinism statistics")) {
    const nlohmann::json differences = nlohmann::json::parse(text);
    for (const auto& [message, values] : differences.items())
      // JSON has no infinity; null stands for it.
      for (const auto& value : values) all[message].push_back(value.is_null() ? HUGE_VAL : value.get<double>());
  }
  if (context_.rank() != 0) return;
  for (auto& [message, values] : all)
    log_info("determinism up to step {}: {}: {}", number, message, describe_differences(std::move(values)));
}

}  // namespace megalith::train
