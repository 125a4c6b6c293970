// `megalith preview layers`: shows which layers are on which pipeline stage, and the split as a layout string that can
// be given to pipeline_model_parallel_layout.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "megalith/base/log.h"
#include "megalith/cli/preview/preview_internal.h"
#include "megalith/config/derive.h"
#include "megalith/layout/launcher_vpp.h"
#include "megalith/layout/layer_split.h"

namespace megalith::cli {

namespace {

using layout::LayerSplit;
using layout::SplitRequest;
using layout::Stage;
using nlohmann::ordered_json;

// Needs neither a model folder nor a world size: the number of layers and pp are enough.
constexpr PreviewUsage kPreviewLayersUsage{
    "megalith preview layers --num_layers N --pp N [--vpp N | --pipeline_model_parallel_layout 'Et*3|t*4,L' | …] "
    "[--json]\n\n"
    "The layers of every pipeline stage, in the order in which data passes them. Also --num_layers and "
    "--mtp_num_layers.",
    "Pipeline"};

SplitRequest request_of(const config::TrainingArguments& args) {
  SplitRequest request = config::split_request(args);
  // Refuses two ways of setting the virtual size, and converts layers per stage to it.
  const layout::LauncherVpp resolved = layout::resolve_launcher_vpp(config::vpp_request(args));
  if (!request.layout) request.vpp = resolved.vpp;
  return request;
}

// Returns whether the split is uneven because the layers do not divide, not because the user requested it.
bool is_balanced(SplitRequest request) {
  request.uneven = layout::UnevenSplit::kRefuse;
  return !layout::problems(request).empty();
}

// The layout in the message can be pasted, which makes the choice explicit and stable.
void note_balanced(const LayerSplit& split) {
  log_info(
      "{} layers do not divide evenly over {} stages, so they are balanced. As a layout: "
      "--pipeline_model_parallel_layout '{}'",
      split.num_layers(), split.pp() * split.chunks(), split.to_layout().text());
}

// Writes the keys of the golden file layer_split.json; as_layout is ours.
ordered_json inputs_json(const config::TrainingArguments& args, const SplitRequest& request) {
  ordered_json json{{"num_layers", request.num_layers}, {"pp", request.pp}};
  if (args.pipeline.vpp) json["vpp"] = *args.pipeline.vpp;
  if (request.first_rank_layers) json["first"] = *request.first_rank_layers;
  if (request.last_rank_layers) json["last"] = *request.last_rank_layers;
  if (request.account_for_embedding) json["account_embedding"] = true;
  if (request.account_for_loss) json["account_loss"] = true;
  if (args.pipeline.layout) json["layout"] = *args.pipeline.layout;
  if (request.mtp_layers > 0) json["mtp"] = request.mtp_layers;
  return json;
}

// The types of layers and the depths exist only where a layout places them.
ordered_json stage_json(const Stage& stage, bool has_layout) {
  ordered_json json{{"pp_rank", stage.pp_rank}, {"vp_stage", stage.vp_stage}, {"offset", stage.offset}};
  json["layers"] = stage.layers();
  if (has_layout) json["types"] = stage.types;
  if (has_layout && !stage.mtp_layers.empty()) json["mtp_layers"] = stage.mtp_layers;
  return json;
}

std::string layers_json(const config::TrainingArguments& args, const SplitRequest& request, const LayerSplit& split) {
  ordered_json json = inputs_json(args, request);
  json["resolved_vpp"] = nullptr;
  if (split.vpp()) json["resolved_vpp"] = *split.vpp();
  if (split.has_layout()) json["mtp_standalone"] = split.mtp_standalone();
  json["as_layout"] = split.to_layout().text();
  json["stages"] = ordered_json::array();
  for (const Stage& stage : split.stages()) json["stages"].push_back(stage_json(stage, split.has_layout()));
  return json.dump() + "\n";
}

// Returns the parts of a stage besides its layers.
std::string other_parts(const Stage& stage) {
  std::vector<std::string> parts;
  if (stage.has_embedding()) parts.emplace_back("embedding");
  if (!stage.mtp_layers.empty()) parts.push_back(fmt::format("mtp {}", in_ranges(stage.mtp_layers)));
  if (stage.has_loss()) parts.emplace_back("loss");
  return parts.empty() ? "" : fmt::format("  {}", fmt::join(parts, ", "));
}

std::string layers_table(const LayerSplit& split) {
  const bool is_virtual = split.chunks() > 1;
  std::string text = fmt::format("{} layers over {} pipeline ranks", split.num_layers(), split.pp());
  if (is_virtual) text += fmt::format(" of {} chunks each", split.chunks());
  text += fmt::format("\n\n{:>5}  {:>7}  {:>5}  {:>9}  {:>5}  {}\n", "stage", "pp rank", "chunk", "layers", "count",
                      "also holds");
  // Data passes stage 0, 1, 2, … : stage = chunk * pp + rank.
  std::vector<int> layers_of_rank(static_cast<size_t>(split.pp()), 0);
  for (int global = 0; global < split.pp() * split.chunks(); ++global) {
    const Stage stage = split.stage(global % split.pp(), global / split.pp());
    layers_of_rank[static_cast<size_t>(stage.pp_rank)] += stage.num_layers;
    const std::string range = stage.num_layers > 0 ? in_ranges(stage.layers()) : "-";
    text += fmt::format("{:>5}  {:>7}  {:>5}  {:>9}  {:>5}{}\n", global, stage.pp_rank, stage.vp_stage, range,
                        stage.num_layers, other_parts(stage));
  }
  if (is_virtual) text += fmt::format("\nlayers of each rank: {}\n", fmt::join(layers_of_rank, " "));
  return text + fmt::format("\nas a layout: {}\n", split.to_layout().text());
}

}  // namespace

int preview_layers(Words words) {
  const auto input = read_preview(kPreviewLayersUsage, words, {});
  if (!input) return kDone;
  const SplitRequest request = request_of(input->args);
  const LayerSplit split(request);
  if (is_balanced(request)) note_balanced(split);
  write_stdout(input->json ? layers_json(input->args, request, split) : layers_table(split));
  return kDone;
}

}  // namespace megalith::cli
