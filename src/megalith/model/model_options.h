// ModelOptions: how a model is stored and executed, in contrast to what it is (ModelConfig). Options do not
// change the names, shapes or meaning of weights, so a checkpoint fits all of them.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "megalith/model/freeze/trained_layers.h"
#include "megalith/nn/context_parallel/context_parallel.h"
#include "megalith/nn/moe/moe_shape.h"
#include "megalith/ops/gemm/fp8.h"
#include "megalith/ops/loss/cross_entropy.h"
#include "megalith/ops/quantize/quantized.h"
#include "megalith/peft/adapter_config.h"

namespace megalith::model {

// The activations that backward recomputes instead of keeping; see nn/recompute.h.
struct RecomputePlan {
  // Whole layers: none, all in groups of num_layers (kUniform), or the first num_layers of each chunk (kBlock).
  enum class Layers { kNone, kUniform, kBlock } layers = Layers::kNone;
  int64_t num_layers = 1;      // kUniform: layers per group; kBlock: recomputed layers per chunk, from the first
  bool split_over_tp = false;  // keep the inputs of recomputed layers split over tensor-parallel ranks
  // Selective recomputation; any of these may be on together.
  bool core_attention = false;  // selective: scores and probabilities
  bool mlp = false;             // selective: the whole feed-forward block
  bool mlp_activation = false;  // selective: the activation of dense MLPs, before the down projection
  bool norms = false;           // selective: outputs of norms
  bool mla_up_proj = false;     // selective: queries, keys and values of latent attention, from the latents
  bool moe = false;             // selective: whole layers of experts

  // Returns whether anything is recomputed.
  bool any() const {
    return layers != Layers::kNone || core_attention || mlp || mlp_activation || norms || mla_up_proj || moe;
  }
};

// The activations that are kept in host memory until backward; see nn/activation_offload.h. Not with a RecomputePlan.
struct OffloadPlan {
  int64_t num_layers = 0;          // layers of each chunk, from the first
  int64_t min_bytes = 256 * 1024;  // smaller tensors stay on the device: a copy of them costs more than it frees
};

// The parts of a model that sees or hears which are not trained: they get no gradient, no optimizer state and no
// adapter.
struct FreezePlan {
  bool vision_tower = false;    // patches, positions, blocks and deepstack mergers; and the tower for sound
  bool projector = false;       // the merger at its end; for sound the last two products
  bool language_model = false;  // everything else
  bool operator==(const FreezePlan&) const = default;

  // Returns whether the parameter of this name (ours: "vision.blocks.0.…") is frozen.
  bool freezes(std::string_view parameter) const;
};

// The choices of a run about one model. All ranks use the same; only `device` may differ.
struct ModelOptions {
  at::ScalarType dtype = at::kFloat;  // type of parameters and activations
  // Keeps the residual stream, from the embedding to the final norm and between stages, in fp32 beside a dtype of 16
  // bits; parts of layers get the output of a norm and return their results in dtype.
  bool fp32_residual = false;
  // kMeta builds a model without memory, to ask it for names and shapes.
  at::Device device = at::kCPU;
  // Norms, dropouts and the residual stream hold [t/tp, h] instead of [t, h].
  bool sequence_parallel = false;
  bool tp_overlap = false;            // with it, collectives of linear layers travel in slices beside their products
  int64_t tp_slices = 0;              // slices of each product; 0 = by its size
  int64_t vocab_multiple = 1;         // the padded vocabulary is a multiple of this times tp
  int64_t loss_chunk = 0;             // if > 0, projection and loss are fused, so many tokens at a time
  std::optional<ops::Fp8Recipe> fp8;  // for linear layers inside blocks; not for embedding, head, router, experts
  bool fp8_inside_only = false;       // nor for the first and the last block
  bool fp8_head = false;              // with loss_chunk, for the head as well; for experts: moe.fp8
  // Linear weights of layers are kept in 4 or 8 bits; needs an adapter, and excludes fp8.
  std::optional<ops::QuantizedFormat> quantization;
  // Label smoothing, z-loss and the ignored label.
  ops::CrossEntropyOptions loss;
  double neftune_alpha = 0;  // noise on embeddings in training, if > 0
  RecomputePlan recompute;
  OffloadPlan offload;
  std::vector<nn::ContextMode> context_modes;  // one for all layers or one per layer; empty = kRing
  // Dispatch, overlap and recomputation of experts; unused without them.
  nn::MoeOptions moe;
  FreezePlan freeze;
  std::optional<LayerChoice> trained_layers;   // freezes all other weights of the language model; nullopt = none is
  std::optional<peft::AdapterConfig> adapter;  // after peft::with_targets; nullopt = the model itself is trained

  // Return the type of the residual stream, and whether it is wider than that of the layers' parts.
  at::ScalarType stream_dtype() const { return wide_stream() ? at::kFloat : dtype; }
  bool wide_stream() const { return fp32_residual && (dtype == at::kBFloat16 || dtype == at::kHalf); }
};

}  // namespace megalith::model
