// Updates of blocks whose state is on the host, piece by piece: while one is computed, the gradients of the next come
// from the device and the parameters of the last go back.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "megalith/optim/optimizer_state.h"

namespace megalith::optim {

// One thread calls it; it uses others for the transfers.
class HostUpdate {
 public:
  // Elements of a piece: small enough that two of everything cost little, large enough to hide a transfer's start.
  static constexpr int64_t kPieceElements = int64_t{1} << 20;

  // `update` is called with elements on the host and the group of the piece. Parameters are there when it returns.
  void run(const std::vector<StateBlock>& blocks,
           const std::function<void(const FlatElements& piece, size_t group)>& update);

 private:
  struct Staging {
    at::Tensor grads, params;  // [kPieceElements], pinned for CUDA
  };
  void allocate(const StateBlock& block);
  Staging staging_[2];
};

}  // namespace megalith::optim
