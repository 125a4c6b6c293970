// Which messages a pipeline rank exchanges between its actions, so that no rank waits for another in a circle.
//
// A send stands right behind the action that made it. A receive stands at the receiver's first boundary whose action
// begins, in the ideal timeline, when the message exists or later: never behind the action that needs it, and often
// before, while the rank has other work.
//
// Why this cannot deadlock, even when a rank posts the messages of a boundary together and waits for all of them, and a
// send ends only when its receive is posted (NCCL): let phi of a boundary be the time at which the action after it
// begins. A boundary completes when its partners have arrived at theirs, that is, when the boundaries before those are
// complete. For a send made at time t the receiver's boundary is the first with phi >= t: the one before it has phi
// < t. For a receive the sender's boundary follows an action that ended at t <= phi: the one before it has phi < t.
// And a rank's own boundary before has a smaller phi. Every dependency leads to a smaller phi: there is no circle.
//
// What the proof needs, and what it allows:
// - Posting never waits for a peer. NCCL breaks this at the first message of a pair in a direction: it connects the two
//   inside of the post, and holds the other messages of the batch back meanwhile. A boundary {send F2, receive B1}
//   whose B1 is not connected then withholds F2, for which the peer waits before it comes to send B1. So connections
//   are opened before the first message (comm::Group::open_transfers); pipeline_connections lists them.
// - A rank may at any moment wait on the host for all that it has posted, since a boundary may. Loading a kernel's
//   module at its first launch does just that: CUDA waits for the device, and with it for posted messages.
// - Collectives of replicas and of tensor-parallel ranks, which run the same schedule, meet at the same phi and depend
//   on smaller ones only.
// tests/layout simulates all of it, the deadlock without opened connections included.
#pragma once

#include <vector>

#include "megalith/layout/pipeline_schedule.h"

namespace megalith::layout {

struct PipelineTransfer {
  bool send = false;    // else: receive
  bool forward = true;  // hidden states; else their gradient
  int peer = 0;         // pipeline rank of the other side
  int microbatch = 0;
  int chunk = 0;  // of this rank: whose output leaves, or whose input arrives
  bool operator==(const PipelineTransfer&) const = default;
};

// Entry i: what is posted together before compute action i of the rank; the last entry: behind its last action. Between
// two ranks messages are received in the order in which they are sent.
using PipelineExchanges = std::vector<std::vector<PipelineTransfer>>;

// By rank. Throws ConfigError for shapes without a schedule.
std::vector<PipelineExchanges> pipeline_transfers(const PipelineShape& shape);

// The peers to which a rank sends and from which it receives in one direction, ascending.
struct PipelineConnections {
  std::vector<int> send_to, receive_from;
  bool operator==(const PipelineConnections&) const = default;
};
PipelineConnections pipeline_connections(const PipelineExchanges& exchanges, bool forward);

}  // namespace megalith::layout
