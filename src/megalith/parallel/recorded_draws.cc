// While a pass is recorded, the tracker's streams are places of the pass instead of states of a generator: bytes in the
// same form, so that forks, and the bytes that recompute saves and restores, work as ever.
#include "megalith/parallel/recorded_draws.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "megalith/base/error.h"

namespace megalith::parallel {

namespace {

// The state of a CUDA generator: its seed, then its offset.
struct PhiloxState {
  int64_t seed = 0, offset = 0;
};

template <typename T>
at::Tensor as_bytes(const T& value) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof value)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), &value, sizeof value);
  return bytes;
}

template <typename T>
T from_bytes(const at::Tensor& bytes) {
  T value;
  check(bytes.nbytes() == sizeof value, "a random state of {} bytes in a recorded pass, where {} are expected",
        bytes.nbytes(), sizeof value);
  std::memcpy(&value, bytes.const_data_ptr(), sizeof value);
  return value;
}

std::vector<std::string> names_of(const std::map<std::string, at::Tensor>& streams) {
  std::vector<std::string> names;
  for (const auto& [name, state] : streams) names.push_back(name);
  return names;
}

}  // namespace

at::Tensor state_of(const RecordedPlace& place) { return as_bytes(place); }
RecordedPlace place_of(const at::Tensor& state) { return from_bytes<RecordedPlace>(state); }

bool draws_anything(const RecordedDraws::Counts& drawn) {
  return std::ranges::any_of(drawn, [](uint64_t count) { return count > 0; });
}

RecordedDraws::RecordedDraws(RngTracker& streams, MakeRecordedGenerator make)
    : streams_(streams),
      make_(std::move(make)),
      names_(names_of(streams.states())),
      starts_(at::zeros({std::ssize(names_) + 1, 2}, at::TensorOptions(at::kLong).device(streams.device()))) {}

RecordedDraws::Counts RecordedDraws::record(const std::function<void()>& work) const {
  const std::unique_ptr<RecordedGenerator> generator = make_(streams_.generator(), starts_);
  if (!generator) {
    work();
    return {};
  }
  const RngTracker::Recording recording(streams_, *generator);
  work();
  Counts drawn;
  for (const RecordedPlace& place : recording.places()) drawn.push_back(place.drawn);
  return drawn;
}

void RecordedDraws::replay(const Counts& drawn) const {
  if (!draws_anything(drawn)) return;
  std::map<std::string, at::Tensor> states = streams_.states();
  check(names_of(states) == names_ && drawn.size() == names_.size() + 1,
        "the random streams are not those with which a graph was recorded");
  // Pinned memory is used again only after the copy from it has run, so the host may run ahead of the device.
  const at::Tensor starts = at::zeros(starts_.sizes(), at::TensorOptions(at::kLong).pinned_memory(!starts_.is_cpu()));
  auto* const rows = starts.mutable_data_ptr<int64_t>();
  const auto move = [&](size_t stream, const at::Tensor& state) {
    auto philox = from_bytes<PhiloxState>(state);
    std::memcpy(rows + 2 * stream, &philox, sizeof philox);
    philox.offset += static_cast<int64_t>(drawn[stream]);
    return as_bytes(philox);
  };
  if (drawn[0] > 0) {
    at::Generator generator = streams_.generator();
    generator.set_state(move(0, generator.get_state()));
  }
  for (size_t i = 0; i < names_.size(); ++i)
    if (drawn[i + 1] > 0) states[names_[i]] = move(i + 1, states.at(names_[i]));
  streams_.set_states(states);
  starts_.copy_(starts, /*non_blocking=*/true);
}

}  // namespace megalith::parallel
