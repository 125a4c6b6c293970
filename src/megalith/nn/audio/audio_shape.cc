#include "megalith/nn/audio/audio_shape.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "megalith/base/error.h"

namespace megalith::nn {

namespace {

// The length after three convolutions with stride 2, kernel 3 and padding 1, each of which halves and rounds up.
int64_t convolved(int64_t length) { return (length + 7) / 8; }

}  // namespace

int64_t AudioShape::conv_bins() const { return convolved(mel_bins); }
int64_t AudioShape::chunk_rows() const { return convolved(chunk); }
int64_t AudioShape::rows(int64_t frames) const { return frames / chunk * chunk_rows() + convolved(frames % chunk); }

VisionShape AudioShape::blocks() const {
  return {.depth = depth,
          .width = width,
          .heads = heads,
          .mlp_width = mlp_width,
          .out_width = out_width,
          .merge = 1,
          .norm_epsilon = norm_epsilon,
          .activation = activation,
          .init_std = init_std};
}

std::vector<std::string> problems(const AudioShape& shape) {
  std::vector<std::string> found = size_problems("audio", shape.blocks(),
                                                 {{"number of mel bins", shape.mel_bins},
                                                  {"number of channels", shape.conv_channels},
                                                  {"number of frames in a chunk", shape.chunk},
                                                  {"number of chunks convolved at once", shape.conv_chunks}});
  if (!found.empty()) return found;
  // Positions are pairs of a sine and a cosine, of at least two frequencies.
  if (shape.width % shape.heads != 0 || shape.width % 2 != 0 || shape.width < 4)
    found.push_back(
        fmt::format("the audio tower has {} heads and a width of {}; the width must be even, at least 4 and"
                    " a multiple of the heads",
                    shape.heads, shape.width));
  if (shape.window < shape.chunk)
    found.push_back(
        fmt::format("attention of the audio tower covers {} frames, fewer than the {} of a chunk; use a"
                    " multiple of the chunk",
                    shape.window, shape.chunk));
  return found;
}

std::vector<int64_t> audio_lengths(const at::Tensor& lengths) {
  std::vector<int64_t> result;
  if (!lengths.defined()) return result;
  check(lengths.dim() == 1 && lengths.scalar_type() == at::kLong && lengths.is_cpu(),
        "lengths of sounds are int64 [sounds] on the host; got {} dimensions of {}", lengths.dim(),
        c10::toString(lengths.scalar_type()));
  const at::Tensor values = lengths.contiguous();
  result.assign(values.const_data_ptr<int64_t>(), values.const_data_ptr<int64_t>() + values.size(0));
  for (size_t i = 0; i < result.size(); ++i)
    check<DataError>(result[i] > 0, "sound {} of the micro-batch has {} frames; it must have at least one", i,
                     result[i]);
  return result;
}

}  // namespace megalith::nn
