// ActivationOffload: keeps the tensors that layers save for backward in host memory, for cpu_offloading.
//
//   forward of layer   0        1        2        3          backward of layer  3        2        1        0
//   compute stream     ████████ ████████ ████████ ████████                      ████████ ████████ ████████ ████████
//   copy stream                 0 ─►host 1 ─►host 2 ─►host                      host─► 2 host─► 1 host─► 0
//   freed at the end of          0        1        2
//
// Autograd asks a hook about each tensor that it saves while a layer runs inside a Pass::LayerScope. At the end of the
// layer, tensors that nobody else holds are copied to the host (pinned for a GPU, on a stream of their own) and, one
// layer later, freed. Parameters, rotary angles and other tensors that live on anyway are recognized by their holders
// and stay; so do storages of fewer than min_bytes. A storage that several operations save, whole or as views, is
// copied once. Backward of layer i starts to fetch what layer i-1 saved. All bits are the same as without it.
//
// Tensors that are kept in other ways than by autograd (closures that recompute) stay on the device, and
// nn::discard_until_backward, which works on storages, must not be used inside a scope.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "megalith/base/trace.h"

namespace megalith::nn {

// Used by one thread per rank, like the model that owns it.
class ActivationOffload {
 public:
  class Pass;
  class LayerScope;
  struct Common;  // shared by all passes; outlives the model if a graph does

  // Makes autograd ask for hooks in this process from now on. Storages of fewer than `min_bytes` stay on the device.
  ActivationOffload(c10::Device device, int64_t min_bytes);

  // Shows copies of further passes in the lane kCopies. `trace`, nullptr for none, must live until it is replaced.
  void set_trace(TraceRecorder* trace) const;

  // Starts a forward pass.
  Pass begin() const;
  // Returns the bytes copied to the host since construction.
  int64_t bytes() const;

 private:
  std::shared_ptr<Common> common_;
};

// A forward pass; its graph keeps what backward needs of it.
class ActivationOffload::Pass {
 public:
  struct State;

  explicit Pass(std::shared_ptr<Common> common);

  // Call after each layer, in order and when the layer's input is no longer held: sends what the layer saved to the
  // host, frees what the layer before it sent, and makes the backward of `out`, the layer's output, fetch it in time.
  void end_layer(int64_t layer, const at::Tensor& out);

 private:
  friend class ActivationOffload::LayerScope;
  std::shared_ptr<State> state_;
};

// While it exists, what this thread saves for backward belongs to `pass`. Scopes do not nest.
class ActivationOffload::LayerScope {
 public:
  explicit LayerScope(Pass& pass);
  ~LayerScope();
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;
};

}  // namespace megalith::nn
