// An Entry is a storage that autograd saved: on the device, on the host, or on its way. A saved tensor is an entry and
// its own sizes, so views of one storage share the copy. Entries belong to the hooks inside the graph; the pass refers
// to them only until it has sent and fetched them, so that backward frees them operation by operation.
//
// Order on a device: `sent` makes the compute stream wait for a layer's copies before their sources are freed to its
// allocator; `arrived` makes it wait before fetched data is read. In both directions the copy stream first waits for
// the compute stream: for the data, and for the memory that the allocator hands out.
#include "megalith/nn/activation_offload.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "megalith/base/error.h"

namespace megalith::nn {

namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;
using EventPtr = std::shared_ptr<c10::Event>;

// The copy stream of a device. On the CPU copies are complete when they return, and there are no events.
class HostCopies {
 public:
  explicit HostCopies(c10::Device device) : device_(device) {
    if (!device_.is_cpu()) stream_ = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
  }

  void set_trace(TraceRecorder* trace) { trace_ = trace; }
  c10::Device device() const { return device_; }
  at::TensorOptions host_bytes() const { return at::TensorOptions(at::kByte).pinned_memory(!device_.is_cpu()); }

  // Runs `queue`, whose copies come after the work queued on the compute stream so far and are the span `name`. Returns
  // the event of the last copy, or nullptr on the CPU.
  template <typename Queue>
  EventPtr run(const char* name, const Queue& queue) const {
    const auto traced = [&] {
      std::optional<TraceRecorder::Scope> span;
      if (trace_ != nullptr) span.emplace(trace_->span({.name = name, .lane = TraceLane::kCopies}));
      queue();
    };
    if (!stream_) {
      traced();
      return nullptr;
    }
    const c10::impl::VirtualGuardImpl guard(device_.type());
    c10::Event ready(device_.type());
    ready.record(guard.getStream(device_));
    ready.block(*stream_);
    const c10::StreamGuard on_copy_stream(*stream_);
    traced();
    auto done = std::make_shared<c10::Event>(device_.type());
    done->record(*stream_);
    return done;
  }

  // Makes the compute stream wait; the host does not.
  void wait(const EventPtr& event) const {
    if (event) event->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }

 private:
  const c10::Device device_;
  std::optional<c10::Stream> stream_;
  TraceRecorder* trace_ = nullptr;
};

// The bytes of a whole storage.
at::Tensor bytes_of(const c10::Storage& storage) {
  return at::empty({0}, at::TensorOptions(at::kByte).device(storage.device()))
      .set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
}

// A storage that autograd saved. Exactly one of `storage` and `host` is set.
struct Entry {
  c10::Storage storage;
  at::Tensor host;
  EventPtr arrived;  // set once the storage was fetched
};
using EntryPtr = std::shared_ptr<Entry>;

// Brings entries back. Memory comes from the compute stream's allocator, and goes back to it.
void fetch(const std::vector<EntryPtr>& entries, const HostCopies& copies) {
  std::vector<at::Tensor> targets;
  for (const EntryPtr& entry : entries)
    targets.push_back(at::empty({entry->host.numel()}, at::TensorOptions(at::kByte).device(copies.device())));
  const EventPtr arrived = copies.run("activations-to-device", [&] {
    for (size_t i = 0; i < entries.size(); ++i) targets[i].copy_(entries[i]->host, /*non_blocking=*/true);
  });
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i]->storage = targets[i].storage();
    entries[i]->arrived = arrived;
    entries[i]->host.reset();
  }
}

}  // namespace

struct ActivationOffload::Common {
  HostCopies copies;
  int64_t min_bytes;
  int64_t sent_bytes = 0;
};

// Forward runs on the thread of the rank. Backward, on a GPU, runs on a thread of autograd, after forward.
struct ActivationOffload::Pass::State {
  // Storages whose copies are in flight, until the compute stream waits for them.
  struct Sending {
    std::vector<c10::Storage> storages;
    EventPtr sent;
  };

  EntryPtr entry_of(const c10::Storage& storage);
  void send(int64_t layer);
  void before_backward(int64_t layer);

  std::shared_ptr<Common> common;
  // Entries on the device, by storage: those of the current layer, and older ones that somebody else still held. An
  // entry keeps its storage, so no other storage can have the same address.
  std::unordered_map<const c10::StorageImpl*, EntryPtr> kept{};
  std::map<int64_t, std::vector<EntryPtr>> on_host{};  // by the layer at whose end they were sent
  std::map<int64_t, EventPtr> arrived{};               // by the same, for those already fetched
  Sending sending{};
};

EntryPtr ActivationOffload::Pass::State::entry_of(const c10::Storage& storage) {
  EntryPtr& entry = kept[storage.unsafeGetStorageImpl()];
  if (!entry) entry = std::make_shared<Entry>(Entry{.storage = storage, .host = {}, .arrived = {}});
  return entry;
}

