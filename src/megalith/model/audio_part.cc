// As in vision_part.cc: the tower runs before the embedding, after that for images, and ranks without sounds take part
// in the collective of its backward.
#include "megalith/model/audio_part.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "megalith/base/error.h"
#include "megalith/model/vision_part.h"

namespace megalith::model {

AudioPart::AudioPart(const nn::ParameterScope& scope, const nn::AudioShape& shape, const nn::TensorParallel& tp,
                     const parallel::ParallelContext& context)
    : tower_(scope, shape, tp), tp_(tp), groups_{context.tp(), context.cp(), tp.splits_tokens()} {}

at::Tensor AudioPart::own_rows(const at::Tensor& features, const std::vector<int64_t>& lengths,
                               const nn::MediaShare& share, bool recompute) const {
  if (share.media.empty()) {
    const at::Tensor none = at::empty({0, tower_.shape().out_width}, tower_.options());
    return none.set_requires_grad(at::GradMode::is_enabled() && tower_.trains());
  }
  std::vector<int64_t> own;
  for (const size_t sound : share.media) own.push_back(lengths[sound]);
  return tower_.forward(nn::own_input(features, lengths, share), own, recompute);
}

SoundRows AudioPart::run(const ModelInput& input, bool recompute) const {
  const std::vector<int64_t> lengths = nn::audio_lengths(input.audio_lengths);
  if (lengths.empty()) return {};
  check(
      input.audio_features.defined() && input.audio_rows.defined() && input.audio_rows.size(0) == input.layout.tokens(),
      "{} sounds come without features, or without the row of each of {} tokens", lengths.size(),
      input.layout.tokens());
  // The work is that of the blocks, which grows with the rows.
  std::vector<nn::MediumSize> sizes;
  for (const int64_t frames : lengths) sizes.push_back({frames, tower_.shape().rows(frames)});
  const nn::MediaShare share = nn::deal_media(sizes, groups_.ranks(), groups_.rank());
  const at::Tensor rows =
      nn::gather_image_rows(own_rows(input.audio_features, lengths, share, recompute), share, groups_);
  return {rows, gathered_numbers(input.audio_rows, share, tp_, rows.device())};
}

at::Tensor AudioPart::replace(const at::Tensor& x, const SoundRows& rows) const {
  return rows.any() ? nn::replace_rows(x, rows.embeddings, rows.which) : x;
}

}  // namespace megalith::model
