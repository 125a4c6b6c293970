// Mirrors AudioTower::embed and convolve. A convolution keeps its input for the gradient of its weight, and the
// activation after it its own; the last result is copied into rows. Copies of inputs and weights in other layouts,
// which libraries make, are not counted.
#include "megalith/nn/audio/audio_footprint.h"

#include <algorithm>
#include <string>

#include "megalith/nn/audio/audio_tower.h"

namespace megalith::nn {

namespace {

constexpr int64_t kKernelSize = 9;  // numbers in the kernel of a convolution, for each channel of its input

// The channels that each convolution reads.
std::array<int64_t, 3> channels_in(const AudioShape& shape) { return {1, shape.conv_channels, shape.conv_channels}; }

// Records the convolutions, which get no low-rank updates, and returns the scope.
FootprintScope with_convolutions(const FootprintScope& scope, const AudioShape& shape) {
  int number = 0;
  for (const int64_t channels : channels_in(shape)) {
    scope.add(shape.conv_channels * channels * kKernelSize);
    scope.child("conv" + std::to_string(++number)).add_bias({{"", shape.conv_channels}});
  }
  return scope;
}

TowerRows rows_of(const RankSizes& rank, const AudioShape& shape) {
  const SoundSizes& sounds = rank.sounds;
  const double seen = std::min(sounds.rows_of_one, static_cast<double>(shape.window_rows()));
  return {.own = sounds.rows, .frame = seen, .gathered = sounds.gathered_rows};
}

TowerKind kind_of(const AudioShape& shape) {
  return {.name = "audio", .qkv = audio_qkv_parts(shape), .merger = "projector", .norm_in_tower = true};
}

}  // namespace

AudioFootprint::AudioFootprint(const RankSizes& rank, const AudioShape& shape, const TowerTraining& training)
    : rank_(rank),
      shape_(shape),
      own_(tower_rank(rank, shape.blocks(), rank.sounds.rows, 0, !training.tower || training.updates != nullptr)),
      recompute_(training.recompute),
      frame_(with_convolutions(FootprintScope(own_, training.tower ? training.updates : nullptr, input_).child("audio"),
                               shape),
             shape.conv_channels * shape.conv_bins(), {{"frame", shape.width}}, /*bias=*/false),
      parts_(rank, shape.blocks(), rows_of(rank, shape), kind_of(shape), training, input_) {}

std::array<double, 3> AudioFootprint::convolved() const {
  std::array<double, 3> numbers{};
  int64_t bins = shape_.mel_bins, frames = shape_.chunk;
  for (double& number : numbers) {
    bins = (bins + 1) / 2;
    frames = (frames + 1) / 2;
    number = static_cast<double>(shape_.conv_channels * bins * frames);
  }
  return numbers;
}

std::vector<double> AudioFootprint::groups() const {
  std::vector<double> groups;
  const auto most = static_cast<double>(shape_.conv_chunks);
  for (double left = rank_.sounds.chunks; left > 0; left -= most) groups.push_back(std::min(left, most));
  return groups;
}

double AudioFootprint::copied_frames() const {
  const double numbers = rank_.sounds.frames * static_cast<double>(shape_.mel_bins);
  const double converted = rank_.machinery.cuda || rank_.bytes != 4 ? numbers * rank_.bytes : 0;
  const double share = !rank_.machinery.cuda && rank_.tp * rank_.cp > 1 ? 4 * numbers : 0;
  return converted + share;
}

double AudioFootprint::chunk_bytes() const {
  return rank_.sounds.chunks * static_cast<double>(shape_.chunk * shape_.mel_bins) * rank_.bytes;
}

double AudioFootprint::convolved_bytes() const { return rank_.sounds.chunks * convolved().back() * rank_.bytes; }

double AudioFootprint::input_bytes() const { return rank_.sounds.rows * frame_.in() * rank_.bytes; }

void AudioFootprint::convolve(MemoryWalk& memory, double chunks, bool keep) const {
  double input = 0;  // bytes of what a convolution reads, where it may be freed
  for (const double numbers : convolved()) {
    const double result = chunks * numbers * rank_.bytes;
    memory.take(2 * result);  // the convolution and its activation
    if (!keep) memory.give(input + result);
    input = result;
  }
  memory.take(input);  // the last one as rows
  memory.give(input);
}

void AudioFootprint::convolve_backward(MemoryWalk& memory, double chunks) const {
  const std::array<double, 3> numbers = convolved();
  double grad = 0;  // bytes of the gradient of an activation, where it is not that of the rows
  for (size_t i = numbers.size(); i-- > 0;) {
    const double result = chunks * numbers[i] * rank_.bytes;
    memory.take(result);         // its gradient
    memory.give(result + grad);  // the result, which the activation read, and the gradient of the activation
    const int64_t weights = shape_.conv_channels * channels_in(shape_)[i] * kKernelSize;
    memory.touch(static_cast<double>(weights) * rank_.bytes, Use::kWorkspace);
    grad = i > 0 ? chunks * numbers[i - 1] * rank_.bytes : 0;
    memory.take(grad);
    memory.give(result + grad);  // its gradient, and the input
  }
}

void AudioFootprint::forward(MemoryWalk& memory) const {
  if (!parts_.runs()) return;
  const double frames = rank_.sounds.frames * static_cast<double>(shape_.mel_bins) * rank_.bytes;
  memory.take(copied_frames() + frames);  // beside a frame of silence
  memory.take(chunk_bytes());
  memory.give(frames);
  for (const double chunks : groups()) convolve(memory, chunks, trains_convolutions() && !recompute_);
  memory.take(convolved_bytes());
  memory.take(input_bytes());
  LayerWalk walk(own_, memory);
  frame_.forward(walk, parts_.trains_input());
  memory.give(convolved_bytes() + (frame_.keeps_input(own_) ? 0 : input_bytes()));
  memory.take(2 * parts_.stream());  // positions, and the sum
  memory.give(2 * parts_.stream());
  memory.give(convolved_bytes() + copied_frames() + (trains_convolutions() ? 0 : chunk_bytes()));
  parts_.forward(memory);
}

void AudioFootprint::backward(MemoryWalk& memory) const {
  if (!parts_.runs()) return;
  parts_.backward(memory);
  if (!parts_.trains_input()) return;
  LayerWalk walk(own_, memory);
  frame_.backward(walk, /*wanted=*/trains_convolutions());
  if (!trains_convolutions()) return;
  memory.take(convolved_bytes());  // zeros for padding
  memory.give(input_bytes());
  for (const double chunks : groups()) {
    if (recompute_) convolve(memory, chunks, /*keep=*/true);
    convolve_backward(memory, chunks);
    if (recompute_) memory.give(chunks * convolved().back() * rank_.bytes);  // the rows
  }
  memory.give(convolved_bytes() + chunk_bytes());
}

void AudioFootprint::input_work(WorkMeter& meter) const {
  const std::array<double, 3> numbers = convolved();
  const auto channels = static_cast<double>(shape_.conv_channels);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double results = rank_.sounds.chunks * numbers[i];
    meter.product(results / channels, channels, static_cast<double>(channels_in(shape_)[i] * kKernelSize));
    // The convolution writes, its activation reads and writes; backward reads both, and makes a gradient of each.
    meter.moves(3 * results * rank_.bytes, 5 * results * rank_.bytes);
  }
  meter.product(rank_.sounds.rows, static_cast<double>(shape_.width), frame_.in());
}

}  // namespace megalith::nn
