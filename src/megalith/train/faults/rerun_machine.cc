// The state machine of rerun_machine.h. next() advances it between passes and is the only place with a collective;
// validate() only records what this rank has seen in a pass. At most one value per rank and step is rejected: the first
// one, which the rerun then compares by message and number of the call.
#include "megalith/train/faults/rerun_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "megalith/base/json_words.h"
#include "megalith/base/log.h"
#include "megalith/io/json_text.h"

namespace megalith::train {

using config::RerunMode;

namespace {

constexpr double kSpike = 10;           // times the largest of the first values
constexpr int64_t kSpikeSamples = 100;  // number of first values
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The nearest rank, without interpolation. Requires at least one value.
double percentile(const std::vector<double>& sorted, double p) {
  const auto at = static_cast<size_t>(p * static_cast<double>(sorted.size() - 1) + 0.5);
  return sorted[std::min(at, sorted.size() - 1)];
}

}  // namespace

// Symmetric, so that it does not matter which device is right. Two NaNs count as equal: the rerun reproduced it.
double relative_difference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return kInfinite;
  return a + b == 0 ? kInfinite : std::abs(2 * (a - b) / (a + b));
}

// Differences are sorted so that percentiles are lookups.
std::string describe_differences(std::vector<double> differences) {
  if (differences.empty()) return "0 results";
  std::ranges::sort(differences);
  double sum = 0;
  for (const double each : differences) sum += each;
  return fmt::format(
      "{} results, {} identical, avg {:.3e}, p50 {:.3e}, p90 {:.3e}, p99 {:.3e}, p99.9 {:.3e}, max {:.3e}",
      differences.size(), std::ranges::count(differences, 0.0), sum / static_cast<double>(differences.size()),
      percentile(differences, 0.5), percentile(differences, 0.9), percentile(differences, 0.99),
      percentile(differences, 0.999), differences.back());
}

std::string rejected_to_json(const std::vector<RejectedResult>& results) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const RejectedResult& each : results)
    list.push_back({{"rank", each.rank},
                    {"iteration", each.iteration},
                    {"message", each.message},
                    {"call", each.call},
                    {"value", fmt::format("{}", each.value)},  // JSON has no NaN
                    {"node", each.node},
                    {"device", each.device},
                    {"injected", each.injected}});
  return list.dump();
}

std::vector<RejectedResult> rejected_from_json(const std::string& text, const std::string& origin) {
  std::vector<RejectedResult> results;
  try {
    for (const auto& each : io::parse_json(text, origin)) {
      RejectedResult result;
      result.rank = each.at("rank").get<int>();
      result.iteration = each.at("iteration").get<int64_t>();
      result.message = each.at("message").get<std::string>();
      result.call = each.at("call").get<int64_t>();
      result.value = std::strtod(each.at("value").get<std::string>().c_str(), nullptr);
      result.node = each.at("node").get<std::string>();
      result.device = each.at("device").get<std::string>();
      result.injected = each.at("injected").get<bool>();
      results.push_back(std::move(result));
    }
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}: the record of rejected results is broken ({}); remove it to continue without it",
                                origin, without_exception_name(error.what())));
  }
  return results;
}

RerunMachine::RerunMachine(Settings settings, AnyRank any_rank, RejectionTracker* tracker)
    : settings_(std::move(settings)),
      any_rank_(std::move(any_rank)),
      tracker_(tracker),
      random_(static_cast<uint64_t>(settings_.place.rank) + 1) {}

// Does not touch rejected_: after a resume it holds the value from the checkpoint.
void RerunMachine::begin_step(int64_t iteration) {
  iteration_ = iteration;
  failed_ = repeated_ = same_device_ = false;
  demand_ = {};
  first_values_.clear();
}

// Called before the first pass and after each pass of a step.
RerunMachine::Next RerunMachine::next(int64_t iteration) {
  calls_.clear();
  switch (state_) {
    case RerunState::kNotRunning:
      begin_step(iteration);
      rejected_.reset();
      state_ = RerunState::kInitialRun;
      return Next::kRun;
    case RerunState::kInitialRun:
      return after_initial_run();
    case RerunState::kRerunningInPlace:
      return after_rerun_in_place();
    case RerunState::kRerunningFromCheckpoint:
      if (iteration_ != iteration) {  // the first step after a resume begins here
        begin_step(iteration);
        return Next::kRun;
      }
      return after_rerun_from_checkpoint();
    default:
      return Next::kLeave;
  }
}

