// A step takes as long as its busiest pipeline rank works, plus the bubble of the schedule, plus exposed communication,
// plus the update. The bubble is measured on the timeline of the real schedule, with a forward as the unit and backward
// in the ratio of this model; it repeats with the micro-batches, so a shortened schedule is enough. Overlapped
// reductions are assumed to hide behind 90 % of the pass that they overlap with, except for the last bucket.
#include "megalith/plan/step_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "megalith/layout/pipeline_timeline.h"
#include "megalith/model/model_flops.h"
#include "megalith/plan/layer_time_internal.h"
#include "megalith/plan/parameter_sizes.h"
#include "megalith/plan/rank_sizes.h"

namespace megalith::plan {

namespace {

// Share of the time of a hidden exchange that computation loses beside it: rows that arrive take multiprocessors and
// bandwidth of the memory, and two passes that alternate are launched piece by piece. Fitted to rehearsals on an H200
// (docs/rehearse.md).
constexpr double kLostBesideTokens = 0.3;

// Seconds of one micro-batch in all chunks of a pipeline rank.
struct RankTime : PassTimes {
  double work() const { return forward.total() + backward.total(); }
};

// Adds up the layers of all chunks. A depth of multi-token prediction costs a layer and a head of its own.
RankTime rank_time(const RunShape& run, const LayerTimes& layers, const layout::LayerSplit& split, int rank) {
  RankTime time;
  for (int chunk = 0; chunk < split.chunks(); ++chunk) {
    const layout::Stage stage = split.stage(rank, chunk);
    int64_t done = 0;
    for (const int layer : stage.layers()) layers.add_layer(layer, done++, time);
    for (size_t depth = 0; depth < stage.mtp_layers.size(); ++depth) {
      layers.add_layer(run.model->num_layers - 1, done++, time);
      layers.add_head(time);
    }
    if (stage.has_embedding()) {
      layers.add_embedding(time);
      layers.add_towers(time);
    }
    if (stage.has_loss()) layers.add_head(time);
  }
  return time;
}

// Seconds of gradient reduction and parameter gathering, and the part of each that must wait for computation to end or
// lets it begin: the last bucket.
struct Exchange {
  double reduce = 0, gather = 0;
  double last_reduce = 0, last_gather = 0;

