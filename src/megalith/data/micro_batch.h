// MicroBatch: the tokens of one forward pass with all data that belongs to them. In shapes, t is the number of tokens;
// on a context-parallel rank, of those in its slice.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/ops/sequence_layout.h"

namespace megalith::data {

// The meaning of the first dimension of an extra tensor.
enum class ExtraOf {
  kTokens,  // [t, …]: sliced for context-parallel ranks exactly like ids and labels
  kRows,    // [rows, …]: one entry per sample; for pairs, all chosen rows, then all rejected ones. If a user-defined
            // collator returns ids as [rows, tokens], one entry per row. Not sliced
  kBatch,   // any shape; not sliced
};

// A tensor that the library carries without knowing what it means. On the CPU; of any dtype. Objective and loss get it
// by its name (MicroBatch::extra).
struct ExtraTensor {
  at::Tensor values;
  ExtraOf of = ExtraOf::kTokens;
};

// The tokens that one layer of multi-token prediction reads: for each token, the one some places further on in its
// sequence.
struct FurtherTokens {
  at::Tensor ids;           // int64 [t]; 0 past the end
  at::Tensor labels;        // int64 [t]; kIgnoredLabel past the end
  int64_t loss_tokens = 0;  // number of tokens with such a label; over all context-parallel ranks together
};

// Everything that the trainer and every pipeline stage need to know about a micro-batch, on the CPU.
//
// Tokens are stored sequence by sequence. labels[i] is the token that token i has to predict: labels are shifted, and
// the last token of a sample appears only as a label. Padding has the label kIgnoredLabel and follows the tokens of its
// sequence, where causal attention does not see it; padding that fills up the total forms a last, separate sequence.
struct MicroBatch {
  at::Tensor ids;     // int64 [t]; undefined with CollateParts::kLayoutOnly
  at::Tensor labels;  // int64 [t]; likewise
  ops::SequenceLayout layout;
  int64_t samples = 0;      // number of dataset samples; a preference pair is one
  int64_t sequences = 0;    // number of sequences in the layout, without the one that fills up the total
  int64_t real_tokens = 0;  // number of tokens without padding
  int64_t loss_tokens = 0;  // number of tokens with a label
  bool preference = false;  // the first half of the sequences are the chosen ones, the second the rejected ones
  // fp32 [sequences]: log p under a reference model; with verdicts [2·samples], the own answers before the mismatched
  // ones. Undefined if the samples have none.
  at::Tensor reference;
  // Answers with verdicts (KTO), one sequence per sample; undefined and nullptr otherwise.
  at::Tensor desirable{};                          // bool [samples]
  std::shared_ptr<const MicroBatch> mismatched{};  // the mismatched answers of the same samples, in their order
  std::map<std::string, ExtraTensor, std::less<>> extras{};  // by name; on every pipeline stage
  // One entry per multi-token-prediction layer: entry d is d + 1 places further on. Added by the trainer for the stage
  // with those layers (train/step/rank_microbatches.h); the collator leaves it empty.
  std::vector<FurtherTokens> further{};

  // ---- Images and videos, in the order of their tokens; undefined if the samples have none ----
  // `row` is 3 x temporal patch x patch x patch: the pixels of one patch. p is the number of patches of all media.
  at::Tensor pixels;       // fp32 [p, row], medium after medium; undefined with CollateParts::kLayoutOnly
  at::Tensor grids;        // int64 [media, 3]: patches in time, height and width; on every pipeline stage
  at::Tensor visual_rows;  // int64 [t]: the row of the tower's output that replaces the token's embedding; -1 for text

  // ---- Sounds; undefined if the samples have none ----
  // f is the number of frames of all sounds.
  at::Tensor audio_features{};  // fp32 [f, mel bins], sound after sound; undefined with CollateParts::kLayoutOnly
  at::Tensor audio_lengths{};   // int64 [sounds]: frames of each; on every pipeline stage
  at::Tensor audio_rows{};      // int64 [t]: the row of the audio tower that replaces the token's embedding, or -1

  int64_t tokens() const { return layout.tokens(); }
  // Returns the fraction of the tokens that is not padding.
  double efficiency() const;

  // Returns an extra tensor on the device where it is used: batch.extra("weight", losses.device()). Throws a DataError
  // that lists the existing names if there is none of that name.
  at::Tensor extra(std::string_view name, at::Device device) const;
  // Throws the same error unless all of these exist.
  void require_extras(std::span<const std::string> names) const;
};

}  // namespace megalith::data
