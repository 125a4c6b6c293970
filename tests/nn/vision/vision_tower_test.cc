// Vision towers against their definition in fp64, frame by frame: the definition knows no packing, no order of windows
// and no fused operation. Windows are a mask there, positions are interpolated by four nested sums.
#include "megalith/nn/vision/vision_tower.h"

#include <cmath>

#include "megalith/nn/vision/vision_footprint.h"
#include "megalith/nn/vision/vision_indices.h"
#include "megalith/nn/vision/vision_shape.h"
#include "tests/nn/tower_support.h"

namespace megalith::nn {
namespace {

// ---- The definition ------------------------------------------------------------------------------------------------

at::Tensor normed(const at::Tensor& x, const VisionShape& shape, const FullTensors& w, const std::string& name) {
  const at::Tensor& weight = w.at(name + ".weight");
  if (shape.norm == ops::NormKind::kRms) return x * (x.square().mean(-1, true) + shape.norm_epsilon).rsqrt() * weight;
  return at::layer_norm(x, {x.size(-1)}, weight, w.at(name + ".bias"), shape.norm_epsilon);
}

at::Tensor activated(const at::Tensor& x, ops::Activation kind) {
  if (kind == ops::Activation::kSilu) return at::silu(x);
  if (kind == ops::Activation::kGeluTanh) return at::gelu(x, "tanh");
  return x * (1.702 * x).sigmoid();
}

// Row and column of every patch of a frame, in the order of its pixel rows.
struct Places {
  std::vector<int64_t> row, column;
};
Places places_of(const VisionShape& shape, const ImageGrid& grid) {
  Places places;
  for (int64_t y = 0; y < grid.height / shape.merge; ++y)
    for (int64_t x = 0; x < grid.width / shape.merge; ++x)
      for (int64_t a = 0; a < shape.merge; ++a)
        for (int64_t b = 0; b < shape.merge; ++b) {
          places.row.push_back(y * shape.merge + a);
          places.column.push_back(x * shape.merge + b);
        }
  return places;
}

// The table's value at a fractional place: Σ over all entries of max(0, 1 - |distance|) in both directions.
at::Tensor interpolated(const VisionShape& shape, const ImageGrid& grid, const Places& places,
                        const at::Tensor& table) {
  const int64_t side = shape.position_side();
  const auto where = [side](int64_t i, int64_t count) {
    return count == 1 ? 0.0 : static_cast<double>(i) * static_cast<double>(side - 1) / static_cast<double>(count - 1);
  };
  at::Tensor weights = at::zeros({static_cast<int64_t>(places.row.size()), side * side}, at::kDouble);
  for (size_t i = 0; i < places.row.size(); ++i)
    for (int64_t y = 0; y < side; ++y)
      for (int64_t x = 0; x < side; ++x) {
        const double dy = std::abs(where(places.row[i], grid.height) - static_cast<double>(y));
        const double dx = std::abs(where(places.column[i], grid.width) - static_cast<double>(x));
        weights[static_cast<int64_t>(i)][y * side + x] = std::max(0.0, 1 - dy) * std::max(0.0, 1 - dx);
      }
  return weights.mm(table);
}

at::Tensor rotated(const at::Tensor& x, const at::Tensor& angles) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  const at::Tensor cos = angles.cos().unsqueeze(1), sin = angles.sin().unsqueeze(1);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
}

at::Tensor angles_of(const VisionShape& shape, const Places& places) {
  const int64_t quarter = shape.head_dim() / 4;
  at::Tensor angles = at::zeros({static_cast<int64_t>(places.row.size()), 2 * quarter}, at::kDouble);
  for (size_t i = 0; i < places.row.size(); ++i)
    for (int64_t f = 0; f < quarter; ++f) {
      const double speed = std::pow(shape.rope_theta, -static_cast<double>(f) / static_cast<double>(quarter));
      angles[static_cast<int64_t>(i)][f] = static_cast<double>(places.row[i]) * speed;
      angles[static_cast<int64_t>(i)][quarter + f] = static_cast<double>(places.column[i]) * speed;
    }
  return angles;
}

// 0 where two patches lie in one window, -infinity elsewhere.
at::Tensor window_mask(const VisionShape& shape, const Places& places) {
  const int64_t pixels = shape.window / shape.patch;  // patches of a side
  const auto count = static_cast<int64_t>(places.row.size());
  at::Tensor mask = at::full({count, count}, -INFINITY, at::kDouble);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < count; ++j) {
      const auto a = static_cast<size_t>(i), b = static_cast<size_t>(j);
      if (places.row[a] / pixels == places.row[b] / pixels && places.column[a] / pixels == places.column[b] / pixels)
        mask[i][j] = 0;
    }
  return mask;
}

