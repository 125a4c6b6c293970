// Weights in memory: every supported golden model, against the tensors of its files.
#include "megalith/model/exchange/weights_in_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "megalith/hf/weight_files.h"
#include "megalith/model/adapter.h"
#include "tests/model/model_support.h"
#include "tests/model/random_adapter.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, at::Tensor>;

Tensors of_files(const fs::path& folder) {
  const hf::WeightFiles files(folder);
  Tensors tensors;
  for (const std::string& name : files.names()) tensors[name] = files.tensor(name);
  return tensors;
}

Tensors all_of(model::WeightStream& stream) {
  Tensors tensors;
  while (auto batch = stream.next())
    for (const auto& [name, tensor] : *batch) EXPECT_TRUE(tensors.emplace(name, tensor).second) << name;
  return tensors;
}

void expect_equal(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(actual.contains(name)) << name;
    expect_identical(actual.at(name), tensor, name);
  }
}

class WeightsInMemory : public ::testing::TestWithParam<std::string> {
 protected:
  fs::path source() const { return golden_folder(GetParam()); }
};

TEST_P(WeightsInMemory, EveryRankGetsTheTensorsOfTheFiles) {
  const Tensors expected = of_files(source());
  for (const int tp : tp_sizes(source()))
    run_model(source(), {.tp = tp, .dp = 2}, [&](const Rank&, model::VirtualModels& models) {
      model::WeightStream stream(models, {.batch_bytes = 30'000});
      expect_equal(all_of(stream), expected);
    });
}

TEST_P(WeightsInMemory, WhatIsSetComesOut) {
  Tensors changed = of_files(source());
  std::vector<model::GivenWeight> given;
  for (auto& [name, tensor] : changed) {
    tensor = tensor.mul(0.5).add(1);
    given.push_back({name, tensor.sizes().vec(), {{std::vector<int64_t>(tensor.sizes().size(), 0), tensor}}});
  }
  run_model(source(), {.tp = tp_sizes(source()).size() > 1 ? 2 : 1}, [&](const Rank&, model::VirtualModels& models) {
    const model::GivenNames names = model::set_weights(models, given, /*strict=*/true);
    EXPECT_TRUE(names.missing.empty() && names.unexpected.empty());
    model::WeightStream stream(models, {});
    const Tensors found = all_of(stream);
    expect_equal(found, changed);
  });
}

// Shards alone put the model together again, with what one rank holds and nothing else.
TEST_P(WeightsInMemory, ShardsGoBackToWhereTheyCameFrom) {
  const Tensors expected = of_files(source());
  run_model(source(), {.tp = tp_sizes(source()).size() > 1 ? 2 : 1}, [&](const Rank&, model::VirtualModels& models) {
    std::map<std::string, model::GivenWeight> given;
    for (const model::WeightShard& shard : model::weight_shards(models)) {
      model::GivenWeight& weight =
          given.emplace(shard.name, model::GivenWeight{shard.name, shard.shape, {}}).first->second;
      weight.pieces.push_back({shard.offset, shard.tensor.clone()});
    }
    for (const nn::Parameter* parameter : models.parameters()) parameter->value.detach().zero_();
    std::vector<model::GivenWeight> list;
    for (const auto& [name, weight] : given) list.push_back(weight);
    model::set_weights(models, list, /*strict=*/false);
    model::WeightStream stream(models, {});
    expect_equal(all_of(stream), expected);
  });
}

// A stream of one adapter fills another, in any layout, and leaves the base alone.
TEST_P(WeightsInMemory, AnAdapterGoesIntoAnother) {
  const model::ModelConfig config = model::read_model_config(source());
  const TempFolder temp;
  const peft::AdapterConfig adapter = everything(config, /*embedding=*/true);
  write_random_adapter(source(), temp / "adapter", adapter);
  const int tp = splits_over_two(source()) ? 2 : 1;
  run_ranks(tp, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = r.size, .tp = tp}));
    model::ModelSettings settings;
    settings.options.sequence_parallel = tp > 1;
    const auto random = model::with_adapter(source(), settings, context, {.trained = temp / "adapter"});
    const auto fresh = model::with_adapter(source(), settings, context, {.fresh = adapter});
    model::WeightStream stream(random, {.of = model::WeightsOf::kAdapter});
    const Tensors expected = all_of(stream);
    std::vector<model::GivenWeight> given;
    for (const auto& [name, tensor] : expected)
      given.push_back({name, tensor.sizes().vec(), {{std::vector<int64_t>(tensor.sizes().size(), 0), tensor}}});
    model::set_weights(fresh, given, /*strict=*/true, model::WeightsOf::kAdapter);
    model::WeightStream again(fresh, {.of = model::WeightsOf::kAdapter});
    expect_equal(all_of(again), expected);
    model::WeightStream base(fresh, {.of = model::WeightsOf::kBase});
    expect_equal(all_of(base), of_files(source()));
    given.pop_back();
    expect_error<DataError>([&] { model::set_weights(fresh, given, true, model::WeightsOf::kAdapter); },
                            {"missing: " + expected.rbegin()->first});
  });
}

INSTANTIATE_TEST_SUITE_P(, WeightsInMemory, ::testing::ValuesIn(supported_golden_models()),
                         golden_test_name<::testing::TestParamInfo<std::string>>);
INSTANTIATE_TEST_SUITE_P(Media, WeightsInMemory, ::testing::ValuesIn(supported_media_models()),
                         golden_test_name<::testing::TestParamInfo<std::string>>);

TEST(WeightsInMemoryErrors, APartThatNobodyHasIsNamed) {
  const fs::path folder = golden_folder("llama");
  const at::Tensor norm = of_files(folder).at("model.norm.weight");
  run_model(folder, {}, [&](const Rank&, model::VirtualModels& models) {
    const model::GivenWeight half{"model.norm.weight", norm.sizes().vec(), {{{1}, norm.slice(0, 1)}}};
    expect_error<DataError>([&] { model::set_weights(models, {half}, false); }, {"model.norm.weight: this rank holds"});
  });
}

}  // namespace
}  // namespace megalith::testing
