// RunShape: a run in numbers: model, options, layout and batch, on what kind of machine. What memory, time and search
// are computed from; nothing is allocated and no rank exists.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megalith/config/training_arguments.h"
#include "megalith/layout/grid_shape.h"
#include "megalith/layout/layer_split.h"
#include "megalith/model/families/model_config.h"
#include "megalith/model/model_options.h"

namespace megalith::plan {

// Where tensors live and what carries collectives: both decide about temporary copies.
struct Machinery {
  bool cuda = true;
  enum class Collectives {
    kNccl,    // in place
    kGloo,    // reduce-scatter works on a copy
    kThreads  // ranks of one process: whoever comes last holds the result of a reduction
  } collectives = Collectives::kNccl;

  at::Device device() const { return cuda ? at::kCUDA : at::kCPU; }
  static Machinery cpu() { return {.cuda = false, .collectives = Collectives::kGloo}; }
};

struct RunShape {
  const model::ModelConfig* model = nullptr;  // borrowed
  config::TrainingArguments args;             // after derive()
  model::ModelOptions options;                // of them
  layout::GridShape grid;
  int64_t sequence_length = 0;   // tokens of a sequence, padding included
  int64_t micro_batch_size = 1;  // samples
  int64_t answers = 1;           // sequences of a sample: two of a preference pair
  bool reference = false;        // a second model beside it, whose weights alone are held
  int64_t microbatches = 1;      // of a step and a replica
  Machinery machinery;

  int dp() const { return grid.dp(); }
  int chunks() const { return args.pipeline.vpp.value_or(1); }
  bool half() const { return options.dtype != at::kFloat; }
  double element_bytes() const { return half() ? 2 : 4; }
  // Tokens of a micro-batch on a rank: of its context-parallel slice, and of its share with sequence parallelism.
  double tokens() const;
  double shard_tokens() const;
  int64_t sequences() const { return micro_batch_size * answers; }  // of a micro-batch
  double global_batch() const { return static_cast<double>(micro_batch_size * microbatches * dp()); }
  layout::LayerSplit split() const;
};

// `model` outlives the result; it has had the arguments' say (run::model_overrides). `args` after derive(), `options`
// made of them for the machinery's device (run::model_options); with finetuning_type lora a new adapter is planned
// (adapter_sizes.h), with stage dpo pairs and their reference. Sequences are padded as the collator pads them; the
// micro-batches are those of the final global batch. Throws ConfigError with every reason why there is no such run.
RunShape run_shape(const model::ModelConfig& model, const config::TrainingArguments& args,
                   const model::ModelOptions& options, int world_size, int64_t sequence_length,
                   const Machinery& machinery);

// Every reason why the model cannot be laid out so: heads, widths, experts, layers, sequences; each with what can.
// Empty: it can.
std::vector<std::string> layout_problems(const RunShape& run);

}  // namespace megalith::plan
