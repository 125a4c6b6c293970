// Counting works on the bits of fp32 numbers: shifted right by 21 places, 11 bits remain, which number a bin. Values
// are widened to fp32 in slices, so the memory does not grow with the model. Everything is queued on the device; the
// only copy to the host is that of the finished counts, in ValueCounts::read.
//
// As in the gradient norm, each element of the model is counted by one rank of the world, and all ranks add up.
#include "megalith/optim/histograms.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/optim/grad_norm.h"
#include "megalith/optim/model_space.h"

namespace megalith::optim {

namespace {

constexpr int kDroppedBits = 21;       // a fraction has 23
constexpr int64_t kBins = 2048;        // sign, 8 bits of exponent, 2 of the fraction
constexpr int64_t kMagnitudes = 1024;  // bins of one sign
constexpr int kQuarters = 4;           // bins of a power of two
constexpr int kExponentBias = 127;
constexpr int64_t kSlice = 1 << 20;  // elements that are widened and counted at a time

// "layers.3.attention.q.weight" -> "layers.3.attention"; "embedding.weight" -> "embedding".
std::string part_name(const std::string& tensor) {
  const std::vector<std::string> words = split(tensor, '.');
  if (words[0] != "layers" || words.size() < 4) return words[0];
  return words[0] + "." + words[1] + "." + words[2];
}

// Embeddings, layers by their number, the rest.
std::pair<int64_t, std::string> order_of(const std::string& part) {
  const std::vector<std::string> words = split(part, '.');
  if (words[0] == "layers") return {parse_int(words[1]).value_or(0), part};
  return {part.find("embedding") != std::string::npos ? -1 : std::numeric_limits<int64_t>::max(), part};
}

// Adds the values to `bins` [kBins].
void count_values(const at::Tensor& values, double factor, const at::Tensor& bins, const at::Tensor& ones) {
  const at::Tensor flat = values.reshape({-1});
  for (int64_t begin = 0; begin < flat.numel(); begin += kSlice) {
    at::Tensor slice = flat.narrow(0, begin, std::min(kSlice, flat.numel() - begin)).to(bins.device(), at::kFloat);
    if (factor != 1) slice = slice.mul(factor);
    const at::Tensor bin = slice.view(at::kInt).bitwise_right_shift(kDroppedBits).bitwise_and_(kBins - 1);
    bins.index_add_(0, bin, ones.narrow(0, 0, bin.numel()));
  }
}

// The weights as the model multiplies them; those in fp8 as their main parameters.
at::Tensor weights_of(const StateBlock& block) {
  if (!block.in_fp8()) return block.params;
  const at::Tensor wide = at::empty({block.main.numel()}, block.main.values.options().dtype(at::kFloat));
  ops::read_values(block.main, wide);
  return wide;
}

// Cuts off the empty bins on both sides. `bins` are those of one sign; the first four hold zeros.
BinCounts trimmed(const int64_t* bins) {
  int64_t begin = kQuarters, end = kMagnitudes - kQuarters;
  while (begin < end && bins[begin] == 0) ++begin;
  while (end > begin && bins[end - 1] == 0) --end;
  if (begin == end) return {};
  return {static_cast<int>(begin) - kQuarters * kExponentBias, {bins + begin, bins + end}};
}

Histogram histogram_of(const int64_t* bins) {
  Histogram histogram;
  for (const int64_t* sign : {bins, bins + kMagnitudes})
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      histogram.zeros += sign[quarter];
      histogram.non_finite += sign[kMagnitudes - 1 - quarter];
    }
  histogram.positive = trimmed(bins);
  histogram.negative = trimmed(bins + kMagnitudes);
  return histogram;
}

}  // namespace

double bin_edge(int i) {
  const int exponent = static_cast<int>(std::floor(static_cast<double>(i) / kQuarters));
  return std::ldexp(1 + static_cast<double>(i - kQuarters * exponent) / kQuarters, exponent);
}

int64_t Histogram::total() const {
  int64_t total = zeros + non_finite;
  for (const BinCounts* side : {&negative, &positive})
    for (const int64_t count : side->counts) total += count;
  return total;
}

Histograms ValueCounts::read() const {
  const at::Tensor host = counts_.cpu();
  const auto* bins = host.const_data_ptr<int64_t>();
  const auto parts = static_cast<int64_t>(names_.size());
  Histograms histograms;
  for (int64_t part = 0; part < parts; ++part)
    histograms.parts.push_back({.name = names_[static_cast<size_t>(part)],
                                .weights = histogram_of(bins + part * kBins),
                                .gradients = histogram_of(bins + (parts + part) * kBins)});
  return histograms;
}

HistogramCounter::HistogramCounter(const std::vector<StateBlock>& blocks, bool sharded,
                                   const parallel::ParallelContext& context)
    : blocks_(blocks), sharded_(sharded), context_(context) {
  std::string own;  // one name per line
  std::set<std::string> names;
  for (const StateBlock& block : blocks_)
    for (const StatePiece& piece : block.pieces) names.insert(part_name(piece.parameter->spec.name));
  for (const std::string& name : names) own += name + "\n";
  for (const std::string& theirs : context_.world().world().all_gather_bytes(own, "parts of the model"))
    for (const std::string& name : split(theirs, '\n'))
      if (!name.empty()) names.insert(name);
  names_.assign(names.begin(), names.end());
  std::ranges::sort(names_, {}, order_of);
}

size_t HistogramCounter::part_of(const std::string& tensor) const {
  const auto found = std::ranges::find(names_, part_name(tensor));
  check(found != names_.end(), "{} belongs to no part of the model", tensor);
  return static_cast<size_t>(found - names_.begin());
}

// `counts` are those of ValueCounts; `ones` is int64 [kSlice].
void HistogramCounter::add(const StateBlock& block, double loss_scale, const at::Tensor& counts,
                           const at::Tensor& ones) const {
  const at::Tensor weights = weights_of(block);
  for (const StatePiece& piece : block.pieces) {
    if (!piece.counted || !counts_in_model(piece.parameter->spec.expert, sharded_, context_)) continue;
    const auto part = static_cast<int64_t>(part_of(piece.parameter->spec.name));
    const auto count = [&](int64_t kind, const at::Tensor& flat, double factor) {
      const at::Tensor own = flat.narrow(0, piece.begin, piece.end - piece.begin);
      for (const parallel::ShardedTensor& rectangle :
           sharded_range(*piece.parameter, piece.offset, piece.offset + own.numel(), own, "", /*replica=*/0))
        count_values(rectangle.local, factor, counts[kind][part], ones);
    };
    count(0, weights, 1);
    count(1, block.grads, 1 / loss_scale);
  }
}

ValueCounts HistogramCounter::count(double loss_scale) const {
  const at::Tensor counts = at::zeros({2, static_cast<int64_t>(names_.size()), kBins},
                                      at::TensorOptions(at::kLong).device(context_.device()));
  const at::Tensor ones = at::ones({kSlice}, counts.options());
  for (const StateBlock& block : blocks_) add(block, loss_scale, counts, ones);
  context_.world().world().all_reduce(counts, comm::ReduceOp::kSum, "histograms");
  return {names_, counts};
}

}  // namespace megalith::optim
