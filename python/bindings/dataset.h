// Samples and collators that Python brings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "megalith/data/batch_loader.h"
#include "megalith/data/collator.h"
#include "megalith/data/dataset.h"
#include "python_object.h"

namespace megalith::python {

// Items of Python on their way to a collator of Python: a sample carries the number of its item. Guarded by the
// interpreter's lock.
class ItemKeeper {
 public:
  virtual ~ItemKeeper() = default;
  // Returns the item that `sample` was made from.
  virtual py::object take_item(const data::Sample& sample) const = 0;

 protected:
  // Keeps an item under its number, and returns the sample that carries it. `most_kept` items may wait; then all are
  // dropped.
  data::Sample keep(int64_t number, const py::object& item, const std::string& place, size_t most_kept) const;
  // Returns the item with the number of `sample`; nullptr if it was dropped.
  py::object kept(const data::Sample& sample) const;
  static int64_t number_of(const data::Sample& sample);

 private:
  mutable std::unordered_map<int64_t, SharedObject> kept_;
};

// Anything with __len__ and __getitem__ that returns dictionaries. The length is asked once. The lock is taken for each
// sample: loading happens on a thread of its own, ahead of training.
//
// Keys of an item:
//   input_ids       required; whole numbers, as a list, a tensor or an array
//   labels          aligned with input_ids, -100 where nothing is predicted; without them every token is predicted
//   attention_mask  tokens with 0 are left out
//   others          lists or tensors with one number per token become extra tensors of tokens, shifted with the labels;
//                   single numbers become those of rows; what is not a number is left to the collator
// A preference pair has chosen_input_ids, chosen_labels, rejected_input_ids and rejected_labels instead; an item of
// Megatron's datasets tokens, labels that are moved already, and loss_mask.
class PythonDataset : public data::Dataset, public ItemKeeper {
 public:
  // With `keeps_items`, items are kept until a collator takes them, and need not have input_ids. Call it with the lock.
  PythonDataset(const py::object& dataset, std::string name, bool keeps_items);

  int64_t size() const override { return size_; }
  data::Sample sample(int64_t index) const override;
  py::object take_item(const data::Sample& sample) const override;

 private:
  py::object item(int64_t index) const;

  SharedObject dataset_;
  const std::string name_;  // the argument's, for messages
  const bool keeps_items_;
  int64_t size_ = 0;
};

// Whether an object can be a PythonDataset. Call it with the lock.
bool is_dataset(const py::object& object);

// Anything that can be iterated, such as a torch IterableDataset: samples come in its order, once per epoch, and the
// run is as long as max_steps says. An object with set_epoch hears the number of the epoch first. Every rank iterates
// over all of it and keeps its own samples.
class PythonStreams : public ItemKeeper {
 public:
  // Items as for a PythonDataset. Call it with the lock. Throws ConfigError for an iterator, which ends after one
  // epoch.
  PythonStreams(const py::object& iterable, std::string name, bool keeps_items);

  py::object take_item(const data::Sample& sample) const override;
  // Opens the stream of an epoch. `self` stays alive with it.
  static std::unique_ptr<data::SampleStream> open(const std::shared_ptr<const PythonStreams>& self, int64_t epoch);

 private:
  class Stream;

  SharedObject iterable_;
  const std::string name_;
  const bool keeps_items_;
};

// Rows of a table in memory or in a mapped file, column by column as Arrow keeps them: nothing is copied, and reading
// takes no lock.
class ColumnDataset : public data::Dataset {
 public:
  // A list column: row r has the values offsets[r] to offsets[r + 1] - 1.
  struct Column {
    at::Tensor values;   // integers, of any width
    at::Tensor offsets;  // int64 or int32 [rows + 1]
  };
  struct Chunk {
    Column ids;
    std::optional<Column> labels{};  // as long as `ids`, row by row
    std::optional<Column> mask{};    // likewise
    int64_t rows() const { return ids.offsets.size(0) - 1; }
  };
  // `order` are the rows of the dataset among those of all chunks; undefined for all of them, in their order.
  ColumnDataset(std::vector<Chunk> chunks, const at::Tensor& order, std::string name);

  int64_t size() const override;
  data::Sample sample(int64_t index) const override;
  int64_t tokens(int64_t index) const override;

 private:
  // Returns the chunk of a row of the dataset, and the row in it.
  std::pair<const Chunk*, int64_t> find(int64_t index) const;

  const std::vector<Chunk> chunks_;
  std::vector<int64_t> first_rows_;  // numbers of the chunks' first rows, and the end
  const at::Tensor order_;
  const std::string name_;
};

// Returns the collator that calls `collator` with a list of items and takes what it returns: a dictionary of tensors
// with input_ids and labels [rows, tokens], and attention_mask, if rows have padding. Items are those of `items`, or,
// if that is nullptr, dictionaries made from samples. `shifted` says that labels are already where they are predicted.
// Call it with the lock.
data::CollateFunction python_collator(const py::object& collator, std::shared_ptr<const ItemKeeper> items,
                                      bool shifted);

}  // namespace megalith::python