at::Tensor merger(const at::Tensor& x, const VisionShape& shape, const FullTensors& w, const std::string& name,
                  bool norm_merged) {
  const at::Tensor merged = norm_merged
                                ? normed(x.reshape({-1, shape.merged() * shape.width}), shape, w, name + ".norm")
                                : normed(x, shape, w, name + ".norm").reshape({-1, shape.merged() * shape.width});
  return linear(at::gelu(linear(merged, w, name + ".up")), w, name + ".down");
}

// One frame: [patches, pixels] -> [rows, (1 + levels) h].
at::Tensor frame(const VisionShape& shape, const ImageGrid& grid, const at::Tensor& pixels, const FullTensors& w) {
  const Places places = places_of(shape, grid);
  const at::Tensor angles = angles_of(shape, places),
                   mask = shape.window > 0 ? window_mask(shape, places) : at::Tensor();
  at::Tensor x = linear(pixels, w, "patch");
  if (shape.positions > 0) x = x + interpolated(shape, grid, places, w.at("positions.weight"));
  std::vector<at::Tensor> rows(1);
  for (int64_t i = 0; i < shape.depth; ++i) {
    const std::string block = "blocks." + std::to_string(i);
    const at::Tensor qkv = linear(normed(x, shape, w, block + ".attention_norm"), w, block + ".attention.qkv")
                               .view({-1, 3, shape.heads, shape.head_dim()});
    const at::Tensor q = rotated(qkv.select(1, 0), angles).transpose(0, 1);
    const at::Tensor k = rotated(qkv.select(1, 1), angles).transpose(0, 1);
    at::Tensor scores = q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(shape.head_dim()));
    const bool full = std::ranges::find(shape.full_blocks, i) != shape.full_blocks.end();
    if (mask.defined() && !full) scores = scores + mask;
    const at::Tensor seen = scores.softmax(-1).matmul(qkv.select(1, 2).transpose(0, 1)).transpose(0, 1);
    x = x + linear(seen.reshape({-1, shape.width}), w, block + ".attention.proj");
    const at::Tensor y = normed(x, shape, w, block + ".mlp_norm");
    at::Tensor up = linear(y, w, block + ".mlp.up");
    up = shape.gated_mlp ? activated(linear(y, w, block + ".mlp.gate"), shape.activation) * up
                         : activated(up, shape.activation);
    x = x + linear(up, w, block + ".mlp.down");
    const auto level = std::ranges::find(shape.deepstack_blocks, i);
    if (level != shape.deepstack_blocks.end())
      rows.push_back(merger(x, shape, w, "deepstack." + std::to_string(level - shape.deepstack_blocks.begin()), true));
  }
  rows[0] = merger(x, shape, w, "merger", false);
  return at::cat(rows, 1);
}

at::Tensor definition(const VisionShape& shape, const std::vector<ImageGrid>& grids, const at::Tensor& pixels,
                      const FullTensors& w) {
  std::vector<at::Tensor> rows;
  int64_t first = 0;
  for (const ImageGrid& grid : grids)
    for (int64_t t = 0; t < grid.time; ++t, first += grid.height * grid.width)
      rows.push_back(frame(shape, grid, pixels.narrow(0, first, grid.height * grid.width), w));
  return at::cat(rows, 0);
}

// ---- Towers --------------------------------------------------------------------------------------------------------

VisionShape plain_shape() {
  return {.depth = 2, .width = 16, .heads = 2, .mlp_width = 24, .out_width = 12, .patch = 2};
}
VisionShape windowed_shape() {
  VisionShape shape = plain_shape();
  shape.depth = 3;
  shape.norm = ops::NormKind::kRms;
  shape.activation = ops::Activation::kSilu;
  shape.gated_mlp = true;
  shape.window = 8;  // 2 x 2 tokens of 2 x 2 patches of 2 x 2 pixels
  shape.full_blocks = {1};
  return shape;
}
VisionShape deepstack_shape() {
  VisionShape shape = plain_shape();
  shape.depth = 4;
  shape.activation = ops::Activation::kGeluTanh;
  shape.patch_bias = true;
  shape.positions = 16;
  shape.deepstack_blocks = {2, 0, 3};  // mergers by place in the list, rows in the order of the blocks
  return shape;
}

at::Tensor side_by_side(const VisionRows& out) {
  std::vector<at::Tensor> all{out.rows};
  all.insert(all.end(), out.deepstack.begin(), out.deepstack.end());
  return at::cat(all, 1);
}

