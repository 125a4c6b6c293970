// Memory of the parts that all towers have, by what of them is trained. What runs hold is compared in tests/plan.
#include "megalith/nn/vision/tower_footprint.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "megalith/nn/vision/vision_footprint.h"

namespace megalith::nn {
namespace {

// Updates of rank 4 for all weights whose name begins with one of some texts.
class SomeUpdates : public UpdateSizes {
 public:
  explicit SomeUpdates(std::vector<std::string> begins) : begins_(std::move(begins)) {}

  UpdateSize of(const std::vector<UpdatedPart>& parts, int64_t inputs, int64_t /*copies*/) const override {
    UpdateSize size;
    for (const UpdatedPart& part : parts)
      if (std::ranges::any_of(begins_, [&](const std::string& begin) { return part.name.starts_with(begin); }))
        size = {.a = 4 * inputs, .b = size.b + 4 * part.rows, .hidden = 4};
    return size;
  }
  bool trains_bias(const std::vector<UpdatedPart>& /*parts*/) const override { return false; }

 private:
  const std::vector<std::string> begins_;
};

VisionShape shape_of() {
  return {.depth = 3, .width = 32, .heads = 4, .mlp_width = 64, .out_width = 48, .patch = 4, .deepstack_blocks = {0}};
}

RankSizes sizes_of(bool cuda) {
  RankSizes rank{.t = 64, .s = 64, .h = 48, .length = 64};
  rank.images = {.patches = 128, .frame_patches = 64, .gathered_rows = 32};
  rank.machinery.cuda = cuda;
  return rank;
}

// Bytes that forward leaves for backward, which frees them all.
double kept(const RankSizes& rank, const TowerTraining& training) {
  const VisionFootprint tower(rank, shape_of(), training);
  MemoryWalk memory;
  tower.forward(memory);
  tower.parts().release_after_embedding(memory);
  tower.parts().release_after_layers(memory);
  const double left = total(memory.now());
  tower.backward(memory);
  EXPECT_NEAR(total(memory.now()), 0, 1e-6);
  return left;
}

TEST(TowerFootprint, KeepsWhatIsTrained) {
  const SomeUpdates all({"vision.blocks", "vision.deepstack", "vision.merger"}), last({"vision.blocks.2"}),
      merger({"vision.merger"}), none({});
  for (const bool cuda : {false, true}) {
    const RankSizes rank = sizes_of(cuda);
    const double whole = kept(rank, {}), adapters = kept(rank, {.updates = &all});
    const double top = kept(rank, {.updates = &last}), end = kept(rank, {.updates = &merger});
    EXPECT_EQ(kept(rank, {.tower = false, .merger = false}), 0);
    EXPECT_EQ(kept(rank, {.updates = &none}), 0);
    EXPECT_EQ(kept(rank, {.tower = false, .merger = false, .updates = &all}), 0);
    EXPECT_LT(end, top);
    EXPECT_LT(top, adapters);
    // The two blocks below keep nothing then, not even queries, keys, values and results.
    EXPECT_GT(adapters - top, 2 * 4 * 128 * 32 * rank.bytes);
    EXPECT_LT(end, kept(rank, {.tower = false}));
    // The inputs of all blocks, and what the mergers keep.
    EXPECT_LT(kept(rank, {.recompute = true}), 0.5 * whole);
    EXPECT_GT(kept(rank, {.recompute = true}), 3 * 128 * 32 * rank.bytes);
    EXPECT_GT(kept(rank, {.updates = &all, .recompute = true}), 3 * 128 * 32 * rank.bytes);
  }
}

TEST(TowerFootprint, KnowsHowFarGradientsReach) {
  const SomeUpdates last({"vision.blocks.2"}), merger({"vision.merger"});
  const auto parts_say = [](const TowerTraining& training, bool input, bool blocks, bool end) {
    const VisionFootprint tower(sizes_of(false), shape_of(), training);
    EXPECT_EQ(tower.parts().trains_input(), input);
    EXPECT_EQ(tower.parts().trains_blocks(), blocks);
    EXPECT_EQ(tower.parts().trains_merger(), end);
    EXPECT_EQ(tower.parts().trains(), blocks || end);
  };
  parts_say({}, true, true, true);
  parts_say({.merger = false}, true, true, false);
  parts_say({.tower = false}, false, false, true);
  parts_say({.tower = false, .merger = false}, false, false, false);
  parts_say({.updates = &last}, false, true, false);
  parts_say({.updates = &merger}, false, false, true);
  parts_say({.tower = false, .updates = &last}, false, false, false);
}

}  // namespace
}  // namespace megalith::nn
