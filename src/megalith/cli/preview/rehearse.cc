// `megalith rehearse`: runs one rank of a large run on this machine, among stand-ins for all others, and compares it
// with the plan. Takes the options of `train`; those about data, weights and files have no effect and are named.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/cli/command.h"
#include "megalith/cli/preview/preview_internal.h"
#include "megalith/comm/world.h"
#include "megalith/config/derive.h"
#include "megalith/config/help_and_yaml.h"
#include "megalith/parallel/rank_device.h"
#include "megalith/run/plan_inputs.h"
#include "megalith/run/rehearsal/rehearsal_report.h"

namespace megalith::cli {

namespace {

// The command's own options.
struct RehearseFlags {
  std::optional<int64_t> world_size, rank, stage, steps, gpus_per_node;
  std::optional<std::string> model, gpu, trace, profile;
  bool force = false, json = false, help = false;

  // Defaults are given in brackets.
  std::vector<config::CommandOption> options() {
    return {{"world_size", "ranks of the run", &world_size},
            {"rank", "the rank to rehearse (0)", &rank},
            {"stage", "in place of rank: the first rank of this pipeline stage", &stage},
            {"gpu", "links and planned speeds: a preset (a100-80g, h100-80g, h200, b200, cpu) or a cluster file", &gpu},
            {"gpus_per_node", "GPUs per machine (8)", &gpus_per_node},
            {"model", "folder with config.json, or a hub name that has been downloaded", &model},
            {"steps", "steps to measure, after one or two that warm up (3)", &steps},
            {"trace", "write a timeline of the last step to this file, for Perfetto", &trace},
            {"profile", "write the kernels of one more step to this file, for Perfetto, and print tables", &profile},
            {"force", "start although this machine has too little memory for the rank", &force},
            {"json", "print one JSON object in place of text", &json},
            {"help", "print this", &help}};
  }
};

constexpr const char* kRehearseUsage =
    "megalith rehearse [run.yaml] --world-size N [--rank R | --stage S] [--tp N …] [--gpu KIND | cluster.yaml]\n\n"
    "One rank of a run on N GPUs, alone on this machine: its own parameters, buffers, micro-batches, schedule and\n"
    "kernels, with random weights and tokens. The other ranks are stand-ins: collectives and messages move the bytes\n"
    "of this rank and last as long as the links of the cluster would. Prints step time, exposed communication,\n"
    "pipeline bubble and memory beside what `megalith plan` says. Losses mean nothing here and are not shown.\n\n";

// Options that a run has and a rehearsal cannot have: no files are read or written, and nothing is evaluated.
constexpr auto kWithoutEffect = std::to_array<std::string_view>(
    {"dataset", "eval_dataset", "data_path", "output_dir", "resume_from_checkpoint", "load", "save_steps",
     "save_strategy", "eval_strategy", "eval_steps", "max_steps", "num_train_epochs", "logging_steps", "async_save"});

// Names the given options that have no effect, once and together.
void announce_ignored(const config::OptionReport& report) {
  std::vector<std::string> ignored;
  for (const config::OptionUse& use : report.uses)
    if (std::ranges::count(kWithoutEffect, use.name) > 0) ignored.push_back(use.given);
  if (!ignored.empty())
    log_info("a rehearsal reads no data and no weights, and writes no checkpoints; without effect: {}",
             fmt::join(ignored, ", "));
}

// Without --gpu: the links of the default cluster, or on a machine without GPUs those of its CPU.
plan::Cluster cluster_of(const RehearseFlags& flags, const config::CommConfig& comm) {
  const bool on_cpu = comm.use_cpu || parallel::visible_gpus() == 0;
  return run::planned_cluster(flags.gpu || !on_cpu ? flags.gpu : std::optional<std::string>("cpu"),
                              flags.gpus_per_node);
}

}  // namespace

int run_rehearse(Words words) {
  RehearseFlags flags;
  const auto own = flags.options();
  const auto parsed = config::parse_arguments(config::Dialect::kTrain, words, own);
  if (flags.help) {
    std::string text = kRehearseUsage + std::string("This command\n");
    for (const config::CommandOption& option : own) text += fmt::format("  --{}\n      {}\n", option.name, option.help);
    write_stdout(text + "\n" + config::help_text(config::Dialect::kTrain, "Parallel layout"));
    return kDone;
  }
  parsed.report.check_runnable();
  announce_ignored(parsed.report);
  config::TrainingArguments args = run::planned_arguments(parsed.args, parsed.report);
  const run::PlannedModel model = run::planned_model(flags.model, config::derive(args).args);
  args.lora.additional_target = model.trained_modules;
  const run::RehearsalRequest request = run::rehearsal_request(args, model,
                                                               {.world_size = checked_world_size(flags.world_size),
                                                                .rank = flags.rank,
                                                                .stage = flags.stage,
                                                                .cluster = cluster_of(flags, args.comm),
                                                                .steps = flags.steps.value_or(3),
                                                                .trace = flags.trace.value_or(""),
                                                                .profile = flags.profile.value_or(""),
                                                                .force = flags.force});
  const run::RehearsalResult result = run::rehearse(request);
  write_stdout(flags.json ? run::rehearsal_json(request, result).dump() + "\n" : run::rehearsal_text(request, result));
  return kDone;
}

}  // namespace megalith::cli
