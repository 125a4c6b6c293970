// Checks an operation before any backend sees it.
#pragma once

#include "megalith/comm/group_internal.h"
#include "megalith/comm/op/op.h"

namespace megalith::comm {

// Throws InternalError, with operation, label and group, when a tensor is undefined, not contiguous or not on the run's
// device, sizes do not fit the group, or a peer does not exist.
void check_op(const GroupState& group, const Op& op);

}  // namespace megalith::comm
