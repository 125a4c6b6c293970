// The bookkeeping of footprints: peaks, what is left, and what deferred gradients hold.
#include "megalith/nn/footprint/memory_walk.h"

#include <gtest/gtest.h>

#include "megalith/nn/footprint/layer_walk.h"
#include "megalith/nn/footprint/rank_sizes.h"

namespace megalith::nn {
namespace {

TEST(MemoryWalk, ThePeakIsTheBreakdownAtTheLargestTotal) {
  MemoryWalk walk;
  walk.take(100);
  walk.touch(50, Use::kWorkspace);  // 150 at this moment
  walk.give(60);
  walk.take(80, Use::kCommunication);  // 120: less than before
  EXPECT_EQ(walk.peak(), (Bytes{100, 0, 50}));
  EXPECT_EQ(walk.now(), (Bytes{40, 80, 0}));
  EXPECT_EQ(total(walk.now()), 120);
}

TEST(MemoryWalk, ARecordedPieceOfWorkIsReplayedOnTop) {
  MemoryWalk layer;
  layer.take(30);
  layer.touch(10, Use::kWorkspace);
  layer.give(20);
  MemoryWalk model;
  for (int i = 0; i < 3; ++i) model.run(layer.footprint());
  EXPECT_EQ(model.now(), (Bytes{30, 0, 0}));
  EXPECT_EQ(model.peak(), (Bytes{50, 0, 10}));  // two layers are left, the third is at its peak
}

TEST(LayerWalk, DeferredGradientsKeepTheirInputs) {
  const RankSizes rank;
  for (const bool defer : {false, true}) {
    MemoryWalk memory;
    LayerWalk walk(rank, memory, defer);
    walk.take(100);
    walk.give_or_defer(100);
    EXPECT_EQ(total(memory.now()), defer ? 100 : 0);
    EXPECT_EQ(walk.deferred(), defer ? 100 : 0);
  }
}

TEST(LayerWalk, BytesThatOutliveALayerAreHandedOver) {
  const RankSizes rank;
  MemoryWalk memory;
  LayerWalk walk(rank, memory);
  walk.leave_to_graph(8);
  walk.leave_to_graph(4);
  EXPECT_EQ(walk.exchange_leftover(1), 12);
  EXPECT_EQ(walk.leftover(), 1);
}

}  // namespace
}  // namespace megalith::nn
