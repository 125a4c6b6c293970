#include "megalith/ops/sequence_layout.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"
#include "megalith/ops/to_device.h"

namespace megalith::ops {

struct SequenceLayout::Data {
  std::vector<int64_t> cumulative{0};
  int64_t longest = 0;
  bool uniform = true;
  int64_t max_position = 0;
  // Made when first asked for; moved when another device asks.
  mutable at::Tensor positions;
  mutable at::Tensor cumulative_tensor;
};

namespace {

std::vector<int64_t> accumulate(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> cumulative{0};
  cumulative.reserve(lengths.size() + 1);
  for (const int64_t length : lengths) cumulative.push_back(cumulative.back() + length);
  return cumulative;
}

at::Tensor restarting_positions(const std::vector<int64_t>& cumulative) {
  at::Tensor positions = at::empty({cumulative.back()}, at::kLong);
  auto* out = positions.mutable_data_ptr<int64_t>();
  for (size_t s = 0; s + 1 < cumulative.size(); ++s)
    for (int64_t i = cumulative[s]; i < cumulative[s + 1]; ++i) out[i] = i - cumulative[s];
  return positions;
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
  auto copy = std::make_shared<Data>(data());
  copy->max_position = max_position;
  copy->positions = std::move(positions);
  return SequenceLayout(std::move(copy));
}

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

const at::Tensor& SequenceLayout::positions(at::Device device) const {
  check(data_ != nullptr, "a SequenceLayout without tokens has no positions");
  at::Tensor& cached = data_->positions;
  if (!cached.defined()) cached = restarting_positions(data_->cumulative);
  if (cached.device() != device) cached = to_device(cached, device);
  return cached;
}

const at::Tensor& SequenceLayout::cumulative_tensor(at::Device device) const {
  check(data_ != nullptr, "a SequenceLayout without tokens has no lengths");
  at::Tensor& cached = data_->cumulative_tensor;
  if (!cached.defined()) cached = at::tensor(data_->cumulative, at::TensorOptions(at::kInt));
  if (cached.device() != device) cached = to_device(cached, device);
  return cached;
}

}  // namespace megalith::ops
