// Attention over context-parallel ranks against attention over the whole.
#include "megalith/nn/context_parallel/context_attention.h"

#include <map>
#include <mutex>
#include <random>

#include "megalith/nn/context_parallel/attention_parts_internal.h"
#include "megalith/nn/context_parallel/context_parallel.h"
#include "megalith/nn/context_parallel/slice.h"
#include "tests/nn/nn_support.h"
#include "tests/support/memory_meter.h"

namespace megalith::nn {
namespace {

using Lengths = std::vector<int64_t>;

// How ranks are asked to share the tokens.
struct Way {
  const char* name;
  ContextMode mode;
  int cp;
  std::vector<int> levels{};
};

const std::vector<Way>& all_ways() {
  static const std::vector<Way> ways{{"p2p 2", ContextMode::kRing, 2},
                                     {"p2p 3", ContextMode::kRing, 3},
                                     {"p2p 4", ContextMode::kRing, 4},
                                     {"all_gather 2", ContextMode::kAllGather, 2},
                                     {"all_gather 4", ContextMode::kAllGather, 4},
                                     {"a2a 2", ContextMode::kAllToAll, 2},
                                     {"a2a 4", ContextMode::kAllToAll, 4},
                                     {"a2a+p2p 2*2", ContextMode::kAllToAllRing, 4, {2, 2}},
                                     {"a2a+p2p 2*4", ContextMode::kAllToAllRing, 8, {2, 4}}};
  return ways;
}

void run_cp(const Way& way, const std::function<void(const ContextParallel&, int rank, comm::World&)>& body,
            bool gloo = false) {
  const auto run = [&](const testing::Rank& r) {
    SCOPED_TRACE(std::string(way.name) + " rank " + std::to_string(r.rank));
    const parallel::ParallelContext context(
        r.world, layout::RankGrid({.world_size = way.cp, .cp = way.cp, .hierarchical_cp = way.levels}));
    body(context_parallel(context, way.mode), r.rank, r.world);
  };
  if (gloo)
    testing::run_gloo_ranks(way.cp, run);
  else
    testing::run_ranks(way.cp, run);
}

struct Case {
  std::string name;
  Lengths chunks;  // length of a chunk of each sequence: a sequence has 2 cp of them
  int64_t n = 8, g = 8, d = 8, e = 8;
  int64_t window = 0;
  double scale = 0;

