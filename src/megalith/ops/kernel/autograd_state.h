// Saves one typed value of an autograd function beside its tensors; its context holds it until backward has finished.
//
//   keep(ctx, MyState{…});                  // in forward
//   auto& state = kept<MyState>(ctx);       // in backward
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace megalith::ops {

namespace detail {
template <typename T>
struct KeptState : torch::CustomClassHolder {
  explicit KeptState(T v) : value(std::move(v)) {}
  T value;
};
}  // namespace detail

// Saves `value` in the context of a forward pass.
template <typename T>
void keep(torch::autograd::AutogradContext* ctx, T value) {
  ctx->saved_data["kept"] = c10::IValue::make_capsule(c10::make_intrusive<detail::KeptState<T>>(std::move(value)));
}

// Returns the saved value; T must be the type that was saved.
template <typename T>
T& kept(torch::autograd::AutogradContext* ctx) {
  return static_cast<detail::KeptState<T>*>(ctx->saved_data["kept"].toCapsule().get())->value;
}

}  // namespace megalith::ops
