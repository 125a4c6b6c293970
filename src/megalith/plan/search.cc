// Predicting the time of a step is cheap, walking through its memory is not, and that decides the order of work. So
// all sets of sizes are timed in their leanest form, sorted, and then taken a hundred at a time: all micro-batches and
// kinds of recomputation of these are timed and sorted, and memory is computed in that order only until enough layouts
// fit.
//
// If nothing fits, the search runs again with the optimizer on the host; if that does not help either, once more
// without the user's sizes and ordered by distance from them, to propose the nearest layout that fits.
#include "megalith/plan/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"
#include "megalith/plan/search_space_internal.h"

namespace megalith::plan {

namespace {

// Returns the word of recompute_granularity, or "none".
const char* recompute_name(Recompute recompute) {
  if (recompute == Recompute::kFull) return "full";
  return recompute == Recompute::kSelective ? "selective" : "none";
}

// Layouts with equal sizes are variants of one proposal; chunks, micro-batches and recomputation do not count.
std::tuple<int, int, int, int, int> sizes_of(const RunShape& run) {
  return {run.grid.tp, run.grid.cp, run.grid.pp, run.grid.ep, run.grid.expert_tp()};
}

// Caches that all predictions of one search share.
struct Scratch {
  BubbleBook bubbles;
  ScheduleBook schedules;
};

// Predicts the time of a layout; std::nullopt if there is no such run.
std::optional<Candidate> timed(const SearchRequest& request, const LayoutChoice& choice, Scratch& scratch) {
  try {
    Candidate candidate;
    candidate.run = request.shape(request, choice);
    candidate.time = plan_step_time(candidate.run, request.cluster, scratch.bubbles);
    return candidate;
  } catch (const ConfigError&) {
    return std::nullopt;  // this model cannot be cut into these sizes
  }
}

double seconds_of(const Candidate& candidate) { return candidate.time.total(); }

// The outcome of one search.
struct Weighed {
  std::vector<Candidate> fitting;     // fastest first, at most as many as wanted, one per set of sizes
  std::optional<Candidate> smallest;  // the one that needs the least memory of those that do not fit
  size_t possible = 0, count = 0;
};

// Computes memory in the given order until enough candidates fit.
// `progress` advances by `sizes`, the number of sets of sizes that the candidates are variants of.
void weigh(std::vector<Candidate> candidates, const Cluster& cluster, size_t wanted, Scratch& scratch, Weighed& result,
           size_t sizes, TaskProgress& progress) {
  size_t told = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    Candidate& candidate = candidates[i];
    if (result.fitting.size() >= wanted) return;
    const size_t done = sizes * i / candidates.size();
    progress.add(static_cast<int64_t>(done - std::exchange(told, done)));
    const auto same = [&](const Candidate& other) { return sizes_of(other.run) == sizes_of(candidate.run); };
    // A faster variant of the same sizes has been taken, so this one's memory is not worth computing.
    if (std::ranges::any_of(result.fitting, same)) continue;
    candidate.memory = fullest(plan_memory(candidate.run, scratch.schedules));
    ++result.count;
    if (candidate.fits(cluster))
      result.fitting.push_back(std::move(candidate));
    else if (!result.smallest || candidate.memory.peak() < result.smallest->memory.peak())
      result.smallest = std::move(candidate);
  }
  progress.add(static_cast<int64_t>(sizes - told));
}

// A study searches for one number of GPUs after another.
std::string progress_name(const char* what, const SearchRequest& request) {
  return fmt::format("{} of {} GPUs", what, request.gpus);
}

// Searches as described above. Sizes are sorted by their time with small micro-batches and without recomputation, which
// is close to the order of their best times.
Weighed search(const SearchRequest& request, size_t wanted,
               const std::function<double(const Candidate&)>& order = seconds_of) {
  // Enough sizes that the fastest variant overall is among them, few enough that memory is rarely computed.
  constexpr size_t kAtATime = 100;
  Scratch scratch;
  std::vector<std::pair<double, LayoutChoice>> sizes;
  const std::vector<LayoutChoice> choices = layout_choices(request);
  {
    TaskProgress progress(progress_name("timing layouts", request), TaskProgress::Unit::kCount, std::ssize(choices),
                          "layouts");
    for (const LayoutChoice& choice : choices) {
      progress.add(1);
      if (const auto candidate = timed(request, choice, scratch)) sizes.emplace_back(order(*candidate), choice);
    }
  }
  std::ranges::stable_sort(sizes, {}, [](const auto& size) { return size.first; });
  Weighed result;
  result.possible = sizes.size();
  // All of them in the worst case: when nothing fits.
  TaskProgress progress(progress_name("fitting layouts into memory", request), TaskProgress::Unit::kCount,
                        std::ssize(sizes), "layouts");
  for (size_t begin = 0; begin < sizes.size() && result.fitting.size() < wanted; begin += kAtATime) {
    std::vector<Candidate> candidates;
    const size_t end = std::min(sizes.size(), begin + kAtATime);
    for (size_t i = begin; i < end; ++i)
      for (const LayoutChoice& choice : ways_of(request, sizes[i].second))
        if (auto candidate = timed(request, choice, scratch)) candidates.push_back(std::move(*candidate));
    std::ranges::stable_sort(candidates, {}, order);
    weigh(std::move(candidates), request.cluster, wanted, scratch, result, end - begin, progress);
  }
  std::ranges::stable_sort(result.fitting, {}, order);
  return result;
}

// Distance of a run from the user's sizes: the sum of the factors of two between them. Chunks and recomputation weigh
// half, since they are easier to change.
double distance(const SearchRequest& request, const RunShape& run) {
  const auto apart = [](std::optional<int> asked, int is) {
    return asked ? std::abs(std::log2(1.0 * is / *asked)) : 0;
  };
  const GivenLayout& p = request.given;
  double sum =
      apart(p.tp, run.grid.tp) + apart(p.pp, run.grid.pp) + apart(p.cp, run.grid.cp) + apart(p.ep, run.grid.ep);
  sum += apart(p.micro_batch, static_cast<int>(run.micro_batch_size));
  if (p.vpp) sum += 0.5 * apart(p.vpp, run.chunks());
  if (request.recompute != run.recompute) sum += 0.5;
  return sum;
}

// Names the layout that comes closest, with its parts, so that a reader sees what to shrink.
std::string too_large(const Candidate& c, const Cluster& cluster) {
  const RankMemory& m = c.memory;
  return fmt::format(
      "{} needs {:.1f} GiB on a GPU of stage {}, and {:.1f} of {:.1f} GiB are for tensors: parameters {:.1f},"
      " gradients {:.1f}, optimizer {:.1f}, activations {:.1f}, communication {:.1f}, workspace {:.1f}",
      c.text(), m.peak() / kGiB, m.pp_rank, cluster.usable_bytes() / kGiB, cluster.memory_bytes / kGiB,
      m.state.parameters / kGiB, m.state.gradients / kGiB, m.state.optimizer / kGiB, m.at_peak[0] / kGiB,
      m.at_peak[1] / kGiB, m.at_peak[2] / kGiB);
}

// Says why the requested sizes are impossible.
std::string impossible(const SearchRequest& request) {
  const auto choices = layout_choices(request);
  try {
    request.shape(request, choices.empty() ? std::nullopt : std::optional(choices.front()));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return fmt::format("a global batch of {} sequences does not divide over the replicas of {} GPUs",
                     request.global_batch, request.gpus);
}

// Returns the request without the sizes that the user gave.
SearchRequest without_given_sizes(const SearchRequest& request) {
  SearchRequest free = request;
  free.given = {};
  return free;
}

// Looks for one layout only: the first that fits in the order of distance.
std::optional<Candidate> nearest_fitting(const SearchRequest& request) {
  Weighed weighed = search(without_given_sizes(request), 1,
                           [&](const Candidate& candidate) { return distance(request, candidate.run); });
  if (weighed.fitting.empty()) return std::nullopt;
  return std::move(weighed.fitting.front());
}

}  // namespace

// "tp 2 x pp 4 (2 chunks) x dp 8, micro-batch 1 x 16, recompute none"; sizes of 1 are left out except for tp and dp.
std::string Candidate::text() const {
  const layout::GridShape& g = run.grid;
  std::string sizes = fmt::format("tp {}", g.tp);
  if (g.cp > 1) sizes += fmt::format(" x cp {}", g.cp);
  if (g.pp > 1) sizes += fmt::format(" x pp {}", g.pp);
  if (run.chunks() > 1) sizes += fmt::format(" ({} chunks)", run.chunks());
  sizes += fmt::format(" x dp {}", g.dp());
  if (run.model->moe) sizes += fmt::format(", ep {} etp {}", g.ep, g.expert_tp());
  sizes += fmt::format(", micro-batch {} x {}, recompute {}", run.micro_batch_size, run.microbatches,
                       recompute_name(run.recompute));
  if (run.offload_fraction > 0) sizes += ", optimizer on the host";
  return sizes;
}

std::string Candidate::limits(const Cluster& cluster) const {
  return fmt::format("{}; memory {:.0f} % full", time.limit(), 100 * memory.peak() / cluster.usable_bytes());
}

SearchResult search_layouts(const SearchRequest& request) {
  check<ConfigError>(request.gpus >= 1 && request.gpus <= layout::kMaxGridSize,
                     "gpus is {}; it must be a whole number from 1 to {}", request.gpus, layout::kMaxGridSize);
  check<ConfigError>(request.global_batch >= 1, "global_batch_size is {}; it must be positive", request.global_batch);
  SearchResult result;
  Weighed weighed = search(request, request.best);
  result.possible = weighed.possible;
  if (weighed.fitting.empty() && weighed.smallest && !request.offloads) {
    // Last resort: the same sizes with all optimizer state on the host.
    SearchRequest offloading = request;
    offloading.shape = [&request](const SearchRequest& mine, std::optional<LayoutChoice> choice) {
      if (choice) choice->offload = true;
      return request.shape(mine, choice);
    };
    Weighed offloaded = search(offloading, request.best);
    offloaded.count += weighed.count;
    if (!offloaded.fitting.empty()) weighed = std::move(offloaded);
  }
  result.weighed = weighed.count;
  result.best = std::move(weighed.fitting);
  if (!result.best.empty()) return result;
  result.why_not = weighed.smallest ? too_large(*weighed.smallest, request.cluster) : impossible(request);
  result.nearest = nearest_fitting(request);
  return result;
}

// Only options that differ between layouts, so that the file can be put beside those of a model and its data.
std::string train_yaml(const Candidate& candidate) {
  const RunShape& run = candidate.run;
  std::string text = fmt::format("# {} GPUs: {}\n", run.grid.world_size, candidate.text());
  const auto line = [&text](std::string_view name, const auto& value) { text += fmt::format("{}: {}\n", name, value); };
  line("finetuning_type", run.options.adapter ? "lora" : run.options.trained_layers ? "freeze" : "full");
  line("tensor_model_parallel_size", run.grid.tp);
  line("pipeline_model_parallel_size", run.grid.pp);
  if (run.chunks() > 1) line("virtual_pipeline_model_parallel_size", run.chunks());
  line("context_parallel_size", run.grid.cp);
  if (run.model->moe) {
    line("expert_model_parallel_size", run.grid.ep);
    line("expert_tensor_parallel_size", run.grid.expert_tp());
    line("moe_token_dispatcher_type", "alltoall");
  }
  line("sequence_parallel", run.options.sequence_parallel);
  line("per_device_train_batch_size", run.micro_batch_size);
  line("gradient_accumulation_steps", run.microbatches);
  line("use_distributed_optimizer", run.gradients.use_distributed_optimizer);
  line("overlap_grad_reduce", run.gradients.overlap_grad_reduce);
  line("overlap_param_gather", run.overlap_param_gather);
  if (run.options.dtype == at::kBFloat16) line("bf16", true);
  if (run.options.wide_stream()) line("fp32_residual_connection", true);
  if (run.offload_fraction > 0) {
    line("optimizer_cpu_offload", true);
    line("optimizer_offload_fraction", run.offload_fraction);
  }
  if (run.recompute != Recompute::kNone) line("recompute_granularity", recompute_name(run.recompute));
  if (run.recompute == Recompute::kFull) {
    line("recompute_method", "uniform");
    line("recompute_num_layers", run.options.recompute.num_layers);
  } else if (!run.recompute_modules.empty()) {
    line("recompute_modules", fmt::format("[{}]", fmt::join(run.recompute_modules, ", ")));
  }
  return text;
}

}  // namespace megalith::plan
