#include "megalith/train/step/recorded_batch.h"

#include <ATen/ATen.h>

#include "megalith/ops/kernel/host_values.h"

namespace megalith::train {

namespace {

// Labels and ids are undefined where a stage does not need them.
at::Tensor device_copy(const at::Tensor& x, at::Device device) {
  return x.defined() ? ops::to_device(x, device).clone() : x;
}

void copy_into(const at::Tensor& to, const at::Tensor& from, at::Device device) {
  if (to.defined()) to.copy_(ops::to_device(from, device));
}

}  // namespace

BatchKey::BatchKey(const data::MicroBatch& batch, std::vector<double> numbers)
    : cumulative(batch.layout.cumulative()),
      positions(batch.layout.positions(at::kCPU)),
      coordinates(batch.layout.has_coordinates() ? batch.layout.coordinates(at::kCPU) : at::Tensor()),
      max_position(batch.layout.max_position()),
      constants(std::move(numbers)) {
  for (const auto& [name, extra] : batch.extras) extras[name] = extra.values.sizes().vec();
}

BatchKey BatchKey::of(const data::MicroBatch& batch, std::vector<double> constants, bool stretches) {
  BatchKey key(batch, std::move(constants));
  if (!stretches) key.max_position = 0;
  return key;
}

bool BatchKey::operator==(const BatchKey& other) const {
  return cumulative == other.cumulative && max_position == other.max_position && extras == other.extras &&
         constants == other.constants && at::equal(positions, other.positions) &&
         coordinates.defined() == other.coordinates.defined() &&
         (!coordinates.defined() || at::equal(coordinates, other.coordinates));
}

RecordedBatch::RecordedBatch(const data::MicroBatch& batch, const ops::SequenceLayout& layout, at::Device device)
    : device_(device), batch_(batch) {
  batch_.ids = device_copy(batch.ids, device_);
  batch_.labels = device_copy(batch.labels, device_);
  for (auto& [name, extra] : batch_.extras) extra.values = device_copy(extra.values, device_);
  batch_.layout = layout;
  batch_.layout.positions(device_);
  batch_.layout.cumulative_tensor(device_);
}

void RecordedBatch::load(const data::MicroBatch& batch) {
  copy_into(batch_.ids, batch.ids, device_);
  copy_into(batch_.labels, batch.labels, device_);
  for (auto& [name, extra] : batch_.extras) copy_into(extra.values, batch.extras.at(name).values, device_);
}

void RecordedBatch::hold_angles(const std::vector<model::GptModel*>& chunks) {
  for (const model::GptModel* chunk : chunks) angles_.push_back(chunk->angles(batch_.layout));
}

}  // namespace megalith::train
