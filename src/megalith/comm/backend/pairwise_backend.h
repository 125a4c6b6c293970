// Collectives over one connection of all members, transfers over one connection for each pair of ranks that needs it.
//
// So a send involves the two ranks that it names and nobody else, as on NCCL; and a pipeline's group makes two
// connections a rank instead of a full mesh.
#pragma once

#include <functional>
#include <memory>

#include "megalith/comm/op/backend.h"

namespace megalith::comm {

// `connect_all` makes the connection of all members, `connect_pair(peer)` the one with group rank `peer`, in which the
// lower group rank is 0 and the higher is 1. Each is called at most once (for a peer), at the first operation that
// needs it.
std::unique_ptr<Backend> make_pairwise_backend(int rank, std::function<std::unique_ptr<Backend>()> connect_all,
                                               std::function<std::unique_ptr<Backend>(int peer)> connect_pair);

}  // namespace megalith::comm
