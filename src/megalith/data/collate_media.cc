#include "megalith/data/collate_media_internal.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/io/mapped_file.h"
#include "megalith/io/parallel_for.h"
#include "megalith/media/decode.h"
#include "megalith/media/image_processor.h"

namespace megalith::data {
namespace {

int64_t patches(const MediaReference& medium) { return medium.grid[0] * medium.grid[1] * medium.grid[2]; }

// The different images of a micro-batch, in the order in which they first occur, and where their rows begin.
class MediaList {
 public:
  // Returns the tower's first output row of the image.
  int64_t add(const MediaReference& medium) {
    const auto [place, is_new] =
        first_rows_.try_emplace(std::tuple(medium.file, medium.offset, medium.grid, medium.frames), output_rows_);
    if (is_new) {
      media_.push_back(&medium);
      patch_begins_.push_back(patch_rows_);
      patch_rows_ += patches(medium);
      output_rows_ += medium.tokens;
    }
    return place->second;
  }
  const std::vector<const MediaReference*>& media() const { return media_; }
  int64_t patch_rows() const { return patch_rows_; }
  int64_t patch_begin(size_t i) const { return patch_begins_[i]; }

 private:
  std::map<std::tuple<std::string, int64_t, std::array<int64_t, 3>, std::vector<MediaFrame>>, int64_t> first_rows_;
  std::vector<const MediaReference*> media_;
  std::vector<int64_t> patch_begins_;
  int64_t patch_rows_ = 0, output_rows_ = 0;
};

void decode_into(const MediaReference& medium, const media::ImageProcessor& processor, float* rows) {
  const io::MappedFile file{std::filesystem::path(medium.file)};
  const auto size = static_cast<int64_t>(file.size());
  const int64_t bytes = medium.bytes < 0 ? size - medium.offset : medium.bytes;
  check<DataError>(medium.offset >= 0 && bytes >= 0 && medium.offset <= size - bytes,
                   "{}: the file has become shorter since it was tokenized", medium.file);
  media::Image image =
      media::decode_image(file.text(static_cast<uint64_t>(medium.offset), static_cast<uint64_t>(bytes)), medium.file);
  const media::PatchGrid grid = processor.grid({image.width, image.height}, medium.file);
  check<DataError>(grid == media::PatchGrid{medium.grid[0], medium.grid[1], medium.grid[2]},
                   "{}: the image has {} x {} pixels, which is not the size that it was tokenized with. The file, "
                   "image_max_pixels or image_min_pixels has changed: tokenize again",
                   medium.file, image.width, image.height);
  processor.patch_rows(processor.pre_resize(std::move(image), medium.file), rows, medium.file);
}

}  // namespace

void collate_media(std::span<const Sequence* const> rows, std::span<const Strip> strips, int64_t total, bool decode,
                   const media::ImageProcessor* processor, int threads, MicroBatch& batch) {
  bool any = false;
  for (const Sequence* row : rows) any = any || !row->media.empty();
  if (!any) return;
  check<ConfigError>(processor != nullptr,
                     "the samples have images, and this run's model has no vision tower. Train a model with one, or "
                     "leave the images out");
  MediaList list;
  batch.visual_rows = at::full({total}, -1, at::kLong);
  auto* visual_rows = batch.visual_rows.mutable_data_ptr<int64_t>();
  int64_t begin = 0;
  for (const Strip& strip : strips) {
    for (const MediaReference& medium : strip.row->media) {
      if (medium.first < strip.begin || medium.first >= strip.begin + strip.tokens) continue;
      check(medium.first + medium.tokens <= strip.begin + strip.tokens, "an image at the end of a sequence");
      const int64_t output = list.add(medium);
      for (int64_t i = 0; i < medium.tokens; ++i) visual_rows[begin + medium.first - strip.begin + i] = output + i;
    }
    begin += strip.length;
  }
  const auto count = std::ssize(list.media());
  batch.grids = at::empty({count, 3}, at::kLong);
  auto* grids = batch.grids.mutable_data_ptr<int64_t>();
  for (const MediaReference* medium : list.media()) grids = std::copy(medium->grid.begin(), medium->grid.end(), grids);
  if (!decode) return;
  batch.pixels = at::empty({list.patch_rows(), processor->row_width()}, at::kFloat);
  auto* pixels = batch.pixels.mutable_data_ptr<float>();
  io::parallel_for(count, threads, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    decode_into(*list.media()[at], *processor, pixels + list.patch_begin(at) * processor->row_width());
  });
}

}  // namespace megalith::data
