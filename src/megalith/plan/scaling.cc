// For each number of GPUs: the fastest layout (search.h), the cost of its checkpoints, the best interval between saves
// and the resulting goodput (goodput.h). Nothing else is scaled: the model and, as far as possible, the batch stay the
// same, so that a row shows what more GPUs alone bring.
#include "megalith/plan/scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/layout/layer_split.h"
#include "megalith/plan/rank_sizes.h"

namespace megalith::plan {

namespace {

// GPUs per replica that large runs use; the global batch is rounded up so that it divides over that many replicas.
constexpr int kReplica = 128;

// Rounds up: 1000 sequences for 2048 GPUs (16 replicas) become 1008.
int64_t batch_for(int gpus, int64_t base) {
  const int64_t replicas = std::max(1, gpus / kReplica);
  return (base + replicas - 1) / replicas * replicas;
}

}  // namespace

CheckpointCost checkpoint_cost(const Candidate& candidate, const Cluster& cluster) {
  const RunShape& run = candidate.run;
  const layout::LayerSplit split = run.split();
  double elements = 0;  // parameters of one tensor-parallel rank, over all stages
  const model::ModelFootprint model(*run.model, run.options, rank_sizes(run));
  for (int rank = 0; rank < run.grid.pp; ++rank) elements += state_bytes(run, model, split, rank).elements;
  // Parameters, two fp32 moments and, for 16-bit parameters, their fp32 copies.
  const double checkpoint_bytes = elements * run.grid.tp * (run.element_bytes() + (run.half() ? 12 : 8));
  const double nodes = std::max(1.0, static_cast<double>(run.grid.world_size) / cluster.gpus_per_node);
  CheckpointCost cost;
  // Fixed overheads are assumed besides: one second per save, twenty per load.
  cost.stall_s = checkpoint_bytes / run.grid.world_size / cluster.host_bytes_per_second + 1;
  cost.write_s = cost.stall_s + checkpoint_bytes / (nodes * cluster.storage_bytes_per_second);
  cost.load_s = checkpoint_bytes / (nodes * cluster.storage_bytes_per_second) + 20;
  return cost;
}

std::vector<ScalingRow> scaling_study(const ScalingRequest& request) {
  std::vector<ScalingRow> rows;
  for (const int gpus : request.sizes) {
    SearchRequest search = request.search;
    search.gpus = gpus;
    // Only the fastest layout of each size is compared.
    search.best = 1;
    search.global_batch = batch_for(gpus, request.search.global_batch);
    ScalingRow row{.gpus = gpus, .global_batch = search.global_batch};
    SearchResult layouts = search_layouts(search);
    if (!layouts.best.empty()) {
      row.layout = std::move(layouts.best.front());
      row.checkpoint = checkpoint_cost(*row.layout, search.cluster);
      SimulatedRun run{.gpus = gpus,
                       .step_s = row.layout->time.total(),
                       .interval_s = 1,
                       .days = request.days,
                       .faults = request.faults,
                       .checkpoint = row.checkpoint};
      // Young's formula is shown beside the simulated optimum, as the value that most people would use.
      row.young_s = young_interval_s(run);
      row.interval_s = best_interval_s(run, request.seed, request.courses);
      run.interval_s = row.interval_s;
      row.goodput = simulate(run, request.seed, request.courses);
      row.tokens_per_day = row.layout->time.tokens_per_second() * 86400 * row.goodput.useful;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string scaling_text(const ScalingRequest& request, const std::vector<ScalingRow>& rows) {
  std::string text = fmt::format(
      "{} GPUs, one failure per GPU every {:.0f} hours, {:.0f} days; mean of {} simulations per row\n\n"
      "{:>6} {:>7} {:>8} {:>6} {:>9} {:>9} {:>9} {:>8} {:>7} {:>7} {:>7} {:>8} {:>10}  {}\n",
      request.search.cluster.gpu, request.faults.gpu_mtbf_hours, request.days, request.courses, "GPUs", "batch",
      "step s", "MFU %", "MTBF h", "save s", "every s", "Young s", "useful", "lost", "saving", "restarts", "tokens/day",
      "layout");
  for (const ScalingRow& row : rows) {
    if (!row.layout) {
      text += fmt::format("{:>6} {:>7} no layout fits\n", row.gpus, row.global_batch);
      continue;
    }
    const auto percent = [](double part) { return fmt::format("{:.1f} %", 100 * part); };
    text += fmt::format(
        "{:>6} {:>7} {:>8.2f} {:>6.1f} {:>9.1f} {:>9.1f} {:>9.0f} {:>8.0f} {:>7} {:>7} {:>7} {:>8} {:>10.3g}  {}\n",
        row.gpus, row.global_batch, row.layout->time.total(), 100 * row.layout->time.mfu(),
        request.faults.gpu_mtbf_hours / row.gpus, row.checkpoint.stall_s, row.interval_s, row.young_s,
        percent(row.goodput.useful), percent(row.goodput.lost), percent(row.goodput.saving),
        percent(row.goodput.restarts), row.tokens_per_day, row.layout->text());
  }
  return text;
}

nlohmann::ordered_json scaling_json(const std::vector<ScalingRow>& rows) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const ScalingRow& row : rows) {
    nlohmann::ordered_json one{{"gpus", row.gpus}, {"global_batch", row.global_batch}};
    if (row.layout) {
      one["layout"] = row.layout->text();
      one["step_s"] = row.layout->time.total();
      one["mfu"] = row.layout->time.mfu();
      one["stall_s"] = row.checkpoint.stall_s;
      one["write_s"] = row.checkpoint.write_s;
      one["interval_s"] = row.interval_s;
      one["young_s"] = row.young_s;
      one["useful"] = row.goodput.useful;
      one["lost"] = row.goodput.lost;
      one["saving"] = row.goodput.saving;
      one["restarts"] = row.goodput.restarts;
      one["failures"] = row.goodput.failures;
      one["tokens_per_day"] = row.tokens_per_day;
    }
    json.push_back(std::move(one));
  }
  return json;
}

}  // namespace megalith::plan
