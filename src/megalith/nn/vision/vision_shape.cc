// Checks of sizes that would otherwise fail deep inside the tower.
#include "megalith/nn/vision/vision_shape.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "megalith/base/error.h"

namespace megalith::nn {

int64_t VisionShape::position_side() const {
  return static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(positions))));
}

std::vector<std::string> size_problems(const char* tower, const VisionShape& blocks,
                                       const std::vector<std::pair<const char*, int64_t>>& more) {
  std::vector<std::pair<const char*, int64_t>> sizes{{"depth", blocks.depth},
                                                     {"width", blocks.width},
                                                     {"number of heads", blocks.heads},
                                                     {"MLP width", blocks.mlp_width},
                                                     {"output width", blocks.out_width}};
  sizes.insert(sizes.end(), more.begin(), more.end());
  std::vector<std::string> found;
  for (const auto& [name, value] : sizes)
    if (value <= 0) found.push_back(fmt::format("the {} tower's {} is {}; it must be positive", tower, name, value));
  return found;
}

std::vector<std::string> problems(const VisionShape& shape) {
  std::vector<std::string> found = size_problems("vision", shape,
                                                 {{"number of channels", shape.channels},
                                                  {"patch size", shape.patch},
                                                  {"time patch", shape.time_patch},
                                                  {"merge size", shape.merge}});
  if (!found.empty()) return found;
  // Rows and columns rotate half of a head's channels each, in pairs.
  if (shape.width % shape.heads != 0 || shape.head_dim() % 4 != 0)
    found.push_back(fmt::format("the vision tower's {} heads of width {} need heads of a multiple of 4 channels",
                                shape.heads, shape.width));
  if (shape.position_side() * shape.position_side() != shape.positions)
    found.push_back(
        fmt::format("the vision tower has {} learned positions; their number must be a square", shape.positions));
  if (shape.window > 0 && shape.window_side() == 0)
    found.push_back(fmt::format("the vision tower's windows of {} pixels are smaller than a token of {}", shape.window,
                                shape.patch * shape.merge));
  for (const auto* blocks : {&shape.full_blocks, &shape.deepstack_blocks})
    for (const int64_t block : *blocks)
      if (block < 0 || block >= shape.depth)
        found.push_back(fmt::format("block {} is not one of the {} blocks of the vision tower", block, shape.depth));
  std::vector<int64_t> sorted = shape.deepstack_blocks;
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end())
    found.emplace_back("a block of the vision tower is listed twice for deepstack; list each once");
  return found;
}

std::vector<ImageGrid> image_grids(const at::Tensor& grids, int64_t merge) {
  std::vector<ImageGrid> result;
  if (!grids.defined()) return result;
  check(grids.dim() == 2 && grids.size(1) == 3 && grids.scalar_type() == at::kLong && grids.is_cpu(),
        "grids of images are int64 [images, 3] on the host; got {} dimensions of {}", grids.dim(),
        c10::toString(grids.scalar_type()));
  const at::Tensor rows = grids.contiguous();
  const auto* numbers = rows.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows.size(0); ++i, numbers += 3) {
    const ImageGrid grid{numbers[0], numbers[1], numbers[2]};
    check<DataError>(
        grid.time > 0 && grid.height > 0 && grid.width > 0 && grid.height % merge == 0 && grid.width % merge == 0,
        "image {} of the micro-batch has {} x {} x {} patches; height and width must be positive multiples"
        " of {}",
        i, grid.time, grid.height, grid.width, merge);
    result.push_back(grid);
  }
  return result;
}

int64_t total_patches(const std::vector<ImageGrid>& grids) {
  int64_t total = 0;
  for (const ImageGrid& grid : grids) total += grid.patches();
  return total;
}

}  // namespace megalith::nn
