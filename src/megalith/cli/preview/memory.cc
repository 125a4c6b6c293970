// `megalith preview memory`: shows the memory that a rank of every stage needs, part by part.
#include <nlohmann/json.hpp>
#include <utility>

#include "megalith/cli/preview/preview_internal.h"
#include "megalith/config/derive.h"
#include "megalith/plan/report.h"
#include "megalith/run/plan_inputs.h"
#include "megalith/run/resolve/run_settings.h"
#include "megalith/run/resolve/run_shape.h"

namespace megalith::cli {

namespace {

constexpr PreviewUsage kPreviewMemoryUsage{
    "megalith preview memory --model DIR --world-size N [--tp N …] [--gpu h100-80g | cluster.yaml] [--json]\n\n"
    "Bytes of a rank of every pipeline stage at the fullest moment of a step: parameters, gradients, optimizer,"
    " activations\nin flight by the schedule, communication and workspace; and whether they fit.",
    "Parallel layout", true};

}  // namespace

int preview_memory(Words words) {
  std::optional<int64_t> world_size;
  plan::MediaRequest media;
  std::optional<std::string> model_folder, gpu;
  std::vector<config::CommandOption> own{
      {"world_size", "ranks of the run", &world_size},
      {"model", "folder with config.json, or a hub name that has been downloaded", &model_folder},
      {"gpu", "a preset (a100-80g, h100-80g, h200, b200, cpu) or a cluster file", &gpu}};
  for (config::CommandOption& option : media_options(media)) own.push_back(std::move(option));
  const auto input = read_preview(kPreviewMemoryUsage, words, std::move(own));
  if (!input) return kDone;
  config::TrainingArguments args = config::derive(run::planned_arguments(input->args, input->report)).args;
  const run::PlannedModel model = run::planned_model(model_folder, args);
  args.lora.additional_target = model.trained_modules;
  const auto cluster = gpu ? std::optional(plan::find_cluster(*gpu)) : std::nullopt;
  // Without --gpu the memory is that of a CUDA run, and nothing is said about fitting.
  const plan::Machinery machinery = cluster ? cluster->machinery() : plan::Machinery{};
  plan::RunShape run =
      run::run_shape(model.config, args, checked_world_size(world_size), run::planned_length(args), machinery);
  run::set_media(run, media);
  const auto stages = plan::plan_memory(run);
  const plan::Cluster* where = cluster ? &*cluster : nullptr;
  write_stdout(input->json ? plan::memory_json(run, stages, where).dump() + "\n"
                           : plan::memory_text(run, stages, where));
  return kDone;
}

}  // namespace megalith::cli
