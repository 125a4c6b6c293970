// Random numbers of recorded passes: which draws a pass notes, that recomputation finds them again, and that replays
// move the streams as the pass itself would. A generator that only counts takes the place of the device's, which
// tests/ops/cuda and tests/cuda use.
#include "megalith/parallel/recorded_draws.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/parallel/recorded_generator.h"

namespace megalith::parallel {

static bool operator==(const RecordedPlace& a, const RecordedPlace& b) {
  return a.stream == b.stream && a.drawn == b.drawn;
}

namespace {

using Places = std::vector<RecordedPlace>;

// The draws of a recorded pass.
struct Pass {
  RecordedPlace now;
  Places draws;

  void draw(uint64_t count = 4) {
    draws.push_back(now);
    now.drawn += count;
  }
};

class CountingGenerator : public RecordedGenerator {
 public:
  explicit CountingGenerator(Pass& pass) : pass_(pass) { pass_.now = {}; }
  RecordedPlace place() const override { return pass_.now; }
  void move_to(const RecordedPlace& place) override { pass_.now = place; }

 private:
  Pass& pass_;
};

// Streams of a rank, and a pass whose draws are noted.
class RecordedDrawsTest : public ::testing::Test {
 protected:
  void SetUp() override { rng_.seed(layout::seeds_for_base(42, 0, 0, 0)); }

  RecordedDraws draws() {
    return RecordedDraws(
        rng_, [this](const at::Generator&, const at::Tensor&) { return std::make_unique<CountingGenerator>(pass_); });
  }

