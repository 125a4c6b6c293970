// `megalith preview pipeline`: draws the order of work on every pipeline rank as a timeline. Times are in forwards of
// one chunk; a backward costs backward_cost of them, half of it for weight gradients. The drawing is scaled to the
// terminal and labels are cut to the width of their action.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/cli/preview/curve.h"
#include "megalith/cli/preview/preview_internal.h"
#include "megalith/layout/pipeline_timeline.h"

namespace megalith::cli {

namespace {

using layout::PipelineCosts;
using layout::PipelineShape;
using layout::PipelineTimeline;
using layout::RankSchedule;
using layout::ScheduleKind;
using nlohmann::ordered_json;

// About a second of work and a hundred megabytes of JSON.
constexpr int kMaxActions = 2'000'000;

constexpr PreviewUsage kPreviewPipelineUsage{
    "megalith preview pipeline --pp N --microbatches N [--vpp N] [--schedule NAME] [--forward_only] [--json]\n\n"
    "What every pipeline rank computes and when, the part of the time it waits (bubble), and how many micro-batches "
    "it\n"
    "holds at most. F forward, B backward, W weight gradients (zero_bubble), each with its micro-batch; .1 is chunk 1.",
    "Pipeline"};

// The schedule and its costs.
struct Request {
  PipelineShape shape;
  PipelineCosts costs;
};

// Without a name the schedule follows from pp and vpp, as in a run.
ScheduleKind kind_of(const std::optional<std::string>& asked, int pp, std::optional<int> vpp) {
  if (!asked) return PipelineShape::kind_for(pp, vpp);
  std::vector<std::string> names;
  for (const auto kind :
       {ScheduleKind::kNone, ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved, ScheduleKind::kZeroBubble}) {
    names.emplace_back(layout::name(kind));
    if (names.back() == *asked) return kind;
  }
  throw ConfigError(fmt::format("schedule is \"{}\"; it must be one of {}", *asked, list_in_words(names)));
}

// Writes the keys of the golden file pipeline_schedule.json, and our times in forwards of one chunk.
ordered_json to_json(const Request& request, const PipelineTimeline& timeline) {
  const PipelineShape& shape = request.shape;
  ordered_json json{
      {"schedule", layout::name(shape.kind)}, {"pp", shape.pp}, {"vpp", nullptr}, {"m", shape.microbatches}};
  // `table` is the order in which all ranks go through (micro-batch, chunk).
  if (shape.kind == ScheduleKind::kInterleaved) {
    json["vpp"] = shape.chunks;
    json["group_size"] = shape.group_size.value_or(shape.pp);
    std::vector<std::string> table;
    for (const auto& [m, chunk] : layout::interleaved_order(shape)) table.push_back(fmt::format("{}.{}", m, chunk));
    json["table"] = fmt::format("{}", fmt::join(table, " "));
  }
  json["forward_only"] = shape.forward_only;
  json["bubble_fraction"] = timeline.bubble_fraction;
  json["length"] = timeline.length;
  json["ranks"] = ordered_json::array();
  for (int rank = 0; rank < shape.pp; ++rank) {
    const RankSchedule schedule = layout::pipeline_schedule(shape, rank);
    std::vector<std::string> compute;
    for (const auto& action : schedule.actions) compute.push_back(action.text());
    ordered_json one{{"warmup", schedule.warmup},
                     {"all_warmup", schedule.all_warmup},
                     {"compute", fmt::format("{}", fmt::join(compute, " "))}};
    if (!shape.forward_only) one["peak_in_flight"] = schedule.peak_in_flight();
    if (!shape.forward_only && shape.kind == ScheduleKind::kInterleaved)
      one["peak_per_chunk"] = schedule.peak_per_chunk(shape.chunks);
    json["ranks"].push_back(std::move(one));
  }
  return json;
}

// Returns a label such as "F12.1", cut to `width` characters.
std::string label(const layout::PipelineAction& action, bool chunks, size_t width) {
  std::string text = action.text();
  if (!chunks) text = text.substr(0, text.find('.'));
  if (width < text.size()) text = text.substr(0, std::max<size_t>(1, width));
  return text;
}

// "rank   0 |F0  F1  ....B0      B1      |": dots are waiting.
std::string drawing(const Request& request, const PipelineTimeline& timeline, int columns) {
  // As many characters per unit of time as fit, at most four: a label does not need more.
  const double scale = std::clamp((columns - 10) / timeline.length, 0.05, 4.0);
  std::string text;
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    std::string line(static_cast<size_t>(std::lround(timeline.length * scale)), '.');
    for (const auto& span : timeline.ranks[rank]) {
      const auto begin = static_cast<size_t>(std::lround(span.begin * scale));
      const auto end = std::min(line.size(), static_cast<size_t>(std::lround(span.end * scale)));
      // Too short for a character at this scale.
      if (begin >= end) continue;
      std::string cell = label(span.action, request.shape.chunks > 1, end - begin);
      cell.resize(end - begin, ' ');
      line.replace(begin, end - begin, cell);
    }
    text += fmt::format("rank {:>3} |{}|\n", rank, line);
  }
  return text;
}

// The drawing, the bubble, and the micro-batches in flight, which decide about memory.
std::string report(const Request& request, const PipelineTimeline& timeline, int columns) {
  const PipelineShape& shape = request.shape;
  std::string text = fmt::format("{}, {} pipeline ranks", layout::name(shape.kind), shape.pp);
  if (shape.chunks > 1) text += fmt::format(" of {} chunks each", shape.chunks);
  text += fmt::format(", {} micro-batches{}\n\n{}\n", shape.microbatches, shape.forward_only ? ", forward only" : "",
                      drawing(request, timeline, columns));
  text += fmt::format("bubble: {:.1f} % of the ranks' time (forward {}, backward {}, of which weights {})\n",
                      100 * timeline.bubble_fraction, request.costs.forward,
                      request.costs.backward + request.costs.weight_gradient, request.costs.weight_gradient);
  if (shape.forward_only) return text;
  text += "micro-batches in flight at most";
  if (shape.chunks > 1) text += " (by chunk)";
  text += ":\n";
  for (int rank = 0; rank < shape.pp; ++rank) {
    const RankSchedule schedule = layout::pipeline_schedule(shape, rank);
    text += fmt::format("  rank {:>3}  {:>3}", rank, schedule.peak_in_flight());
    if (shape.chunks > 1) text += fmt::format("  ({})", fmt::join(schedule.peak_per_chunk(shape.chunks), " "));
    text += '\n';
  }
  return text;
}

}  // namespace

