// Makes a micro-batch of the tensors that a Python collator returns. Rows of one length stay a dense batch; with
// packing (CollatorOptions::padding is kNone), attention_mask numbers the samples of each row, as McaTrainer's
// collators do it:
//
//   input_ids       a a b b b 0        sequences aa and bbb; tokens with 0 are left out
//   attention_mask  1 1 2 2 2 0
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "dataset.h"
#include "megalith/base/error.h"

namespace megalith::python {

namespace {

using data::kIgnoredLabel;

// The tensors of a batch, by key. Values that are neither tensors nor arrays (texts, lists) are left to Python.
class CollatedTensors {
 public:
  explicit CollatedTensors(const py::object& returned) {
    check<DataError>(py::hasattr(returned, "keys"),
                     "data_collator has returned a {}; it must return a dict of tensors with input_ids and labels",
                     py::str(py::type::of(returned).attr("__name__")).cast<std::string>());
    for (const auto& [key, value] : py::dict(returned)) {
      if (THPVariable_Check(value.ptr()))
        tensors_[key.cast<std::string>()] = THPVariable_Unpack(value.ptr()).detach();
      else if (py::hasattr(value, "__array__") && !py::isinstance<py::str>(value))
        tensors_[key.cast<std::string>()] =
            THPVariable_Unpack(py::object(py::module_::import("torch").attr("as_tensor")(value)).ptr());
    }
    check<DataError>(!tensors_.contains("position_ids"),
                     "data_collator has returned position_ids; positions follow from the rows (with sequence_packing,"
                     " from attention_mask, which numbers the samples of a row). Leave them out");
  }