  void add(const GroupSpeed& group, const SharedBytes& bytes, bool sharded) {
    if (group.size <= 1) return;
    const double reduced = sharded ? group.reduce_scatter(bytes.gradients) : group.all_reduce(bytes.gradients);
    const double gathered = sharded ? group.all_gather(bytes.parameters) : 0;
    reduce += reduced;
    gather += gathered;
    last_reduce += bytes.last_bucket() * reduced;
    last_gather += bytes.last_bucket() * gathered;
  }
};

// Returns the seconds of the exchange that nothing hides. Dense parameters and experts use the same links, so their
// times add up. A stage waits for the first micro-batch while it gathers; the earlier ones drain while it reduces.
double exposed_dp(const RunShape& run, const Cluster& cluster, const StateBytes& state, const RankTime& time,
                  int stage) {
  const layout::GridShape& grid = run.grid;
  const bool sharded = run.gradients.use_distributed_optimizer;
  Exchange all;
  // Gradients are summed over dp and cp, whose ranks lie tp apart; those of experts over edp, etp·ep apart.
  all.add(GroupSpeed(cluster, run.dp() * grid.cp, grid.tp), state.dense, sharded);
  all.add(GroupSpeed(cluster, grid.edp(), grid.expert_tp() * grid.ep), state.experts, sharded);
  const auto exposed = [](double communication, double last, double computation, bool overlap) {
    return overlap ? std::max(last, communication - 0.9 * computation) : communication;
  };
  const double passes = static_cast<double>(stage) / run.split().chunks();
  const double reduce = exposed(all.reduce, all.last_reduce, time.backward.total(), run.gradients.overlap_grad_reduce);
  const double gather = exposed(all.gather, all.last_gather, time.forward.total(), run.overlap_param_gather);
  // Without overlap parameters are gathered at the end of the step, when no stage computes.
  const double filling = run.overlap_param_gather ? passes * time.forward.total() : 0;
  return std::max(0.0, reduce - passes * time.backward.total()) + std::max(0.0, gather - filling);
}

// Returns the seconds of the update: bound by memory on the device, by the link and the host's memory for the rest.
double optimizer_seconds(const RunShape& run, const Cluster& cluster, const StateBytes& state) {
  const double host_part = state.optimizer_host / std::max(1.0, state.optimizer + state.optimizer_host);
  const double here = state.owned * (1 - host_part), there = state.owned * host_part;
  // Gradients are read for their norm and for the update; main parameters and states are read and written. On the host
  // the update runs at about 20 GB/s.
  const double update = 4 + 2 * (run.main_parameter_bytes + run.optimizer_state_bytes);
  const double device = cluster.memory_seconds(4 * state.owned + here * (update + run.element_bytes()));
  return device + there * (4 + run.element_bytes()) / cluster.host_bytes_per_second + there * update / 20e9;
}

// Returns the seconds that Muon takes besides its elementwise part: the products of its iteration, which the ranks that
// share the optimizer's state share as well, the exchange of matrices between them, and the gathering over tp.
double muon_seconds(const RunShape& run, const Cluster& cluster, const StateBytes& state) {
  if (!run.muon) return 0;
  const config::MuonTpMode mode = run.muon->tp_mode;
  const double flop = run.muon->steps * (mode == config::MuonTpMode::kBlockwise    ? state.matrices.blocks
                                         : mode == config::MuonTpMode::kDuplicated ? state.matrices.whole
                                                                                   : state.matrices.shared);
  constexpr double kSide = 4096;  // rows and columns of a typical product
  const double seconds =
      flop / (2 * kSide * kSide * kSide) * cluster.gemm_seconds(kSide, kSide, kSide, run.muon->fp32_products);
  const layout::GridShape& grid = run.grid;
  const int sharers =
      run.gradients.use_distributed_optimizer ? run.dp() * grid.cp / grid.num_distributed_optimizer_instances : 1;
  const double bytes = 4 * state.matrix_elements / sharers;
  const double exchange = sharers > 1 ? 2 * GroupSpeed(cluster, sharers, grid.tp).all_to_all(bytes) : 0;
  const double gather = grid.tp > 1 && mode == config::MuonTpMode::kDuplicated
                            ? GroupSpeed(cluster, grid.tp, 1).all_gather(bytes * grid.tp)
                            : 0;
  return seconds / sharers + exchange + gather;
}

// Returns the share of a step's micro-batches whose forward runs together with the backward of another one.
double paired_share(const layout::PipelineShape& shape, int rank) {
  if (!shape.paired) return 0;
  const layout::RankSchedule schedule = layout::pipeline_schedule(shape, rank);
  const auto forwards = static_cast<double>(shape.microbatches * shape.chunks);
  return std::max(0.0, forwards - schedule.warmup) / forwards;
}

// Adds a pass `times` times.
void add(StepTime& step, const PartTimes& part, double times) {
  step.gemm += times * part.gemm;
  step.attention += times * part.attention;
  step.memory_bound += times * part.memory_bound;
  step.recompute += times * part.recompute;
  step.tp += times * part.tp;
  step.cp += times * part.cp;
  step.ep += times * part.ep;
}

// Returns the FLOPs of the vision tower per step, over all replicas.
double image_flop(const RunShape& run) {
  if (!run.model->vision) return 0;
  const layout::VisionFlopsShape shape = model::flops_shape(*run.model->vision);
  layout::VisionWork work;
  work.add(shape, 1, run.image_side, run.image_side);
  const double images = run.global_batch() * static_cast<double>(run.images);
  return images * layout::vision_flops(shape, work, run.options.freeze.vision_tower, run.options.freeze.projector);
}

// The same for the audio tower.
double sound_flop(const RunShape& run) {
  if (!run.model->audio) return 0;
  const layout::AudioFlopsShape shape = model::flops_shape(*run.model->audio);
  layout::AudioWork work;
  work.add(shape, run.sound_frames);
  const double sounds = run.global_batch() * static_cast<double>(run.sounds);
  return sounds * layout::audio_flops(shape, work, run.options.freeze.vision_tower, run.options.freeze.projector);
}

// Returns the seconds of one activation between two stages.
double message_seconds(const RunShape& run, const Cluster& cluster) {
  // Neighboring stages are a whole stage of ranks apart.
  const GroupSpeed group(cluster, run.grid.pp, run.grid.world_size / run.grid.pp);
  return group.message(run.stream_bytes());
}

}  // namespace

// Products and attention are the purpose of a step, so they are never its limit.
std::string StepTime::limit() const {
  const std::array parts{std::pair("bubble", bubble),
                         std::pair("tp communication", tp),
                         std::pair("cp communication", cp),
                         std::pair("ep communication", ep),
                         std::pair("pp messages", pp),
                         std::pair("dp communication", dp),
                         std::pair("optimizer", optimizer),
                         std::pair("recomputation", recompute),
                         std::pair("memory-bound operations", memory_bound)};
  const auto most = std::ranges::max_element(parts, {}, [](const auto& part) { return part.second; });
  return fmt::format("{} {:.0f} %", most->first, 100 * most->second / total());
}

// Returns idle time in units of a chunk's forward.
double BubbleBook::idle_units(const layout::PipelineShape& shape, double backward_over_forward) {
  if (shape.pp == 1) return 0;
  layout::PipelineShape cut = shape;
  cut.sync = layout::PipelineSync::kLeaveOut;
  // Idle time does not grow beyond two groups of micro-batches. Rounding the ratio to halves lets the cache answer most
  // questions of a search.
  const int group = shape.group(), enough = 2 * group + shape.microbatches % group;
  cut.microbatches = std::min(shape.microbatches, enough);
  const int ratio = static_cast<int>(std::lround(2 * backward_over_forward));
  const auto key =
      std::make_tuple(static_cast<int>(cut.kind), cut.pp, cut.chunks, cut.microbatches, group, ratio, cut.paired);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  const layout::PipelineCosts costs{.forward = 1, .backward = ratio / 4.0, .weight_gradient = ratio / 4.0};
  const double work = cut.microbatches * cut.chunks * (1 + ratio / 2.0);
  const double idle = layout::pipeline_timeline(cut, costs).length - work;
  known_[key] = idle;
  return idle;
}

GroupSpeed::GroupSpeed(const Cluster& cluster, int members, int stride) {
  set_links(cluster, members, std::clamp(cluster.gpus_per_node / std::max(1, stride), 1, members));
}

GroupSpeed::GroupSpeed(const Cluster& cluster, const std::vector<int>& ranks) {
  std::map<int, int> members;  // by node
  int most = 1;
  for (const int rank : ranks) most = std::max(most, ++members[rank / cluster.gpus_per_node]);
  set_links(cluster, static_cast<int>(ranks.size()), most);
}

// Between nodes, each member in a node contributes its own network link.
void GroupSpeed::set_links(const Cluster& cluster, int members, int per_node) {
  size = members;
  inter_bytes_per_second = cluster.inter.bytes_per_second;
  intra_bytes_per_second = cluster.intra.bytes_per_second;
  const bool inside = per_node == members;
  outside = inside ? 0 : 1 - static_cast<double>(per_node) / members;
  latency_s = inside ? cluster.intra.latency_s : cluster.inter.latency_s;
  bytes_per_second = inside ? cluster.intra.bytes_per_second
                            : std::min(cluster.intra.bytes_per_second, cluster.inter.bytes_per_second * per_node);
}

// A ring moves (n - 1)/n of the bytes through each link; its latency grows like that of a tree.
double GroupSpeed::all_gather(double bytes) const {
  if (size <= 1) return 0;
  return bytes * (size - 1) / size / bytes_per_second + latency_s * (1 + std::log2(size));
}

double GroupSpeed::all_to_all(double bytes) const {
  if (size <= 1) return 0;
  // Every member talks to every other: messages within the node and to other nodes use different links.
  const double others = bytes * (size - 1) / size, far = bytes * outside;
  return far / inter_bytes_per_second + (others - far) / intra_bytes_per_second + latency_s * (1 + std::log2(size));
}

namespace {

// Returns the time of a step whose pace a rank with `time` sets, on pipeline rank `rank`.
StepTime step_at_pace(const RunShape& run, const Cluster& cluster, const model::ModelFootprint& model,
                      const RankTime& time, int rank, BubbleBook& book) {
  const layout::LayerSplit split = run.split();
  const auto microbatches = static_cast<double>(run.microbatches);
  StepTime step;
  add(step, time.forward, microbatches);
  add(step, time.backward, microbatches);
  // In a pair each pass computes while the other one's tokens travel; a tenth stands for what does not fit.
  const double hidden = paired_share(run.pipeline, rank) * std::min(0.9 * step.ep, step.compute());
  step.ep -= hidden;
  step.memory_bound += kLostBesideTokens * hidden;
  if (run.grid.pp > 1) {
    const layout::PipelineShape& shape = run.pipeline;
    const double message = message_seconds(run, cluster);
    const double ratio = time.backward.total() / time.forward.total();
    step.bubble = book.idle_units(shape, ratio) * time.forward.total() / split.chunks();
    // With overlap, messages are exposed only while the pipeline fills and drains.
    const double waits = run.overlap_p2p_comm ? 2.0 * (run.grid.pp - 1) : 2.0 * microbatches * split.chunks();
    step.pp = waits * message;
  }
  const StateBytes state = state_bytes(run, model, split, rank);
  step.dp = exposed_dp(run, cluster, state, time, rank);
  step.optimizer = optimizer_seconds(run, cluster, state) + muon_seconds(run, cluster, state);
  step.tokens = run.global_batch() * static_cast<double>(run.sequence_length);
  step.model_flop = layout::model_flops(model::flops_shape(*run.model), static_cast<int64_t>(run.global_batch()),
                                        run.sequence_length) +
                    image_flop(run) + sound_flop(run);
  step.peak_flops = cluster.peak_flops * run.grid.world_size;
  return step;
}

}  // namespace

// The busiest rank sets the pace of the whole pipeline; the others wait for it within the same step.
StepTime plan_step_time(const RunShape& run, const Cluster& cluster, BubbleBook& book) {
  const model::ModelFootprint model(*run.model, run.options, rank_sizes(run));
  const LayerTimes layers(model, cluster);
  const layout::LayerSplit split = run.split();
  RankTime busiest;
  int busiest_rank = 0;
  for (int rank = 0; rank < run.grid.pp; ++rank) {
    const RankTime time = rank_time(run, layers, split, rank);
    if (time.work() <= busiest.work()) continue;
    busiest = time;
    busiest_rank = rank;
  }
  return step_at_pace(run, cluster, model, busiest, busiest_rank, book);
}

StepTime plan_step_time(const RunShape& run, const Cluster& cluster) {
  BubbleBook book;
  return plan_step_time(run, cluster, book);
}

StepTime plan_stage_time(const RunShape& run, const Cluster& cluster, int stage) {
  const model::ModelFootprint model(*run.model, run.options, rank_sizes(run));
  BubbleBook book;
  return step_at_pace(run, cluster, model, rank_time(run, LayerTimes(model, cluster), run.split(), stage), stage, book);
}

// Few numbers of layers divide evenly among the other stages, so all of them are tried.
std::optional<int> first_rank_advice(const RunShape& run, const Cluster& cluster) {
  const layout::SplitRequest& given = run.stages;
  const bool media = run.microbatch_images() + run.microbatch_sounds() > 0;
  if (!media || run.grid.pp == 1 || given.first_rank_layers || given.last_rank_layers || given.layout)
    return std::nullopt;
  BubbleBook book;
  double best = 0.98 * plan_step_time(run, cluster, book).total();
  std::optional<int> advice;
  RunShape tried = run;
  for (int layers = 1; layers < run.model->num_layers / run.grid.pp; ++layers) {
    tried.stages.first_rank_layers = layers;
    if (!layout_problems(tried).empty()) continue;
    const double seconds = plan_step_time(tried, cluster, book).total();
    if (seconds >= best) continue;
    best = seconds;
    advice = layers;
  }
  return advice;
}

}  // namespace megalith::plan
