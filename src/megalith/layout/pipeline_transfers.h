// Which messages a pipeline rank exchanges between its actions, so that no rank waits for another in a circle.
//
// A send stands right behind the action that made it. A receive stands at the receiver's first boundary whose action
// begins, in the ideal timeline, when the message exists or later: never behind the action that needs it, and often
// before, while the rank has other work.
//
// Why this cannot deadlock, even when a rank posts the messages of a boundary together and waits for all of them, and a
// send ends only when its receive is posted (NCCL): let phi of a boundary be the time at which the action behind it
// begins. A boundary completes when its partners have arrived at theirs, that is, when the boundaries before those are
// complete. Behind a send made at time t the receiver's boundary is the first with phi >= t: the one before it has phi
// < t. Behind a receive the sender's boundary follows an action that ended at t <= phi: the one before it has phi < t.
// And a rank's own boundary before has a smaller phi. Every dependency leads to a smaller phi: there is no circle.
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

}  // namespace megalith::layout
