// RankSizes: the numbers that the footprints of all layers of a rank share. The sizes of a layer itself come from its
// own shape (MlpShape, AttentionShape, …), which its constructor takes, too.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "megalith/ops/gemm/fp8.h"
#include "megalith/ops/quantize/quantized.h"

namespace megalith::nn {

// Device of the tensors and backend of the collectives, which both determine the temporary copies.
struct Machinery {
  bool cuda = true;
  // The backend, by the memory that its reductions take.
  enum class Collectives {
    kNccl,    // in place
    kGloo,    // reduce-scatter works on a copy
    kThreads  // ranks are threads of one process: the last one to arrive holds the result of a reduction
  } collectives = Collectives::kNccl;

  // The device of the tensors.
  at::Device device() const { return cuda ? at::kCUDA : at::kCPU; }
  // Processes on CPUs, connected by Gloo.
  static Machinery cpu() { return {.cuda = false, .collectives = Collectives::kGloo}; }
};

// Images of a micro-batch, for models with a vision tower.
struct ImageSizes {
  double patches = 0;        // those that this rank computes
  double frame_patches = 0;  // patches in one frame
  double gathered_rows = 0;  // output rows of all ranks together, with padding
};

// Sounds of a micro-batch, for models with an audio tower.
struct SoundSizes {
  double frames = 0, chunks = 0, rows = 0;  // those that this rank computes
  double rows_of_one = 0;                   // rows that one sound becomes
  double gathered_rows = 0;                 // output rows of all ranks together, with padding
};

// Legend: t tokens of a micro-batch on a rank, s tokens of its sequence-parallel share (t without it), h hidden.
struct RankSizes {
  double t = 0, s = 0, h = 0;
  double length = 0;                  // tokens of one sequence
  double bytes = 4;                   // per element of an activation
  at::ScalarType dtype = at::kFloat;  // dtype of activations
  bool wide_stream = false;           // the residual stream is in fp32, all other activations have 16 bits
  // Ranks that share the heads, the tokens of a sequence, the experts, and each expert.
  int64_t tp = 1, cp = 1, ep = 1, etp = 1;
  bool split_tokens = false;    // sequence parallelism, over more than one rank
  bool tp_overlap = false;      // its collectives travel in slices beside the products
  int64_t tp_slices = 0;        // slices of each product; 0 = by its size
  bool discards_norms = false;  // outputs of norms are freed after forward and recomputed in backward
  bool accumulates = false;     // several micro-batches: gradients are added to those in the buffer
  bool frozen = false;          // weights are not trained: adapters are, or other layers
  double adapter_dropout = 0;   // probability; above 0 a mask is kept per update
  ImageSizes images{};
  SoundSizes sounds{};
  // For products of linear layers inside blocks; nullopt = none is in fp8.
  std::optional<ops::Fp8Recipe> fp8{};
  // How linear weights of layers are kept (parameter/quantized_value.h); nullopt = in the dtype of activations.
  std::optional<ops::QuantizedFormat> quantization{};
  Machinery machinery;

  double stream() const { return s * h * bytes; }  // bytes of [s, h], what a part of a layer takes and returns
  double whole() const { return t * h * bytes; }   // bytes of [t, h]
  // Bytes of a tensor of the residual stream, [s, h].
  double residual() const { return wide_stream ? 4 * s * h : stream(); }
};

}  // namespace megalith::nn
