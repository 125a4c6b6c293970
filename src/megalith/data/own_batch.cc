// Checks the batch of a user-defined collator. Every message names the tensor, what it is and what it must be: the
// mistake is in the program's code, where no option helps. All ranks of a replica see the same tensors and throw the
// same error, before any tensor is used.
#include <ATen/ATen.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/data/own_batch_internal.h"

namespace megalith::data {

namespace {

std::string sizes_in_words(at::IntArrayRef sizes) { return fmt::format("[{}]", fmt::join(sizes, ", ")); }

// Returns the name of a dtype as a Python user knows it.
std::string type_in_words(at::ScalarType type) {
  switch (type) {
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    default:
      return c10::toString(type);
  }
}

std::string tensor_in_words(const at::Tensor& tensor) {
  std::string text = type_in_words(tensor.scalar_type()) + " " + sizes_in_words(tensor.sizes());
  return tensor.is_cpu() ? text : text + " on " + tensor.device().str();
}

// ids and labels are int64 on the CPU, as from the built-in collator.
void check_token_tensor(const char* name, const at::Tensor& tensor, const std::string& allowed) {
  check<DataError>(tensor.defined(), "the collator has not set \"{}\"; a batch needs it: {}", name, allowed);
  check<DataError>(tensor.scalar_type() == at::kLong && tensor.is_cpu(),
                   "the collator's \"{}\" is {}; it must be {}, on the CPU", name, tensor_in_words(tensor), allowed);
}

// Checks that ids and labels fit each other, and that every label is an id or kIgnoredLabel.
void check_tokens(const MicroBatch& batch) {
  const at::Tensor &ids = batch.ids, &labels = batch.labels;
  const std::string allowed = "int64 [rows, tokens], or int64 [tokens] with a layout";
  check_token_tensor("ids", ids, allowed);
  check<DataError>((ids.dim() == 1 || ids.dim() == 2) && ids.numel() > 0,
                   "the collator's \"ids\" is {}; it must be {}, with at least one token", tensor_in_words(ids),
                   allowed);
  const std::string like_ids = fmt::format("int64 {}, as \"ids\" is", sizes_in_words(ids.sizes()));
  check_token_tensor("labels", labels, like_ids);
  check<DataError>(labels.sizes() == ids.sizes(), "the collator's \"labels\" is {}; it must be {}",
                   tensor_in_words(labels), like_ids);
  // The size of the vocabulary is not known here, so only negative ids can be found.
  const int64_t least = labels.masked_fill(labels.eq(kIgnoredLabel), 0).min().item<int64_t>();
  check<DataError>(least >= 0,
                   "the collator's \"labels\" {} holds {}; a label is a token id, or {} where nothing is predicted",
                   sizes_in_words(labels.sizes()), least, kIgnoredLabel);
  check<DataError>(ids.min().item<int64_t>() >= 0, "the collator's \"ids\" {} holds {}; token ids begin with 0",
                   sizes_in_words(ids.sizes()), ids.min().item<int64_t>());
}

// Returns the batch's own layout; a dense one if it has none and ids are [rows, tokens].
ops::SequenceLayout layout_of(const MicroBatch& batch) {
  if (batch.ids.dim() == 2 && batch.layout.tokens() == 0)
    return ops::SequenceLayout::dense(batch.ids.size(0), batch.ids.size(1));
  check<DataError>(batch.layout.tokens() == batch.ids.numel(),
                   "the collator's \"ids\" is {}, and its layout has {} tokens; give ids and labels as [rows, tokens],"
                   " or a layout of all tokens (ops::SequenceLayout)",
                   tensor_in_words(batch.ids), batch.layout.tokens());
  return batch.layout;
}

// Checks that context and sequence parallelism can divide the tokens.
void check_multiples(const MicroBatch& batch, const CollatorOptions& options) {
  const std::vector<int64_t>& ends = batch.layout.cumulative();
  const int64_t multiple = options.sequence_multiple(), total = options.total_multiple();
  for (size_t s = 0; s + 1 < ends.size(); ++s) {
    const int64_t length = ends[s + 1] - ends[s];
    check<DataError>(
        length % multiple == 0,
        "the collator's \"ids\" is {} and its sequence {} has {} tokens, which context_parallel_size {} cannot"
        " cut; pad sequences to a multiple of {} (Collator::padded_length), this one to {}",
        tensor_in_words(batch.ids), s, length, options.cp, multiple, (length + multiple - 1) / multiple * multiple);
  }
  const int64_t tokens = batch.ids.numel();
  check<DataError>(
      tokens % total == 0,
      "the collator's \"ids\" is {}: {} tokens in all, which the {} ranks of context and sequence parallelism"
      " cannot share; pad to a multiple of {} (Collator::padded_length), here {}",
      tensor_in_words(batch.ids), tokens, options.cp * options.tp, total, (tokens + total - 1) / total * total);
}

// [4, 8, 2] begins with [4, 8].
bool begins_with(at::IntArrayRef sizes, at::IntArrayRef start) {
  return sizes.size() >= start.size() && sizes.slice(0, start.size()) == start;
}

// Checks one extra tensor against the dimension that it claims to follow.
void check_extra(const std::string& name, const ExtraTensor& extra, const at::Tensor& ids, int64_t rows) {
  check<DataError>(extra.values.defined(), "the collator's extra tensor \"{}\" is undefined; leave it out, or give it",
                   name);
  check<DataError>(extra.values.is_cpu(),
                   "the collator's extra tensor \"{}\" is {}; it must be on the CPU: MicroBatch::extra brings it to the"
                   " device where it is used",
                   name, tensor_in_words(extra.values));
  if (extra.of == ExtraOf::kTokens)
    check<DataError>(begins_with(extra.values.sizes(), ids.sizes()),
                     "the collator's extra tensor \"{}\" is {}; one of tokens begins with the sizes of \"ids\", {}."
                     " Tensors of rows or of the whole batch say so (ExtraOf)",
                     name, tensor_in_words(extra.values), sizes_in_words(ids.sizes()));
  if (extra.of == ExtraOf::kRows)
    check<DataError>(begins_with(extra.values.sizes(), {rows}),
                     "the collator's extra tensor \"{}\" is {}; one of rows begins with their number, {}", name,
                     tensor_in_words(extra.values), rows);
}

// Checks the numbers that the collator may set itself.
void check_counts(const MicroBatch& batch) {
  const int64_t sequences = batch.layout.sequences();
  check<DataError>(batch.sequences > 0 && batch.sequences <= sequences && batch.real_tokens <= batch.tokens(),
                   "the collator has given a batch of {} sequences and {} real tokens; its layout has {} and {}",
                   batch.sequences, batch.real_tokens, sequences, batch.tokens());
  check<DataError>(
      !batch.preference || batch.sequences % 2 == 0,
      "the collator has given a batch of preference pairs with {} sequences; there must be as many chosen as"
      " rejected ones",
      batch.sequences);
}

}  // namespace

// Checks come before the tensors are flattened, so that messages show the shapes that the program made.
MicroBatch completed_batch(MicroBatch batch, std::span<const Sample> samples, const CollatorOptions& options) {
  check_tokens(batch);
  batch.layout = layout_of(batch);
  check_multiples(batch, options);
  batch.samples = std::ssize(samples);
  const int64_t rows = batch.ids.dim() == 2 ? batch.ids.size(0) : batch.samples * (batch.preference ? 2 : 1);
  for (auto& [name, extra] : batch.extras) {
    check_extra(name, extra, batch.ids, rows);
    extra.values = extra.values.detach();  // extras are data: no gradient flows into the collator
    if (extra.of == ExtraOf::kTokens && batch.ids.dim() == 2) extra.values = extra.values.flatten(0, 1);
  }
  batch.ids = batch.ids.flatten().contiguous();
  batch.labels = batch.labels.flatten().contiguous();
  batch.loss_tokens = batch.labels.ne(kIgnoredLabel).sum().item<int64_t>();
  if (batch.sequences == 0) batch.sequences = batch.layout.sequences();
  if (batch.real_tokens == 0) batch.real_tokens = batch.tokens();
  check_counts(batch);
  return batch;
}

}  // namespace megalith::data
