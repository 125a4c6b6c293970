// Turns the fields of rows into extra tensors of a micro-batch.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>

#include "megalith/data/micro_batch.h"
#include "megalith/data/strip_internal.h"

namespace megalith::data {

// `rows` are in the order of the micro-batch; `strips` have their lengths set, and all that follows them, up to `total`
// tokens, is padding. Throws a DataError if rows have different fields or if a field does not fit its row. Fields of
// labels and tokens become [total, …], fields of rows [rows, …]; empty if no row has fields.
std::map<std::string, ExtraTensor, std::less<>> collate_fields(std::span<const Sequence* const> rows,
                                                               std::span<const Strip> strips, int64_t total);

}  // namespace megalith::data
