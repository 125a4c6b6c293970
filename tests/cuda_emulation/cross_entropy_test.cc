// The cross entropy kernels on emulated blocks against the CPU's loss: in parts, at once, and in clusters for the
// longest rows. Memory ends exactly where a kernel may read to.
#include "megalith/ops/loss/cross_entropy_internal.h"

#include <limits>

#include "megalith/base/error.h"
#include "tests/cuda_emulation/kernel_case.h"

namespace megalith::ops {
namespace {

constexpr int64_t kIgnore = -100;

struct LogitsCase {
  at::ScalarType dtype;
  int64_t rows, valid, columns, distance;
  bool misaligned = false;
  int64_t first_id = 0;  // other than 0: of a rank that has a part of the vocabulary
  double shift = 0;      // added to all logits
};

class Logits {
 public:
  explicit Logits(const LogitsCase& c) : case_(c) {
    Random random;
    // A row after the last one would start beyond the end.
    const int64_t elements = c.rows == 0 ? 0 : (c.rows - 1) * c.distance + c.columns;
    logits_ = random({elements}, c.dtype, c.misaligned).mul_(3).add_(c.shift);
    labels_ = random.integers(c.valid, {c.rows});
    if (c.first_id > 0) labels_ += at::arange(c.rows, at::kLong).remainder(2) * c.first_id;
    if (c.rows > 2) labels_[1] = kIgnore;
    grads_ = random({c.rows});
  }

  LogitRows rows() const {
    return {case_.dtype,    case_.rows,       case_.columns,  case_.valid,
            case_.distance, numbers(labels_), case_.first_id, kIgnore};
  }
  std::string name() const {
    return fmt::format("{} rows, {} of {} columns, {} apart", case_.rows, case_.valid, case_.columns, case_.distance);
  }
  Tensor labels() const { return labels_; }
  Tensor logits() const { return logits_; }

  Tensors statistics(bool with_total, bool cuda, void* stream) const {
    const auto result = [&] { return unset({case_.rows}, at::kFloat); };
    const Tensor max = result(), sum = result(), target = result(), total = with_total ? result() : Tensor();
    const LogitStats stats{out(max), out(sum), out(target), out(total)};
    cuda ? logit_stats_cuda(rows(), in(logits_), stats, stream) : logit_stats_cpu(rows(), in(logits_), stats);
    return {max, sum, target, total};
  }
  // From the CPU's statistics: log Σ exp, losses.
  Tensors losses(const LossWeights& weights, bool cuda, void* stream) const {
    const Tensors found = statistics(weights.off_target != 0, false, nullptr);
    const LogitStats stats{out(found[0]), out(found[1]), out(found[2]), out(found[3])};
    const Tensor lse = unset({case_.rows}, at::kDouble), loss = unset({case_.rows}, at::kFloat);
    cuda ? losses_cuda(rows(), stats, weights, lse.mutable_data_ptr<double>(), out(loss), stream)
         : losses_cpu(rows(), stats, weights, lse.mutable_data_ptr<double>(), out(loss));
    return {lse, loss};
  }
  Tensors grads(const Tensor& grad_loss, const LossWeights& weights, bool cuda, void* stream) const {
    const Tensor lse = losses(weights, false, nullptr)[0], x = copy();
    const auto* sums = lse.const_data_ptr<double>();
    cuda ? logit_grads_cuda(rows(), out(x), sums, in(grad_loss), weights, stream)
         : logit_grads_cpu(rows(), out(x), sums, in(grad_loss), weights);
    return {x};
  }
  Tensors at_once(double grad, const LossWeights& weights, void* stream) const {
    const Tensor x = copy(), loss = unset({case_.rows}, at::kFloat);
    losses_and_grads_cuda(rows(), out(x), grad, weights, out(loss), stream);
    return {loss, x};
  }
  Tensors at_once_cpu(double grad, const LossWeights& weights) const {
    return {losses(weights, false, nullptr)[1],
            grads(at::full({case_.rows}, grad, at::kFloat), weights, false, nullptr)[0]};
  }
  Tensor grad_loss() const { return grads_; }

 private:
  Tensor copy() const { return block_of(logits_.sizes(), case_.dtype, case_.misaligned).copy_(logits_); }

