// MicroBatch: the tokens of a forward pass and what belongs to them. t: its tokens; on a context-parallel rank, those
// of its slice.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "megalith/ops/sequence_layout.h"

namespace megalith::data {

// What the first dimension of an extra tensor counts.
enum class ExtraOf {
  kTokens,  // [t, …]: cut for context-parallel ranks exactly as ids and labels are
  kRows,    // [rows, …]: one entry per sample; of pairs, all chosen rows, then all rejected ones. Not cut. Where a
            // collator of one's own gives ids as [rows, tokens], its rows
  kBatch,   // any shape; not cut
};

// A tensor that the library carries without knowing what it means. On the CPU; of any type.
struct ExtraTensor {
  at::Tensor values;
  ExtraOf of = ExtraOf::kTokens;
};

// Everything that the trainer and every pipeline stage need to know of a micro-batch, on the CPU.
//
// Tokens stand sequence by sequence. labels[i] is what token i has to predict: shifted, the last token of a sample is a
// label only. Padding has the label kIgnoredLabel and comes behind the tokens of its sequence, where causal attention
// does not see it; padding that fills up the total is a sequence of its own, the last.
struct MicroBatch {
  at::Tensor ids;     // int64 [t]; undefined where only the layout was asked for
  at::Tensor labels;  // int64 [t]; likewise
  ops::SequenceLayout layout;
  int64_t samples = 0;      // of the dataset; a preference pair is one
  int64_t sequences = 0;    // of the layout, without the one that fills up the total
  int64_t real_tokens = 0;  // without padding
  int64_t loss_tokens = 0;  // with a label
  bool preference = false;  // the first half of the sequences are the chosen ones, the second the rejected ones
  at::Tensor reference;     // fp32 [sequences]: log p by a reference model; undefined where the samples have none
  std::map<std::string, ExtraTensor, std::less<>> extras{};  // by name; on every pipeline stage

  int64_t tokens() const { return layout.tokens(); }
  // The part of the tokens that is not padding.
  double efficiency() const;

  // An extra tensor on the device where it is used: batch.extra("weight", losses.device()). Throws DataError, with the
  // names that there are, when there is none of that name.
  at::Tensor extra(std::string_view name, at::Device device) const;
  // Throws the same error unless all of these are there.
  void require_extras(std::span<const std::string> names) const;
};

}  // namespace megalith::data
