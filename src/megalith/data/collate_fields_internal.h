// Fields of rows to extra tensors of a micro-batch.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>

#include "megalith/data/micro_batch.h"
#include "megalith/data/strip_internal.h"

namespace megalith::data {

// `rows`: in the order of the micro-batch. `strips`: with their lengths; what follows them, up to `total` tokens, is
// padding. Throws DataError for rows with different fields, and for a field that does not fit its row.
std::map<std::string, ExtraTensor, std::less<>> collate_fields(std::span<const Sequence* const> rows,
                                                               std::span<const Strip> strips, int64_t total);

}  // namespace megalith::data
