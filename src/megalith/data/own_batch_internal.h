// What a collator of one's own has given, checked and completed.
#pragma once

#include <span>

#include "megalith/data/collator.h"

namespace megalith::data {

// Tensors become token-major; layout, counts and the rest are filled in. Throws DataError as Collator::collate says.
MicroBatch completed_batch(MicroBatch batch, std::span<const Sample> samples, const CollatorOptions& options);

}  // namespace megalith::data
