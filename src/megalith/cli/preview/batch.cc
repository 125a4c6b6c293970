// `megalith preview batch`: shows the global batch and micro-batches over the course of training. The course is
// computed phase by phase: the calculator says when the batch changes next, and all steps before that are alike. A
// batch that cannot run ends the course; it is shown up to there, and the reason is the error message.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/cli/preview/preview_internal.h"
#include "megalith/config/derive.h"
#include "megalith/config/validate.h"
#include "megalith/layout/microbatches.h"

namespace megalith::cli {

namespace {

using layout::BatchPlan;
using layout::BatchSizes;
using layout::MicrobatchCalculator;
using nlohmann::ordered_json;

// The walk is cut after so many rows: the phases hold the same information in a few.
constexpr int64_t kMaxWalkRows = 100'000;
// Far beyond any run, and small enough that sums do not overflow.
constexpr int64_t kMaxSamples = 1'000'000'000'000'000;

constexpr PreviewUsage kPreviewBatchUsage{
    "megalith preview batch --world-size N [--tp N …] --micro_batch_size N --global_batch_size N [--json]\n\n"
    "The global batch and the micro-batches of a step, and where they change with rampup_batch_size or "
    "step_batch_size_schedule\n(whose thresholds are tokens when --seq_length is given, else samples).",
    "Batch and seed"};

// Consecutive steps with the same sizes.
struct Phase {
  int64_t from;                     // samples consumed before its first step
  std::optional<BatchSizes> sizes;  // std::nullopt when the batch of this moment is refused
  std::optional<int64_t> steps;     // std::nullopt means to the end of training
};

// The phases of training. A course that cannot continue ends with the phase that stops it and gives the reason.
struct Course {
  std::vector<Phase> phases;
  std::string problem;
};

// Checks only the batch: other mistakes in the options do not matter here.
void validate_batch(const config::TrainingArguments& args, int dp) {
  config::TrainingArguments batch_only;
  batch_only.batch = args.batch;
  batch_only.shape.seq_length = args.shape.seq_length;
  config::validate(batch_only, {.world_size = dp, .needs_inputs = false});
}

// Returns the sizes at a moment, or std::nullopt and the reason why a step cannot run.
std::optional<BatchSizes> sizes_at(const MicrobatchCalculator& calculator, int64_t consumed, std::string& problem) {
  try {
    return calculator.at(consumed);
  } catch (const ConfigError& error) {
    problem = error.what();
    return std::nullopt;
  }
}

// Without a length the course ends with the phase that lasts; with one, after so many samples.
Course course_of(const MicrobatchCalculator& calculator, std::optional<int64_t> samples) {
  Course course;
  int64_t consumed = 0;
  while (!samples || consumed < *samples) {
    Phase& phase = course.phases.emplace_back(Phase{consumed, std::nullopt, std::nullopt});
    phase.sizes = sizes_at(calculator, consumed, course.problem);
    if (!phase.sizes) break;
    // The running batch is the one rounded down to whole micro-batches for all data-parallel ranks.
    const int64_t running = phase.sizes->running_global_batch_size;
    if (running == 0) {
      course.problem = fmt::format(
          "after {} samples: a global batch of {} leaves no micro-batch for every data-parallel rank, so training "
          "would not move on. Start rampup_batch_size at micro_batch_size * dp = {} or more",
          consumed, phase.sizes->global_batch_size, calculator.micro_batch_size() * calculator.data_parallel_size());
      break;
    }
    // kMaxSamples stands for no change, and for one that no run reaches.
    const int64_t change = std::min(calculator.next_change(consumed).value_or(kMaxSamples), kMaxSamples);
    if (change == kMaxSamples && !samples) break;
    const int64_t end = std::min(change, samples.value_or(kMaxSamples));
    // A threshold in the middle of a step takes effect after it.
    phase.steps = (end - consumed + running - 1) / running;
    consumed += *phase.steps * running;
  }
  return course;
}

// [consumed, micro-batches, global batch, running batch]; null in second place for a refused batch.
ordered_json row(int64_t consumed, const std::optional<BatchSizes>& sizes) {
  if (!sizes) return ordered_json::array({consumed, nullptr});
  return ordered_json::array(
      {consumed, sizes->num_microbatches, sizes->global_batch_size, sizes->running_global_batch_size});
}

// Appends a row per step, as in the golden file microbatches.json. Returns true if the walk had to be cut.
bool append_walk(const Course& course, ordered_json& walk) {
  walk = ordered_json::array();
  for (const Phase& phase : course.phases) {
    for (int64_t step = 0; step < phase.steps.value_or(1); ++step) {
      if (std::ssize(walk) == kMaxWalkRows) return true;
      const int64_t running = phase.sizes ? phase.sizes->running_global_batch_size : 0;
      walk.push_back(row(phase.from + step * running, phase.sizes));
    }
  }
  return false;
}

// The inputs, under the names of the golden file.
ordered_json plan_json(const BatchPlan& plan, const MicrobatchCalculator& calculator) {
  ordered_json json{{"global_batch_size", calculator.final_global_batch_size()},
                    {"micro_batch_size", plan.micro_batch_size},
                    {"data_parallel_size", plan.data_parallel_size},
                    {"rampup_batch_size", nullptr},
                    {"decrease_batch_size_if_needed", plan.decrease_batch_size_if_needed}};
  if (plan.rampup_batch_size) json["rampup_batch_size"] = *plan.rampup_batch_size;
  if (plan.step_batch_size_schedule) json["step_batch_size_schedule"] = *plan.step_batch_size_schedule;
  if (plan.seq_length) json["seq_length"] = *plan.seq_length;
  return json;
}

// Returns the answers to --consumed.
std::vector<Phase> moments(const MicrobatchCalculator& calculator, const std::optional<std::string>& consumed,
                           std::string& problem) {
  std::vector<Phase> rows;
  if (!consumed) return rows;
  for (const std::string& word : split(*consumed, ',')) {
    const auto number = parse_int(trim(word));
    check<ConfigError>(number && *number >= 0 && *number <= kMaxSamples,
                       "consumed is \"{}\"; expected a number of samples, or several with commas: 0,50,100", *consumed);
    rows.push_back({*number, sizes_at(calculator, *number, problem), std::nullopt});
  }
  return rows;
}

// Everything that text and JSON show.
struct BatchPreview {
  const BatchPlan& plan;
  const MicrobatchCalculator& calculator;
  const Course& course;
  const std::vector<Phase>& moments;
  std::optional<int64_t> samples;  // the length of the run, when it is known
};

std::string batch_json(const BatchPreview& preview) {
  ordered_json json{{"cfg", plan_json(preview.plan, preview.calculator)}};
  // Unchecked: the reference reports the first sizes even if no step can run with them.
  const BatchSizes initial = preview.calculator.unchecked_at(0);
  json["initial"] = {initial.num_microbatches, initial.global_batch_size, initial.running_global_batch_size};
  if (!preview.moments.empty()) json["updates"] = ordered_json::array();
  for (const Phase& moment : preview.moments) json["updates"].push_back(row(moment.from, moment.sizes));
  json["phases"] = ordered_json::array();
  for (const Phase& phase : preview.course.phases) {
    ordered_json entry = row(phase.from, phase.sizes);
    if (phase.sizes) entry.push_back(phase.steps ? ordered_json(*phase.steps) : ordered_json(nullptr));
    json["phases"].push_back(std::move(entry));
  }
  const bool changes = preview.plan.rampup_batch_size || preview.plan.step_batch_size_schedule;
  if ((changes || preview.samples) && append_walk(preview.course, json["walk"])) {
    json["walk_cut"] = true;
    log_warning("the walk ends after {} steps; phases holds the whole of it, --samples N a shorter walk", kMaxWalkRows);
  }
  return json.dump() + "\n";
}

// One row of the table; the last column appears only where the batch is rounded down.
std::string phase_line(const Phase& phase, const BatchPlan& plan) {
  if (!phase.sizes) return fmt::format("{:>14}  refused, see the message\n", phase.from);
  const BatchSizes& sizes = *phase.sizes;
  std::string line = fmt::format("{:>14}  {:>10}  {:>12}  {:>13}", phase.from,
                                 phase.steps ? fmt::format("{}", *phase.steps) : "all others", sizes.global_batch_size,
                                 sizes.num_microbatches);
  if (plan.seq_length) line += fmt::format("  {:>12}", sizes.running_global_batch_size * *plan.seq_length);
  if (sizes.running_global_batch_size != sizes.global_batch_size)
    line += fmt::format("  runs {} of {}", sizes.running_global_batch_size, sizes.global_batch_size);
  return line + "\n";
}

std::string batch_table(const BatchPreview& preview) {
  const BatchPlan& plan = preview.plan;
  std::string text =
      fmt::format("micro_batch_size {} * dp {} = {} samples per micro-batch of all ranks\n\n", plan.micro_batch_size,
                  plan.data_parallel_size, plan.micro_batch_size * plan.data_parallel_size);
  text += fmt::format("{:>14}  {:>10}  {:>12}  {:>13}", "after samples", "steps", "global batch", "micro-batches");
  text += plan.seq_length ? fmt::format("  {:>12}\n", "tokens/step") : "\n";
  int64_t steps = 0;
  for (const Phase& phase : preview.course.phases) {
    text += phase_line(phase, plan);
    steps += phase.steps.value_or(0);
  }
  if (preview.samples && preview.course.problem.empty())
    text += fmt::format("\n{} samples take {} steps\n", *preview.samples, steps);
  if (!preview.moments.empty()) text += "\n";
  for (const Phase& moment : preview.moments) {
    text += moment.sizes ? fmt::format("after {} samples: global batch {}, {} micro-batches\n", moment.from,
                                       moment.sizes->global_batch_size, moment.sizes->num_microbatches)
                         : fmt::format("after {} samples: refused, see the message\n", moment.from);
  }
  return text;
}

}  // namespace

int preview_batch(Words words) {
  std::optional<int64_t> world_size, dp, samples;
  std::optional<std::string> consumed;
  const auto input =
      read_preview(kPreviewBatchUsage, words,
                   {{"world_size", "number of ranks; dp follows from it and tp, pp, cp", &world_size},
                    {"dp", "data-parallel size, in place of world_size", &dp},
                    {"data_parallel_size", "the same as dp", &dp},
                    {"samples", "length of the run (also train_samples): how many steps it takes", &samples},
                    {"consumed", "show the sizes after N samples; several with commas", &consumed}});
  if (!input) return kDone;
  if (!samples) samples = input->args.run.train_samples;
  check<ConfigError>(!samples || (*samples >= 1 && *samples <= kMaxSamples),
                     "samples is {}; it must be a whole number from 1 to {}", samples.value_or(0), kMaxSamples);
  check<ConfigError>(world_size || dp,
                     "neither world_size nor dp is given; add --world_size N (all ranks) or --dp N "
                     "(data-parallel size)");
  const int data_parallel = data_parallel_size(input->args, world_size, dp);
  validate_batch(input->args, data_parallel);

  const BatchPlan plan = config::batch_plan(input->args, data_parallel);
  const MicrobatchCalculator calculator(plan);
  Course course = course_of(calculator, samples);
  const std::vector<Phase> asked = moments(calculator, consumed, course.problem);
  const BatchPreview preview{plan, calculator, course, asked, samples};
  write_stdout(input->json ? batch_json(preview) : batch_table(preview));
  // The course has been shown up to the problem; it is still an error.
  if (!course.problem.empty()) throw ConfigError(course.problem);
  return kDone;
}

}  // namespace megalith::cli
