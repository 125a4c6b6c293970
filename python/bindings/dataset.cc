// From items of a Python dataset to samples, and from the tensors of a Python collator to a micro-batch. Messages name
// the item or the tensor, what it is, and what it must be; mistakes of a collator that the library itself finds
// (own_batch.cc) come with its names.
#include "dataset.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "megalith/base/error.h"

namespace megalith::python {

namespace {

// The field that carries an item's number from the dataset to the collator.
constexpr const char* kItemField = "python.item";
// Items that were loaded and that no collator took; more are dropped and loaded again.
constexpr size_t kMostKept = 4096;

std::string class_name(py::handle value) { return py::str(py::type::of(value).attr("__name__")).cast<std::string>(); }

// Returns a tensor for tensors and for what torch.as_tensor takes without a copy (arrays); nothing for other objects.
std::optional<at::Tensor> tensor_of(py::handle value) {
  if (THPVariable_Check(value.ptr())) return THPVariable_Unpack(value.ptr());
  if (!py::hasattr(value, "__array__") || py::isinstance<py::str>(value)) return std::nullopt;
  const py::object tensor = py::module_::import("torch").attr("as_tensor")(value);
  return THPVariable_Unpack(tensor.ptr());
}

// One key of an item, read as numbers.
struct Numbers {
  bool whole = true;            // integers and booleans
  bool single = false;          // a number, not a list of them
  std::vector<int64_t> wholes;  // the values, if `whole`
  std::vector<float> reals;     // otherwise
  size_t size() const { return whole ? wholes.size() : reals.size(); }
};

Numbers numbers_of(const at::Tensor& given) {
  const at::Tensor tensor = given.detach().cpu();
  Numbers numbers{.whole = at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true), .single = tensor.dim() == 0};
  if (numbers.whole) {
    const at::Tensor values = tensor.to(at::kLong).contiguous();
    numbers.wholes.assign(values.const_data_ptr<int64_t>(), values.const_data_ptr<int64_t>() + values.numel());
  } else {
    const at::Tensor values = tensor.to(at::kFloat).contiguous();
    numbers.reals.assign(values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel());
  }
  return numbers;
}

// Returns std::nullopt for a list that holds anything but numbers.
std::optional<Numbers> numbers_of_list(py::handle list) {
  Numbers numbers;
  const py::object fast = py::reinterpret_steal<py::object>(PySequence_Fast(list.ptr(), "a list"));
  if (!fast) throw py::error_already_set();
  PyObject** items = PySequence_Fast_ITEMS(fast.ptr());
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(fast.ptr());
  numbers.wholes.reserve(static_cast<size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (numbers.whole && !PyLong_Check(items[i])) {
      if (!PyFloat_Check(items[i])) return std::nullopt;
      numbers.whole = false;
      numbers.reals.assign(numbers.wholes.begin(), numbers.wholes.end());
    }
    if (numbers.whole) {
      numbers.wholes.push_back(PyLong_AsLongLong(items[i]));
    } else {
      if (!PyFloat_Check(items[i]) && !PyLong_Check(items[i])) return std::nullopt;
      numbers.reals.push_back(static_cast<float>(PyFloat_AsDouble(items[i])));
    }
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return numbers;
}

// Returns std::nullopt for what is not a number, or a flat list of them.
std::optional<Numbers> numbers_of_value(py::handle value) {
  if (PyLong_Check(value.ptr())) return Numbers{.single = true, .wholes = {value.cast<int64_t>()}};
  if (PyFloat_Check(value.ptr())) return Numbers{.whole = false, .single = true, .reals = {value.cast<float>()}};
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) return numbers_of_list(value);
  const auto tensor = tensor_of(value);
  if (!tensor || tensor->dim() > 1) return std::nullopt;
  return numbers_of(*tensor);
}

// Reads the rows of one item. `place` names it in messages.
class ItemReader {
 public:
  ItemReader(py::dict item, std::string place) : item_(std::move(item)), place_(std::move(place)) {}

  bool has(const std::string& key) const { return item_.contains(key.c_str()) && !item_[key.c_str()].is_none(); }

  // Reads `prefix`input_ids and `prefix`labels.
  data::Sequence row(const std::string& prefix) const {
    data::Sequence row;
    row.ids = ids(prefix + "input_ids");
    row.labels = has(prefix + "labels") ? ids(prefix + "labels") : row.ids;
    check<DataError>(row.labels.size() == row.ids.size(),
                     "{} has {} {}labels and {} {}input_ids; there must be one label per token: its own id, or -100"
                     " where nothing is predicted",
                     place_, row.labels.size(), prefix, row.ids.size(), prefix);
    return row;
  }

