// A layout is a shared immutable shape plus tensors made from it on demand, one copy per device. Only those are guarded
// by a mutex: ranks that are threads of one process may share a layout and ask at the same time.
#include "megalith/ops/sequence_layout.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::ops {

// The shape of a layout, fixed once it is made.
struct SequenceLayoutShape {
  std::vector<int64_t> cumulative{0};
  int64_t longest = 0;
  bool uniform = true;
  int64_t max_position = 0;
};

struct SequenceLayout::Data : SequenceLayoutShape {
  // Made at the first request; one tensor per device that asked.
  std::mutex mutex;
  std::vector<at::Tensor> positions, coordinates, cumulative_tensors;
  std::map<std::string, std::shared_ptr<const void>> derived;
};

namespace {

// {3, 2} -> {0, 3, 5}
std::vector<int64_t> accumulate(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> cumulative{0};
  cumulative.reserve(lengths.size() + 1);
  for (const int64_t length : lengths) cumulative.push_back(cumulative.back() + length);
  return cumulative;
}

// Returns 0, 1, 2, … for each sequence: {0, 3, 5} -> 0 1 2 0 1.
at::Tensor restarting_positions(const std::vector<int64_t>& cumulative) {
  at::Tensor positions = at::empty({cumulative.back()}, at::kLong);
  auto* out = positions.mutable_data_ptr<int64_t>();
  for (size_t s = 0; s + 1 < cumulative.size(); ++s)
    for (int64_t i = cumulative[s]; i < cumulative[s + 1]; ++i) out[i] = i - cumulative[s];
  return positions;
}

// Returns the tensor of `copies` that is on `device`; makes it from the first one if there is none.
at::Tensor on_device(std::vector<at::Tensor>& copies, at::Device device) {
  const auto found = std::ranges::find(copies, device, &at::Tensor::device);
  if (found != copies.end()) return *found;
  return copies.emplace_back(to_device(copies.front(), device));
}

}  // namespace

SequenceLayout SequenceLayout::dense(int64_t batch, int64_t length) {
  return packed(std::vector<int64_t>(static_cast<size_t>(batch), length));
}

SequenceLayout SequenceLayout::packed(const std::vector<int64_t>& lengths) {
  return from_cumulative(accumulate(lengths));
}

SequenceLayout SequenceLayout::from_cumulative(std::vector<int64_t> cumulative) {
  check<DataError>(!cumulative.empty() && cumulative.front() == 0, "cumulative sequence lengths must start with 0");
  auto data = std::make_shared<Data>();
  for (size_t s = 0; s + 1 < cumulative.size(); ++s) {
    const int64_t length = cumulative[s + 1] - cumulative[s];
    check<DataError>(length > 0, "sequence {} of a packed batch has {} tokens; every sequence needs at least one", s,
                     length);
    data->uniform = data->uniform && length == cumulative[1];
    data->longest = std::max(data->longest, length);
  }
  data->max_position = data->longest;
  data->cumulative = std::move(cumulative);
  return SequenceLayout(std::move(data));
}

SequenceLayout SequenceLayout::with_positions(at::Tensor positions) const {
  const int64_t max_position = positions.numel() == 0 ? 0 : positions.max().item<int64_t>() + 1;
  return with_positions(std::move(positions), max_position);
}

SequenceLayout SequenceLayout::with_positions(at::Tensor positions, int64_t max_position) const {
  check(positions.dim() == 1 && positions.size(0) == tokens() && positions.scalar_type() == at::kLong,
        "positions must be {} int64 values", tokens());
  // Copies the shape but not the mutex and the tensors on devices; the new positions are the first of those.
  auto copy = std::make_shared<Data>();
  static_cast<SequenceLayoutShape&>(*copy) = data();
  copy->max_position = max_position;
  copy->positions.push_back(std::move(positions));
  if (data_) {
    const std::lock_guard lock(data_->mutex);
    copy->coordinates = data_->coordinates;
  }
  return SequenceLayout(std::move(copy));
}

SequenceLayout SequenceLayout::with_coordinates(at::Tensor coordinates) const {
  const at::ScalarType type = coordinates.scalar_type();
  check(coordinates.dim() == 2 && coordinates.size(0) == 3 && coordinates.size(1) == tokens() &&
            (type == at::kLong || type == at::kFloat),
        "coordinates must be int64 or fp32 [3, {}]", tokens());
  SequenceLayout layout = with_max_position(max_position());
  layout.data_->coordinates = {std::move(coordinates)};
  return layout;
}

SequenceLayout SequenceLayout::with_max_position(int64_t max_position) const {
  auto copy = std::make_shared<Data>();
  static_cast<SequenceLayoutShape&>(*copy) = data();
  copy->max_position = max_position;
  if (data_) {
    const std::lock_guard lock(data_->mutex);
    copy->positions = data_->positions;  // they may be special ones
    copy->coordinates = data_->coordinates;
  }
  return SequenceLayout(std::move(copy));
}

// A layout without tokens has no data of its own.
const SequenceLayout::Data& SequenceLayout::data() const {
  static const Data empty;
  return data_ ? *data_ : empty;
}

int64_t SequenceLayout::tokens() const { return data().cumulative.back(); }
int64_t SequenceLayout::sequences() const { return static_cast<int64_t>(data().cumulative.size()) - 1; }
int64_t SequenceLayout::longest() const { return data().longest; }
int64_t SequenceLayout::max_position() const { return data().max_position; }
bool SequenceLayout::uniform() const { return data().uniform; }
const std::vector<int64_t>& SequenceLayout::cumulative() const { return data().cumulative; }

at::Tensor SequenceLayout::positions(at::Device device) const {
  check(data_ != nullptr, "a SequenceLayout without tokens has no positions");
  const std::lock_guard lock(data_->mutex);
  std::vector<at::Tensor>& made = data_->positions;
  if (made.empty()) made.push_back(restarting_positions(data_->cumulative));
  return on_device(made, device);
}

at::Tensor SequenceLayout::coordinates(at::Device device) const {
  check(has_coordinates(), "this SequenceLayout has no coordinates");
  const std::lock_guard lock(data_->mutex);
  return on_device(data_->coordinates, device);
}

// Without the lock: whether there are any is fixed when a layout is made.
bool SequenceLayout::has_coordinates() const { return data_ && !data_->coordinates.empty(); }

std::shared_ptr<const void> SequenceLayout::kept(const std::string& key) const {
  check(data_ != nullptr, "nothing follows from a SequenceLayout without tokens");
  const std::lock_guard lock(data_->mutex);
  const auto found = data_->derived.find(key);
  return found == data_->derived.end() ? nullptr : found->second;
}

// Made without the lock, since making a value may ask the layout for another; the first of two threads wins.
std::shared_ptr<const void> SequenceLayout::keep(const std::string& key, std::shared_ptr<const void> value) const {
  const std::lock_guard lock(data_->mutex);
  return data_->derived.emplace(key, std::move(value)).first->second;
}

at::Tensor SequenceLayout::cumulative_tensor(at::Device device) const {
  check(data_ != nullptr, "a SequenceLayout without tokens has no lengths");
  const std::lock_guard lock(data_->mutex);
  std::vector<at::Tensor>& made = data_->cumulative_tensors;
  if (made.empty()) made.push_back(at::tensor(data_->cumulative, at::TensorOptions(at::kInt)));
  return on_device(made, device);
}

}  // namespace megalith::ops
