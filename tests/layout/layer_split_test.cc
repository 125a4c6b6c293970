// The layers of each pipeline stage: exact splits for chosen settings, and properties over a lattice of all settings.
#include "megalith/layout/layer_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "megalith/base/error.h"

namespace megalith::layout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SplitRequest request(int num_layers, int pp, std::optional<int> vpp = std::nullopt) {
  SplitRequest r;
  r.num_layers = num_layers;
  r.pp = pp;
  r.vpp = vpp;
  return r;
}

SplitRequest with_layout(int num_layers, int pp, const char* layout, int mtp = 0) {
  SplitRequest r = request(num_layers, pp);
  r.layout = PipelineLayout::parse(layout);
  r.mtp_layers = mtp;
  return r;
}

std::string only_problem(const SplitRequest& r) {
  const auto found = problems(r);
  EXPECT_EQ(found.size(), 1U);
  return found.empty() ? "" : found[0];
}

// The layer counts of the global stages, in the order of the data.
std::vector<int> counts(const LayerSplit& split) {
  std::vector<int> result;
  for (int v = 0; v < split.chunks(); ++v) {
    for (int p = 0; p < split.pp(); ++p) result.push_back(split.stage(p, v).num_layers);
  }
  return result;
}

void expect_covers_every_layer_once(const LayerSplit& split) {
  int next = 0;
  for (int v = 0; v < split.chunks(); ++v) {
    for (int p = 0; p < split.pp(); ++p) {
      const Stage stage = split.stage(p, v);
      ASSERT_EQ(stage.offset, next);
      ASSERT_EQ(std::count(stage.types.begin(), stage.types.end(), kDecoderPart), stage.num_layers);
      next += stage.num_layers;
      for (int layer : stage.layers()) {
        const Stage holder = split.stage_of_layer(layer);
        ASSERT_EQ(std::pair(holder.pp_rank, holder.vp_stage), std::pair(p, v)) << "layer " << layer;
      }
    }
  }
  ASSERT_EQ(next, split.num_layers());
}

TEST(LayerSplit, CoversEveryLayerOnceOverALattice) {
  int accepted = 0;
  for (int layers = 1; layers <= 26; ++layers) {
    for (int pp : {1, 2, 3, 4, 8}) {
      for (int vpp : {0, 1, 2, 3}) {
        for (int first : {0, 1, 2, 4}) {
          for (int last : {0, 1, 2, 6}) {
            for (int flags = 0; flags < 4; ++flags) {
              SplitRequest r = request(layers, pp, vpp == 0 ? std::nullopt : std::optional(vpp));
              if (first > 0) r.first_rank_layers = first;
              if (last > 0) r.last_rank_layers = last;
              r.account_for_embedding = (flags & 1) != 0;
              r.account_for_loss = (flags & 2) != 0;
              r.uneven = UnevenSplit::kBalance;
              if (!problems(r).empty()) continue;
              ++accepted;
              SCOPED_TRACE(
                  fmt::format("{} layers pp {} vpp {} first {} last {} flags {}", layers, pp, vpp, first, last, flags));
              expect_covers_every_layer_once(LayerSplit(r));
            }
          }
        }
      }
    }
  }
  EXPECT_GT(accepted, 500);
}

TEST(LayerSplit, BalancedStagesAndRanksDifferByAtMostOne) {
  for (int layers = 1; layers <= 60; ++layers) {
    for (int pp : {1, 2, 3, 4, 7}) {
      for (int vpp : {1, 2, 3}) {
        SplitRequest r = request(layers, pp, vpp);
        r.uneven = UnevenSplit::kBalance;
        if (!problems(r).empty()) continue;
        SCOPED_TRACE(fmt::format("{} layers pp {} vpp {}", layers, pp, vpp));
        const LayerSplit split(r);
        const auto of_stage = counts(split);
        std::vector<int> of_rank(static_cast<size_t>(pp), 0);
        for (const Stage& stage : split.stages()) of_rank[static_cast<size_t>(stage.pp_rank)] += stage.num_layers;
        for (const auto& c : {of_stage, of_rank}) {
          EXPECT_LE(*std::max_element(c.begin(), c.end()) - *std::min_element(c.begin(), c.end()), 1);
        }
      }
    }
  }
}

TEST(LayerSplit, BalancedExtraLayersAvoidTheOuterStages) {
  SplitRequest r = request(10, 4);
  r.uneven = UnevenSplit::kBalance;
  EXPECT_THAT(counts(LayerSplit(r)), ElementsAre(2, 3, 3, 2));
  r.num_layers = 11;
  EXPECT_THAT(counts(LayerSplit(r)), ElementsAre(3, 3, 3, 2));
  r.account_for_embedding = true;  // the embedding counts as a layer of stage 0
  r.num_layers = 9;
  EXPECT_THAT(counts(LayerSplit(r)), ElementsAre(1, 3, 3, 2));
  r.num_layers = 2;
  EXPECT_THAT(only_problem(r), HasSubstr("does not divide over pp=4"));
}

