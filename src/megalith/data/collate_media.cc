#include "megalith/data/collate_media_internal.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/io/parallel_for.h"
#include "megalith/media/image_processor.h"
#include "megalith/media/video_processor.h"

namespace megalith::data {
namespace {

int64_t patches(const MediaReference& medium) { return medium.grid[0] * medium.grid[1] * medium.grid[2]; }

// The different media of a micro-batch, in the order in which they first occur, and where their rows begin.
class MediaList {
 public:
  // Returns the tower's first output row of the medium.
  int64_t add(const MediaReference& medium) {
    const auto [place, is_new] =
        first_rows_.try_emplace(std::tuple(medium.sources, medium.grid, medium.video), output_rows_);
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
  std::map<std::tuple<std::vector<MediaSource>, std::array<int64_t, 3>, bool>, int64_t> first_rows_;
  std::vector<const MediaReference*> media_;
  std::vector<int64_t> patch_begins_;
  int64_t patch_rows_ = 0, output_rows_ = 0;
};

// Refuses media that the model cannot take.
void check_processors(const MediaReference& medium, const MediaProcessors& processors) {
  check<ConfigError>(medium.video ? processors.videos != nullptr : processors.images != nullptr,
                     "the samples have {}, and this run's model has no vision tower. Train a model with one, or leave "
                     "the {} out",
                     medium.video ? "videos" : "images", medium.video ? "videos" : "images");
}

}  // namespace

void collate_media(std::span<const Sequence* const> rows, std::span<const Strip> strips, int64_t total, bool decode,
                   const MediaProcessors& processors, int threads, MicroBatch& batch) {
  bool any = false;
  for (const Sequence* row : rows) {
    for (const MediaReference& medium : row->media) check_processors(medium, processors);
    any = any || !row->media.empty();
  }
  if (!any) return;
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
  const int64_t width = processors.images != nullptr ? processors.images->row_width() : processors.videos->row_width();
  check<ConfigError>(processors.images == nullptr || processors.videos == nullptr ||
                         processors.images->row_width() == processors.videos->row_width(),
                     "the patches of images and videos differ in size: preprocessor_config.json and "
                     "video_preprocessor_config.json belong to different models");
  batch.pixels = at::empty({list.patch_rows(), width}, at::kFloat);
  auto* pixels = batch.pixels.mutable_data_ptr<float>();
  // Neighbours of one video file are one piece of work.
  std::vector<MediumRows> media;
  std::vector<size_t> ends;
  for (size_t i = 0; i < list.media().size(); ++i) {
    media.push_back({list.media()[i], pixels + list.patch_begin(i) * width});
    if (i > 0 && continues(*media[i - 1].medium, *media[i].medium)) ends.pop_back();
    ends.push_back(i + 1);
  }
  io::parallel_for(std::ssize(ends), threads, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    const size_t from = at == 0 ? 0 : ends[at - 1];
    decode_media(std::span<const MediumRows>(media).subspan(from, ends[at] - from), processors);
  });
}

}  // namespace megalith::data
