// RunShape: a run in numbers: model, options, layout, batch and kind of machine. Memory, time and search are computed
// from it; nothing is allocated and no rank exists.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/enums.h"
#include "megalith/layout/grid_shape.h"
#include "megalith/layout/layer_split.h"
#include "megalith/layout/pipeline_schedule.h"
#include "megalith/model/families/model_config.h"
#include "megalith/model/model_options.h"
#include "megalith/nn/footprint/rank_sizes.h"
#include "megalith/optim/distributed_data_parallel.h"

namespace megalith::plan {

using nn::Machinery;

// The user's choice of which activations are computed twice; ModelOptions::recompute has the details. kNone keeps all
// activations, kSelective repeats some modules, kFull keeps the inputs of layers only.
enum class Recompute { kNone, kSelective, kFull };

// The treatment of weight matrices by Muon, while another rule updates the rest.
struct MuonShape {
  config::MuonTpMode tp_mode = config::MuonTpMode::kBlockwise;
  int steps = 5;               // steps of the iteration
  bool fp32_products = false;  // otherwise in bf16
  double state_bytes = 4;      // per element of a matrix, in place of optimizer_state_bytes
};

// The media that a plan assumes in each sample, which it cannot know. std::nullopt means the default of the run
// (run::set_media).
struct MediaRequest {
  std::optional<int64_t> images;        // per sample
  std::optional<int64_t> image_pixels;  // in each image
  std::optional<int64_t> sounds;        // per sample
  std::optional<double> sound_seconds;  // length of each sound
};

// run::run_shape makes it from options; code that fills it in by hand calls complete() at the end.
struct RunShape {
  const model::ModelConfig* model = nullptr;  // borrowed
  model::ModelOptions options;
  layout::GridShape grid;
  layout::PipelineShape pipeline;  // the schedule of a step
  layout::SplitRequest stages;     // how layers become stages; the number of layers comes from `model`
  bool overlap_p2p_comm = false;   // receives run ahead of the schedule
  int deferred_heads = 0;          // micro-batches of a step that keep the logits of the head until the flush, at most
  int64_t sequence_length = 0;     // tokens of a sequence, padding included
  int64_t micro_batch_size = 1;    // samples
  int64_t answers = 1;             // sequences per sample: two for a preference pair
  int64_t images = 0;              // per sample, for a model with a vision tower; answers share them
  int64_t image_max_pixels = 768 * 768;  // pixels of an image unless told otherwise
  int64_t image_side = 0;                // patches along a side of each image, which is a square
  int64_t sounds = 0;                    // per sample, for a model with an audio tower; answers share them
  int64_t sound_frames = 0;              // frames of each
  bool reference = false;                // a second model is held beside it, weights only
  // The reference is the model below its adapter: modules that the adapter trains in full keep their first weights.
  bool keeps_base = false;
  // The model of a teacher, which is held beside it in the same layout, with its final hidden states of a step.
  std::shared_ptr<const model::ModelConfig> teacher{};
  int64_t teacher_slice = 0;  // tokens whose logits exist at once in the loss, with a teacher or its files; else 0
  int64_t microbatches = 1;   // per step and replica
  Machinery machinery;
  Recompute recompute = Recompute::kNone;
  std::vector<std::string> recompute_modules;  // with kSelective
  optim::DdpSettings gradients;                // for the chunks that are cut into buckets
  bool overlap_param_gather = false;           // parameters are gathered during the next forward
  // Bytes of optimizer state per trained element (optim::StateFormats): the update rule's states, and the main
  // parameter beside a parameter of 16 bits, and of 8. Then the share of all that is kept on the host.
  double optimizer_state_bytes = 0;
  double main_parameter_bytes = 4;
  double fp8_main_parameter_bytes = 4;
  double offload_fraction = 0;
  std::optional<MuonShape> muon;     // with gradients.matrices_apart
  bool saves_in_background = false;  // save points are copied to the host and written from there

  // Return the dense data-parallel size, model chunks per pipeline rank, whether parameters have 16 bits, and bytes
  // per parameter or activation.
  int dp() const { return grid.dp(); }
  int chunks() const { return pipeline.chunks; }
  bool half() const { return options.dtype != at::kFloat; }
  double element_bytes() const { return half() ? 2 : 4; }
  // Returns the bytes of the residual stream of this rank's tokens, [s, h], which stages send to each other.
  double stream_bytes() const {
    const double bytes = options.stream_dtype() == at::kFloat ? 4 : 2;
    return shard_tokens() * static_cast<double>(model->hidden_size) * bytes;
  }
  // Tokens of a micro-batch on a rank: in its context-parallel slice, and in its share of that with sequence
  // parallelism.
  double tokens() const;
  double shard_tokens() const;
  int64_t sequences() const { return micro_batch_size * answers; }  // sequences per micro-batch
  // Images per micro-batch, 0 for a model without a vision tower, and patches of one.
  int64_t microbatch_images() const { return model->vision ? micro_batch_size * images : 0; }
  int64_t image_patches() const { return image_side * image_side; }
  // Sounds per micro-batch, 0 for a model without an audio tower.
  int64_t microbatch_sounds() const { return model->audio ? micro_batch_size * sounds : 0; }
  // Samples per step over all replicas.
  double global_batch() const { return static_cast<double>(micro_batch_size * microbatches * dp()); }
  // Returns the layers of every stage. Throws ConfigError if there is no such split.
  layout::LayerSplit split() const;
};

// Pads the sequences as the collator does and derives everything else from the sizes. Throws ConfigError with every
// reason why such a run is impossible.
RunShape complete(RunShape run);

// Returns every reason why the model cannot be laid out in this way (heads, widths, experts, layers, sequences), each
// with the allowed values. Empty if it can.
std::vector<std::string> layout_problems(const RunShape& run);

// Returns the teacher's own shape in the layout of `run`, which has a teacher and outlives it.
RunShape teacher_shape(const RunShape& run);
// Returns every reason why the teacher cannot be laid out like the model. Empty without a teacher.
std::vector<std::string> teacher_problems(const RunShape& run);

}  // namespace megalith::plan
