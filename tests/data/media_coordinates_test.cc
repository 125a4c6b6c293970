// The coordinates of a micro-batch whose rows have images and videos, against transformers' (golden/hf/*_vl, …).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/data/collator.h"
#include "megalith/data/sft/packing.h"
#include "megalith/data/token_table.h"
#include "megalith/media/image_processor.h"
#include "megalith/media/sound_processor.h"
#include "megalith/media/video_processor.h"
#include "tests/support/close.h"
#include "tests/support/golden.h"
#include "tests/support/golden_media.h"
#include "tests/support/golden_model.h"

namespace megalith::data {
namespace {

using layout::TokenSegment;
using testing::expect_identical;
using Kind = TokenSegment::Kind;

class GoldenCoordinates : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_ = testing::read_golden_media(GetParam());
    options_ = {.images = std::make_shared<const media::ImageProcessor>(media::ImageProcessorSettings{}),
                .videos = std::make_shared<const media::VideoProcessor>(media::VideoProcessorSettings{}),
                .sounds = std::make_shared<const media::SoundProcessor>(media::SoundProcessorSettings{}),
                .positions = golden_.settings};
  }

  // Gives the row the media of the segments, which begin at its first token. A video with sound is told by its ids.
  void add_media(const std::vector<TokenSegment>& segments, Sequence& row) const {
    int64_t first = 0;
    for (const TokenSegment& segment : segments) {
      const int64_t tokens = layout::tokens_in(segment, golden_.settings);
      const bool both = segment.kind == Kind::kAudioInVideo;
      const int64_t heard = both || segment.kind == Kind::kAudio ? segment.tokens : 0;
      const std::vector<MediaSource> sources{{.file = "medium " + std::to_string(first)}};
      if (segment.kind == Kind::kImage || segment.kind == Kind::kVideo || both)
        row.media.push_back({.sources = sources,
                             .grid = {segment.frames, segment.rows, segment.columns},
                             .first = first,
                             .tokens = tokens - heard,
                             .kind = segment.kind == Kind::kImage ? MediaKind::kImage : MediaKind::kVideo,
                             .seconds = segment.seconds});
      if (heard > 0)
        row.media.push_back({.sources = sources,
                             .grid = {8 * heard, 1, 1},
                             .first = first,
                             .tokens = heard,
                             .kind = both ? MediaKind::kSoundOfVideo : MediaKind::kSound});
      if (both) {
        int64_t token = first;
        for (const bool sound : layout::merged_order(segment, golden_.settings))
          row.ids[static_cast<size_t>(token++)] = sound ? 2 : 1;
      }
      first += tokens;
    }
  }

  // Row `index` of the batch, without its padding.
  Sequence row_of(const testing::GoldenMediaBatch& batch, size_t index, bool shifted = false) const {
    const auto at = static_cast<int64_t>(index);
    Sequence row{.shifted = shifted};
    for (int64_t i = 0; i < batch.attention_mask[at].sum().item<int64_t>(); ++i)
      row.ids.push_back(batch.input_ids[at][i].item<int32_t>());
    row.labels = row.ids;
    add_media(batch.rows[index], row);
    return row;
  }
  static at::Tensor expected(const testing::GoldenMediaBatch& batch, size_t index, int64_t tokens) {
    return batch.position_ids.select(1, static_cast<int64_t>(index)).to(at::kFloat).narrow(1, 0, tokens);
  }
  at::Tensor coordinates(const std::vector<Sample>& samples) const {
    return Collator(options_).collate(samples, CollateParts::kLayoutOnly).layout.coordinates(at::kCPU);
  }

  testing::GoldenMedia golden_;
  CollatorOptions options_;
};

TEST_P(GoldenCoordinates, OfPaddedRows) {
  for (const testing::GoldenMediaBatch* batch : {&golden_.main, &golden_.mixed}) {
    std::vector<Sample> samples;
    for (size_t i = 0; i < batch->rows.size(); ++i) samples.push_back({row_of(*batch, i, true), {}});
    const at::Tensor made = coordinates(samples);
    const int64_t length = made.size(1) / std::ssize(samples);
    for (size_t i = 0; i < samples.size(); ++i) {
      const auto tokens = std::ssize(samples[i].row.ids);
      expect_identical(made.narrow(1, static_cast<int64_t>(i) * length, tokens), expected(*batch, i, tokens), "row");
    }
  }
}

