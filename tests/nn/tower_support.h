// Shared by the tests of towers, each of which is built from a shape and a tensor-parallel group.
#pragma once

#include "megalith/nn/footprint/footprint_scope.h"
#include "megalith/nn/footprint/rank_sizes.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {

// x Wᵀ + b, by the names in `w`; without a bias where there is none.
inline at::Tensor linear(const at::Tensor& x, const FullTensors& w, const std::string& name) {
  const at::Tensor y = x.mm(w.at(name + ".weight").t());
  return w.contains(name + ".bias") ? y + w.at(name + ".bias") : y;
}

inline FullTensors in_double(const FullTensors& tensors) {
  FullTensors all;
  for (const auto& [name, value] : tensors) all[name] = value.to(at::kDouble);
  return all;
}

// Random values for every parameter, those of norms around 1.
template <typename Tower, typename Shape>
FullTensors random_weights(const Shape& shape) {
  FullTensors weights;
  testing::run_ranks(1, [&](const testing::Rank& r) {
    ParameterSet set(at::kFloat, at::kCPU);
    const Tower tower(ParameterScope(set), shape, {.group = r.world.world()});
    uint64_t seed = 10;
    for (const auto& parameter : set.all())
      for (const auto& part : parameter->spec.parts)
        weights[part.name] =
            random_tensor(part.global_shape, seed++, 0.3) + (part.name.ends_with("norm.weight") ? 1 : 0);
  });
  return weights;
}

// Every rank of a tensor-parallel group holds the whole tower, and has a part of each gradient.
template <typename Tower, typename Shape>
void expect_replicas_on_ranks(const Shape& shape) {
  testing::run_ranks(2, [&](const testing::Rank& r) {
    ParameterSet set(at::kFloat, at::kMeta);
    const Tower tower(ParameterScope(set), shape, {.group = r.world.world()});
    for (const auto& parameter : set.all()) {
      EXPECT_TRUE(parameter->spec.partial_grad_over_tp) << parameter->spec.name;
      EXPECT_FALSE(parameter->spec.split_over_tp) << parameter->spec.name;
      EXPECT_EQ(parameter->spec.replica, r.rank) << parameter->spec.name;
    }
  });
}

// The list of parameters that the planner has is that of the tower.
template <typename Tower, typename Footprint, typename Shape>
void expect_listed(const Shape& shape) {
  testing::run_ranks(1, [&](const testing::Rank& r) {
    ParameterSet set(at::kFloat, at::kMeta);
    const Tower tower(ParameterScope(set), shape, {.group = r.world.world()});
    const Footprint footprint(RankSizes{}, shape, {});
    const ParameterSizes& sizes = footprint.parts().parameters();
    EXPECT_TRUE(sizes.updates.empty());
    ASSERT_EQ(sizes.weights.size(), set.all().size());
    for (size_t i = 0; i < sizes.weights.size(); ++i)
      EXPECT_EQ(sizes.weights[i].numel, set.all()[i]->value.numel()) << set.all()[i]->spec.name;
  });
}

}  // namespace megalith::nn
