// Turns the media of rows into the tensors of a micro-batch.
#pragma once

#include <span>

#include "megalith/data/decode_media_internal.h"
#include "megalith/data/micro_batch.h"
#include "megalith/data/strip_internal.h"

namespace megalith::data {

// Sets pixels, grids and visual_rows of the batch, and audio_features, audio_lengths and audio_rows. All media of a
// tower are one list, in the order of their tokens; one that occurs twice, as in both rows of a pair, is decoded once.
// `strips` have their lengths set; `total` is the number of tokens. Without `decode`, pixels and features stay
// undefined. Nothing is set for a tower without media. Throws a DataError that names the file for a medium that cannot
// be decoded or has changed since it was tokenized.
void collate_media(std::span<const Sequence* const> rows, std::span<const Strip> strips, int64_t total, bool decode,
                   const MediaProcessors& processors, int threads, MicroBatch& batch);

}  // namespace megalith::data
