// Padded, packed and aligned micro-batches of the same samples give the same losses and gradients.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/data/collator.h"
#include "megalith/data/random.h"
#include "megalith/data/sft/packing.h"
#include "tests/model/model_support.h"
#include "tests/support/close.h"

namespace megalith::data {
namespace {

std::vector<Sequence> random_samples(int64_t vocab) {
  RandomStream random(11);
  std::vector<Sequence> samples;
  for (const size_t length : {9U, 4U, 17U, 2U, 12U, 6U}) {
    Sequence sample;
    for (size_t i = 0; i < length; ++i) {
      sample.ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab))));
      sample.labels.push_back(i < length / 3 ? kIgnoredLabel : sample.ids.back());
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

struct Result {
  double loss = 0;
  std::vector<at::Tensor> gradients;
};

// The mean loss of the labelled tokens, and its gradients.
Result run(model::VirtualModels& models, const MicroBatch& batch) {
  for (nn::Parameter* p : models.parameters()) p->value.mutable_grad().reset();
  const at::Tensor losses = models[0].forward({.layout = batch.layout, .ids = batch.ids, .targets = batch.labels});
  const at::Tensor loss = losses.sum() / batch.loss_tokens;
  loss.backward();
  Result result{.loss = loss.item<double>()};
  for (nn::Parameter* p : models.parameters()) result.gradients.push_back(p->value.grad().clone());
  return result;
}

TEST(PackedModel, packing_and_padding_change_nothing) {
  testing::run_model(testing::golden_folder("qwen3"), {}, [](const testing::Rank&, model::VirtualModels& models) {
    const std::vector<Sequence> samples = random_samples(models[0].vocab().size);
    std::vector<Sample> single, packed;
    for (const Sequence& sample : samples) single.push_back({sample, std::nullopt});
    for (const Sequence& row : pack_samples(samples, 24, true, 0).rows) packed.push_back({row, std::nullopt});
    ASSERT_LT(packed.size(), single.size());
    const Result expected = run(models, Collator({}).collate(single));
    const auto expect_same = [&](const MicroBatch& batch, const std::string& what) {
      const Result result = run(models, batch);
      testing::expect_close(result.loss, expected.loss, what);
      for (size_t i = 0; i < result.gradients.size(); ++i)
        testing::expect_close(result.gradients[i], expected.gradients[i], what + ", gradient " + std::to_string(i));
    };
    expect_same(Collator({.padding = Padding::kNone}).collate(single), "without padding");
    expect_same(Collator({.padding = Padding::kFixed, .fixed_length = 40}).collate(single), "fixed length");
    expect_same(Collator({}).collate(packed), "packed");
    expect_same(Collator({.length_multiple = 64}).collate(packed), "packed, filled up");
    expect_same(Collator({.cp = 2, .tp = 4}).collate(packed), "packed, aligned");
  });
}

}  // namespace
}  // namespace megalith::data
