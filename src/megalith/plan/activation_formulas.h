// Activation memory of a GPT layer in Megatron-LM, by the formulas of "Reducing Activation Recomputation in Large
// Transformer Models" (arXiv:2205.05198, table 2), for comparison. Our own numbers (memory.h) differ: attention keeps
// no scores, gated layers have three matrices, and plain activations are recomputed.
#pragma once

namespace megalith::plan {

// The sizes in the formulas, with their letters there.
struct MegatronLayer {
  double sequence = 0;  // s
  double batch = 0;     // b, of a micro-batch
  double hidden = 0;    // h
  double heads = 0;     // a
  double tp = 1;        // t
  bool sequence_parallel = false;
  // Selective leaves out the scores, full keeps the input of the layer only.
  enum class Recompute { kNone, kSelective, kFull } recompute = Recompute::kNone;
};

// Returns bytes per layer and rank with 16-bit activations: the sum over the tensors that the reference keeps.
//   s b h (34 + 5 a s/h)                    one rank
//   s b h (10 + 24/t + 5 a s/(h t))         tensor parallelism
//   s b h (34/t + 5 a s/(h t))              and sequence parallelism
//   the same without 5 a s/(h t)            selective recomputation
//   2 s b h                                 full recomputation
double megatron_activation_bytes(const MegatronLayer& layer);

}  // namespace megalith::plan
