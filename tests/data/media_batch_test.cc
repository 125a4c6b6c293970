// Images from a token table to the tensors of a micro-batch.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/data/collator.h"
#include "megalith/data/media_reference.h"
#include "megalith/data/sft/media_text.h"
#include "megalith/data/sft/packing.h"
#include "megalith/data/token_table.h"
#include "megalith/io/file_io.h"
#include "megalith/media/decode.h"
#include "megalith/media/image_processor.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::data {
namespace {

constexpr int32_t kPad = 99;

const std::shared_ptr<const media::ImageProcessor>& processor() {
  static const auto made = std::make_shared<const media::ImageProcessor>(media::ImageProcessorSettings{});
  return made;
}

MediaReference image(const std::string& file) {
  const std::string path = "tests/data/media/" + file;
  const media::ImageHeader header = media::read_image_header(std::filesystem::path(path));
  const media::PatchGrid grid = processor()->grid({header.width, header.height}, path);
  return {.sources = {{.file = path}}, .grid = {grid.t, grid.h, grid.w}, .tokens = processor()->tokens(grid)};
}

// One text token, the image's, `after` text tokens; and so on for each image.
Sequence row_of(const std::vector<std::string>& files, int after) {
  Sequence row;
  std::vector<MediaReference> media;
  for (const std::string& file : files) {
    media.push_back(image(file));
    row.ids.push_back(1);
    row.ids.insert(row.ids.end(), static_cast<size_t>(media.back().tokens), kPad);
    for (int i = 0; i < after; ++i) row.ids.push_back(2 + i);
  }
  if (files.empty()) row.ids = {1, 2, 3};
  row.labels = row.ids;
  attach_media(row, media, {.image = kPad}, false);
  return row;
}

at::Tensor rows_of(const std::string& file) {
  const std::string path = "tests/data/media/" + file;
  media::Image decoded = media::decode_image(io::read_text_file(path, 1 << 20), path);
  const media::PatchGrid grid = processor()->grid({decoded.width, decoded.height}, path);
  at::Tensor rows = at::empty({processor()->patches(grid), processor()->row_width()}, at::kFloat);
  processor()->patch_rows(processor()->pre_resize(std::move(decoded), path), rows.mutable_data_ptr<float>(), path);
  return rows;
}

std::vector<int64_t> values(const at::Tensor& tensor) {
  return {tensor.data_ptr<int64_t>(), tensor.data_ptr<int64_t>() + tensor.numel()};
}

TEST(MediaBatch, PixelsGridsAndRows) {
  const Collator collator({.padding = Padding::kNone, .images = processor(), .media_threads = 2});
  const std::vector<Sample> samples = {
      {row_of({"rgb16.png", "alpha.webp"}, 2)}, {row_of({}, 0)}, {row_of({"rgb16.png"}, 3)}};
  const MicroBatch batch = collator.collate(samples);
  // The image of the third sample is that of the first: decoded once, used twice.
  ASSERT_EQ(batch.grids.sizes(), (at::IntArrayRef{2, 3}));
  const at::Tensor first = rows_of("rgb16.png"), second = rows_of("alpha.webp");
  ASSERT_EQ(batch.pixels.size(0), first.size(0) + second.size(0));
  EXPECT_TRUE(at::equal(batch.pixels.narrow(0, 0, first.size(0)), first));
  EXPECT_TRUE(at::equal(batch.pixels.narrow(0, first.size(0), second.size(0)), second));
  const std::vector<int64_t> ids = values(batch.ids), rows = values(batch.visual_rows), labels = values(batch.labels);
  ASSERT_EQ(rows.size(), ids.size());
  const int64_t tokens = first.size(0) / 4;
  int64_t next = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(rows[i] >= 0, ids[i] == kPad);
    if (ids[i] != kPad) continue;
    // Two images of the first sample, then the first image again.
    EXPECT_EQ(rows[i], next < 2 * tokens ? next : next - 2 * tokens);
    ++next;
    EXPECT_NE(labels[i - 1], kPad);
  }
  EXPECT_EQ(next, 3 * tokens);
}

TEST(MediaBatch, LayoutOnlyAndTextOnly) {
  const Collator collator({.padding = Padding::kNone, .images = processor()});
  const std::vector<Sample> samples = {{row_of({"rgb16.png"}, 2)}};
  const MicroBatch layout = collator.collate(samples, CollateParts::kLayoutOnly);
  EXPECT_FALSE(layout.pixels.defined());
  EXPECT_EQ(layout.grids.size(0), 1);
  EXPECT_TRUE(layout.visual_rows.defined());
  const MicroBatch text = collator.collate(std::vector<Sample>{{row_of({}, 0)}});
  EXPECT_FALSE(text.pixels.defined() || text.grids.defined() || text.visual_rows.defined());
}