// Disabled mode and the first step after a start accept without asking the other ranks.
RerunMachine::Next RerunMachine::after_initial_run() {
  const auto accept = [this] {
    state_ = RerunState::kNotRunning;
    first_step_done_ = true;
    return Next::kUpdate;
  };
  if (settings_.mode == RerunMode::kDisabled || !first_step_done_) return accept();
  if (settings_.mode == RerunMode::kValidateResults && !any_rank_({rejected_.has_value()})[0]) return accept();
  state_ = RerunState::kRerunningInPlace;
  return Next::kRerun;
}

// If any rank saw the same value again, another device has to decide; if a value changed, this run is over.
RerunMachine::Next RerunMachine::after_rerun_in_place() {
  state_ = RerunState::kNotRunning;
  if (settings_.mode != RerunMode::kValidateResults) return Next::kUpdate;
  const std::vector<bool> any = any_rank_({repeated_, failed_});
  if (!any[0] && !any[1]) return Next::kUpdate;
  state_ = any[0] ? RerunState::kWillRerunFromCheckpoint : RerunState::kRerunningInPlace;
  demand_.exit_code = any[0] ? kExitResumeElsewhere : kExitResultRejected;
  demand_.save = any[0];
  return Next::kLeave;
}

// The verdict after the second device: the same device again asks for yet another start.
RerunMachine::Next RerunMachine::after_rerun_from_checkpoint() {
  const std::vector<bool> any = any_rank_({same_device_, failed_});
  first_step_done_ = true;
  if (any[0]) {
    state_ = RerunState::kRerunningAgainFromCheckpoint;
    demand_.exit_code = kExitResumeElsewhere;
    return Next::kLeave;
  }
  if (any[1]) return Next::kLeave;
  state_ = RerunState::kNotRunning;
  return Next::kUpdate;
}

// Only the rank that rejected a value has something to compare; the others just run the step.
void RerunMachine::resume(const std::vector<RejectedResult>& of_all_ranks) {
  if (of_all_ranks.empty() || settings_.mode != RerunMode::kValidateResults) return;
  state_ = RerunState::kRerunningFromCheckpoint;
  iteration_ = 0;
  rejected_.reset();
  for (const RejectedResult& each : of_all_ranks)
    if (each.rank == settings_.place.rank) rejected_ = each;
}

bool RerunMachine::validates() const {
  if (settings_.mode == RerunMode::kDisabled) return false;
  return first_step_done_ || state_ == RerunState::kRerunningFromCheckpoint;
}

// Calls are counted by message, also for values that are fine, so that the n-th call of a rerun meets the n-th of the
// first run.
void RerunMachine::validate(const CheckedResult& result) {
  if (settings_.mode == RerunMode::kDisabled) return validate_disabled(result);
  const int64_t call = calls_[result.message]++;
  const bool from_checkpoint = state_ == RerunState::kRerunningFromCheckpoint;
  if (!validates()) return;
  if (settings_.mode == RerunMode::kReportDeterminismStats) return collect(result, call);
  if (state_ == RerunState::kInitialRun) {
    if (!rejected_ && (result.rejected || inject())) reject(result, call);
    return;
  }
  // Only the value that was rejected is compared.
  if (!rejected_ || rejected_->message != result.message || rejected_->call != call) return;
  if (from_checkpoint)
    compare_from_checkpoint(result);
  else
    compare_in_place(result);
}

void RerunMachine::validate_disabled(const CheckedResult& result) {
  if (!result.rejected) return;
  track("rerun_disabled", result);
  check<ResultRejected>(!result.fatal, "{}", describe(result));
  log_warning("{}", describe(result));
}

// Keeps what the rerun has to compare, and says who computed it.
void RerunMachine::reject(const CheckedResult& result, int64_t call) {
  rejected_ = RejectedResult{.rank = settings_.place.rank,
                             .iteration = iteration_,
                             .message = result.message,
                             .call = call,
                             .value = result.value,
                             .node = settings_.place.node,
                             .device = settings_.place.device,
                             .injected = !result.rejected};
  track("initial_run", result);
  log_warning("{}; the step is run again", describe(result));
}

