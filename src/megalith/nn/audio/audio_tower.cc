// The blocks are those of vision towers, without rotation; the norm and the MLP at the end are a merger that merges
// nothing. What is of its own here is the way from frames to rows.
//
// Convolutions run over whole chunks, because padding changes what the second and the third one see. Only rows that are
// not padding go further.
#include "megalith/nn/audio/audio_tower.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/nn/recompute.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::nn {

namespace {

// Lists of sounds whose indices are kept: micro-batches of one step that have sounds of equal lengths.
constexpr size_t kKnownSounds = 4;
constexpr int64_t kKernel = 3;  // side of a convolution's kernel
// The longest wave of the positions, in rows and divided by 2π.
constexpr double kLongestWave = 10000;

bool is_trained(const Parameter* parameter) {
  return parameter != nullptr && (parameter->value.requires_grad() || parameter->attached.update != nullptr);
}

// Sines of width / 2 speeds, which fall geometrically from 1 to 1 / kLongestWave, and the cosines.
at::Tensor sinusoids(int64_t rows, int64_t width, at::Device device) {
  const int64_t half = width / 2;
  const double step = std::log(kLongestWave) / static_cast<double>(half - 1);
  const at::Tensor speeds = at::exp(at::arange(half, at::kFloat) * -step);
  const at::Tensor angles = at::outer(at::arange(rows, at::kFloat), speeds);
  return at::cat({angles.sin(), angles.cos()}, 1).to(device);
}

}  // namespace

std::vector<OutputPart> audio_qkv_parts(const AudioShape& shape) {
  return {{"q", shape.width}, {"k", shape.width}, {"v", shape.width}};
}

AudioIndices audio_indices(const AudioShape& shape, const std::vector<int64_t>& lengths, at::Device device) {
  check(!lengths.empty(), "an audio tower was asked for the indices of no sounds");
  const int64_t silence = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  std::vector<int64_t> frames, rows, places, windows;
  int64_t first = 0, chunks = 0;  // frames and chunks before the current sound
  for (const int64_t length : lengths) {
    for (int64_t begin = 0; begin < length; begin += shape.chunk, ++chunks) {
      const int64_t held = std::min(shape.chunk, length - begin);
      for (int64_t i = 0; i < shape.chunk; ++i) frames.push_back(i < held ? first + begin + i : silence);
      for (int64_t i = 0; i < shape.rows(held); ++i) {
        rows.push_back(chunks * shape.chunk_rows() + i);
        places.push_back(i);
      }
    }
    const int64_t all = shape.rows(length);
    for (int64_t row = 0; row < all; row += shape.window_rows())
      windows.push_back(std::min(shape.window_rows(), all - row));
    first += length;
  }
  const at::NoGradGuard no_grad;
  const auto copied = [device](const std::vector<int64_t>& values) {
    return ops::to_device(at::tensor(values, at::kLong), device);
  };
  return {copied(frames), copied(rows), copied(places), ops::SequenceLayout::packed(windows), chunks};
}

AudioTower::AudioTower(const ParameterScope& scope, const AudioShape& shape, TensorParallel tp) : shape_(shape) {
  const auto found = problems(shape);
  check<ConfigError>(found.empty(), "{}", fmt::join(found, "\n"));
  tp.sequence_parallel = true;  // ranks compute different sounds, as they hold different tokens with it
  tp.fp8.reset();
  for (const int64_t number : {1, 2, 3})
    convolutions_.push_back(
        make_convolution(scope.child("conv" + std::to_string(number)), number == 1 ? 1 : shape.conv_channels, tp));
  frame_.emplace(scope, "frame", shape.conv_channels * shape.conv_bins(),
                 std::vector<OutputPart>{{"frame", shape.width}}, /*bias=*/false, Init::normal(shape.init_std), tp);
  frame_->weight().plans = nullptr;  // as in vision towers: the number of rows changes with every micro-batch
  const VisionShape blocks = shape.blocks();
  for (int64_t i = 0; i < shape.depth; ++i)
    blocks_.push_back(std::make_unique<VisionBlock>(scope.child("blocks").child(std::to_string(i)), blocks, tp,
                                                    audio_qkv_parts(shape)));
  projector_.emplace(scope.child("projector"), blocks, /*norm_merged=*/false, tp);
  if (!options().device().is_meta()) positions_ = sinusoids(shape.chunk_rows(), shape.width, options().device());
}

