// Saves one typed value of an autograd function beside its tensors; its context holds it until the graph is freed. One
// value per function: a second save_state() replaces the first. Tensors inside are not tracked by autograd.
//
//   save_state(ctx, MyState{…});                  // in forward
//   auto& state = saved_state<MyState>(ctx);       // in backward
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace megalith::ops {

namespace detail {
template <typename T>
struct SavedState : torch::CustomClassHolder {
  explicit SavedState(T v) : value(std::move(v)) {}
  T value;
};
}  // namespace detail

// Saves `value` in the context of a forward pass.
template <typename T>
void save_state(torch::autograd::AutogradContext* ctx, T value) {
  ctx->saved_data["state"] = c10::IValue::make_capsule(c10::make_intrusive<detail::SavedState<T>>(std::move(value)));
}

// Returns the saved value; T must be the type that was saved.
template <typename T>
T& saved_state(torch::autograd::AutogradContext* ctx) {
  return static_cast<detail::SavedState<T>*>(ctx->saved_data["state"].toCapsule().get())->value;
}

}  // namespace megalith::ops