  ops::SequenceLayout whole(int cp) const {
    Lengths lengths;
    for (const int64_t chunk : chunks) lengths.push_back(2 * cp * chunk);
    return ops::SequenceLayout::packed(lengths);
  }
  ops::AttentionOptions options() const { return {.scale = scale, .window = window}; }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases{{"one sequence", {5}},
                          {"dense batch", {3, 3, 3}},
                          {"packed", {1, 7, 2}},
                          {"long enough for several blocks", {40}},
                          {"grouped heads", {4, 2}, 8, 4},
                          {"two key/value heads", {4, 2}, 8, 2},
                          {"one key/value head", {3, 5}, 8, 1},
                          {"values of another size", {3, 2}, 8, 8, 16, 8},
                          {"scale", {4}, 8, 8, 8, 8, 0, 0.3}};
  for (const int64_t window : {1, 2, 3, 5, 8, 11, 16, 23, 40, 1000})
    cases.push_back({"window " + std::to_string(window), {4, 1, 3}, 8, 4, 8, 8, window});
  return cases;
}

struct Whole {
  at::Tensor q, k, v, grad;
  at::Tensor out, dq, dk, dv;  // in fp64
};

Whole compute_whole(const Case& c, int cp, at::ScalarType dtype = at::kFloat) {
  const ops::SequenceLayout layout = c.whole(cp);
  const int64_t t = layout.tokens();
  Whole w{random_tensor({t, c.n, c.d}, 1).to(dtype), random_tensor({t, c.g, c.d}, 2).to(dtype),
          random_tensor({t, c.g, c.e}, 3).to(dtype), random_tensor({t, c.n, c.e}, 4).to(dtype)};
  const at::Tensor q = leaf(w.q.to(at::kDouble)), k = leaf(w.k.to(at::kDouble)), v = leaf(w.v.to(at::kDouble));
  ops::AttentionOptions options = c.options();
  options.kernel = ops::AttentionKernel::kMath;
  w.out = ops::attention(q, k, v, layout, layout, options);
  w.out.backward(w.grad.to(at::kDouble));
  w.dq = q.grad(), w.dk = k.grad(), w.dv = v.grad();
  return w;
}

void expect_whole(const Case& c, const Way& way, at::ScalarType dtype, double tolerance, bool gloo = false) {
  const Whole w = compute_whole(c, way.cp, dtype);
  const ops::SequenceLayout layout = c.whole(way.cp);
  run_cp(
      way,
      [&](const ContextParallel& cp, int rank, comm::World&) {
        const auto own = [&](const at::Tensor& x) { return slice_tokens(x, layout, rank, way.cp); };
        const at::Tensor q = leaf(own(w.q)), k = leaf(own(w.k)), v = leaf(own(w.v));
        const at::Tensor out = context_attention(q, k, v, slice_layout(layout, rank, way.cp), c.options(), cp);
        EXPECT_EQ(out.scalar_type(), dtype);
        out.backward(own(w.grad));
        const auto same = [&](const at::Tensor& actual, const at::Tensor& expected, const char* what) {
          // At least that of values of size one: a window of one token has gradients of zero.
          expect_close(actual, own(expected), c.name + ": " + what, 0,
                       tolerance * std::max(1.0, expected.abs().max().item<double>()));
        };
        same(out, w.out, "output");
        same(q.grad(), w.dq, "gradient of q");
        same(k.grad(), w.dk, "gradient of k");
        same(v.grad(), w.dv, "gradient of v");
      },
      gloo);
}

TEST(ContextAttention, EqualsTheWholeInEveryMode) {
  for (const Way& way : all_ways())
    for (const Case& c : all_cases()) {
      if (::testing::Test::HasFailure()) return;
      expect_whole(c, way, at::kFloat, testing::kClose);
    }
}

// One rounding of the result, and one of each probability and gradient: 8 bits.
TEST(ContextAttention, Bf16SumsInFp32) {
  for (const Way& way : all_ways())
    for (const Case& c : {Case{"dense", {6, 6}, 8, 2}, Case{"window", {6, 2}, 8, 8, 8, 8, 9}})
      expect_whole(c, way, at::kBFloat16, 2e-2);
}

TEST(ContextAttention, OverSockets) {
  for (const Way& way : all_ways()) {
    if (way.cp > 4) continue;
    expect_whole({"grouped heads", {4, 2}, 8, 2, 8, 8, 7}, way, at::kFloat, testing::kClose, /*gloo=*/true);
  }
}

TEST(ContextAttention, WithoutGradients) {
  const Case c{"packed", {2, 3}};
  for (const Way& way : all_ways()) {
    const Whole w = compute_whole(c, way.cp);
    const ops::SequenceLayout layout = c.whole(way.cp);
    run_cp(way, [&](const ContextParallel& cp, int rank, comm::World&) {
      const auto own = [&](const at::Tensor& x) { return slice_tokens(x, layout, rank, way.cp); };
      const at::NoGradGuard no_grad;
      const at::Tensor out =
          context_attention(own(w.q), own(w.k), own(w.v), slice_layout(layout, rank, way.cp), c.options(), cp);
      expect_close(out, own(w.out), "output", 0, testing::kClose * w.out.abs().max().item<double>());
    });
  }
}

// ---- What it costs

// The messages between ranks, by kind.
TEST(ContextAttention, RingOnlySendsAndReceives) {
  const Case c{"one sequence", {8}};
  for (const Way& way : all_ways()) {
    const ops::SequenceLayout layout = c.whole(way.cp);
    run_cp(way, [&](const ContextParallel& cp, int rank, comm::World& world) {
      const at::Tensor x = leaf(random_tensor({layout.tokens() / way.cp, 8, 8}, 1));
      context_attention(x, x, x, slice_layout(layout, rank, way.cp), {}, cp).sum().backward();
      std::map<std::string, int> kinds;
      for (const std::string& line : world.recent_operations())
        for (const char* kind : {"send", "recv", "all_gather", "reduce_scatter", "all_to_all", "all_reduce"})
          if (line.find(std::string(" ") + kind + " '") != std::string::npos) ++kinds[kind];
      if (way.mode == ContextMode::kRing) {
        // Blocks there, blocks again, and their gradients back to the owner.
        const int messages = (way.cp - 1) + (way.cp - 1) + way.cp;
        EXPECT_EQ(kinds, (std::map<std::string, int>{{"send", messages}, {"recv", messages}}));
      }
      if (way.mode == ContextMode::kAllGather) {
        EXPECT_EQ(kinds, (std::map<std::string, int>{{"all_gather", 2}, {"reduce_scatter", 1}}));
      }
      if (way.mode == ContextMode::kAllToAll) {
        EXPECT_EQ(kinds, (std::map<std::string, int>{{"all_to_all", 4}}));
      }
    });
  }
}

// The most that a rank holds beyond its arguments, forward and backward of 2048 tokens in all.
int64_t peak_of_ring(int cp_size) {
  const Way way{"p2p", ContextMode::kRing, cp_size};
  const ops::SequenceLayout layout = ops::SequenceLayout::dense(1, 2048);
  std::mutex mutex;
  int64_t most = 0;
  run_cp(way, [&](const ContextParallel& cp, int rank, comm::World&) {
    const ops::SequenceLayout slice = slice_layout(layout, rank, way.cp);
    const at::Tensor q = leaf(random_tensor({slice.tokens(), 4, 64}, 1)), k = leaf(q), v = leaf(q);
    const at::Tensor grad = random_tensor({slice.tokens(), 4, 64}, 2);
    const testing::MemoryMeter meter;
    context_attention(q, k, v, slice, {}, cp).backward(grad);
    const std::lock_guard lock(mutex);
    most = std::max(most, meter.peak());
  });
  return most;
}

TEST(ContextAttention, MemoryOfTheRingFallsWithTheRanks) {
  const int64_t two = peak_of_ring(2), four = peak_of_ring(4), eight = peak_of_ring(8);
  EXPECT_LT(static_cast<double>(four), 0.6 * static_cast<double>(two));
  EXPECT_LT(static_cast<double>(eight), 0.6 * static_cast<double>(four));
}

// The most that a rank holds in a forward pass over slices of equal size. Blocks are large: values are small.
int64_t peak_of_blocks(int ranks) {
  const ops::SequenceLayout layout = ops::SequenceLayout::dense(1, 512 * ranks);
  std::mutex mutex;
  int64_t most = 0;
  run_cp({"p2p", ContextMode::kRing, ranks}, [&](const ContextParallel& cp, int rank, comm::World&) {
    const at::Tensor q = random_tensor({512, 1, 512}, 1), v = random_tensor({512, 1, 1}, 2);
    const at::NoGradGuard no_grad;
    const testing::MemoryMeter meter;
    context_attention(q, q, v, slice_layout(layout, rank, ranks), {}, cp);
    const std::lock_guard lock(mutex);
    most = std::max(most, meter.peak());
  });
  return most;
}

// The own block, one to compute with and one that arrives, however many ranks there are.
TEST(ContextAttention, RingHoldsTwoBlocksBesidesItsOwn) {
  const double three = 1.05 * static_cast<double>(peak_of_blocks(3));  // a block more would be a fifth
  EXPECT_LT(static_cast<double>(peak_of_blocks(5)), three);
  EXPECT_LT(static_cast<double>(peak_of_blocks(8)), three);
}

// ---- Which queries look at which keys

// seen[i][j]: how often query i of the slice has met key j of the block.
using Seen = std::vector<std::vector<int>>;

void count_pairs(const std::vector<AttentionPart>& parts, int64_t window, Seen& seen) {
  using Mask = AttentionPart::Mask;
  for (const AttentionPart& part : parts)
    for (size_t s = 0; s < part.queries.size(); ++s) {
      const auto [q0, q1] = part.queries[s];
      const auto [k0, k1] = part.keys[s];
      const int64_t nq = q1 - q0, nk = k1 - k0;
      for (int64_t i = 0; i < nq; ++i)
        for (int64_t j = 0; j < nk; ++j) {
          const int64_t place = i + nk - nq;  // bottom right
          bool visible = part.mask == Mask::kAll || j <= place;
          if (part.mask == Mask::kCausal && window > 0) visible = visible && j > place - window;
          const bool from_end = part.mask == Mask::kCausalFromEnd;
          const int64_t query = from_end ? q1 - 1 - i : q0 + i, key = from_end ? k1 - 1 - j : k0 + j;
          if (visible) ++seen[static_cast<size_t>(query)][static_cast<size_t>(key)];
        }
    }
}

// Sequence and position of each token.
std::vector<std::pair<int64_t, int64_t>> places_of(const ops::SequenceLayout& layout) {
  const at::Tensor positions = layout.positions(at::kCPU);
  std::vector<std::pair<int64_t, int64_t>> places;
  for (size_t s = 0; s + 1 < layout.cumulative().size(); ++s)
    for (int64_t i = layout.cumulative()[s]; i < layout.cumulative()[s + 1]; ++i)
      places.emplace_back(s, positions[i].item<int64_t>());
  return places;
}

void expect_right_pairs(const Seen& seen, const ops::SequenceLayout& queries, const ops::SequenceLayout& keys,
                        int64_t window) {
  const auto q = places_of(queries), k = places_of(keys);
  for (size_t i = 0; i < q.size(); ++i)
    for (size_t j = 0; j < k.size(); ++j) {
      const int64_t distance = q[i].second - k[j].second;
      const bool visible = q[i].first == k[j].first && distance >= 0 && (window == 0 || distance < window);
      ASSERT_EQ(seen[i][j], visible ? 1 : 0) << "query " << i << ", key " << j;
    }
}

TEST(AttentionParts, EveryVisiblePairIsMetOnce) {
  std::mt19937_64 random(7);
  const auto pick = [&random](int64_t first, int64_t last) {
    return first + static_cast<int64_t>(random() % static_cast<uint64_t>(last - first + 1));
  };
  for (int trial = 0; trial < 150; ++trial) {
    const int ranks = static_cast<int>(pick(1, 5));
    Lengths lengths;
    for (int64_t n = pick(1, 3); n > 0; --n) lengths.push_back(2 * ranks * pick(1, 5));
    const int64_t window = pick(0, 2) == 0 ? 0 : pick(1, 30);
    SCOPED_TRACE(fmt::format("trial {}: {} ranks, window {}", trial, ranks, window));
    const ops::SequenceLayout whole = ops::SequenceLayout::packed(lengths);
    const auto keys = static_cast<size_t>(whole.tokens());
    for (int rank = 0; rank < ranks; ++rank) {
      const ops::SequenceLayout slice = slice_layout(whole, rank, ranks);
      const auto own = static_cast<size_t>(slice.tokens());
      for (int owner = 0; owner < ranks; ++owner) {
        Seen seen(own, std::vector<int>(own));
        count_pairs(ring_parts(slice, rank, owner, ranks, window), window, seen);
        expect_right_pairs(seen, slice, slice_layout(whole, owner, ranks), window);
      }
      Seen seen(own, std::vector<int>(keys));
      count_pairs(gathered_parts(slice, rank, ranks), window, seen);
      expect_right_pairs(seen, slice, whole, window);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// ---- Slices

TEST(ContextSlices, JoinToTheWhole) {
  const ops::SequenceLayout whole = ops::SequenceLayout::packed({8, 24, 16});
  const at::Tensor tokens = random_tensor({48, 3}, 1);
  run_cp({"p2p", ContextMode::kRing, 4}, [&](const ContextParallel& cp, int rank, comm::World&) {
    const ops::SequenceLayout slice = slice_layout(whole, rank, 4);
    EXPECT_EQ(slice.cumulative(), (Lengths{0, 2, 8, 12}));
    EXPECT_EQ(slice.max_position(), 24);
    expect_identical(slice.positions(at::kCPU), slice_tokens(whole.positions(at::kCPU), whole, rank, 4), "positions");
    expect_identical(gather_slices(slice_tokens(tokens, whole, rank, 4), slice, *cp.tokens), tokens, "tokens");
    EXPECT_EQ(join_slices(slice, 4).cumulative(), whole.cumulative());
  });
}

// Slices of neighbours, joined, are slices over fewer ranks.
TEST(ContextSlices, NeighboursJoinToASliceOverFewerRanks) {
  const ops::SequenceLayout whole = ops::SequenceLayout::packed({16, 32});
  for (const int outer : {0, 1}) {
    std::vector<at::Tensor> rows;
    for (const int inner : {0, 1}) rows.push_back(slice_tokens(at::arange(48, at::kLong), whole, 2 * outer + inner, 4));
    const ops::SequenceLayout slice = slice_layout(whole, 2 * outer, 4);
    const at::Tensor joined = at::cat(rows).index_select(0, joined_order(slice, 2, at::kCPU));
    expect_identical(joined, slice_tokens(at::arange(48, at::kLong), whole, outer, 2), "tokens");
    EXPECT_EQ(join_slices(slice, 2).cumulative(), slice_layout(whole, outer, 2).cumulative());
  }
}

TEST(ContextSlices, PositionsThatRestartInsideASequenceAreKept) {
  const at::Tensor positions = at::tensor({0, 1, 2, 0, 1, 2, 3, 4}, at::kLong);
  const ops::SequenceLayout whole = ops::SequenceLayout::dense(1, 8).with_positions(positions);
  const ops::SequenceLayout slice = slice_layout(whole, 1, 2);
  expect_identical(slice.positions(at::kCPU), at::tensor({2, 0, 1, 2}, at::kLong), "positions");
  EXPECT_EQ(slice.max_position(), 5);
}

TEST(ContextSlices, CoordinatesAreCutLikeTokens) {
  const auto plain = ops::SequenceLayout::packed({8, 16});
  const at::Tensor coordinates = random_tensor({3, 24}, 2).to(at::kFloat);
  const ops::SequenceLayout whole = plain.with_coordinates(coordinates);
  for (const int rank : {0, 1}) {
    const ops::SequenceLayout slice = slice_layout(whole, rank, 2);
    expect_identical(slice.coordinates(at::kCPU).t(), slice_tokens(coordinates.t(), whole, rank, 2), "coordinates");
    EXPECT_FALSE(slice_layout(plain, rank, 2).has_coordinates());
  }
}

// ---- What is refused

TEST(ContextAttention, RefusesWithTheFix) {
  run_cp({"a2a", ContextMode::kAllToAll, 4}, [](const ContextParallel& cp, int, comm::World&) {
    testing::expect_error<ConfigError>([&] { cp.check_heads(6, 2); },
                                       {"6 attention heads", "4 context-parallel ranks", "p2p"});
    testing::expect_error<ConfigError>([&] { cp.check_heads(12, 3); }, {"3 key/value heads", "p2p or all_gather"});
    cp.check_heads(8, 2);
    const at::Tensor x = random_tensor({2, 4, 4}, 1);
    testing::expect_error<ConfigError>(
        [&] { context_attention(x, x, x, ops::SequenceLayout::dense(1, 2), {.dropout = 0.1}, cp); },
        {"attention_dropout is 0.1", "context_parallel_size is 4", "Set attention_dropout to 0"});
  });
  testing::run_ranks(2, [](const testing::Rank& r) {
    const parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 2, .cp = 2}));
    testing::expect_error<ConfigError>([&] { context_parallel(context, ContextMode::kAllToAllRing); },
                                       {"a2a+p2p", "hierarchical_context_parallel_sizes", "context_parallel_size 2"});
  });
  testing::expect_error<ConfigError>([] { context_mode("p2p2p"); }, {"cp_comm_type is 'p2p2p'", "all_gather"});
  testing::expect_error<DataError>(
      [] {
        slice_layout(ops::SequenceLayout::packed({8, 6}), 0, 2);
      },
      {"sequence 1 has 6 tokens", "pad it to 8"});
}

}  // namespace
}  // namespace megalith::nn
