// Turns the images of rows into the tensors of a micro-batch.
#pragma once

#include <memory>
#include <span>

#include "megalith/data/micro_batch.h"
#include "megalith/data/strip_internal.h"

namespace megalith::media {
class ImageProcessor;
}

namespace megalith::data {

// Sets pixels, grids and visual_rows of the batch. An image that occurs twice, as in both rows of a pair, is decoded
// once. `strips` have their lengths set; `total` is the number of tokens. Without `decode`, pixels stay undefined.
// Nothing is set when no row has images. Throws a DataError that names the file for an image that cannot be decoded or
// has changed since it was tokenized.
void collate_media(std::span<const Sequence* const> rows, std::span<const Strip> strips, int64_t total, bool decode,
                   const media::ImageProcessor* processor, int threads, MicroBatch& batch);

}  // namespace megalith::data
