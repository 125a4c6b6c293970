// Samples and collators that Python brings.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "megalith/data/collator.h"
#include "megalith/data/dataset.h"
#include "python_object.h"

namespace megalith::python {

// Anything with __len__ and __getitem__ that returns dictionaries. The length is asked once. The lock is taken for each
// sample: loading happens on a thread of its own, ahead of training.
//
// Keys of an item:
//   input_ids       required; whole numbers, as a list, a tensor or an array
//   labels          aligned with input_ids, -100 where nothing is predicted; without them every token is predicted
//   attention_mask  tokens with 0 are left out
//   others          lists or tensors with one number per token become extra tensors of tokens, shifted with the labels;
//                   single numbers become those of rows; what is not a number is left to the collator
// A preference pair has chosen_input_ids, chosen_labels, rejected_input_ids and rejected_labels instead.
class PythonDataset : public data::Dataset {
 public:
  // With `keeps_items`, items are kept until a collator takes them, and need not have input_ids. Call it with the lock.
  PythonDataset(const py::object& dataset, std::string name, bool keeps_items);

  int64_t size() const override { return size_; }
  data::Sample sample(int64_t index) const override;
  // Returns the item that `sample` was made from. Call it with the lock.
  py::object take_item(const data::Sample& sample) const;

 private:
  py::object item(int64_t index) const;

  SharedObject dataset_;
  const std::string name_;  // the argument's, for messages
  const bool keeps_items_;
  int64_t size_ = 0;
  mutable std::unordered_map<int64_t, SharedObject> kept_;  // guarded by the interpreter's lock
};

// Whether an object can be a PythonDataset. Call it with the lock.
bool is_dataset(const py::object& object);

// Returns the collator that calls `collator` with a list of items and takes what it returns: a dictionary of tensors
// with input_ids and labels [rows, tokens], and attention_mask, if rows have padding. Items are those of `dataset`, or,
// if it is nullptr, dictionaries made from samples. `shifted` says that labels are already where they are predicted.
// Call it with the lock.
data::CollateFunction python_collator(const py::object& collator, std::shared_ptr<const PythonDataset> dataset,
                                      bool shifted);

}  // namespace megalith::python