struct TowerCase {
  const char* name;
  VisionShape shape;
  std::vector<ImageGrid> grids;
};

// 5 x 3 and 2 x 3 tokens are not divisible into windows of 2 x 2; 1 x 1 is smaller than one.
const std::vector<TowerCase>& cases() {
  static const std::vector<ImageGrid> one{{1, 4, 6}}, several{{1, 10, 6}, {3, 2, 2}, {2, 4, 6}, {1, 2, 8}};
  static const std::vector<TowerCase> all{
      {"plain, one image", plain_shape(), one},
      {"plain, several", plain_shape(), several},
      {"windows, one image", windowed_shape(), one},
      {"windows, several", windowed_shape(), several},
      {"deepstack, one image", deepstack_shape(), one},
      {"deepstack, several", deepstack_shape(), several},
      {"one row of patches in the table", deepstack_shape(), {{1, 2, 2}, {1, 4, 4}}},
  };
  return all;
}

TEST(VisionTower, EqualsItsDefinition) {
  for (const TowerCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const FullTensors weights = random_weights<VisionTower>(c.shape);
    const int64_t patches = total_patches(c.grids), levels = 1 + static_cast<int64_t>(c.shape.deepstack_blocks.size());
    const at::Tensor pixels = random_tensor({patches, c.shape.patch_pixels()}, 1);
    const at::Tensor dy = random_tensor({patches / c.shape.merged(), levels * c.shape.out_width}, 2);
    const Expected expected =
        evaluate([&](const at::Tensor& x, const FullTensors& w) { return definition(c.shape, c.grids, x, w); }, pixels,
                 weights, dy);
    for (const bool main_grads : {false, true})
      for (const bool recompute : {false, true})
        testing::run_ranks(1, [&](const testing::Rank& r) {
          ParameterSet set(at::kFloat, at::kCPU);
          const TensorParallel tp{.group = r.world.world()};
          const VisionTower tower(ParameterScope(set), c.shape, tp);
          load(set, weights);
          if (main_grads) attach_main_grads(set);
          const at::Tensor y = side_by_side(tower.forward(pixels, c.grids, recompute));
          expect_close(y, expected.y, "rows");
          y.backward(dy);
          expect_grads(set, expected.grads, tp);
        });
  }
}

// The indices of a list are made once; a second list does not disturb the first.
TEST(VisionTower, ListsOfImagesFollowEachOther) {
  const VisionShape shape = windowed_shape();
  const FullTensors weights = random_weights<VisionTower>(shape);
  testing::run_ranks(1, [&](const testing::Rank& r) {
    ParameterSet set(at::kFloat, at::kCPU);
    const VisionTower tower(ParameterScope(set), shape, {.group = r.world.world()});
    load(set, weights);
    for (int round = 0; round < 2; ++round)
      for (int64_t height = 2; height <= 16; height += 2) {
        const std::vector<ImageGrid> grids{{1, height, 6}};
        const at::Tensor pixels = random_tensor({height * 6, shape.patch_pixels()}, 3);
        expect_close(tower.forward(pixels, grids).rows,
                     definition(shape, grids, pixels.to(at::kDouble), in_double(weights)), "rows");
      }
  });
}

// A frozen tower leaves no graph, also if recomputation is on; with a trained merger the graph starts there.
TEST(VisionTower, FrozenPartsHaveNoGraph) {
  const VisionShape shape = deepstack_shape();
  const FullTensors weights = random_weights<VisionTower>(shape);
  testing::run_ranks(1, [&](const testing::Rank& r) {
    ParameterSet set(at::kFloat, at::kCPU);
    const VisionTower tower(ParameterScope(set), shape, {.group = r.world.world()});
    load(set, weights);
    const std::vector<ImageGrid> grids{{1, 4, 4}};
    const at::Tensor pixels = random_tensor({16, shape.patch_pixels()}, 1);
    for (const auto& parameter : set.all())
      parameter->value.set_requires_grad(parameter->spec.name.starts_with("merger."));
    const VisionRows out = tower.forward(pixels, grids, /*recompute=*/true);
    EXPECT_TRUE(out.rows.requires_grad());
    for (const at::Tensor& rows : out.deepstack) EXPECT_FALSE(rows.requires_grad());
    out.rows.sum().backward();
    for (const auto& parameter : set.all())
      EXPECT_EQ(parameter->value.grad().defined(), parameter->spec.name.starts_with("merger.")) << parameter->spec.name;
    for (const auto& parameter : set.all()) parameter->value.set_requires_grad(false);
    EXPECT_FALSE(tower.forward(pixels, grids, /*recompute=*/true).rows.requires_grad());
  });
}

