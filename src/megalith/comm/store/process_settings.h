// Process-wide settings that c10d, NCCL, CUDA and the kernel read. Each must be made before the library in question
// looks; repeating it changes nothing, and settings of the user take precedence.
#pragma once

#include <string>

namespace megalith::comm {

// Configures c10d, before a store or a group is created. `backend` is what the groups of this process will use, "nccl"
// or "gloo"; the log level follows the last call, so that a rank forked by a launcher, whose store needs none, has its
// own. From then on SIGPIPE is ignored, unless the program has its own handler, and the limit of open files is raised
// (raise_file_limit). World::connect calls it; a program whose ranks are threads must call it before it starts them,
// because it sets environment variables.
void prepare_c10d(const std::string& backend = "gloo");

// Raises the soft limit of open files to the hard one, at most 2^20. The process that serves the store holds three
// connections per rank, Gloo one per pair of ranks: the usual 1024 are not enough. Never fails: a limit that is too low
// shows up by itself.
void raise_file_limit();

// Passes the interface in MEGALITH_SOCKET_IFNAME to NCCL's bootstrap, unless NCCL_SOCKET_IFNAME is set. Call it before
// the first communicator is created.
void pass_interface_to_nccl();

// Makes libtorch reserve the memory of a CUDA device in segments that grow (expandable_segments), so that tensors of
// varying length do not fragment it, unless PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF is set. Call it before the
// first tensor on a device. For runs of several ranks.
void use_expandable_segments();
// Ends that, unless PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF is set; memory that is already reserved stays as it
// is. For runs that record CUDA graphs, whose private pools have hung with such segments in other trainers. Call it
// before the first recording.
void use_plain_segments();

// Makes NCCL use its own buffers in CUDA graphs, too, unless NCCL_GRAPH_REGISTER is set. It would register the tensors
// of a graph with the network otherwise, which fails for expandable segments, and would choose other algorithms than
// outside of graphs. Call it before the first communicator is created.
void keep_nccl_buffers_in_graphs();

}  // namespace megalith::comm
