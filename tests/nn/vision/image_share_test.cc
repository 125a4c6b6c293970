// Images dealt over ranks, their rows gathered and placed among embeddings: values and gradients against one rank.
#include "megalith/nn/vision/image_share.h"

#include <numeric>

#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

TEST(DealImages, LargestFirstToTheLeastLoaded) {
  // 24, 8, 16, 4 patches: rank 0 gets image 0 and then 3, rank 1 gets images 2 and 1.
  const std::vector<ImageGrid> grids{{1, 4, 6}, {2, 2, 2}, {1, 4, 4}, {1, 2, 2}};
  const ImageShare zero = deal_images(grids, 4, 2, 0), one = deal_images(grids, 4, 2, 1);
  EXPECT_EQ(zero.media, (std::vector<size_t>{0, 3}));
  EXPECT_EQ(one.media, (std::vector<size_t>{1, 2}));
  EXPECT_EQ(zero.rows, 7);
  EXPECT_EQ(one.rows, 6);
  EXPECT_EQ(zero.padded_rows, 7);
  // Rows of the micro-batch: image 0 (6 rows), image 1 (2), image 2 (4), image 3 (1).
  EXPECT_EQ(zero.place, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 6}));
  EXPECT_EQ(one.place, zero.place);
}

TEST(DealImages, ARankMayHaveNone) {
  const ImageShare share = deal_images({{1, 4, 4}}, 4, 4, 2);
  EXPECT_TRUE(share.media.empty());
  EXPECT_EQ(share.rows, 0);
  EXPECT_EQ(share.padded_rows, 4);
  EXPECT_EQ(share.place, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(own_pixels(random_tensor({16, 3}, 1), {{1, 4, 4}}, share).size(0), 0);
}

// Sounds: frames are the work, and rows do not follow from them by one factor.
TEST(DealMedia, ByWork) {
  const std::vector<MediumSize> sizes{{300, 39}, {45, 6}, {213, 28}};
  const MediaShare zero = deal_media(sizes, 2, 0), one = deal_media(sizes, 2, 1);
  EXPECT_EQ(zero.media, (std::vector<size_t>{0}));
  EXPECT_EQ(one.media, (std::vector<size_t>{1, 2}));
  EXPECT_EQ(one.rows, 34);
  EXPECT_EQ(one.padded_rows, 39);
  ASSERT_EQ(one.place.size(), 73U);
  EXPECT_EQ(one.place[38], 38);
  EXPECT_EQ(one.place[39], 39);
  EXPECT_EQ(one.place[45], 45);
  const at::Tensor frames = random_tensor({558, 2}, 1);
  expect_identical(own_input(frames, {300, 45, 213}, one), frames.narrow(0, 300, 258), "frames");
  expect_identical(own_input(frames, {300, 45, 213}, zero), frames.narrow(0, 0, 300), "frames");
}

// Every rank runs its images through y = 2 pixels · w and then places the rows of its own slice of the tokens. Loss and
// gradients equal those of one rank.
struct ShareCase {
  int tp, cp;
  bool sequence_parallel;
  std::vector<ImageGrid> grids;
};

void expect_equal_to_one_rank(const ShareCase& c) {
  SCOPED_TRACE("tp " + std::to_string(c.tp) + " cp " + std::to_string(c.cp) + (c.sequence_parallel ? " sp" : "") +
               " images " + std::to_string(c.grids.size()));
  constexpr int64_t kTokens = 48, kWidth = 5, kColumns = 3, kMerged = 4;
  const int64_t patches = total_patches(c.grids), n = patches / kMerged;
  const at::Tensor pixels = whole_numbers({patches, kColumns}, 1), w = whole_numbers({kWidth, kMerged * kColumns}, 2);
  const at::Tensor x = whole_numbers({kTokens, kWidth}, 3), dy = whole_numbers({kTokens, kWidth}, 4);
  // Rows of images in order, between text; the last tokens are text.
  at::Tensor which = at::full({kTokens}, -1, at::kLong);
  for (int64_t row = 0; row < n; ++row) which[row + row / 3] = row;
  const auto tower = [&](const at::Tensor& in, const at::Tensor& weight) {
    return in.reshape({-1, kMerged * kColumns}).mm(weight.t());
  };
  // One rank, in plain indexing.
  const at::Tensor w1 = leaf(w), x1 = leaf(x);
  const at::Tensor rows1 = tower(pixels, w1);
  const at::Tensor tokens = (which >= 0).nonzero().view({-1});
  const at::Tensor y1 = x1.index_copy(0, tokens, rows1).index_add(0, tokens, rows1);
  y1.backward(dy);

  testing::run_ranks(c.tp * c.cp, [&](const testing::Rank& r) {
    const int tp_rank = r.rank % c.tp, cp_rank = r.rank / c.tp;
    std::vector<int> tp_ranks, cp_ranks;
    for (int i = 0; i < c.tp; ++i) tp_ranks.push_back(cp_rank * c.tp + i);
    for (int i = 0; i < c.cp; ++i) cp_ranks.push_back(i * c.tp + tp_rank);
    const ImageGroups groups{r.world.group("tp", tp_ranks), r.world.group("cp", cp_ranks), c.sequence_parallel};
    const ImageShare share = deal_images(c.grids, kMerged, groups.ranks(), groups.rank());
    // The slice of this rank; without sequence parallelism tp ranks hold the same tokens.
    const int64_t parts = c.cp * (c.sequence_parallel ? c.tp : 1), each = kTokens / parts;
    const int64_t first = each * (c.sequence_parallel ? cp_rank * c.tp + tp_rank : cp_rank);
    const at::Tensor own_w = leaf(w), own_x = leaf(x.narrow(0, first, each));
    const at::Tensor place = at::tensor(share.place, at::kLong);
    at::Tensor own_which = which.narrow(0, first, each);
    own_which = at::where(own_which < 0, own_which, place.index_select(0, own_which.clamp_min(0)));
    const at::Tensor own = tower(own_pixels(pixels, c.grids, share), own_w);
    const at::Tensor rows = gather_image_rows(own, share, groups);
    const at::Tensor y = add_rows(replace_rows(own_x, rows, own_which), rows, own_which);
    expect_identical(y, y1.narrow(0, first, each), "tokens");
    y.backward(dy.narrow(0, first, each));
    expect_identical(own_x.grad(), x1.grad().narrow(0, first, each), "gradient of the embeddings");
    at::Tensor dw = own_w.grad().defined() ? own_w.grad().clone() : at::zeros_like(w);
    groups.tp.all_reduce(dw);
    groups.cp.all_reduce(dw);
    expect_identical(dw, w1.grad(), "gradient of the tower");
  });
}

TEST(GatherImageRows, EqualsOneRank) {
  const std::vector<std::vector<ImageGrid>> lists{
      {{1, 4, 4}}, {{1, 4, 6}, {1, 2, 2}}, {{1, 2, 2}, {1, 4, 4}, {2, 2, 2}, {1, 2, 4}, {1, 4, 6}}};
  for (const auto& grids : lists)
    for (const int tp : {1, 2, 3})
      for (const int cp : {1, 2})
        for (const bool sp : {false, true}) expect_equal_to_one_rank({tp, cp, sp, grids});
}

}  // namespace
}  // namespace megalith::nn
