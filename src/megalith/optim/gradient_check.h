// GradientCheck: the policy for gradients that are not finite.
//
// A ParamBuffer measures the gradients of a bucket; a GradientCheck decides what follows. The default throws at the
// first NaN or infinity. A Trainer installs its own policy (train/faults/result_check.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

#include "megalith/base/error.h"

namespace megalith::optim {

class ParamBuffer;

// Thrown when a gradient contains a NaN or an infinity; the message names the parameter and the rank.
class NonFiniteGradient : public Error {
 public:
  using Error::Error;
};

// The gradients of one bucket, as this rank computed them.
struct BucketGradients {
  const ParamBuffer& buffer;
  int bucket = 0;
  bool finite = true;    // none was NaN or infinite before the reduction; always true when checks are off
  bool reduced = false;  // they have been reduced since they were measured

  at::Tensor values() const;  // [n]
  std::string name() const;   // within the model chunk: "bucket 2 of buffer 0"
};

// Describes the first parameter of the bucket whose gradient is not finite: its name, how many elements, what to do.
// Returns std::nullopt if all are finite. Waits for the device.
std::optional<std::string> describe_non_finite(const BucketGradients& gradients);

// Throws NonFiniteGradient with that description unless the gradients are finite.
void require_finite(const BucketGradients& gradients);

// A policy. `look` is called for every bucket of every step: just before the reduction, or from
// ParamBuffer::check_gradients for buckets that are measured on the device without waiting.
struct GradientCheck {
  std::function<void(const BucketGradients&)> look = require_finite;
  bool reads = false;  // `look` reads values(), so it must never be called after the reduction
};

}  // namespace megalith::optim