// If the value comes again, another device has to judge; if it differs, the first one was a transient error.
void RerunMachine::compare_in_place(const CheckedResult& result) {
  const bool same = difference_to(result) <= result.tolerance;
  track(same ? "first_rerun_reproducible" : "first_rerun_not_reproducible", result);
  const std::string first =
      fmt::format("rank {}: {} (value {}, again {})", place_of(result), result.message, rejected_->value, result.value);
  demand_.text = same ? first + ": the rerun gives the same value; only another device can tell whether it is correct"
                      : first + ": the rerun differs, which means a transient error of this device";
  if (!result.fatal) log_warning("{}; training continues", demand_.text);
  (same ? repeated_ : failed_) = result.fatal;
}

// Only a comparison with another device says something; on the same device the run has to be started elsewhere.
void RerunMachine::compare_from_checkpoint(const CheckedResult& result) {
  const ResultPlace& place = settings_.place;
  const std::string first =
      fmt::format("rank {}: {} (value {} on node {}, device {}; here {})", place_of(result), result.message,
                  rejected_->value, rejected_->node, rejected_->device, result.value);
  if (place.node == rejected_->node && place.device == rejected_->device) {
    same_device_ = true;
    demand_.text = first + ": this is the device that computed it first; start the run on another one";
    return;
  }
  const bool same = difference_to(result) <= result.tolerance;
  track(same ? "second_rerun_reproducible" : "second_rerun_not_reproducible", result);
  demand_.text =
      same ? first + ": both devices agree, so the result is correct; check the data, the learning rate and the model"
           : first + fmt::format(": the other device differs, which means a persistent error of node {}, device {}",
                                 rejected_->node, rejected_->device);
  if (!result.fatal) log_warning("{}; training continues", demand_.text);
  failed_ = result.fatal;
}

// An injected error pretends: a transient one differs in place, a persistent one only on another device.
double RerunMachine::difference_to(const CheckedResult& again) const {
  if (!rejected_->injected) return relative_difference(rejected_->value, again.value);
  const bool in_place = state_ == RerunState::kRerunningInPlace;
  if (settings_.injection == InjectedFault::kTransientError) return in_place ? kInfinite : 0;
  if (settings_.injection == InjectedFault::kPersistentError) return in_place ? 0 : kInfinite;
  return 0;
}

// Statistics mode: remembers the first run's values, then records how much the second differs.
void RerunMachine::collect(const CheckedResult& result, int64_t call) {
  if (state_ == RerunState::kInitialRun)
    first_values_[{result.message, call}] = result.value;
  else if (const auto first = first_values_.find({result.message, call}); first != first_values_.end())
    differences_[result.message].push_back(relative_difference(first->second, result.value));
}

// The first values set the scale. Reruns do not count, so that a value is not counted twice.
bool RerunMachine::is_spike(const std::string& kind, double value) {
  auto& [seen, largest] = largest_[kind];
  value = std::abs(value);
  if (seen >= kSpikeSamples) return value >= kSpike * largest;
  if (state_ != RerunState::kInitialRun || !std::isfinite(value)) return false;
  ++seen;
  largest = std::max(largest, value);
  return false;
}

// error_injection_rate n: one of n validations, independently on each rank.
bool RerunMachine::inject() {
  if (settings_.injection_rate <= 0) return false;
  const auto validations = std::max<int64_t>(1, std::llround(settings_.injection_rate));
  return std::uniform_int_distribution<int64_t>(0, validations - 1)(random_) == 0;
}

void RerunMachine::track(const char* status, const CheckedResult& result) const {
  if (tracker_ != nullptr) tracker_->append(iteration_, status, result.value, result.message);
}

std::string RerunMachine::describe(const CheckedResult& result) const {
  return fmt::format("Rank {}: Unexpected result {} (message='{}')", place_of(result), result.value, result.message);
}

std::string RerunMachine::place_of(const CheckedResult& result) const {
  const ResultPlace& place = settings_.place;
  return fmt::format("{}, node {}, device {}, iteration {}{}{}", place.rank, place.node, place.device, iteration_,
                     result.where.empty() ? "" : ", ", result.where);
}

}  // namespace megalith::train
