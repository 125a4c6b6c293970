// Runs collectives over one connection of all members, and transfers over one connection per pair of ranks that needs
// it.
//
// So a send involves only the two ranks that it names, as on NCCL, and a pipeline's group opens two connections per
// rank instead of a full mesh.
#pragma once

#include <functional>
#include <memory>

#include "megalith/comm/op/backend.h"

namespace megalith::comm {

// `connect_all` opens the connection of all members, `connect_pair(peer)` the one with group rank `peer`, in which the
// lower group rank is 0 and the higher is 1. Each is called at most once (per peer), at the first operation that needs
// it.
std::unique_ptr<Backend> make_pairwise_backend(int rank, std::function<std::unique_ptr<Backend>()> connect_all,
                                               std::function<std::unique_ptr<Backend>(int peer)> connect_pair);

}  // namespace megalith::comm
