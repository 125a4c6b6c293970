// Text and JSON show the same numbers. Keys of the JSON objects are an interface for programs: bytes and seconds, never
// rounded. The text is for a terminal of about 110 columns.
#include "megalith/plan/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "megalith/model/fp8/fp8_share.h"

namespace megalith::plan {

namespace {

using nlohmann::ordered_json;

constexpr double kMiB = 1024.0 * 1024;

// "1.50 GiB" or "12.3 MiB": small models would read 0.00 in GiB.
std::string size_text(double bytes) {
  return bytes >= kGiB ? fmt::format("{:.2f} GiB", bytes / kGiB) : fmt::format("{:.1f} MiB", bytes / kMiB);
}

// Sizes of a layout; etp and dp with their effective values.
ordered_json layout_json(const RunShape& run) {
  return {{"world_size", run.grid.world_size},
          {"tp", run.grid.tp},
          {"cp", run.grid.cp},
          {"pp", run.grid.pp},
          {"vpp", run.chunks()},
          {"ep", run.grid.ep},
          {"etp", run.grid.expert_tp()},
          {"dp", run.dp()},
          {"sequence_parallel", run.options.sequence_parallel},
          {"micro_batch_size", run.micro_batch_size},
          {"microbatches", run.microbatches},
          {"sequence_length", run.sequence_length}};
}

// Bytes of one stage, except elements (a count) and in_flight (micro-batches).
ordered_json stage_json(const RankMemory& stage) {
  return {{"pp_rank", stage.pp_rank},
          {"elements", stage.state.elements},
          {"parameters", stage.state.parameters},
          {"reference", stage.state.reference},
          {"gradients", stage.state.gradients},
          {"optimizer", stage.state.optimizer},
          {"optimizer_host", stage.state.optimizer_host},
          {"activations", stage.at_peak[0]},
          {"communication", stage.at_peak[1]},
          {"workspace", stage.at_peak[2]},
          {"batches", stage.batches},
          {"in_flight", stage.in_flight},
          {"making", stage.making},
          {"save_host", stage.save_host},
          {"peak", stage.peak()}};
}

// Seconds of one step, by part; the parts add up to step_s.
ordered_json time_json(const StepTime& time) {
  return {{"step_s", time.total()},
          {"gemm_s", time.gemm},
          {"attention_s", time.attention},
          {"memory_bound_s", time.memory_bound},
          {"recompute_s", time.recompute},
          {"tp_s", time.tp},
          {"cp_s", time.cp},
          {"ep_s", time.ep},
          {"pp_s", time.pp},
          {"dp_s", time.dp},
          {"bubble_s", time.bubble},
          {"optimizer_s", time.optimizer},
          {"tokens_per_second", time.tokens_per_second()},
          {"mfu", time.mfu()}};
}

// Three lines: the layout, its time by parts, its memory and what limits it; and one with advice where there is some.
std::string candidate_text(const Candidate& candidate, const Cluster& cluster) {
  const StepTime& t = candidate.time;
  const auto share = [&t](double part) { return 100 * part / t.total(); };
  const std::optional<int> first = first_rank_advice(candidate.run, cluster);
  const std::string advice = first ? fmt::format(
                                         "    images and sounds make the first stage the slowest: try"
                                         " --decoder_first_pipeline_num_layers {}\n",
                                         *first)
                                   : "";
  return fmt::format(
      "{}\n    {:.3f} s per step, {:.0f} tokens/s, MFU {:.1f} %: compute {:.0f} %, exposed communication {:.0f} %,"
      " bubble {:.0f} %, optimizer {:.0f} %\n    {} of {} GiB; limited by {}\n{}",
      candidate.text(), t.total(), t.tokens_per_second(), 100 * t.mfu(), share(t.compute()), share(t.exposed()),
      share(t.bubble), share(t.optimizer), fmt::format("{:.1f}", candidate.memory.peak() / kGiB),
      fmt::format("{:.1f}", cluster.usable_bytes() / kGiB), candidate.limits(cluster), advice);
}

// Returns one line for each kind of media that the samples are assumed to have, with the options that say otherwise.
std::string media_text(const RunShape& run) {
  const auto counted = [](int64_t number, const char* what) {
    return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
  };
  std::string text;
  if (run.microbatch_images() > 0)
    text += fmt::format("Each sample has {} of {} x {} patches (images_per_sample, image_pixels).\n",
                        counted(run.images, "image"), run.image_side, run.image_side);
  if (run.microbatch_sounds() > 0)
    text += fmt::format("Each sample has {} of {} frames (sounds_per_sample, sound_seconds).\n",
                        counted(run.sounds, "sound"), run.sound_frames);
  return text;
}

// Returns one line with the share of fp8, and one per kind of products that stay in bf16; empty without fp8.
std::string fp8_text(const RunShape& run) {
  if (!run.options.fp8) return {};
  const model::Fp8Share fp8 = model::fp8_share(*run.model, run.options, run.grid, run.sequence_length);
  std::string text = fmt::format("fp8: {} of the FLOPs; in bf16:\n", model::percent_text(fp8.in_fp8));
  for (const model::Fp8Share::Rest& rest : fp8.rest) text += fmt::format("  {}\n", model::text_of(rest));
  return text;
}

// `yaml` is a file of options, ready for `megalith train`.
ordered_json candidate_json(const Candidate& candidate, const Cluster& cluster) {
  return {{"layout", layout_json(candidate.run)}, {"text", candidate.text()},
          {"time", time_json(candidate.time)},    {"memory", stage_json(candidate.memory)},
          {"limit", candidate.limits(cluster)},   {"yaml", train_yaml(candidate)}};
}

}  // namespace

std::vector<std::pair<std::string, double>> parts_of(const RankMemory& memory) {
  std::vector<std::pair<std::string, double>> parts;
  for (const auto& [name, bytes] :
       {std::pair("parameters", memory.state.parameters), std::pair("reference model", memory.state.reference),
        std::pair("gradients", memory.state.gradients), std::pair("optimizer", memory.state.optimizer),
        std::pair("activations", memory.at_peak[0]), std::pair("communication", memory.at_peak[1]),
        std::pair("workspace", memory.at_peak[2]), std::pair("batches", memory.batches)})
    if (bytes > 0) parts.emplace_back(name, bytes);
  return parts;
}

std::string memory_text(const RunShape& run, const std::vector<RankMemory>& stages, const Cluster* cluster) {
  std::string text = fmt::format(
      "{} ranks = tp {} x cp {} x pp {} x dp {}; {} micro-batches of {} x {} tokens; each rank of a stage needs\n\n",
      run.grid.world_size, run.grid.tp, run.grid.cp, run.grid.pp, run.dp(), run.microbatches, run.sequences(),
      run.sequence_length);
  text.insert(text.size() - 1, media_text(run));
  constexpr const char* kRow = "{:>5} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11} {:>10} {:>11}\n";
  text += fmt::format(kRow, "stage", "parameters", "gradients", "optimizer", "activations", "communic.", "workspace",
                      "in flight", "peak");
  for (const RankMemory& s : stages)
    text += fmt::format(kRow, s.pp_rank, size_text(s.state.parameters), size_text(s.state.gradients),
                        size_text(s.state.optimizer), size_text(s.at_peak[0]), size_text(s.at_peak[1]),
                        size_text(s.at_peak[2]), s.in_flight, size_text(s.peak()));
  const RankMemory& most = fullest(stages);
  text += fmt::format("\nfullest: stage {} with {}", most.pp_rank, size_text(most.peak()));
  if (most.making > most.step()) text += ", while its buffers are made";
  if (most.state.reference > 0)
    text += fmt::format(", of which {} are {}", size_text(most.state.reference),
                        run.teacher ? "a teacher's weights and hidden states" : "a reference model's weights");
  if (most.batches > 0)
    text += fmt::format(", of which {} are token ids{}", size_text(most.batches),
                        run.microbatch_images() + run.microbatch_sounds() > 0 ? " and media" : "");
  if (most.state.optimizer_host > 0) text += fmt::format("; {} of host memory", size_text(most.state.optimizer_host));
  if (most.save_host > 0) text += fmt::format("; a save takes {} of host memory more", size_text(most.save_host));
  text += '\n' + fp8_text(run);
  if (cluster == nullptr) return text;
  const bool fits = most.peak() <= cluster->usable_bytes();
  return text + fmt::format("{}: {} of {} are for tensors: {}\n", cluster->gpu, size_text(cluster->usable_bytes()),
                            size_text(cluster->memory_bytes), fits ? "it fits" : "it does not fit");
}

// Without a cluster the question whether it fits is left open.
ordered_json memory_json(const RunShape& run, const std::vector<RankMemory>& stages, const Cluster* cluster) {
  ordered_json json{{"layout", layout_json(run)}, {"stages", ordered_json::array()}};
  if (run.microbatch_images() > 0) json["images"] = {{"per_sample", run.images}, {"patches", run.image_patches()}};
  if (run.microbatch_sounds() > 0) json["sounds"] = {{"per_sample", run.sounds}, {"frames", run.sound_frames}};
  for (const RankMemory& stage : stages) json["stages"].push_back(stage_json(stage));
  const RankMemory& most = fullest(stages);
  json["fullest"] = most.pp_rank;
  json["peak"] = most.peak();
  if (run.options.fp8)
    json["fp8_share"] = model::fp8_share(*run.model, run.options, run.grid, run.sequence_length).in_fp8;
  if (cluster == nullptr) return json;
  json["usable"] = cluster->usable_bytes();
  json["fits"] = most.peak() <= cluster->usable_bytes();
  return json;
}

// The best layout is printed once more as a file of options; if none fits, the nearest one that does.
std::string search_text(const SearchRequest& request, const SearchResult& result) {
  const Cluster& cluster = request.cluster;
  std::string text = fmt::format(
      "{} x {} ({} per node), {} sequences of {} tokens per step; {} sets of sizes are possible, {} layouts were "
      "weighed\n\n",
      request.gpus, cluster.gpu, cluster.gpus_per_node, request.global_batch, request.sequence_length, result.possible,
      result.weighed);
  for (size_t i = 0; i < result.best.size(); ++i)
    text += fmt::format("{:>2}  {}", i + 1, candidate_text(result.best[i], cluster));
  if (!result.best.empty()) return text + "\n" + train_yaml(result.best.front());
  text += fmt::format("Nothing that was asked for fits: {}\n", result.why_not);
  if (!result.nearest) return text + "No other layout of these GPUs fits either: take more, or larger ones.\n";
  return text + fmt::format("\nThe nearest that fits: {}\n{}", candidate_text(*result.nearest, cluster),
                            train_yaml(*result.nearest));
}

ordered_json search_json(const SearchRequest& request, const SearchResult& result) {
  ordered_json json{{"gpus", request.gpus},
                    {"gpu", request.cluster.gpu},
                    {"possible", result.possible},
                    {"weighed", result.weighed},
                    {"best", ordered_json::array()}};
  for (const Candidate& candidate : result.best) json["best"].push_back(candidate_json(candidate, request.cluster));
  if (!result.why_not.empty()) json["why_not"] = result.why_not;
  if (result.nearest) json["nearest"] = candidate_json(*result.nearest, request.cluster);
  return json;
}

}  // namespace megalith::plan
