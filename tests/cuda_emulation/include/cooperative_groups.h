// In CUDA's place; see cuda_runtime.h.
#pragma once

#include "tests/cuda_emulation/emulation.h"

namespace cooperative_groups {

struct cluster_group {
  using arrival_token = unsigned;

  unsigned block_rank() const { return megalith::cuda_emulation::block_in_cluster(); }
  arrival_token barrier_arrive() const { return megalith::cuda_emulation::arrive_at_cluster(); }
  void barrier_wait(arrival_token&& token) const { megalith::cuda_emulation::wait_for_cluster(token); }
  void sync() const { barrier_wait(barrier_arrive()); }
  template <typename T>
  T* map_shared_rank(T* shared, int block) const {
    return static_cast<T*>(megalith::cuda_emulation::address_in_block(static_cast<unsigned>(block), shared));
  }
};
inline cluster_group this_cluster() { return {}; }

}  // namespace cooperative_groups