  const LogitsCase case_;
  Tensor logits_, labels_, grads_;
};

const std::vector<LossWeights> kWeights{{}, {0.9, 1e-4, 1e-3}};

// Vectors and single elements, padding, rows apart from each other, columns of other ranks, no rows.
const std::vector<LogitsCase> kLogitsCases{{at::kFloat, 5, 3, 8, 8},
                                           {at::kFloat, 3, 1024, 1024, 1028},
                                           {at::kFloat, 3, 1001, 1004, 1004},
                                           {at::kFloat, 3, 1001, 1003, 1003},
                                           {at::kFloat, 1, 64, 64, 64, true},
                                           {at::kFloat, 0, 8, 8, 8},
                                           {at::kBFloat16, 3, 1001, 1008, 1008},
                                           {at::kBFloat16, 3, 77, 77, 77},
                                           {at::kHalf, 3, 512, 512, 512}};

TEST(CudaCrossEntropy, InParts) {
  auto cases = kLogitsCases;
  cases.push_back({at::kFloat, 6, 500, 512, 512, false, 500});
  cases.push_back({at::kBFloat16, 6, 500, 512, 512, false, 500});
  for (const LogitsCase& c : cases) {
    const Logits logits(c);
    for (const bool total : {false, true})
      expect_twin([&](void* stream) { return logits.statistics(total, true, stream); },
                  [&] { return logits.statistics(total, false, nullptr); }, "statistics, " + logits.name());
    for (const LossWeights& weights : kWeights) {
      expect_twin([&](void* stream) { return logits.losses(weights, true, stream); },
                  [&] { return logits.losses(weights, false, nullptr); }, "losses, " + logits.name());
      expect_twin([&](void* stream) { return logits.grads(logits.grad_loss(), weights, true, stream); },
                  [&] { return logits.grads(logits.grad_loss(), weights, false, nullptr); }, "grads, " + logits.name());
    }
  }
}

void expect_at_once(const std::vector<LogitsCase>& cases) {
  for (const LogitsCase& c : cases) {
    const Logits logits(c);
    for (const LossWeights& weights : kWeights)
      expect_twin([&](void* stream) { return logits.at_once(0.25, weights, stream); },
                  [&] { return logits.at_once_cpu(0.25, weights); }, "at once, " + logits.name());
  }
}

TEST(CudaCrossEntropy, AtOnce) { expect_at_once(kLogitsCases); }

// Rows that are so long that a multiprocessor may have one only.
TEST(CudaCrossEntropy, AtOnceOfTheLongestRows) { expect_at_once({{at::kBFloat16, 1, 2100001, 2100008, 2100008}}); }

// Clusters of 2, 4 and 8 blocks by the bytes of a row, the least and the most of each.
TEST(CudaCrossEntropy, Clusters) {
  expect_at_once({{at::kFloat, 3, 4096, 4096, 4096},
                  {at::kFloat, 3, 5000, 5004, 5008},
                  {at::kFloat, 3, 5000, 5003, 5008, false, 0, 90},
                  {at::kFloat, 3, 5000, 5000, 5000, false, 0, -90},
                  {at::kBFloat16, 3, 8192, 8200, 8200},
                  {at::kBFloat16, 3, 8200, 8200, 8200, false, 0, 90},
                  {at::kBFloat16, 4, 50304, 50304, 50304},
                  {at::kHalf, 3, 65536, 65541, 65544}});
  expect_at_once({{at::kFloat, 3, 40000, 40004, 40008},
                  {at::kBFloat16, 3, 65544, 65544, 65544},
                  {at::kHalf, 3, 131072, 131072, 131072}});
  expect_at_once({{at::kFloat, 3, 65540, 65540, 65540},
                  {at::kFloat, 1, 196608, 196608, 196608},
                  {at::kBFloat16, 3, 131080, 131084, 131088},
                  {at::kHalf, 3, 151936, 151936, 151936}});
}

TEST(CudaCrossEntropy, ClustersOfMaskedLogits) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const int64_t valid = 40000;
    const Logits logits({dtype, 2, valid, valid, valid});
    logits.labels().remainder_(valid / 2);
    logits.logits().view({2, valid}).slice(1, valid / 2).fill_(-std::numeric_limits<double>::infinity());
    expect_twin([&](void* stream) { return logits.at_once(0.25, {}, stream); },
                [&] { return logits.at_once_cpu(0.25, {}); }, "masked");
  }
}

TEST(CudaCrossEntropy, ALabelOutsideTheVocabulary) {
  for (const int64_t valid : {64, 4096, 40000, 131072}) {
    const Logits logits({at::kFloat, 3, valid, valid, valid});
    logits.labels()[2] = valid;
    EXPECT_THROW(logits.at_once(1, {}, nullptr), InternalError);
  }
}

}  // namespace
}  // namespace megalith::ops
