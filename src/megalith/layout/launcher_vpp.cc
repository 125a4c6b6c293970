// Megatron-LM's launcher accepts three ways to ask for virtual stages: layers per stage, stages per rank, or a layout.
// This turns each into vpp with the reference's arithmetic, and 1 into "no virtual stages". Problems are collected in
// `out`, and a function that adds one returns std::nullopt.
#include "megalith/layout/launcher_vpp.h"

#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/layout/problem_list_internal.h"

namespace megalith::layout {
namespace {

using Problems = std::vector<std::string>;

// Returns the stages per rank of the layout.
std::optional<int> vpp_of_layout(const LauncherVppRequest& r, Problems& out) {
  const int pp = r.pipeline_model_parallel_size;
  try {
    const int stages = PipelineLayout::parse(*r.pipeline_model_parallel_layout).num_stages();
    if (stages % pp == 0) return stages / pp;
    out.push_back(
        fmt::format("pipeline_model_parallel_layout has {} stages, which is not a multiple of "
                    "pipeline_model_parallel_size={}",
                    stages, pp));
  } catch (const ConfigError& e) {
    out.emplace_back(e.what());
  }
  return std::nullopt;
}

// Layers to divide: the embedding and the loss count as one each if asked for.
int accounted_layers(const LauncherVppRequest& r) {
  return r.num_layers + (r.account_for_embedding_in_pipeline_split ? 1 : 0) +
         (r.account_for_loss_in_pipeline_split ? 1 : 0);
}

// Returns whether the first or the last rank has a count of its own.
bool has_outer_counts(const LauncherVppRequest& r) {
  return r.decoder_first_pipeline_num_layers || r.decoder_last_pipeline_num_layers;
}

// One message for both ways that need an even split.
std::string does_not_divide(const LauncherVppRequest& r) {
  return fmt::format(
      "{} layers (accounted embedding and loss included) do not divide over "
      "pipeline_model_parallel_size={}. Choose a divisor of {}, or decoder_first/last_pipeline_num_layers, "
      "or a pipeline_model_parallel_layout",
      accounted_layers(r), r.pipeline_model_parallel_size, accounted_layers(r));
}

// Layers per rank divided by layers per stage.
std::optional<int> vpp_of_layers_per_stage(const LauncherVppRequest& r, Problems& out) {
  const int per_stage = *r.num_layers_per_virtual_pipeline_stage;
  if (has_outer_counts(r)) {
    out.emplace_back(
        "num_layers_per_virtual_pipeline_stage excludes decoder_first_pipeline_num_layers and "
        "decoder_last_pipeline_num_layers. Use num_virtual_stages_per_pipeline_rank instead");
    return std::nullopt;
  }
  const int layers = accounted_layers(r);
  if (layers % r.pipeline_model_parallel_size != 0) {
    out.push_back(does_not_divide(r));
    return std::nullopt;
  }
  const int per_rank = layers / r.pipeline_model_parallel_size;
  if (per_rank % per_stage == 0) return per_rank / per_stage;
  out.push_back(fmt::format("num_layers_per_virtual_pipeline_stage={} does not divide the {} layers of a pipeline rank",
                            per_stage, per_rank));
  return std::nullopt;
}

// Later checks divide by these.
void check_ranges(const LauncherVppRequest& r, Problems& out) {
  const auto positive = [&](const char* what, int value) {
    if (value < 1) out.push_back(fmt::format("{} is {}; it must be at least 1", what, value));
  };
  positive("num_layers", r.num_layers);
  positive("pipeline_model_parallel_size", r.pipeline_model_parallel_size);
  positive("num_layers_per_virtual_pipeline_stage", r.num_layers_per_virtual_pipeline_stage.value_or(1));
  positive("num_virtual_stages_per_pipeline_rank", r.num_virtual_stages_per_pipeline_rank.value_or(1));
}

// Returns the virtual size of whichever option was given.
std::optional<int> given_vpp(const LauncherVppRequest& r, Problems& out) {
  const int ways = (r.num_layers_per_virtual_pipeline_stage ? 1 : 0) +
                   (r.num_virtual_stages_per_pipeline_rank ? 1 : 0) + (r.pipeline_model_parallel_layout ? 1 : 0);
  if (ways > 1) {
    out.emplace_back(
        "more than one of num_layers_per_virtual_pipeline_stage, num_virtual_stages_per_pipeline_rank and "
        "pipeline_model_parallel_layout was given; each sets the virtual pipeline size. Keep one");
    return std::nullopt;
  }
  std::optional<int> vpp;
  if (r.pipeline_model_parallel_layout) {
    vpp = vpp_of_layout(r, out);
  } else if (r.num_virtual_stages_per_pipeline_rank) {
    vpp = r.num_virtual_stages_per_pipeline_rank;
  } else if (r.num_layers_per_virtual_pipeline_stage) {
    vpp = vpp_of_layers_per_stage(r, out);
  } else if (!has_outer_counts(r) && r.uneven == UnevenSplit::kRefuse &&
             accounted_layers(r) % r.pipeline_model_parallel_size != 0) {
    out.push_back(does_not_divide(r));
  }
  return vpp == 1 ? std::nullopt : vpp;
}

// Interleaving with two ranks needs overlapped messages: both neighbors of a rank are then the same peer.
void check_interleaving(const LauncherVppRequest& r, int vpp, Problems& out) {
  const int pp = r.pipeline_model_parallel_size;
  if (pp == 1) {
    out.push_back(fmt::format("a virtual pipeline size of {} needs pipeline_model_parallel_size > 1", vpp));
  } else if (pp == 2 && !r.overlap_p2p_comm) {
    out.push_back(
        fmt::format("a virtual pipeline size of {} without overlap_p2p_comm needs pipeline_model_parallel_size "
                    "> 2, but it is 2: next and previous rank would be the same. Set overlap_p2p_comm",
                    vpp));
  }
}

// Returns the virtual size; std::nullopt means none, or a problem in `out`.
std::optional<int> resolve(const LauncherVppRequest& r, Problems& out) {
  check_ranges(r, out);
  if (!out.empty()) return std::nullopt;
  const std::optional<int> vpp = given_vpp(r, out);
  if (vpp) check_interleaving(r, *vpp, out);
  return vpp;
}

}  // namespace

std::vector<std::string> problems(const LauncherVppRequest& request) {
  Problems out;
  resolve(request, out);
  return out;
}

LauncherVpp resolve_launcher_vpp(const LauncherVppRequest& request) {
  Problems out;
  const std::optional<int> vpp = resolve(request, out);
  throw_if_any("impossible virtual pipeline", out);
  // Without virtual stages there is nothing to overlap, so the reference switches it off.
  return {vpp, vpp && request.overlap_p2p_comm};
}

}  // namespace megalith::layout
