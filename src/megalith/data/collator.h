// Samples to a micro-batch. t: tokens of the micro-batch, over all context-parallel ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "megalith/data/sample.h"
#include "megalith/ops/sequence_layout.h"

namespace megalith::data {

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

  int64_t tokens() const { return layout.tokens(); }
  // The part of the tokens that is not padding.
  double efficiency() const;
};

enum class Padding {
  kLongest,  // sequences as long as the longest: the dense attention path
  kFixed,    // sequences of fixed_length
  kNone,     // each as long as it is: the packed attention path
};

struct CollatorOptions {
  int32_t pad_id = 0;
  Padding padding = Padding::kLongest;
  int64_t length_multiple = 1;  // of padded sequences; of the total when packed
  int64_t fixed_length = 0;     // kFixed; a row of more tokens is refused
  int64_t cp = 1;               // sequences become multiples of 2·cp when cp > 1
  int64_t tp = 1;               // the total becomes a multiple of cp·tp
};

enum class CollateParts { kAll, kLayoutOnly };

// Immutable; any number of threads. The same samples give the same layout on every rank.
class Collator {
 public:
  // Throws ConfigError for sizes that are not positive.
  explicit Collator(const CollatorOptions& options);

  // Rows whose pieces do not see one another always take the packed path, without the padding of the row. Preference
  // pairs: all chosen rows, then all rejected rows. Throws ConfigError for a row longer than fixed_length.
  MicroBatch collate(std::span<const Sample> samples, CollateParts parts = CollateParts::kAll) const;

 private:
  CollatorOptions options_;
};

}  // namespace megalith::data
