// Audio towers against their definition in fp64, sound by sound and chunk by chunk: the definition knows no packing.
// Windows are a mask there.
#include "megalith/nn/audio/audio_tower.h"

#include <cmath>

#include "megalith/base/error.h"
#include "megalith/nn/audio/audio_footprint.h"
#include "megalith/nn/audio/audio_shape.h"
#include "tests/nn/tower_support.h"

namespace megalith::nn {
namespace {

// Chunks of 20 frames, which become 3 rows each; attention covers two of them.
AudioShape small_shape() {
  return {.depth = 2,
          .width = 16,
          .heads = 2,
          .mlp_width = 24,
          .out_width = 12,
          .mel_bins = 11,
          .conv_channels = 5,
          .chunk = 20,
          .window = 59};
}

// ---- The definition ------------------------------------------------------------------------------------------------

at::Tensor layer_normed(const at::Tensor& x, const FullTensors& w, const std::string& name) {
  return at::layer_norm(x, {x.size(-1)}, w.at(name + ".weight"), w.at(name + ".bias"), 1e-5);
}

// The rows of one chunk, frames [held, m].
at::Tensor chunk_rows(const AudioShape& shape, const at::Tensor& frames, const FullTensors& w) {
  at::Tensor x = at::zeros({1, 1, shape.mel_bins, shape.chunk}, at::kDouble);
  x[0][0].narrow(1, 0, frames.size(0)).copy_(frames.t());
  for (const std::string name : {"conv1", "conv2", "conv3"})
    x = at::gelu(
        at::conv2d(x, w.at(name + ".weight").view({shape.conv_channels, -1, 3, 3}), w.at(name + ".bias"), 2, 1));
  const int64_t all = x.size(3), half = shape.width / 2;
  const at::Tensor rows = linear(x[0].permute({2, 0, 1}).reshape({all, -1}), w, "frame");
  at::Tensor places = at::zeros({all, shape.width}, at::kDouble);
  for (int64_t i = 0; i < all; ++i)
    for (int64_t c = 0; c < half; ++c) {
      const double angle =
          static_cast<double>(i) * std::pow(10'000, -static_cast<double>(c) / static_cast<double>(half - 1));
      places[i][c] = std::sin(angle);
      places[i][half + c] = std::cos(angle);
    }
  // Frames, halved and rounded up three times.
  int64_t kept = frames.size(0);
  for (int i = 0; i < 3; ++i) kept = (kept + 1) / 2;
  return (rows + places).narrow(0, 0, kept);
}

at::Tensor one_sound(const AudioShape& shape, const at::Tensor& frames, const FullTensors& w) {
  std::vector<at::Tensor> chunks;
  for (int64_t first = 0; first < frames.size(0); first += shape.chunk)
    chunks.push_back(chunk_rows(shape, frames.narrow(0, first, std::min(shape.chunk, frames.size(0) - first)), w));
  at::Tensor x = at::cat(chunks);
  const int64_t n = x.size(0), rows_of_window = shape.window / shape.chunk * ((shape.chunk + 7) / 8);
  const at::Tensor window = at::arange(n).div(rows_of_window, "floor");
  const at::Tensor mask =
      at::zeros({n, n}, at::kDouble).masked_fill(window.unsqueeze(0) != window.unsqueeze(1), -INFINITY);
  for (int64_t i = 0; i < shape.depth; ++i) {
    const std::string block = "blocks." + std::to_string(i);
    const at::Tensor y = layer_normed(x, w, block + ".attention_norm");
    const auto heads = [&](const char* name) {
      return linear(y, w, block + ".attention." + name).view({n, shape.heads, -1}).transpose(0, 1);
    };
    const at::Tensor q = heads("q"), k = heads("k"), v = heads("v");
    const at::Tensor scores = q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(-1))) + mask;
    x = x + linear(scores.softmax(-1).matmul(v).transpose(0, 1).reshape({n, -1}), w, block + ".attention.proj");
    x = x +
        linear(at::gelu(linear(layer_normed(x, w, block + ".mlp_norm"), w, block + ".mlp.up")), w, block + ".mlp.down");
  }
  return linear(at::gelu(linear(layer_normed(x, w, "projector.norm"), w, "projector.up")), w, "projector.down");
}

at::Tensor definition(const AudioShape& shape, const std::vector<int64_t>& lengths, const at::Tensor& frames,
                      const FullTensors& w) {
  std::vector<at::Tensor> rows;
  int64_t first = 0;
  for (const int64_t length : lengths) {
    rows.push_back(one_sound(shape, frames.narrow(0, first, length), w));
    first += length;
  }
  return at::cat(rows);
}

// ---- Towers --------------------------------------------------------------------------------------------------------

int64_t sum(const std::vector<int64_t>& values) {
  int64_t total = 0;
  for (const int64_t value : values) total += value;
  return total;
}

// The bias of the keys adds the same to all scores of a query, so nothing depends on it: its gradient is rounding.
void expect_gradients(const ParameterSet& set, const FullTensors& expected) {
  for (const auto& parameter : set.all())
    for (const auto& part : parameter->sharded(grad_of(*parameter))) {
      const bool unused = part.name.ends_with("attention.k.bias");
      expect_close(part.local, expected.at(part.name), "gradient of " + part.name, testing::kClose, unused ? 1e-5 : 0);
    }
}

// One chunk that is not full; one that is; several windows; sounds of all kinds beside each other.
const std::vector<std::vector<int64_t>>& lists() {
  static const std::vector<std::vector<int64_t>> all{{7}, {20}, {97}, {1, 41, 20, 13, 80}};
  return all;
}

TEST(AudioTower, EqualsItsDefinition) {
  AudioShape shape = small_shape();
  const FullTensors weights = random_weights<AudioTower>(shape);
  for (const std::vector<int64_t>& lengths : lists()) {
    SCOPED_TRACE(sum(lengths));
    const at::Tensor frames = random_tensor({sum(lengths), shape.mel_bins}, 1);
    int64_t rows = 0;
    for (const int64_t length : lengths) rows += shape.rows(length);
    const at::Tensor dy = random_tensor({rows, shape.out_width}, 2);
    const Expected expected =
        evaluate([&](const at::Tensor& x, const FullTensors& w) { return definition(shape, lengths, x, w); }, frames,
                 weights, dy);
    for (const bool main_grads : {false, true})
      for (const bool recompute : {false, true})
        for (const int64_t conv_chunks : {2, 500})
          testing::run_ranks(1, [&](const testing::Rank& r) {
            ParameterSet set(at::kFloat, at::kCPU);
            const TensorParallel tp{.group = r.world.world()};
            AudioShape own = shape;
            own.conv_chunks = conv_chunks;
            const AudioTower tower(ParameterScope(set), own, tp);
            load(set, weights);
            if (main_grads) attach_main_grads(set);
            const at::Tensor y = tower.forward(frames, lengths, recompute);
            expect_close(y, expected.y, "rows");
            y.backward(dy);
            expect_gradients(set, expected.grads);
          });
  }
}

// The rows of a sound do not depend on those beside it, nor on lists that were asked for before.
TEST(AudioTower, SoundsDoNotMeet) {
  const AudioShape shape = small_shape();
  const FullTensors weights = random_weights<AudioTower>(shape);
  const std::vector<int64_t> lengths{9, 33, 5, 20, 11};
  const at::Tensor frames = random_tensor({sum(lengths), shape.mel_bins}, 1);
  testing::run_ranks(1, [&](const testing::Rank& r) {
    const at::NoGradGuard no_grad;
    ParameterSet set(at::kFloat, at::kCPU);
    const AudioTower tower(ParameterScope(set), shape, {.group = r.world.world()});
    load(set, weights);
    for (int round = 0; round < 2; ++round) {
      const at::Tensor together = tower.forward(frames, lengths);
      int64_t frame = 0, row = 0;
      for (const int64_t length : lengths) {
        expect_close(together.narrow(0, row, shape.rows(length)),
                     tower.forward(frames.narrow(0, frame, length), {length}), "rows");
        frame += length;
        row += shape.rows(length);
      }
    }
  });
}

// A frozen tower leaves no graph, also if recomputation is on; with a trained projector the graph starts there.
TEST(AudioTower, FrozenPartsHaveNoGraph) {
  const AudioShape shape = small_shape();
  const FullTensors weights = random_weights<AudioTower>(shape);
  testing::run_ranks(1, [&](const testing::Rank& r) {
    ParameterSet set(at::kFloat, at::kCPU);
    const AudioTower tower(ParameterScope(set), shape, {.group = r.world.world()});
    load(set, weights);
    EXPECT_TRUE(tower.trains());
    const at::Tensor frames = random_tensor({30, shape.mel_bins}, 1);
    for (const auto& parameter : set.all())
      parameter->value.set_requires_grad(parameter->spec.name.starts_with("projector.up"));
    tower.forward(frames, {30}, /*recompute=*/true).sum().backward();
    for (const auto& parameter : set.all())
      EXPECT_EQ(parameter->value.grad().defined(), parameter->value.requires_grad()) << parameter->spec.name;
    for (const auto& parameter : set.all()) parameter->value.set_requires_grad(false);
    EXPECT_FALSE(tower.trains());
    EXPECT_FALSE(tower.forward(frames, {30}, /*recompute=*/true).requires_grad());
  });
}

TEST(AudioTower, ParametersOfRanksAreReplicas) { expect_replicas_on_ranks<AudioTower>(small_shape()); }

TEST(AudioTower, FootprintListsTheParameters) { expect_listed<AudioTower, AudioFootprint>(small_shape()); }

// bf16 differs from fp32 by its rounding alone.
TEST(AudioTower, RunsInBf16) {
  const AudioShape shape = small_shape();
  const FullTensors weights = random_weights<AudioTower>(shape);
  const at::Tensor frames = random_tensor({50, shape.mel_bins}, 1);
  testing::run_ranks(1, [&](const testing::Rank& r) {
    ParameterSet set(at::kBFloat16, at::kCPU);
    const AudioTower tower(ParameterScope(set), shape, {.group = r.world.world()});
    load(set, weights);
    const at::Tensor y = tower.forward(frames, {50});
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    expect_close(y, definition(shape, {50}, frames.to(at::kDouble), in_double(weights)), "rows", 0.05);
  });
}

// ---- Sizes ---------------------------------------------------------------------------------------------------------

TEST(AudioShape, RowsOfPublishedTower) {
  const AudioShape shape{
      .depth = 32, .width = 1280, .heads = 20, .mlp_width = 5120, .out_width = 2048, .conv_channels = 480};
  EXPECT_TRUE(problems(shape).empty());
  EXPECT_EQ(shape.conv_bins(), 16);
  EXPECT_EQ(shape.window_rows(), 104);
  EXPECT_EQ(shape.rows(100), 13);
  EXPECT_EQ(shape.rows(250), 33);
  EXPECT_EQ(shape.rows(3000), 390);
}

TEST(AudioShape, ProblemsNameTheField) {
  const auto message = [](const std::function<void(AudioShape&)>& change) {
    AudioShape shape = small_shape();
    change(shape);
    const auto found = problems(shape);
    return found.size() == 1 ? found[0] : std::to_string(found.size()) + " problems";
  };
  expect_contains(message([](AudioShape& s) { s.depth = 0; }), "depth is 0");
  expect_contains(message([](AudioShape& s) { s.heads = 3; }), "3 heads and a width of 16");
  expect_contains(message([](AudioShape& s) { s.window = 10; }), "10 frames, fewer than the 20");
}

TEST(AudioLengths, AreChecked) {
  EXPECT_TRUE(audio_lengths({}).empty());
  EXPECT_EQ(audio_lengths(at::tensor({5, 7}, at::kLong)), (std::vector<int64_t>{5, 7}));
  EXPECT_THROW(audio_lengths(at::tensor({5, 0}, at::kLong)), DataError);
  testing::run_ranks(1, [&](const testing::Rank& r) {
    ParameterSet set(at::kFloat, at::kCPU);
    const AudioTower tower(ParameterScope(set), small_shape(), {.group = r.world.world()});
    testing::expect_error<DataError>(
        [&] {
          tower.forward(at::zeros({12, 11}), {5, 8});
        },
        {"2 sounds", "13 frames of 11 mel bins"});
  });
}

}  // namespace
}  // namespace megalith::nn