TEST(MediaBatch, PairsDecodeOnce) {
  const Collator collator({.images = processor()});
  const Sequence row = row_of({"rgb16.png"}, 3);
  const MicroBatch batch = collator.collate(std::vector<Sample>{{row, row}});
  EXPECT_EQ(batch.grids.size(0), 1);
  const std::vector<int64_t> rows = values(batch.visual_rows);
  EXPECT_EQ(std::ranges::count(rows, 0), 2);
}

TEST(MediaBatch, PackedPiecesKeepTheirImages) {
  const Sequence one = row_of({"rgb16.png"}, 2), two = row_of({"alpha.webp", "lossy.webp"}, 1);
  for (const bool neat : {true, false}) {
    const PackedRows packed = pack_samples({one, two}, 64, neat, 0);
    ASSERT_EQ(packed.rows.size(), 1U);
    const Sequence& row = packed.rows[0];
    ASSERT_EQ(row.media.size(), 3U);
    for (const MediaReference& medium : row.media)
      for (int64_t i = 0; i < medium.tokens; ++i) EXPECT_EQ(row.ids[static_cast<size_t>(medium.first + i)], kPad);
    const MicroBatch batch = Collator({.images = processor()}).collate(std::vector<Sample>{{row}});
    const std::vector<int64_t> rows = values(batch.visual_rows), ids = values(batch.ids);
    int64_t next = 0;
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(rows[i], ids[i] == kPad ? next++ : -1);
    EXPECT_EQ(batch.grids.size(0), 3);
  }
}

TEST(MediaBatch, RefusesWhatDoesNotFit) {
  const std::vector<Sample> samples = {{row_of({"rgb16.png"}, 2)}};
  testing::expect_error<ConfigError>([&] { Collator({}).collate(samples); }, {"no vision tower"});
  const testing::TempFolder folder;
  std::filesystem::copy_file("tests/data/media/rgb16.png", folder / "a.png");
  std::vector<Sample> moved = samples;
  moved[0].row.media[0].sources[0].file = (folder / "a.png").string();
  const Collator collator({.images = processor()});
  collator.collate(moved);
  // Another image under the same name.
  std::filesystem::copy_file("tests/data/golden/hf/vision/images/large_1400x1000.jpg", folder / "a.png",
                             std::filesystem::copy_options::overwrite_existing);
  testing::expect_error<DataError>([&] { collator.collate(moved); },
                                   {"a.png: the image has 1400 x 1000 pixels", "tokenize again"});
  std::filesystem::remove(folder / "a.png");
  testing::expect_error<DataError>([&] { collator.collate(moved); }, {"a.png"});
}

// Rows with and without images, in memory and on disk, in several appends.
TEST(MediaTable, KeepsReferences) {
  std::vector<Sequence> rows = {row_of({}, 0), row_of({"rgb16.png"}, 2), row_of({}, 0),
                                row_of({"alpha.webp", "lossy.webp"}, 1), row_of({}, 0)};
  rows[1].media[0].sources[0].offset = 7;
  rows[1].media[0].sources[0].bytes = 1234;
  TokenTable all, first, second;
  for (const Sequence& row : rows) all.append(row);
  first.append(rows[0]);
  for (size_t i = 1; i < rows.size(); ++i) second.append(rows[i]);
  TokenTable joined;
  joined.append(first);
  joined.append(second);
  const testing::TempFolder folder;
  TokenFolderWriter writer(folder.path());
  writer.append(first);
  writer.append(second);
  writer.finish({.max_id = kPad, .report = "test"});
  const OpenedTokens opened = open_token_folder(folder.path());
  for (const auto& dataset : {dataset_of(all, {}), dataset_of(joined, {}), opened.dataset}) {
    ASSERT_EQ(dataset->size(), std::ssize(rows));
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(dataset->sample(static_cast<int64_t>(i)).row, rows[i]) << i;
  }
  testing::expect_contains(io::read_text_file(folder / "info.json", 1 << 20), "\"version\": 3");
}

TEST(MediaTable, RefusesDamagedReferences) {
  const testing::TempFolder folder;
  TokenTable table;
  table.append(row_of({"rgb16.png"}, 2));
  TokenFolderWriter writer(folder.path());
  writer.append(table);
  writer.finish({.max_id = kPad, .report = "test"});
  std::fstream file(folder / "media.bin", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(8);  // the end of the name
  const int64_t end = 1'000'000;
  file.write(reinterpret_cast<const char*>(&end), sizeof end);
  file.close();
  testing::expect_error<DataError>([&] { open_token_folder(folder.path()); }, {"do not fit one another"});
}

}  // namespace
}  // namespace megalith::data
