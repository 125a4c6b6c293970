// Checks and completes the batch of a user-defined collator.
#pragma once

#include <span>

#include "megalith/data/collator.h"

namespace megalith::data {

// Makes the tensors token-major and fills in layout, counts and the rest. Throws as Collator::collate says. `samples`
// are those that the collator was given; they are counted, not read.
MicroBatch completed_batch(MicroBatch batch, std::span<const Sample> samples, const CollatorOptions& options);

}  // namespace megalith::data