  // Returns whole numbers [rows, tokens] as int64 on the CPU; undefined if the key is absent.
  at::Tensor rows(const std::string& key) {
    const auto found = tensors_.find(key);
    if (found == tensors_.end()) return {};
    at::Tensor tensor = std::move(found->second);
    tensors_.erase(found);
    check<DataError>(tensor.dim() == 2 && at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true),
                     "data_collator has returned {} [{}] as \"{}\"; it must be whole numbers [rows, tokens]",
                     c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "), key);
    return tensor.to(at::kCPU, at::kLong);
  }
  std::map<std::string, at::Tensor>& others() { return tensors_; }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

// Moves labels to where they are predicted, one place to the left; the last token of a row predicts nothing.
at::Tensor shift_left(const at::Tensor& labels) {
  const at::Tensor last = at::full({labels.size(0), 1}, kIgnoredLabel, labels.options());
  return at::cat({labels.slice(1, 1), last}, 1);
}

bool begins_with(at::IntArrayRef sizes, at::IntArrayRef start) {
  return sizes.size() >= start.size() && sizes.slice(0, start.size()) == start;
}

// Appends `count` columns of one value to [rows, tokens, …].
at::Tensor pad_columns(const at::Tensor& tensor, int64_t count, double value) {
  if (count == 0) return tensor;
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[1] = count;
  return at::cat({tensor, at::full(sizes, value, tensor.options())}, 1);
}

// Sorts the remaining tensors into extras of tokens, rows and the batch, by their first sizes.
std::map<std::string, data::ExtraTensor, std::less<>> extras_of(CollatedTensors& tensors, at::IntArrayRef token_sizes) {
  std::map<std::string, data::ExtraTensor, std::less<>> extras;
  for (auto& [name, tensor] : tensors.others()) {
    const data::ExtraOf of = begins_with(tensor.sizes(), token_sizes)               ? data::ExtraOf::kTokens
                             : begins_with(tensor.sizes(), token_sizes.slice(0, 1)) ? data::ExtraOf::kRows
                                                                                    : data::ExtraOf::kBatch;
    extras[name] = {tensor.cpu(), of};
  }
  return extras;
}

// Rows of one length, padded at the end.
data::MicroBatch dense_batch(at::Tensor ids, at::Tensor labels, const at::Tensor& mask, CollatedTensors& tensors,
                             const data::CollatorOptions& options) {
  data::MicroBatch batch;
  batch.extras = extras_of(tensors, ids.sizes());
  if (mask.defined()) {
    const at::Tensor kept = mask.ne(0);
    const bool at_end = kept.slice(1, 1).logical_and(kept.slice(1, 0, -1).logical_not()).any().item<bool>();
    check<DataError>(!at_end,
                     "data_collator has returned an attention_mask with padding before tokens; padding must be at the"
                     " end of a row, where causal attention does not see it (padding_side \"right\")");
    labels = labels.masked_fill(kept.logical_not(), kIgnoredLabel);
    batch.real_tokens = kept.sum().item<int64_t>();
  } else {
    batch.real_tokens = ids.numel();
  }
  // A multiple that context and sequence parallelism can divide.
  const int64_t multiple = options.total_multiple(), width = ids.size(1);
  const int64_t more = (width + multiple - 1) / multiple * multiple - width;
  batch.ids = pad_columns(ids, more, options.pad_id);
  batch.labels = pad_columns(labels, more, kIgnoredLabel);
  for (auto& [name, extra] : batch.extras)
    if (extra.of == data::ExtraOf::kTokens) extra.values = pad_columns(extra.values, more, 0);
  return batch;
}

// Returns the lengths of the samples in rows of sample numbers; tokens with 0 belong to none.
std::vector<int64_t> lengths_of(const at::Tensor& mask) {
  std::vector<int64_t> lengths;
  const at::Tensor numbers = mask.contiguous();
  const auto* values = numbers.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < numbers.size(0); ++row) {
    int64_t before = 0;
    for (int64_t i = 0; i < numbers.size(1); ++i) {
      const int64_t number = values[row * numbers.size(1) + i];
      if (number == 0) {
        before = 0;
        continue;
      }
      if (number == before)
        ++lengths.back();
      else
        lengths.push_back(1);
      before = number;
    }
  }
  return lengths;
}

// Samples one after the other, without the padding of their rows. What the total lacks to a multiple becomes a last
// sequence.
data::MicroBatch packed_batch(const at::Tensor& ids, const at::Tensor& labels, at::Tensor mask, bool shifted,
                              CollatedTensors& tensors, const data::CollatorOptions& options) {
  if (!mask.defined()) mask = at::ones_like(ids);
  std::vector<int64_t> lengths = lengths_of(mask);
  check<DataError>(!lengths.empty(), "data_collator has returned an attention_mask that leaves out every token");
  const at::Tensor kept = mask.flatten().ne(0);
  data::MicroBatch batch;
  batch.extras = extras_of(tensors, ids.sizes());
  batch.ids = ids.flatten().masked_select(kept);
  batch.labels = labels.flatten().masked_select(kept);
  if (!shifted) {
    // The first token of a sample is predicted by none, so its label moves nowhere.
    batch.labels = shift_left(batch.labels.unsqueeze(0)).squeeze(0).clone();
    int64_t end = 0;
    for (const int64_t length : lengths) batch.labels[(end += length) - 1].fill_(kIgnoredLabel);
  }
  batch.sequences = std::ssize(lengths);
  batch.real_tokens = batch.ids.numel();
  const int64_t multiple = options.total_multiple();
  const int64_t more = (batch.real_tokens + multiple - 1) / multiple * multiple - batch.real_tokens;
  if (more > 0) lengths.push_back(more);
  const auto padded = [&](const at::Tensor& tensor, double value) {
    return pad_columns(tensor.unsqueeze(0), more, value).squeeze(0);
  };
  batch.ids = padded(batch.ids, options.pad_id);
  batch.labels = padded(batch.labels, kIgnoredLabel);
  for (auto& [name, extra] : batch.extras)
    if (extra.of == data::ExtraOf::kTokens) extra.values = padded(extra.values.flatten(0, 1).index({kept}), 0);
  batch.layout = ops::SequenceLayout::packed(lengths);
  return batch;
}

// Returns an item for a collator from a sample that was read from files.
py::dict item_of(const data::Sequence& row, const std::string& prefix) {
  py::dict item;
  item[py::str(prefix + "input_ids")] = py::cast(row.ids);
  item[py::str(prefix + "labels")] = py::cast(row.labels);
  return item;
}

py::list items_of(std::span<const data::Sample> samples, const ItemKeeper* keeper) {
  py::list items;
  for (const data::Sample& sample : samples) {
    if (keeper != nullptr) {
      items.append(keeper->take_item(sample));
      continue;
    }
    check<ConfigError>(
        sample.second() == nullptr,
        "a data_collator cannot take preference pairs, or answers with verdicts, from files; leave it out");
    items.append(item_of(sample.row, ""));
  }
  return items;
}

}  // namespace

data::CollateFunction python_collator(const py::object& collator, std::shared_ptr<const ItemKeeper> keeper,
                                      bool shifted) {
  check<ConfigError>(PyCallable_Check(collator.ptr()) != 0,
                     "data_collator is a {}; it must be callable: a function from a list of items to a dict of tensors",
                     py::str(py::type::of(collator).attr("__name__")).cast<std::string>());
  return [call = share(collator), keeper = std::move(keeper), shifted](std::span<const data::Sample> samples,
                                                                       const data::Collator& built_in) {
    const py::gil_scoped_acquire lock;
    CollatedTensors tensors(object_of(call)(items_of(samples, keeper.get())));
    const at::Tensor ids = tensors.rows("input_ids"), mask = tensors.rows("attention_mask");
    at::Tensor labels = tensors.rows("labels");
    check<DataError>(ids.defined() && labels.defined(),
                     "data_collator has returned no \"{}\"; a batch needs input_ids and labels, [rows, tokens]",
                     ids.defined() ? "labels" : "input_ids");
    for (const auto& [name, tensor] : {std::pair("labels", labels), std::pair("attention_mask", mask)})
      check<DataError>(!tensor.defined() || tensor.sizes() == ids.sizes(),
                       "data_collator has returned \"{}\" [{}] and \"input_ids\" [{}]; they must have the same sizes",
                       name, fmt::join(tensor.sizes(), ", "), fmt::join(ids.sizes(), ", "));
    const data::CollatorOptions& options = built_in.options();
    if (options.padding == data::Padding::kNone) return packed_batch(ids, labels, mask, shifted, tensors, options);
    if (!shifted) labels = shift_left(labels);
    return dense_batch(ids, labels, mask, tensors, options);
  };
}

}  // namespace megalith::python
