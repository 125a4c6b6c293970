// What a ParamBuffer tells about the gradients of a bucket, and what follows unless a caller decides otherwise.
//
// Buffers measure; a GradientCheck decides. The default ends the step at the first NaN or infinity. A Trainer brings a
// policy of its own (train/faults/result_check.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

#include "megalith/base/error.h"

namespace megalith::optim {

class ParamBuffer;

// A gradient has a NaN or an infinity; the message names the parameter and the rank.
class NonFiniteGradient : public Error {
 public:
  using Error::Error;
};

// The gradients of one bucket, as this rank has computed them.
struct BucketGradients {
  const ParamBuffer& buffer;
  int bucket = 0;
  bool finite = true;    // none of them was NaN or infinite before the reduction; true as well when nobody measures
  bool reduced = false;  // they have been reduced since they were measured

  at::Tensor values() const;  // [n]
  std::string name() const;   // within the model chunk: "bucket 2 of buffer 0"
};

// Names the first parameter of the bucket whose gradient is not finite, says how much of it, and what to do;
// std::nullopt when there is none. Waits for the device.
std::optional<std::string> describe_non_finite(const BucketGradients& gradients);

// Throws NonFiniteGradient with that description unless the gradients are finite.
void require_finite(const BucketGradients& gradients);

// Decides what follows. Called for every bucket of every step, just before it is reduced; for buckets that are measured
// on a device without a wait, from ParamBuffer::check_gradients.
struct GradientCheck {
  std::function<void(const BucketGradients&)> look = require_finite;
  bool reads = false;  // it looks at values(): it is never called after the reduction
};

}  // namespace megalith::optim
