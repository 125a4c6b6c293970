// Resizing 8-bit images: bicubic with anti-aliasing, and nearest neighbor.
//
// Two libraries resize an image on its way into a reference model: LLaMA-Factory shrinks large images with Pillow, then
// the model's processor brings the sides to multiples of a patch with torchvision, which is ATen's kernel. Both are
// separable filters in integer arithmetic and differ in the precision of their weights and in the order of the passes.
// The results here equal theirs byte for byte.
#pragma once

#include <cstdint>

#include "megalith/media/image.h"

namespace megalith::media {

enum class Resampler {
  kPillow,  // weights of 22 bits; the pass that leaves fewer pixels comes first (Pillow 13)
  kAten     // weights of 16 bits, as many of them after the point as fit; the horizontal pass comes first
};

// Returns the image as Pillow's resize() does with its default filter: bicubic, in premultiplied colors when there is
// alpha, and nearest for palettes and bits, whose values cannot be mixed. kAten takes kGrey and kRgb only.
Image resize(const Image& image, int64_t width, int64_t height, Resampler resampler);

}  // namespace megalith::media
