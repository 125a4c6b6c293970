// Rotary position embedding as Hugging Face's library computes it.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "tests/support/reference_config.h"

namespace megalith::testing {

// cos and sin, fp32 [b, s, r]: r rotated channels, the two halves alike. position_ids int64 [b, s].
std::pair<at::Tensor, at::Tensor> reference_angles(const ReferenceConfig& config, const at::Tensor& position_ids);
// x [b, n, s, d]; the first r channels rotate.
at::Tensor reference_rotate(const at::Tensor& x, const std::pair<at::Tensor, at::Tensor>& angles);

}  // namespace megalith::testing