TEST(LayerSplit, UnevenIsRefusedWithALayoutToPaste) {
  const std::string message = only_problem(request(10, 4));
  EXPECT_EQ(
      message,
      "num_layers=10 does not divide over pp=4 (2.5 per rank). pp can be 1, 2, 5 and 10; or write the split out, as "
      "balanced as possible: pipeline_model_parallel_layout='Ett|ttt|ttt|ttL'");
  SplitRequest pasted = with_layout(10, 4, "Ett|ttt|ttt|ttL");
  EXPECT_THAT(counts(LayerSplit(pasted)), ElementsAre(2, 3, 3, 2));
  EXPECT_THROW(LayerSplit{request(10, 4)}, ConfigError);
}

TEST(LayerSplit, UnevenOverVirtualStagesNamesVpp) {
  const std::string message = only_problem(request(12, 4, 2));
  EXPECT_THAT(message, HasSubstr("gives 3 layers per rank, which do not divide over vpp=2"));
  EXPECT_THAT(message, HasSubstr("With vpp=2, pp can be 2, 3 and 6"));
}

// The reference divides by zero here.
TEST(LayerSplit, FirstAndLastOfTwoRanksWithChunks) {
  SplitRequest r = request(8, 2, 2);
  r.first_rank_layers = 6;
  r.last_rank_layers = 2;
  EXPECT_THAT(counts(LayerSplit(r)), ElementsAre(3, 1, 3, 1));
}

TEST(LayerSplit, OuterCountsMustLeaveWhatTheOthersCanShare) {
  SplitRequest r = request(10, 4);
  r.first_rank_layers = 2;
  r.last_rank_layers = 3;
  EXPECT_THAT(only_problem(r), HasSubstr("leave 5 layers for 2 other ranks, which does not divide"));
  r.last_rank_layers = 8;
  EXPECT_THAT(only_problem(r), HasSubstr("leave 0 of 10 layers for 2 other ranks"));
  r.last_rank_layers = 9;
  EXPECT_THAT(only_problem(r), HasSubstr("are more than num_layers=10"));
  r.first_rank_layers = 0;
  EXPECT_THAT(only_problem(r), HasSubstr("decoder_first_pipeline_num_layers is 0"));
  r = request(4, 1);
  r.first_rank_layers = 4;
  r.last_rank_layers = 4;
  EXPECT_THAT(only_problem(r), HasSubstr("with pp=1"));
}

TEST(LayerSplit, EveryProblemOfALayoutIsReported) {
  const auto found = problems(with_layout(8, 2, "ttm|tttLL"));
  EXPECT_THAT(found, ElementsAre(HasSubstr("does not begin with the embedding"), HasSubstr("names the loss L 2 times"),
                                 HasSubstr("has 5 't' but num_layers is 8"),
                                 HasSubstr("has 1 'm' but mtp_num_layers is 0"), HasSubstr("follows an mtp layer")));
}

TEST(LayerSplit, LayoutsOfOneRankHaveOneStage) {
  EXPECT_THAT(only_problem(with_layout(2, 1, "Et|tL")), HasSubstr("although pp is 1"));
  EXPECT_THAT(only_problem(request(4, 1, 2)), HasSubstr("vpp=2 was given although pp is 1"));
}

TEST(LayerSplit, MtpStandsWhereTheLayoutSaysOrLast) {
  const LayerSplit standalone(with_layout(4, 2, "Ett|tt|mm|L", 2));
  EXPECT_TRUE(standalone.mtp_standalone());
  EXPECT_THAT(standalone.stage(0, 1).mtp_layers, ElementsAre(0, 1));
  SplitRequest r = request(4, 2);
  r.mtp_layers = 1;
  const LayerSplit plain(r);
  EXPECT_FALSE(plain.mtp_standalone());
  EXPECT_EQ(plain.stage(1, 0).types, "ttmL");
  EXPECT_TRUE(plain.stage(0, 0).has_embedding());
  EXPECT_TRUE(plain.stage(1, 0).has_loss());
}

TEST(LayerSplit, EmptyStagesHoldNoLayer) {
  const LayerSplit split(with_layout(4, 2, "E||tttt|L"));
  EXPECT_THAT(counts(split), ElementsAre(0, 0, 4, 0));
  expect_covers_every_layer_once(split);
}

TEST(LayerSplit, WritesItselfAsALayout) {
  SplitRequest r = request(15, 4, 2);
  r.account_for_embedding = true;
  const LayerSplit split(r);
  SplitRequest again = request(15, 4);
  again.layout = split.to_layout();
  EXPECT_EQ(counts(LayerSplit(again)), counts(split));
  EXPECT_EQ(LayerSplit(again).vpp(), 2);
}

}  // namespace
}  // namespace megalith::layout