  // Reads an item of Megatron's datasets: tokens, labels (the token after each), loss_mask. Masks of attention and
  // positions follow from the options.
  data::Sequence shifted_row() const {
    data::Sequence row{.ids = ids("tokens"), .labels = ids("labels"), .shifted = true};
    check<DataError>(row.labels.size() == row.ids.size(), "{} has {} labels and {} tokens; there must be one per token",
                     place_, row.labels.size(), row.ids.size());
    if (has("loss_mask")) {
      const auto mask = numbers_of_value(item_["loss_mask"]);
      check<DataError>(mask && !mask->single && mask->size() == row.ids.size(),
                       "{} has a loss_mask that is not one number per token", place_);
      for (size_t i = 0; i < row.labels.size(); ++i)
        if (mask->whole ? mask->wholes[i] == 0 : mask->reals[i] == 0) row.labels[i] = data::kIgnoredLabel;
    }
    add_fields(row);
    return row;
  }

  // Adds every other key with numbers.
  void add_fields(data::Sequence& row) const {
    static const std::set<std::string> kOwn = {"input_ids", "labels", "attention_mask"};
    static const std::set<std::string> kMegatron = {"tokens", "labels", "loss_mask", "attention_mask", "position_ids"};
    for (const auto& [key, value] : item_) {
      const auto name = key.cast<std::string>();
      if ((row.shifted ? kMegatron : kOwn).contains(name) || value.is_none()) continue;
      std::optional<Numbers> numbers = numbers_of_value(value);
      if (!numbers) continue;  // a text, or a list of objects: for the collator alone
      check<DataError>(
          numbers->single || numbers->size() == row.ids.size(),
          "{} has {} values of \"{}\" and {} tokens; numbers beside input_ids are one per token, or one for"
          " the row. Give a data_collator for others",
          place_, numbers->size(), name, row.ids.size());
      data::Field& field = row.fields[name];
      field.of = numbers->single ? data::FieldOf::kRow : data::FieldOf::kLabel;
      if (numbers->whole)
        field.numbers = std::move(numbers->wholes);
      else
        field.numbers = std::move(numbers->reals);
    }
  }

  // Removes the tokens that attention_mask leaves out, with their labels and fields.
  void apply_mask(data::Sequence& row) const {
    if (!has("attention_mask")) return;
    const std::vector<int32_t> mask = ids("attention_mask");
    check<DataError>(mask.size() == row.ids.size(), "{} has {} values of \"attention_mask\" and {} tokens", place_,
                     mask.size(), row.ids.size());
    keep(mask, row.ids);
    keep(mask, row.labels);
    for (auto& [name, field] : row.fields)
      if (field.of == data::FieldOf::kLabel) std::visit([&](auto& values) { keep(mask, values); }, field.numbers);
  }

 private:
  template <typename T>
  static void keep(const std::vector<int32_t>& mask, std::vector<T>& values) {
    size_t next = 0;
    for (size_t i = 0; i < mask.size(); ++i)
      if (mask[i] != 0) values[next++] = values[i];
    values.resize(next);
  }

  std::vector<int32_t> ids(const std::string& key) const {
    check<DataError>(has(key), "{} has no \"{}\"; a sample is a dict with input_ids and labels, lists of whole numbers",
                     place_, key);
    const py::object value = item_[key.c_str()];
    const auto numbers = numbers_of_value(value);
    check<DataError>(numbers && numbers->whole && !numbers->single,
                     "{} has a {} as \"{}\"; it must be a list of whole numbers, or a tensor of one dimension", place_,
                     class_name(value), key);
    std::vector<int32_t> result;
    result.reserve(numbers->size());
    for (const int64_t id : numbers->wholes) {
      check<DataError>(id >= std::numeric_limits<int32_t>::min() && id <= std::numeric_limits<int32_t>::max(),
                       "{} holds {} in \"{}\", which is not a token id", place_, id, key);
      result.push_back(static_cast<int32_t>(id));
    }
    return result;
  }

  const py::dict item_;
  const std::string place_;
};

// Returns the sample that an item describes.
data::Sample sample_of(const py::object& item, const std::string& place) {
  check<DataError>(py::hasattr(item, "keys"), "{} is a {}; it must be a dict with input_ids and labels", place,
                   class_name(item));
  const ItemReader reader(py::dict(item), place);
  data::Sample sample;
  if (reader.has("tokens")) {
    sample.row = reader.shifted_row();
    return sample;
  }
  if (reader.has("chosen_input_ids")) {
    sample.row = reader.row("chosen_");
    sample.rejected = reader.row("rejected_");
    return sample;
  }
  sample.row = reader.row("");
  reader.add_fields(sample.row);
  reader.apply_mask(sample.row);
  check<DataError>(!sample.row.ids.empty(), "{} has no tokens", place);
  return sample;
}

}  // namespace

