// The messages that a pipeline rank exchanges between its actions, ordered so that ranks never wait for each other in a
// circle.
//
// A send is posted right after the action that produced it, or the pair of actions (PipelineShape::paired), which
// counts as one action here: nothing is posted between its two. A receive is posted at the receiver's first boundary
// (gap between two actions) whose next action begins, in the ideal timeline, when the message exists or later: never
// after the action that needs it, and often earlier, while the rank has other work.
//
// Why this cannot deadlock, even when a rank posts the messages of a boundary together and waits for all of them, and a
// send completes only once its receive is posted (NCCL): let phi of a boundary be the time at which the action after it
// begins. A boundary completes when its partners have reached theirs, that is, when the boundaries before those are
// complete. For a send made at time t, the receiver's boundary is the first with phi >= t, so the one before it has
// phi < t. For a receive, the sender's boundary follows an action that ended at t <= phi, so the one before it has
// phi < t. And a rank's own previous boundary has a smaller phi. Every dependency leads to a smaller phi, so there is
// no circle.
//
// What the proof requires, and what it permits:
// - Posting must never wait for a peer. NCCL breaks this at the first message of a pair in one direction: it connects
//   the two inside the post, and holds back the other messages of the batch meanwhile. A boundary {send F2, receive B1}
//   whose B1 is not connected then withholds F2, which the peer needs before it can send B1. So connections are opened
//   before the first message (comm::Group::open_transfers); pipeline_connections lists them.
// - A rank may at any moment wait on the host for everything it has posted, since a boundary may. Loading a kernel's
//   module at its first launch does just that: CUDA waits for the device, and with it for posted messages.
// - Collectives of replicas and of tensor-parallel ranks, which run the same schedule, meet at the same phi and depend
//   only on smaller ones.
// tests/layout simulates all of this, including the deadlock without opened connections.
#pragma once

#include <vector>

#include "megalith/layout/pipeline_schedule.h"

namespace megalith::layout {

// One message, as this rank sees it.
struct PipelineTransfer {
  bool send = false;    // false for a receive
  bool forward = true;  // hidden states; false for their gradient
  int peer = 0;         // pipeline rank of the other side
  int microbatch = 0;
  int chunk = 0;  // this rank's chunk: the one that produced the output or awaits the input
  bool operator==(const PipelineTransfer&) const = default;
};

// Entry i lists the messages that are posted together before compute action i of the rank; the last entry, those after
// its last action. Between two ranks, messages are received in the order in which they are sent.
using PipelineExchanges = std::vector<std::vector<PipelineTransfer>>;

// Returns the exchanges of every rank. Throws ConfigError for shapes without a schedule.
std::vector<PipelineExchanges> pipeline_transfers(const PipelineShape& shape);

// The peers to which a rank sends, and from which it receives, in one direction; ascending.
struct PipelineConnections {
  std::vector<int> send_to, receive_from;
  bool operator==(const PipelineConnections&) const = default;
};
PipelineConnections pipeline_connections(const PipelineExchanges& exchanges, bool forward);

}  // namespace megalith::layout