// A storage that only its entry holds would be freed if autograd did not save it. The input of a layer was still in use
// at the end of the layer that made it, so older entries are looked at again.
void ActivationOffload::Pass::State::send(int64_t layer) {
  const HostCopies& copies = common->copies;
  std::vector<EntryPtr> entries;
  for (const auto& [address, entry] : kept)
    if (entry->storage.use_count() == 1 && entry->storage.device() == copies.device() &&
        static_cast<int64_t>(entry->storage.nbytes()) >= common->min_bytes)
      entries.push_back(entry);
  Sending now;
  for (const EntryPtr& entry : entries) {
    kept.erase(entry->storage.unsafeGetStorageImpl());
    entry->host = at::empty({static_cast<int64_t>(entry->storage.nbytes())}, copies.host_bytes());
    common->sent_bytes += entry->host.numel();
    now.storages.push_back(std::exchange(entry->storage, {}));
  }
  if (!entries.empty())
    now.sent = copies.run("activations-to-host", [&] {
      for (size_t i = 0; i < entries.size(); ++i)
        entries[i]->host.copy_(bytes_of(now.storages[i]), /*non_blocking=*/true);
    });
  copies.wait(sending.sent);
  sending = std::move(now);  // frees what the layer before sent
  if (!entries.empty()) on_host[layer] = std::move(entries);
}

// First the layer's own, in case that no later layer has fetched it; then, ahead, what the next backward needs.
void ActivationOffload::Pass::State::before_backward(int64_t layer) {
  for (const int64_t wanted : {layer, layer - 1}) {
    const auto found = on_host.find(wanted);
    if (found == on_host.end()) continue;
    // Some were fetched by an operation that came early, or belong to a part of the graph that is gone.
    std::vector<EntryPtr> entries = std::move(found->second);
    on_host.erase(found);
    std::erase_if(entries, [](const EntryPtr& entry) { return entry->storage || entry.use_count() == 1; });
    if (entries.empty()) continue;
    fetch(entries, common->copies);
    arrived[wanted] = entries.front()->arrived;
  }
  if (const auto found = arrived.find(layer); found != arrived.end()) {
    common->copies.wait(found->second);
    arrived.erase(found);
  }
}

namespace {

using Common = ActivationOffload::Common;
using PassState = ActivationOffload::Pass::State;

// A tensor that autograd saved inside a scope.
class SavedInPass : public SavedVariableHooks {
 public:
  explicit SavedInPass(PassState& state) : common_(state.common), state_(&state) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    entry_ = std::exchange(state_, nullptr)->entry_of(tensor.storage());
    options_ = tensor.options();
    sizes_ = tensor.sizes().vec();
    strides_ = tensor.strides().vec();
    offset_ = tensor.storage_offset();
  }
  at::Tensor call_unpack_hook() override {
    if (!entry_->storage) fetch({entry_}, common_->copies);
    common_->copies.wait(entry_->arrived);
    return at::empty({0}, options_).set_(entry_->storage, offset_, sizes_, strides_);
  }

 private:
  const std::shared_ptr<Common> common_;
  PassState* state_;  // until the tensor is saved, which is at once
  EntryPtr entry_;
  at::TensorOptions options_;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_ = 0;
};

// The pass whose layer this thread runs; autograd asks for hooks on the thread of forward.
thread_local PassState* saving = nullptr;

// libtorch takes the default hooks of saved tensors from its engine; apart from that of Python, none has any.
struct HookedEngine : Engine {
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return saving ? std::make_unique<SavedInPass>(*saving) : nullptr;
  }
};
Engine& hooked_engine() {
  static HookedEngine engine;
  return engine;
}

}  // namespace

ActivationOffload::ActivationOffload(c10::Device device, int64_t min_bytes)
    : common_(std::make_shared<Common>(Common{.copies = HostCopies(device), .min_bytes = min_bytes})) {
  torch::autograd::set_default_engine_stub(&hooked_engine);
}

void ActivationOffload::set_trace(TraceRecorder* trace) const { common_->copies.set_trace(trace); }
ActivationOffload::Pass ActivationOffload::begin() const { return Pass(common_); }
int64_t ActivationOffload::bytes() const { return common_->sent_bytes; }

ActivationOffload::Pass::Pass(std::shared_ptr<Common> common)
    : state_(std::make_shared<State>(State{.common = std::move(common)})) {}

void ActivationOffload::Pass::end_layer(int64_t layer, const at::Tensor& out) {
  const at::NoGradGuard no_grad;
  state_->send(layer);
  if (out.requires_grad())
    out.register_hook([state = state_, layer](const at::Tensor&) { state->before_backward(layer); });
}

ActivationOffload::LayerScope::LayerScope(Pass& pass) {
  check(!saving, "a layer runs inside another layer's offload scope");
  saving = pass.state_.get();
}
ActivationOffload::LayerScope::~LayerScope() { saving = nullptr; }

}  // namespace megalith::nn