bool is_dataset(const py::object& object) {
  return py::hasattr(object, "__len__") && py::hasattr(object, "__getitem__");
}

data::Sample ItemKeeper::keep(int64_t number, const py::object& item, const std::string& place,
                              size_t most_kept) const {
  if (kept_.size() >= most_kept) kept_.clear();
  kept_[number] = share(item);
  data::Sample sample;
  sample.row.fields[kItemField] = {.numbers = std::vector<int64_t>{number}, .of = data::FieldOf::kRow};
  if (py::isinstance<py::dict>(item) && item.cast<py::dict>().contains("input_ids"))
    sample.row.ids = ItemReader(item.cast<py::dict>(), place).row("").ids;  // for their number alone
  return sample;
}

int64_t ItemKeeper::number_of(const data::Sample& sample) {
  return std::get<std::vector<int64_t>>(sample.row.fields.at(kItemField).numbers).front();
}

py::object ItemKeeper::kept(const data::Sample& sample) const {
  const auto found = kept_.find(number_of(sample));
  if (found == kept_.end()) return {};
  py::object result = object_of(found->second);
  kept_.erase(found);
  return result;
}

PythonDataset::PythonDataset(const py::object& dataset, std::string name, bool keeps_items)
    : dataset_(share(dataset)), name_(std::move(name)), keeps_items_(keeps_items) {
  check<ConfigError>(is_dataset(dataset),
                     "{} is a {}; it must have __len__ and __getitem__, as a list of samples or a datasets.Dataset has",
                     name_, class_name(dataset));
  size_ = static_cast<int64_t>(py::len(dataset));
  check<DataError>(size_ > 0, "{} has no samples", name_);
}

py::object PythonDataset::item(int64_t index) const { return object_of(dataset_)[py::int_(index)]; }

data::Sample PythonDataset::sample(int64_t index) const {
  const py::gil_scoped_acquire lock;
  const py::object found = item(index);
  const std::string place = fmt::format("sample {} of {}", index, name_);
  return keeps_items_ ? keep(index, found, place, kMostKept) : sample_of(found, place);
}

py::object PythonDataset::take_item(const data::Sample& sample) const {
  py::object found = kept(sample);
  return found ? found : item(number_of(sample));
}

PythonStreams::PythonStreams(const py::object& iterable, std::string name, bool keeps_items)
    : iterable_(share(iterable)), name_(std::move(name)), keeps_items_(keeps_items) {
  check<ConfigError>(
      !PyIter_Check(iterable.ptr()),
      "{} is a {}, an iterator, which can be gone through once; give what it is made from: an object whose"
      " __iter__ begins again in each epoch, such as a torch IterableDataset",
      name_, class_name(iterable));
  check<ConfigError>(py::hasattr(iterable, "__iter__"),
                     "{} is a {}; it must have __len__ and __getitem__, as a list of samples or a datasets.Dataset has,"
                     " or __iter__, as a torch IterableDataset has",
                     name_, class_name(iterable));
}

py::object PythonStreams::take_item(const data::Sample& sample) const { return kept(sample); }

// One pass over an iterable.
class PythonStreams::Stream : public data::SampleStream {
 public:
  Stream(std::shared_ptr<const PythonStreams> all, int64_t epoch) : all_(std::move(all)), number_(epoch << 40) {
    const py::gil_scoped_acquire lock;
    const py::object iterable = object_of(all_->iterable_);
    if (py::hasattr(iterable, "set_epoch")) iterable.attr("set_epoch")(epoch);
    iterator_ = share(py::iter(iterable));
  }

  std::optional<data::Sample> next() override {
    const py::gil_scoped_acquire lock;
    const py::object found = advance();
    if (!found) return std::nullopt;
    const std::string place = fmt::format("sample {} of {}", place_++, all_->name_);
    if (!all_->keeps_items_) return sample_of(found, place);
    return all_->keep(number_++, found, place, SIZE_MAX);
  }

  bool skip() override {
    const py::gil_scoped_acquire lock;
    ++place_;
    return static_cast<bool>(advance());
  }

 private:
  // Returns the next item; nothing at the end.
  py::object advance() {
    auto found = py::reinterpret_steal<py::object>(PyIter_Next(iterator_.get()));
    if (!found && PyErr_Occurred() != nullptr) throw py::error_already_set();
    return found;
  }

  const std::shared_ptr<const PythonStreams> all_;
  SharedObject iterator_;
  int64_t place_ = 0;  // number of the next item in this pass
  int64_t number_;     // number of the next item that is kept, another one in every epoch
};

std::unique_ptr<data::SampleStream> PythonStreams::open(const std::shared_ptr<const PythonStreams>& self,
                                                        int64_t epoch) {
  return std::make_unique<Stream>(self, epoch);
}

}  // namespace megalith::python
