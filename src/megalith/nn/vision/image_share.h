// Images of a micro-batch over ranks: which rank runs the tower on which, and how all of them get all rows.
//
// The ranks of tp x cp share the tokens of a micro-batch, and so its images. Each image is computed by one of them; a
// rank may have none. Shares are padded to the largest one, gathered, and found by number:
//
//   images 0 1 2 of 6, 2, 4 rows on two ranks:  rank 0 has 0, rank 1 has 1 and 2
//   gathered    | image 0: 6 rows | image 1: 2 rows, image 2: 4 rows |        place[0 … 11] = 0 … 11
//
// Backward returns each rank the gradients of its own images: summed over cp, whose ranks hold different tokens, and
// over tp if its ranks do, too (sequence parallelism). Otherwise tp ranks hold equal gradients, of which a rank takes
// its part.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "megalith/comm/group.h"
#include "megalith/nn/vision/vision_shape.h"

namespace megalith::nn {

// An image, or another medium that a tower turns into rows.
struct MediumSize {
  int64_t work = 0;  // the load that dealing balances: patches or frames
  int64_t rows = 0;  // output rows
};

// The media of one rank, and where the rows of all ranks are.
struct MediaShare {
  std::vector<size_t> media;        // media of this rank, ascending
  int64_t rows = 0;                 // output rows of this rank
  int64_t padded_rows = 0;          // output rows of the rank with the most
  std::vector<int64_t> place = {};  // [n]: row i of the micro-batch is row place[i] of the gathered ones
};

// Deals media to `ranks` ranks, the largest first, each to the rank with the least work so far. All ranks compute the
// same.
MediaShare deal_media(const std::vector<MediumSize>& sizes, int ranks, int rank);

// The same for images, whose work is their patches.
struct ImageShare : MediaShare {
  std::vector<ImageGrid> grids = {};  // those of this rank's images
};
// An output row covers `merged` patches.
ImageShare deal_images(const std::vector<ImageGrid>& grids, int64_t merged, int ranks, int rank);

// Returns the rows of a rank's media: rows [r, …] of all media, which have so many each -> [own rows, …].
at::Tensor own_input(const at::Tensor& rows, const std::vector<int64_t>& rows_of_media, const MediaShare& share);
// The same for images: pixels [p, c] of all `grids` -> [own patches, c].
at::Tensor own_pixels(const at::Tensor& pixels, const std::vector<ImageGrid>& grids, const ImageShare& share);

// The groups that share images. Rank r of deal_images is (cp rank) · tp + (tp rank).
struct ImageGroups {
  comm::Group tp;
  comm::Group cp;
  bool tokens_split_over_tp = false;  // sequence parallelism: tp ranks hold different tokens

  int ranks() const { return tp.size() * cp.size(); }
  int rank() const { return cp.rank() * tp.size() + tp.rank(); }
};

// Gathers the rows of all ranks: [share.rows, …] -> [ranks · share.padded_rows, …], padding is zero. All ranks call it,
// also those without media, and `own` requires a gradient on all or none of them.
at::Tensor gather_image_rows(const at::Tensor& own, const MediaShare& share, const ImageGroups& groups);

// Replaces or increases some rows of x [t, h] by rows of `values` [m, h]: token i by row which[i], int64 [t], or not at
// all if that is negative. Backward of replace_rows gives such tokens no gradient in x. Waits for nothing.
at::Tensor replace_rows(const at::Tensor& x, const at::Tensor& values, const at::Tensor& which);
at::Tensor add_rows(const at::Tensor& x, const at::Tensor& values, const at::Tensor& which);

}  // namespace megalith::nn