// Prompts without weights, among them videos with sound, where tokens of both streams alternate.
TEST_P(GoldenCoordinates, OfPrompts) {
  for (const testing::GoldenPrompt& prompt : golden_.prompts) {
    Sequence row{.ids = std::vector<int32_t>(prompt.positions[0].size(), 5), .shifted = true};
    row.labels = row.ids;
    add_media(prompt.segments, row);
    const MicroBatch batch = Collator(options_).collate(std::vector<Sample>{{row, {}}}, CollateParts::kLayoutOnly);
    const at::Tensor positions = batch.layout.has_coordinates() ? batch.layout.coordinates(at::kCPU)
                                                                : batch.layout.positions(at::kCPU).repeat({3, 1});
    for (int64_t axis = 0; axis < 3; ++axis)
      for (int64_t i = 0; i < std::ssize(row.ids); ++i)
        // The file has fractions rounded to a few digits.
        ASSERT_NEAR(positions[axis][i].to(at::kFloat).item<float>(),
                    prompt.positions[static_cast<size_t>(axis)][static_cast<size_t>(i)], 1e-4)
            << "axis " << axis << ", token " << i;
    // Every token of a medium has a row of its tower, in order.
    for (const bool sound : {false, true}) {
      const at::Tensor& rows = sound ? batch.audio_rows : batch.visual_rows;
      int64_t expected = 0, next = 0;
      for (const MediaReference& medium : row.media) expected += medium.is_sound() == sound ? medium.tokens : 0;
      for (int64_t i = 0; rows.defined() && i < rows.numel(); ++i) {
        const auto output = rows[i].item<int64_t>();
        if (output < 0) continue;
        EXPECT_EQ(output, next++);
      }
      EXPECT_EQ(next, expected);
    }
  }
}

// Each sample of a packed row begins again, whether or not it sees those before it.
TEST_P(GoldenCoordinates, OfPackedRows) {
  const testing::GoldenMediaBatch& batch = golden_.mixed;
  std::vector<Sequence> samples;
  for (size_t i = 0; i < batch.rows.size(); ++i) samples.push_back(row_of(batch, i));
  for (const bool neat : {true, false}) {
    const PackedRows packed = pack_samples(samples, 200, neat, 0);
    ASSERT_EQ(packed.rows.size(), 1U);
    TokenTable table;  // as in a cache
    table.append(packed.rows[0]);
    const Sample row = dataset_of(std::move(table), {.pieces_attend = !neat})->sample(0);
    const at::Tensor made = coordinates({row});
    int64_t at = 0;
    for (size_t piece = 0; piece < row.row.pieces.size(); ++piece) {
      const int64_t tokens = row.row.pieces[piece];
      const auto source = std::ranges::find(samples, tokens, [](const Sequence& s) { return std::ssize(s.ids); });
      // The last token of a sequence is only a label: of every piece, or of the row.
      const int64_t kept = neat || piece + 1 == row.row.pieces.size() ? tokens - 1 : tokens;
      expect_identical(made.narrow(1, at, kept), expected(batch, static_cast<size_t>(source - samples.begin()), kept),
                       "piece");
      at += kept;
    }
  }
}

TEST_P(GoldenCoordinates, OfPairs) {
  const Sequence row = row_of(golden_.main, 0);
  Sequence longer = row;
  longer.ids.insert(longer.ids.end(), 3, 1);
  longer.labels = longer.ids;
  const at::Tensor made = coordinates({{row, longer}});
  const auto tokens = std::ssize(row.ids) - 1;
  for (int64_t i = 0; i < 2; ++i)
    expect_identical(made.narrow(1, i * made.size(1) / 2, tokens), expected(golden_.main, 0, tokens), "answer");
  const auto last = [&](int64_t column) { return made[0][column].item<float>(); };
  EXPECT_EQ(last(made.size(1) - 1), last(made.size(1) - 3) + 2);
}

// Without settings a model has one position per token, and text alone needs no coordinates.
TEST_P(GoldenCoordinates, OnlyWhereTheyAreNeeded) {
  const std::vector<Sample> seen = {{row_of(golden_.main, 0), {}}};
  EXPECT_FALSE(Collator({.images = options_.images, .videos = options_.videos, .sounds = options_.sounds})
                   .collate(seen, CollateParts::kLayoutOnly)
                   .layout.has_coordinates());
  Sample text = seen[0];
  text.row.media.clear();
  EXPECT_FALSE(Collator(options_).collate({&text, 1}).layout.has_coordinates());
  options_.positions->merge = 1;
  EXPECT_THROW(coordinates(seen), InternalError);
}

INSTANTIATE_TEST_SUITE_P(, GoldenCoordinates,
                         ::testing::ValuesIn(testing::golden_or_none(testing::golden_media_names())),
                         testing::golden_test_name<::testing::TestParamInfo<std::string>>);

}  // namespace
}  // namespace megalith::data
