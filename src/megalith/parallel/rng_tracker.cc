// One generator, several streams: a stream is a saved generator state. A fork swaps the generator's state for the
// stream's and, when it ends, stores the advanced state back and restores the outer one. `active_` lists the live
// forks, innermost last; a stream may not be forked twice with another one in between, since the outer fork would then
// lose the progress of the inner one.
//
// While a pass is recorded (Recording), the generator has no state of its own: places in the pass take its part, and
// the code of forks, save() and restore() is the same.
//
// save() writes MLRNG001, then (length, name), (length, state) pairs: "host", "default", and the named streams.
#include "megalith/parallel/rng_tracker.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/parallel/recorded_generator.h"

namespace megalith::parallel {

namespace {

// The format of save(): these texts are on disk and may not change.
constexpr std::string_view kMagic = "MLRNG001";
constexpr std::string_view kHostEntry = "host";
constexpr std::string_view kDefaultEntry = "default";

// On CPU every tracker has its own generator, so ranks that are threads do not share one.
at::Generator device_generator(at::Device device) {
  if (device.is_cpu()) return at::detail::createCPUGenerator();
  return at::globalContext().defaultGenerator(device);
}

// Append and read back one length-prefixed part.
void append(std::string& bytes, std::string_view part) {
  const auto length = static_cast<uint64_t>(part.size());
  bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += part;
}

std::string_view take(std::string_view& bytes) {
  uint64_t length = 0;
  check<DataError>(bytes.size() >= sizeof length, "the saved random state ends too early");
  std::memcpy(&length, bytes.data(), sizeof length);
  bytes.remove_prefix(sizeof length);
  check<DataError>(bytes.size() >= length, "the saved random state ends too early: {} of {} bytes", bytes.size(),
                   length);
  const auto part = bytes.substr(0, length);
  bytes.remove_prefix(length);
  return part;
}

// A view of the tensor's memory, valid as long as the tensor.
std::string_view bytes_of(const at::Tensor& state) {
  return {reinterpret_cast<const char*>(state.const_data_ptr()), state.nbytes()};
}

at::Tensor state_from(std::string_view bytes) {
  at::Tensor state = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(state.mutable_data_ptr(), bytes.data(), bytes.size());
  return state;
}

// libtorch's own message does not say which state was wrong.
template <typename Set>
void set_state(const Set& set, const at::Tensor& state, std::string_view what) {
  try {
    set(state);
  } catch (const std::exception&) {
    throw DataError(fmt::format("the saved random state of \"{}\" ({} bytes) does not fit this device's generator",
                                what, state.nbytes()));
  }
}

}  // namespace

RngTracker::RngTracker(at::Device device)
    : device_(device), host_generator_(at::detail::createCPUGenerator()), device_generator_(device_generator(device)) {}

void RngTracker::seed(const layout::RngSeeds& seeds) {
  check(active_.empty(), "reseeding inside a fork");
  reset();
  host_generator_.set_current_seed(static_cast<uint64_t>(seeds.cpu));
  device_generator_.set_current_seed(static_cast<uint64_t>(seeds.default_stream));
  add(kDataParallelRng, seeds.data_parallel);
  add(kModelParallelRng, seeds.model_parallel);
  add(kExpertParallelRng, seeds.expert_parallel);
}

// A live fork would store its progress into a stream that is gone.
void RngTracker::reset() {
  check(active_.empty(), "forgetting the random streams inside a fork");
  streams_.clear();
  seeds_.clear();
}

// A stream's first state is what the generator has right after seeding; the generator itself is put back.
void RngTracker::add(std::string_view name, int64_t seed) {
  check(!streams_.contains(std::string(name)), "random stream {} already exists", name);
  for (const auto& [other, other_seed] : seeds_)
    check(seed != other_seed, "random stream {} has seed {}, which {} has already: they would draw the same numbers",
          name, seed, other);
  const at::Tensor current = device_generator_.get_state();
  device_generator_.set_current_seed(static_cast<uint64_t>(seed));
  streams_[std::string(name)] = device_generator_.get_state();
  seeds_[std::string(name)] = seed;
  device_generator_.set_state(current);
}

RngTracker::Fork RngTracker::fork(std::string_view name) { return Fork(*this, std::string(name)); }

RngTracker::Fork RngTracker::fork_if(bool condition, std::string_view name) {
  return Fork(*this, condition ? std::string(name) : std::string());
}

RngTracker::Fork::Fork(RngTracker& tracker, std::string name) : tracker_(tracker), name_(std::move(name)) {
  if (name_.empty()) return;  // fork_if(false)
  const auto stream = tracker_.streams_.find(name_);
  check(stream != tracker_.streams_.end(), "random stream {} was not added", name_);
  const std::string innermost = tracker_.active_.empty() ? "" : tracker_.active_.back();
  // A fork of the innermost stream continues it: nothing is swapped, and nothing is restored at its end.
  if (innermost != name_) {
    check(std::ranges::find(tracker_.active_, name_) == tracker_.active_.end(), "fork of {} inside {} inside {}", name_,
          innermost, name_);
    outer_state_ = tracker_.device_state();
    tracker_.set_device_state(stream->second);
    // For the destructor, which warns if the host's stream was used inside the fork.
    if (!tracker_.device_.is_cpu()) host_state_ = tracker_.host_generator_.get_state();
  }
  tracker_.active_.push_back(name_);
}

// Stores the stream's progress before the outer state returns.
RngTracker::Fork::~Fork() {
  if (name_.empty()) return;
  tracker_.active_.pop_back();
  if (!outer_state_.defined()) return;
  tracker_.streams_[name_] = tracker_.device_state();
  tracker_.set_device_state(outer_state_);
  if (host_state_.defined() && !at::equal(host_state_, tracker_.host_generator_.get_state()))
    log_warning("the host's random state changed inside a fork of {}: recompute and resume cannot reproduce that",
                name_);
}

at::Tensor RngTracker::device_state() const {
  return recorded_ != nullptr ? state_of(recorded_->place()) : device_generator_.get_state();
}

void RngTracker::set_device_state(const at::Tensor& state) {
  if (recorded_ != nullptr)
    recorded_->move_to(place_of(state));
  else
    device_generator_.set_state(state);
}

RngTracker::Recording::Recording(RngTracker& tracker, RecordedGenerator& generator)
    : tracker_(tracker), before_(tracker.streams_) {
  check(tracker_.active_.empty() && tracker_.recorded_ == nullptr, "recording inside a fork or another recording");
  tracker_.recorded_ = &generator;
  int64_t number = 0;
  for (auto& [name, state] : tracker_.streams_) state = state_of({.stream = ++number, .drawn = 0});
}

RngTracker::Recording::~Recording() {
  tracker_.recorded_ = nullptr;
  tracker_.streams_ = before_;
}

std::vector<RecordedPlace> RngTracker::Recording::places() const {
  std::vector<RecordedPlace> places{tracker_.recorded_->place()};
  for (const auto& [name, state] : tracker_.streams_) places.push_back(place_of(state));
  return places;
}

std::map<std::string, at::Tensor> RngTracker::states() const {
  std::map<std::string, at::Tensor> copies;
  for (const auto& [name, state] : streams_) copies[name] = state.clone();
  return copies;
}

// The seeds of replaced streams are unknown, so later add() calls cannot check against them.
void RngTracker::set_states(const std::map<std::string, at::Tensor>& states) {
  check(active_.empty(), "replacing the random streams inside a fork");
  streams_.clear();
  seeds_.clear();
  for (const auto& [name, state] : states) streams_[name] = state.clone();
}

std::string RngTracker::save() const {
  check(active_.empty(), "saving the random state inside a fork");
  std::string bytes(kMagic);
  const auto entry = [&](std::string_view name, const at::Tensor& state) {
    append(bytes, name);
    append(bytes, bytes_of(state));
  };
  entry(kHostEntry, host_generator_.get_state());
  entry(kDefaultEntry, device_state());
  for (const auto& [name, state] : streams_) entry(name, state);
  return bytes;
}

void RngTracker::restore(std::string_view bytes) {
  check(active_.empty(), "restoring the random state inside a fork");
  check<DataError>(bytes.starts_with(kMagic),
                   "the saved random state does not start with {}: it is not one of Megalith's", kMagic);
  bytes.remove_prefix(kMagic.size());
  // Reads everything before changing anything.
  std::map<std::string, at::Tensor> entries;
  while (!bytes.empty()) {
    const std::string name(take(bytes));
    entries[name] = state_from(take(bytes));
  }
  for (const auto name : {kHostEntry, kDefaultEntry})
    check<DataError>(entries.contains(std::string(name)), "the saved random state has no entry \"{}\"", name);
  // A state that does not fit is found by trying it. The default state comes last, so it is in force if all succeed.
  const auto before = std::pair(host_generator_.get_state(), device_state());
  const auto set_host = [this](const at::Tensor& state) { host_generator_.set_state(state); };
  const auto set_device = [this](const at::Tensor& state) { set_device_state(state); };
  try {
    set_state(set_host, entries.at(std::string(kHostEntry)), kHostEntry);
    for (const auto& [name, state] : entries)
      if (name != kHostEntry) set_state(set_device, state, name);
    set_state(set_device, entries.at(std::string(kDefaultEntry)), kDefaultEntry);
  } catch (const DataError&) {
    set_host(before.first);
    set_device(before.second);
    throw;
  }
  entries.erase(std::string(kHostEntry));
  entries.erase(std::string(kDefaultEntry));
  streams_ = std::move(entries);
  seeds_.clear();
}

}  // namespace megalith::parallel
