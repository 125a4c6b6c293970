// HostUpdate: updates blocks whose state is offloaded to the host, piece by piece. While one piece is computed, the
// gradients of the next are copied from the device (and its parameters, where the host keeps only their remainders);
// updated parameters are copied back on another thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "megalith/optim/optimizer_state.h"
#include "megalith/optim/stored_update.h"

namespace megalith::optim {

// Called by one thread; uses others for the transfers.
class HostUpdate {
 public:
  // Elements per piece: small enough that double buffering costs little memory, large enough to hide the latency of
  // starting a transfer.
  static constexpr int64_t kPieceElements = int64_t{1} << 20;

  // Calls `update` with the host elements and the parameter group of each piece. On return all parameters have been
  // copied back.
  void run(const std::vector<StateBlock>& blocks,
           const std::function<void(const StoredElements& piece, size_t group)>& update);

 private:
  // Two of them: one is filled or drained while the other is used.
  struct Staging {
    at::Tensor grads, params;  // [kPieceElements], pinned for CUDA
  };
  static void allocate(Staging& staging, const StateBlock& block);
  Staging staging_[2];
};

}  // namespace megalith::optim
