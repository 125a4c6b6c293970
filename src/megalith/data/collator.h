// Collator: samples to a micro-batch, by the built-in rules or by a function of one's own.
//
//   const data::Collator collator(options, [](std::span<const data::Sample> samples, const data::Collator& built_in) {
//     data::MicroBatch batch = built_in.collate(samples);
//     batch.extras["weight"] = {my_weights(samples, batch)};   // [t], see MicroBatch
//     return batch;
//   });
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <span>

#include "megalith/data/micro_batch.h"
#include "megalith/data/sample.h"

namespace megalith::data {

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

  // What every sequence's length, and the number of all tokens, has to be a multiple of.
  int64_t sequence_multiple() const { return cp > 1 ? 2 * cp : 1; }
  int64_t total_multiple() const { return std::lcm(sequence_multiple(), cp * tp); }
};

// kLayoutOnly leaves out ids and labels, for stages between the first and the last. Extra tensors are on all stages.
enum class CollateParts { kAll, kLayoutOnly };

class Collator;

// A collator of one's own. `built_in` is the run's own collator with the same options: its batch may be taken and added
// to, or made from scratch:
//   ids, labels  int64 [rows, tokens], or [t] with a layout; labels already stand where their predictions are made
//   extras       any, see MicroBatch; with ids of [rows, tokens] those of tokens begin with [rows, tokens] too
//   real_tokens  without padding; when left 0, all tokens count
// The rest is filled in. Every sequence has a length that padded_length() gives, so that it can be cut for
// context-parallel ranks.
//
// It has to be a pure function of the samples: the ranks of a replica call it for themselves, on the threads of their
// loaders, and a resumed run calls it again.
using CollateFunction = std::function<MicroBatch(std::span<const Sample> samples, const Collator& built_in)>;

// Immutable; any number of threads. The same samples give the same layout on every rank.
class Collator {
 public:
  // Throws ConfigError for sizes that are not positive.
  explicit Collator(const CollatorOptions& options) : Collator(options, {}) {}
  // With a function of one's own in place of the built-in rules.
  Collator(const CollatorOptions& options, CollateFunction own);

  // The built-in rules: rows whose pieces do not see one another always take the packed path, without the padding of
  // the row. Preference pairs: all chosen rows, then all rejected rows. Fields of the rows become extra tensors. Throws
  // ConfigError for a row longer than fixed_length, DataError for fields that do not fit their rows or one another.
  //
  // A function of one's own is held to what CollateFunction says: throws DataError that names the tensor, its shape and
  // what is allowed. What comes back is token-major and complete, as from the built-in rules.
  MicroBatch collate(std::span<const Sample> samples, CollateParts parts = CollateParts::kAll) const;

  const CollatorOptions& options() const { return options_; }
  bool is_own() const { return own_ != nullptr; }
  // The least length of at least `tokens` that a sequence may have wherever sequences have equal lengths.
  int64_t padded_length(int64_t tokens) const;

 private:
  MicroBatch collate_built_in(std::span<const Sample> samples, CollateParts parts) const;

  CollatorOptions options_;
  CollateFunction own_;
};

}  // namespace megalith::data
