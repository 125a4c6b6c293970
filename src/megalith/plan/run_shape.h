// RunShape: a run in numbers: model, options, layout and batch, on what kind of machine. What memory, time and search
// are computed from; nothing is allocated and no rank exists.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megalith/layout/grid_shape.h"
#include "megalith/layout/layer_split.h"
#include "megalith/layout/pipeline_schedule.h"
#include "megalith/model/families/model_config.h"
#include "megalith/model/model_options.h"
#include "megalith/nn/footprint/rank_sizes.h"
#include "megalith/optim/distributed_data_parallel.h"

namespace megalith::plan {

using nn::Machinery;

// Activations that are computed twice, as users name it; ModelOptions::recompute says which.
enum class Recompute { kNone, kSelective, kFull };

// run::run_shape makes it from options; whoever fills it in by hand ends with complete().
struct RunShape {
  const model::ModelConfig* model = nullptr;  // borrowed
  model::ModelOptions options;
  layout::GridShape grid;
  layout::PipelineShape pipeline;  // the schedule of a step
  layout::SplitRequest stages;     // how layers become stages; their number is the model's
  bool overlap_p2p_comm = false;   // receives run ahead of the schedule
  int64_t sequence_length = 0;     // tokens of a sequence, padding included
  int64_t micro_batch_size = 1;    // samples
  int64_t answers = 1;             // sequences of a sample: two of a preference pair
  bool reference = false;          // a second model beside it, whose weights alone are held
  int64_t microbatches = 1;        // of a step and a replica
  Machinery machinery;
  Recompute recompute = Recompute::kNone;
  std::vector<std::string> recompute_modules;  // with kSelective
  optim::DdpSettings gradients;                // of the chunk that is cut into buckets
  bool overlap_param_gather = false;           // parameters are collected during the next forward
  // State per trained element, without its fp32 copy (optim::UpdateRule::state_bytes), and the part of it that is kept
  // on the host.
  double optimizer_state_bytes = 0;
  double offload_fraction = 0;
  bool saves_in_background = false;  // save points are copied to the host and written from there

  int dp() const { return grid.dp(); }
  int chunks() const { return pipeline.chunks; }
  bool half() const { return options.dtype != at::kFloat; }
  double element_bytes() const { return half() ? 2 : 4; }
  // Tokens of a micro-batch on a rank: of its context-parallel slice, and of its share with sequence parallelism.
  double tokens() const;
  double shard_tokens() const;
  int64_t sequences() const { return micro_batch_size * answers; }  // of a micro-batch
  double global_batch() const { return static_cast<double>(micro_batch_size * microbatches * dp()); }
  layout::LayerSplit split() const;
};

// Pads the sequences as the collator pads them and fits everything else to the sizes. Throws ConfigError with every
// reason why there is no such run.
RunShape complete(RunShape run);

// Every reason why the model cannot be laid out so: heads, widths, experts, layers, sequences; each with what can.
// Empty: it can.
std::vector<std::string> layout_problems(const RunShape& run);

}  // namespace megalith::plan
