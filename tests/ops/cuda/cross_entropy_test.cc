// Cross entropy over a padded vocabulary: by autograd, and in the form that writes its gradient over the logits.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "megalith/ops/loss/cross_entropy.h"
#include "tests/ops/cuda/kernel_case.h"
#include "tests/support/run_ranks.h"

namespace megalith::ops {
namespace {

using at::Tensor;

TEST_P(CudaKernel, CrossEntropyMatchesTheCpu) {
  const auto worlds = comm::World::in_process(1);
  for (const int64_t vocab : {3, 512, 1001, 50304})
    for (const double smoothing : {0.0, 0.1}) {
      const CrossEntropyOptions options{.label_smoothing = smoothing, .z_loss = 1e-3};
      const int64_t t = 21, padded = vocab + 8 - vocab % 8;
      Tensor labels = at::randint(vocab, {t}, generator_, at::kLong);
      labels[4] = options.ignore_index;
      const auto run = [&](const Tensors& in) {
        return Tensors{cross_entropy(in[0] * 4, in[1], {0, vocab, vocab}, worlds[0]->world(), options)};
      };
      compare({random({t, padded}), labels}, run, fmt::format("vocabulary {}, smoothing {}", vocab, smoothing));
    }
}

TEST_P(CudaKernel, CrossEntropyWithItsGradientMatchesTheCpu) {
  const auto worlds = comm::World::in_process(1);
  for (const int64_t vocab : {3, 1001, 50304, 200003})
    for (const double smoothing : {0.0, 0.1}) {
      const CrossEntropyOptions options{.label_smoothing = smoothing, .z_loss = 1e-3};
      const int64_t t = 21, padded = vocab + 8 - vocab % 8;
      Tensor labels = at::randint(vocab, {t}, generator_, at::kLong);
      labels[4] = options.ignore_index;
      const Tensor logits = random({t, padded}) * 4;
      const auto run = [&](at::Device device) {
        const Tensor x = logits.to(device).clone();
        const Tensor loss =
            cross_entropy_with_grad_(x, labels.to(device), {0, vocab, vocab}, worlds[0]->world(), options, 0.25);
        return Tensors{loss, x};
      };
      const Tensors cpu = run(at::kCPU), cuda = run(at::kCUDA);
      for (size_t i = 0; i < cpu.size(); ++i)
        expect_same(cuda[i], cpu[i], fmt::format("vocabulary {}, smoothing {}, {}", vocab, smoothing, i));
    }
}

}  // namespace
}  // namespace megalith::ops
