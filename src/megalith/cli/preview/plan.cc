// `megalith plan`: searches the fastest layouts that fit; with --rehearse, tries them on this machine; with --simulate,
// studies runs of many sizes with failures.
// Every option that the user gives stays fixed, and the search covers the rest.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/cli/preview/preview_internal.h"
#include "megalith/cli/preview/rehearsed_layouts.h"
#include "megalith/config/derive.h"
#include "megalith/config/help_and_yaml.h"
#include "megalith/io/file_io.h"
#include "megalith/plan/report.h"
#include "megalith/plan/scaling.h"
#include "megalith/run/plan_inputs.h"
#include "megalith/run/resolve/run_settings.h"
#include "megalith/run/resolve/run_shape.h"

namespace megalith::cli {

namespace {

// The command's own options; those of the table that are given stay fixed in the search.
struct PlanFlags {
  std::optional<int64_t> gpus, gpus_per_node, best;
  plan::MediaRequest media;
  std::optional<std::string> model, gpu, output;
  std::optional<double> mtbf_hours, days, restart_s;
  bool simulate = false, rehearse = false, json = false, help = false;

  // Defaults are given in brackets.
  std::vector<config::CommandOption> options() {
    std::vector<config::CommandOption> all{
        {"gpus", "number of GPUs", &gpus},
        {"gpu", "a preset (a100-80g, h100-80g, h200, b200, cpu; h100-80g) or a cluster file", &gpu},
        {"gpus_per_node", "GPUs per machine (8)", &gpus_per_node},
        {"model", "folder with config.json, or a hub name that has been downloaded", &model},
        {"best", "how many layouts to show (5)", &best},
        {"output", "write the options of the best one to this YAML file", &output},
        {"rehearse", "rehearse one rank of each layout on this machine, and print it beside the plan", &rehearse},
        {"simulate", "runs of 16 to 98304 GPUs with failures: goodput and the interval between checkpoints", &simulate},
        {"mtbf_hours", "with simulate: mean time between failures of one GPU (50000)", &mtbf_hours},
        {"restart_s", "with simulate: from a failure to ranks that run again (300)", &restart_s},
        {"days", "with simulate: length of a run (30)", &days},
        {"json", "print one JSON object in place of text", &json},
        {"help", "print this", &help}};
    // Beside the model.
    const std::vector<config::CommandOption> assumed = media_options(media);
    all.insert(all.begin() + 4, assumed.begin(), assumed.end());
    return all;
  }
};

// Returns the requested batch, or about four million tokens: a power of two of sequences, at least one per GPU.
int64_t global_batch(const config::TrainingArguments& args, int64_t length, int64_t gpus) {
  if (args.batch.global_batch_size) return *args.batch.global_batch_size;
  int64_t sequences = 1;
  // 4 Mi tokens: the size of batch that large pre-training runs use.
  while (sequences * length < int64_t{4} << 20 || sequences < gpus) sequences *= 2;
  log_info("global_batch_size is not given: {} sequences", sequences);
  return sequences;
}

plan::SearchRequest request_of(const PlanFlags& flags, const config::ParseResult& parsed,
                               const model::ModelConfig& model) {
  config::TrainingArguments args = run::planned_arguments(parsed.args, parsed.report);
  // Plans assume bf16 unless the user chooses a precision.
  if (!args.precision.fp16 && !run::was_given(parsed.report, "bf16")) args.precision.bf16 = true;
  plan::SearchRequest request = run::search_request(model, args);
  if (run::was_given(parsed.report, "per_device_train_batch_size"))
    request.given.micro_batch = parsed.args.batch.micro_batch_size;
  request.sequence_length = run::planned_length(parsed.args);
  // With --simulate the study sets the number of GPUs for each row.
  request.gpus = static_cast<int>(flags.gpus.value_or(16));
  request.global_batch = global_batch(parsed.args, request.sequence_length, request.gpus);
  request.media = flags.media;
  request.cluster = run::planned_cluster(flags.gpu, flags.gpus_per_node);
  request.best = static_cast<size_t>(std::clamp<int64_t>(flags.best.value_or(5), 1, 100));
  return request;
}

// Defaults of faults and days are those of plan::ScalingRequest.
int simulate(const PlanFlags& flags, const plan::SearchRequest& request) {
  plan::ScalingRequest scaling{.search = request};
  scaling.faults.gpu_mtbf_hours = flags.mtbf_hours.value_or(scaling.faults.gpu_mtbf_hours);
  scaling.faults.restart_s = flags.restart_s.value_or(scaling.faults.restart_s);
  scaling.days = flags.days.value_or(scaling.days);
  // One row in place of the study over eight sizes.
  if (flags.gpus) scaling.sizes = {static_cast<int>(*flags.gpus)};
  const auto rows = plan::scaling_study(scaling);
  write_stdout(flags.json ? plan::scaling_json(rows).dump() + "\n" : plan::scaling_text(scaling, rows));
  return kDone;
}

}  // namespace

int run_plan(Words words) {
  PlanFlags flags;
  const auto own = flags.options();
  auto parsed = config::parse_arguments(config::Dialect::kTrain, words, own);
  if (flags.help) {
    fmt::print("megalith plan --gpus N --model DIR [--gpu KIND] [options that stay fixed]…\n\n{}",
               config::help_text(config::Dialect::kTrain, "Parallel layout", own));
    return kDone;
  }
  parsed.report.check_not_refused();
  check<ConfigError>(flags.gpus || flags.simulate, "gpus is missing; add --gpus N, the number of GPUs");
  check<ConfigError>(flags.gpus.value_or(1) >= 1 && flags.gpus.value_or(1) <= layout::kMaxGridSize,
                     "gpus is {}; it must be a whole number from 1 to {}", flags.gpus.value_or(0),
                     layout::kMaxGridSize);
  const run::PlannedModel model =
      run::planned_model(flags.model, config::derive(run::planned_arguments(parsed.args, parsed.report)).args);
  parsed.args.lora.additional_target = model.trained_modules;
  const plan::SearchRequest request = request_of(flags, parsed, model.config);
  check<ConfigError>(!flags.rehearse || !flags.simulate, "rehearse and simulate are both given; choose one");
  if (flags.simulate) return simulate(flags, request);
  const plan::SearchResult result = plan::search_layouts(request);
  RehearsedLayouts rehearsed;
  if (flags.rehearse) rehearsed = rehearse_layouts(words, own, request, result, model);
  nlohmann::ordered_json json = plan::search_json(request, result);
  if (flags.rehearse) json["rehearsals"] = rehearsed.json;
  write_stdout(flags.json ? json.dump() + "\n" : plan::search_text(request, result) + rehearsed.text);
  if (flags.output && !result.best.empty()) io::replace_text_file(*flags.output, plan::train_yaml(result.best.front()));
  // Nothing fits: the text has said so, and a script sees it by the exit code.
  return result.best.empty() ? kBadInput : kDone;
}

}  // namespace megalith::cli