AudioTower::Convolution AudioTower::make_convolution(const ParameterScope& scope, int64_t inputs,
                                                     const TensorParallel& tp) const {
  const auto spec = [&tp](const char* name, Init init) {
    return ParameterSpec{.name = name, .init = init, .partial_grad_over_tp = tp.splits_tokens(), .replica = tp.rank()};
  };
  Convolution made{};
  made.weight =
      &scope.add(spec("weight", Init::normal(shape_.init_std)), {shape_.conv_channels, inputs * kKernel * kKernel});
  made.bias = &scope.add(spec("bias", Init::zeros()), {shape_.conv_channels});
  return made;
}

bool AudioTower::Convolution::trains() const { return is_trained(weight) || is_trained(bias); }

bool AudioTower::trains() const {
  return std::ranges::any_of(convolutions_, [](const Convolution& c) { return c.trains(); }) ||
         is_trained(&frame_->weight()) || projector_->trains() ||
         std::ranges::any_of(blocks_, [](const auto& block) { return block->trains(); });
}

AudioTower::IndicesPtr AudioTower::indices_of(const std::vector<int64_t>& lengths) const {
  for (const Known& known : known_)
    if (known.lengths == lengths) return known.indices;
  auto made = std::make_shared<AudioIndices>(audio_indices(shape_, lengths, options().device()));
  known_.push_front({lengths, made});
  if (known_.size() > kKnownSounds) known_.pop_back();
  return made;
}

at::Tensor AudioTower::convolve(const at::Tensor& chunks) const {
  at::Tensor x = chunks;
  for (const Convolution& each : convolutions_) {
    const at::Tensor kernel = each.weight->value.view({shape_.conv_channels, -1, kKernel, kKernel});
    x = at::gelu(at::conv2d(x, kernel, each.bias->value, /*stride=*/2, /*padding=*/1));
  }
  return x.permute({0, 3, 1, 2}).reshape({-1, shape_.conv_channels * shape_.conv_bins()});
}

at::Tensor AudioTower::embed(const at::Tensor& features, const AudioIndices& indices, bool recompute) const {
  const at::Tensor& weight = frame_->weight().value;
  const at::Tensor held = ops::to_device(features, weight.device()).to(weight.scalar_type());
  const at::Tensor chunks = at::cat({held, at::zeros({1, shape_.mel_bins}, held.options())})
                                .index_select(0, indices.frames)
                                .view({indices.chunks, shape_.chunk, shape_.mel_bins})
                                .transpose(1, 2)
                                .unsqueeze(1);  // [s, 1, m, chunk]
  const bool twice = recompute && at::GradMode::is_enabled() &&
                     std::ranges::any_of(convolutions_, [](const Convolution& c) { return c.trains(); });
  std::vector<at::Tensor> convolved;
  for (const at::Tensor& some : chunks.split(shape_.conv_chunks))
    convolved.push_back(
        twice ? nn::recompute([this](const TensorList& kept) { return convolve(kept[0]); }, {some}, nullptr)
              : convolve(some));
  const at::Tensor x = frame_->forward(at::cat(convolved).index_select(0, indices.rows));  // [n, w]
  return x + positions_.to(x.scalar_type()).index_select(0, indices.places);
}

at::Tensor AudioTower::forward(const at::Tensor& features, const std::vector<int64_t>& lengths, bool recompute) const {
  const int64_t frames = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  check<DataError>(features.dim() == 2 && features.size(1) == shape_.mel_bins && features.size(0) == frames,
                   "the features of {} sounds are [{}]; they have {} frames of {} mel bins each", lengths.size(),
                   fmt::join(features.sizes(), ", "), frames, shape_.mel_bins);
  const IndicesPtr indices = indices_of(lengths);
  at::Tensor x = embed(features, *indices, recompute);
  for (const auto& each : blocks_) {
    const VisionBlock& block = *each;
    const auto run = [&block, indices](const TensorList& kept) { return block.forward(kept[0], {}, indices->windows); };
    const bool twice = recompute && at::GradMode::is_enabled() && (x.requires_grad() || block.trains());
    x = twice ? nn::recompute(run, {x}, block.random_numbers()) : run({x});
  }
  return projector_->forward(x);
}

}  // namespace megalith::nn