int preview_pipeline(Words words) {
  std::optional<int64_t> microbatches;
  std::optional<std::string> schedule;
  std::optional<double> backward;
  bool forward_only = false;
  const auto input =
      read_preview(kPreviewPipelineUsage, words,
                   {{"microbatches", "micro-batches of a step", &microbatches},
                    {"schedule", "none, 1f1b, interleaved or zero_bubble; not given: what pp and vpp mean", &schedule},
                    {"backward_cost", "backward in forwards, half of it weight gradients (default 2)", &backward},
                    {"forward_only", "evaluation: no backward", &forward_only}});
  if (!input) return kDone;
  const auto& pipeline = input->args.pipeline;
  check<ConfigError>(microbatches.has_value(), "preview pipeline needs --microbatches, the micro-batches of a step");
  const int pp = input->args.parallel.pp.value_or(1);
  const double cost = backward.value_or(2);
  check<ConfigError>(std::isfinite(cost) && cost > 0, "backward_cost is {}; it must be positive", cost);
  // Three kinds of actions per micro-batch, chunk and rank; dividing avoids an overflow.
  const auto too_many = [&](int64_t count) {
    return count > kMaxActions / std::max<int64_t>(1, pp * int64_t{pipeline.vpp.value_or(1)} * 3);
  };
  check<ConfigError>(!too_many(*microbatches), "{} micro-batches on {} ranks are too many to show", *microbatches, pp);
  Request request;
  request.shape = {.kind = kind_of(schedule, pp, pipeline.vpp),
                   .pp = pp,
                   .chunks = pipeline.vpp.value_or(1),
                   .microbatches = static_cast<int>(*microbatches),
                   .group_size = pipeline.microbatch_group_size,
                   .forward_only = forward_only};
  // Half of a backward is the gradient of the input, half that of the weights; transfers are free in this drawing.
  request.costs = {.forward = 1, .backward = cost / 2, .weight_gradient = cost / 2, .transfer = 0};
  const PipelineTimeline timeline = layout::pipeline_timeline(request.shape, request.costs);
  write_stdout(input->json ? to_json(request, timeline).dump() + "\n" : report(request, timeline, terminal_width()));
  return kDone;
}

}  // namespace megalith::cli