  RngTracker rng_;
  Pass pass_;
};

// In the order of their names.
constexpr int64_t kDefault = 0, kData = 1, kExperts = 2, kModel = 3;

TEST_F(RecordedDrawsTest, EachDrawNotesItsStreamAndTheDistanceFromItsStart) {
  const std::string before = rng_.save();
  const RecordedDraws recorded = draws();
  const auto counts = recorded.record([&] {
    pass_.draw();
    {
      const auto fork = rng_.fork();
      pass_.draw();
      const auto again = rng_.fork(), inner = rng_.fork(kExpertParallelRng);
      pass_.draw(8);
    }
    pass_.draw(12);
    const auto fork = rng_.fork();
    pass_.draw();
  });
  EXPECT_EQ(pass_.draws, (Places{{kDefault, 0}, {kModel, 0}, {kExperts, 0}, {kDefault, 4}, {kModel, 4}}));
  EXPECT_EQ(counts, (RecordedDraws::Counts{16, 0, 8, 8}));
  EXPECT_EQ(counts[kData], 0U);
  EXPECT_EQ(rng_.save(), before);  // a recording runs nothing
}

TEST_F(RecordedDrawsTest, RecomputationDrawsTheSameAgain) {
  const RecordedDraws recorded = draws();
  const auto region = [&] {
    pass_.draw();
    const auto fork = rng_.fork();
    pass_.draw();
  };
  const auto counts = recorded.record([&] {
    region();
    const std::string at_second = rng_.save();
    region();
    const Places first(pass_.draws.begin() + 2, pass_.draws.end());
    const std::string after = rng_.save();
    rng_.restore(at_second);
    region();
    rng_.restore(after);
    EXPECT_EQ(Places(pass_.draws.begin() + 4, pass_.draws.end()), first);
    region();
  });
  EXPECT_EQ(pass_.draws.back(), (RecordedPlace{kModel, 8}));
  EXPECT_EQ(counts, (RecordedDraws::Counts{12, 0, 0, 12}));
}

// Passes of pipeline stages: forward and backward are recorded one after the other.
TEST_F(RecordedDrawsTest, ABackwardPassOfItsOwnFindsTheDrawsOfForward) {
  const RecordedDraws recorded = draws();
  std::string saved;
  recorded.record([&] {
    pass_.draw();
    saved = rng_.save();
    const auto fork = rng_.fork();
    pass_.draw();
  });
  const auto counts = recorded.record([&] {
    const std::string outside = rng_.save();
    rng_.restore(saved);
    {
      const auto fork = rng_.fork();
      pass_.draw();
    }
    rng_.restore(outside);
  });
  EXPECT_EQ(pass_.draws, (Places{{kDefault, 0}, {kModel, 0}, {kModel, 0}}));
  EXPECT_FALSE(draws_anything(counts));
}

TEST_F(RecordedDrawsTest, AnExceptionPutsTheStreamsBack) {
  const std::string before = rng_.save();
  const RecordedDraws recorded = draws();
  EXPECT_THROW(recorded.record([&] {
    const auto fork = rng_.fork();
    pass_.draw();
    throw DataError("broken");
  }),
               DataError);
  EXPECT_EQ(rng_.save(), before);
}

TEST_F(RecordedDrawsTest, RecordingsDoNotNest) {
  const RecordedDraws recorded = draws();
  EXPECT_THROW(recorded.record([&] { recorded.record([] {}); }), InternalError);
  const auto fork = rng_.fork();
  EXPECT_THROW(recorded.record([] {}), InternalError);
}

at::Tensor philox_state(int64_t seed, int64_t offset) {
  at::Tensor state = at::empty({16}, at::kByte);
  const std::array<int64_t, 2> values{seed, offset};
  std::memcpy(state.mutable_data_ptr(), values.data(), sizeof values);
  return state;
}

// Returns what a kernel finds that has noted `place`: the seed, and the offset at which it draws.
std::pair<int64_t, int64_t> found(const RecordedDraws& recorded, const RecordedPlace& place) {
  const at::Tensor start = recorded.starts().select(0, place.stream);
  return {start[0].item<int64_t>(), start[1].item<int64_t>() + static_cast<int64_t>(place.drawn)};
}

// Replays between launches one by one: the pass draws two numbers from one stream and one from another.
TEST_F(RecordedDrawsTest, ReplaysDrawWhatThePassWouldDraw) {
  rng_.set_states({{"a", philox_state(7, 40)}, {"b", philox_state(-9, 12)}, {"c", philox_state(5, 0)}});
  const RecordedDraws recorded = draws();
  const auto counts = recorded.record([&] {
    const auto fork = rng_.fork("a");
    pass_.draw(4);
    {
      const auto inner = rng_.fork("b");
      pass_.draw(16);
    }
    pass_.draw(8);
  });
  const at::Tensor of_default = rng_.generator().get_state();
  for (const int64_t pass : {0, 1, 2}) {
    if (pass == 2) {  // one without a graph
      rng_.set_states(
          {{"a", philox_state(7, 40 + 12 * 3)}, {"b", philox_state(-9, 12 + 16 * 3)}, {"c", rng_.states()["c"]}});
    }
    const int64_t before = pass == 2 ? 3 : pass;
    recorded.replay(counts);
    EXPECT_EQ(found(recorded, pass_.draws[0]), std::pair(int64_t{7}, 40 + 12 * before));
    EXPECT_EQ(found(recorded, pass_.draws[1]), std::pair(int64_t{-9}, 12 + 16 * before));
    EXPECT_EQ(found(recorded, pass_.draws[2]), std::pair(int64_t{7}, 40 + 12 * before + 4));
    EXPECT_TRUE(at::equal(rng_.states()["a"], philox_state(7, 40 + 12 * (before + 1))));
    EXPECT_TRUE(at::equal(rng_.states()["b"], philox_state(-9, 12 + 16 * (before + 1))));
    EXPECT_TRUE(at::equal(rng_.states()["c"], philox_state(5, 0)));
    EXPECT_TRUE(at::equal(rng_.generator().get_state(), of_default));
  }
  // A backward pass draws nothing; it finds what the forward pass before it has found.
  recorded.replay({0, 0, 0, 0});
  EXPECT_EQ(found(recorded, pass_.draws[0]), std::pair(int64_t{7}, int64_t{40 + 12 * 3}));
}

TEST_F(RecordedDrawsTest, OtherStreamsAreRefused) {
  rng_.set_states({{"a", philox_state(7, 40)}});
  const RecordedDraws recorded = draws();
  rng_.set_states({{"b", philox_state(7, 40)}});
  EXPECT_THROW(recorded.replay({0, 4}), InternalError);
}

// On the CPU the host draws the numbers, so that nothing can be noted.
TEST_F(RecordedDrawsTest, OnTheCpuWorkJustRuns) {
  RngTracker reference;
  reference.seed(layout::seeds_for_base(42, 0, 0, 0));
  const RecordedDraws recorded(rng_);
  at::Tensor drawn;
  EXPECT_TRUE(recorded.record([&] { drawn = at::rand({8}, rng_.generator()); }).empty());
  EXPECT_TRUE(at::equal(drawn, at::rand({8}, reference.generator())));
  recorded.replay({});
  EXPECT_EQ(rng_.save(), reference.save());
}

}  // namespace
}  // namespace megalith::parallel