TEST(VisionTower, ParametersOfRanksAreReplicas) { expect_replicas_on_ranks<VisionTower>(deepstack_shape()); }

TEST(VisionTower, FootprintListsTheParameters) {
  for (const VisionShape& shape : {plain_shape(), windowed_shape(), deepstack_shape()})
    expect_listed<VisionTower, VisionFootprint>(shape);
}

// bf16 differs from fp32 by its rounding alone.
TEST(VisionTower, RunsInBf16) {
  const VisionShape shape = deepstack_shape();
  const FullTensors weights = random_weights<VisionTower>(shape);
  const std::vector<ImageGrid> grids{{1, 8, 6}};
  const at::Tensor pixels = random_tensor({48, shape.patch_pixels()}, 1);
  testing::run_ranks(1, [&](const testing::Rank& r) {
    ParameterSet set(at::kBFloat16, at::kCPU);
    const VisionTower tower(ParameterScope(set), shape, {.group = r.world.world()});
    load(set, weights);
    const at::Tensor y = side_by_side(tower.forward(pixels, grids));
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    expect_close(y, definition(shape, grids, pixels.to(at::kDouble), in_double(weights)), "rows", 0.05);
  });
}

TEST(VisionIndices, WindowsAreRangesAndComeBack) {
  const VisionShape shape = windowed_shape();
  const VisionIndices indices = vision_indices(shape, {{1, 6, 10}, {2, 2, 2}}, at::kCPU);
  EXPECT_EQ(indices.frames.cumulative(), (std::vector<int64_t>{0, 60, 64, 68}));
  // 3 x 5 tokens: windows of 2 x 2, 2 x 2, 2 x 1, 1 x 2, 1 x 2, 1 x 1 tokens, four patches each.
  EXPECT_EQ(indices.windows.cumulative(), (std::vector<int64_t>{0, 16, 32, 40, 48, 56, 60, 64, 68}));
  // The second window starts at token 2 of the first row.
  EXPECT_EQ(indices.order[16].item<int64_t>(), 2 * 4);
  const at::Tensor tokens = indices.order.view({-1, 4}).select(1, 0).div(4, "floor");
  expect_identical(tokens.index_select(0, indices.back), at::arange(17, at::kLong), "order and back");
}

TEST(VisionShape, ProblemsAreNamed) {
  EXPECT_TRUE(problems(plain_shape()).empty());
  EXPECT_TRUE(problems(windowed_shape()).empty());
  EXPECT_TRUE(problems(deepstack_shape()).empty());
  const auto problem = [](const std::function<void(VisionShape&)>& change) {
    VisionShape shape = deepstack_shape();
    change(shape);
    const auto found = problems(shape);
    EXPECT_EQ(found.size(), 1U);
    return found.empty() ? "" : found[0];
  };
  expect_contains(problem([](VisionShape& s) { s.heads = 3; }), "3 heads of width 16");
  expect_contains(problem([](VisionShape& s) { s.positions = 15; }), "15 learned positions");
  expect_contains(problem([](VisionShape& s) { s.window = 3; }), "windows of 3 pixels");
  expect_contains(problem([](VisionShape& s) { s.deepstack_blocks = {4}; }), "block 4 is not one of the 4 blocks");
  expect_contains(problem([](VisionShape& s) { s.deepstack_blocks = {1, 1}; }), "listed twice");
  expect_contains(problem([](VisionShape& s) { s.depth = 0; }), "depth is 0");
}

TEST(ImageGrids, AreChecked) {
  EXPECT_TRUE(image_grids({}, 2).empty());
  EXPECT_EQ(image_grids(at::tensor({1, 4, 6, 2, 2, 2}, at::kLong).view({2, 3}), 2),
            (std::vector<ImageGrid>{{1, 4, 6}, {2, 2, 2}}));
  expect_contains(message_of<DataError>([] {
                    image_grids(at::tensor({1, 4, 5}, at::kLong).view({1, 3}), 2);
                  }),
                  "image 0 of the micro-batch has 1 x 4 x 5 patches");
}

TEST(VisionTower, PixelsMustFitTheGrids) {
  testing::run_ranks(1, [&](const testing::Rank& r) {
    ParameterSet set(at::kFloat, at::kCPU);
    const VisionTower tower(ParameterScope(set), plain_shape(), {.group = r.world.world()});
    expect_contains(message_of<DataError>([&] {
                      tower.forward(at::zeros({15, 24}), {{1, 4, 4}});
                    }),
                    "are [15, 24]; their grids have 16 patches of 24 numbers");
  });
}

}  // namespace
}  // namespace megalith::nn
