// Settings of this process that c10d, NCCL, CUDA and the kernel read from it. Each is made before the library in
// question looks, and making it again changes nothing; what the user has set stays.
#pragma once

#include <string>

namespace megalith::comm {

// Settings of c10d, before a store or a group is made. `backend`: what the groups of this process will use, "nccl" or
// "gloo"; the log level follows the last call, so that a rank that was forked by a launcher, whose store needs none,
// has its own. SIGPIPE is ignored from then on, unless the program has a handler of its own; the limit of open files is
// raised (raise_file_limit). World::connect calls it; a program whose ranks are threads does so before it starts them,
// because environment variables are set.
void prepare_c10d(const std::string& backend = "gloo");

// Raises the soft limit of open files to the hard one, 2^20 at most. The process that serves the store holds three
// connections per rank, Gloo one per pair of ranks: the usual 1024 are too few. Never fails: a low limit tells by
// itself.
void raise_file_limit();

// NCCL's bootstrap takes the interface that MEGALITH_SOCKET_IFNAME names, unless NCCL_SOCKET_IFNAME is set. Call it
// before the first communicator.
void pass_interface_to_nccl();

// The memory of a CUDA device is reserved in segments that grow, so that tensors of varying length leave no holes
// behind (expandable_segments of libtorch's allocator), unless PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF is set.
// Call it before the first tensor on a device. For runs of several ranks: runs of one may record CUDA graphs, whose
// private pools have hung with such segments in other trainers.
void use_expandable_segments();

}  // namespace megalith::comm
