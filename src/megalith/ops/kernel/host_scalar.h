// HostScalar: a number on its way from a device to the host.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>

namespace megalith::ops {

// The copy is started at once, in the order of the stream; value() waits for it alone, not for what the stream was
// given afterwards. Copies are cheap.
class HostScalar {
 public:
  explicit HostScalar(const at::Tensor& scalar);
  double value() const;

 private:
  at::Tensor host_;                     // fp64
  std::shared_ptr<c10::Event> copied_;  // nullptr: it was on the host
};

}  // namespace megalith::ops
