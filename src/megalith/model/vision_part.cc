// The tower runs before the embedding, so that its collective in backward follows the embedding's on every rank. Ranks
// without images gather an empty share that requires a gradient if others' rows do: backward of the gather is a
// collective, in which all take part.
#include "megalith/model/vision_part.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/model/model_options.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::model {

bool FreezePlan::freezes(std::string_view parameter) const {
  // The norm before the projector for sound belongs to the tower, as in other programs.
  if (parameter.starts_with("audio."))
    return parameter.starts_with("audio.projector.") && !parameter.starts_with("audio.projector.norm.") ? projector
                                                                                                        : vision_tower;
  if (!parameter.starts_with("vision.")) return language_model;
  return parameter.starts_with("vision.merger.") ? projector : vision_tower;
}

at::Tensor gathered_numbers(const at::Tensor& rows_of_tokens, const nn::MediaShare& share, const nn::TensorParallel& tp,
                            at::Device device) {
  at::Tensor which = ops::to_device(rows_of_tokens, device);
  if (tp.splits_tokens()) {
    const auto [first, count] = tp.share(which.size(0));
    which = which.narrow(0, first, count);
  }
  const at::Tensor place = ops::to_device(at::tensor(share.place, at::kLong), device);
  return at::where(which < 0, which, place.index_select(0, which.clamp_min(0)));
}

VisionPart::VisionPart(const nn::ParameterScope& scope, const nn::VisionShape& shape, const nn::TensorParallel& tp,
                       const parallel::ParallelContext& context)
    : tower_(scope, shape, tp), tp_(tp), groups_{context.tp(), context.cp(), tp.splits_tokens()} {}

at::Tensor VisionPart::own_rows(const at::Tensor& pixels, const std::vector<nn::ImageGrid>& grids,
                                const nn::ImageShare& share, bool recompute) const {
  if (share.media.empty()) {
    const at::Tensor none = at::empty({0, 1 + levels(), tower_.shape().out_width}, tower_.options());
    return none.set_requires_grad(at::GradMode::is_enabled() && tower_.trains());
  }
  const nn::VisionRows out = tower_.forward(nn::own_pixels(pixels, grids, share), share.grids, recompute);
  std::vector<at::Tensor> all{out.rows};
  all.insert(all.end(), out.deepstack.begin(), out.deepstack.end());
  return at::stack(all, 1);
}

VisualRows VisionPart::run(const ModelInput& input, bool recompute) const {
  const std::vector<nn::ImageGrid> grids = nn::image_grids(input.grids, tower_.shape().merge);
  if (grids.empty()) return {};
  check(input.pixels.defined() && input.visual_rows.defined() && input.visual_rows.size(0) == input.layout.tokens(),
        "{} images come without pixels, or without the row of each of {} tokens", grids.size(), input.layout.tokens());
  const nn::ImageShare share = nn::deal_images(grids, tower_.shape().merged(), groups_.ranks(), groups_.rank());
  const at::Tensor rows = nn::gather_image_rows(own_rows(input.pixels, grids, share, recompute), share, groups_);
  const at::Tensor which = gathered_numbers(input.visual_rows, share, tp_, rows.device());
  if (levels() == 0) return {rows.squeeze(1), {}, which};
  const std::vector<at::Tensor> parts = rows.split_with_sizes({1, levels()}, 1);
  return {parts[0].squeeze(1), parts[1], which};
}

at::Tensor VisionPart::replace(const at::Tensor& x, const VisualRows& rows) const {
  return rows.any() ? nn::replace_rows(x, rows.embeddings, rows.which) : x;
}

at::Tensor add_deepstack(const at::Tensor& x, const VisualRows& rows, int64_t layer) {
  if (!rows.deepstack.defined() || layer >= rows.deepstack.size(1)) return x;
  return nn::add_rows(x, rows.deepstack.select(1, layer), rows.which);
}

std::string deepstack_problem(const ModelConfig& config, int64_t layers) {
  if (!config.vision) return "";
  const auto levels = static_cast<int64_t>(config.vision->deepstack_blocks.size());
  if (levels <= layers) return "";
  return fmt::format(
      "the vision tower adds rows after each of the first {} layers, but the first pipeline chunk has only {}; all of"
      " them must be there. Use at most {} pipeline chunks (pipeline_model_parallel_size times virtual stages) for the"
      " {} layers, or give the first one more layers",
      levels, layers, std::max<int64_t>(1, config.num_layers / levels), config.num_layers);
}

}  // namespace megalith::model
