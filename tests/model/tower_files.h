// Reads the tensors of a tower alone, without the model around it.
#pragma once

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/hf/weight_files.h"
#include "megalith/nn/parameter/parameter.h"

namespace megalith::testing {

// Copies a tower's tensors out of the files, in which their names begin with `prefix`. Every tensor with it is read
// once.
inline void load_tower(const nn::ParameterSet& set, std::vector<hf::NameRule> rules, const std::string& prefix,
                       const hf::WeightFiles& files) {
  const at::NoGradGuard no_grad;
  std::vector<hf::GlobalTensor> tensors;
  std::vector<parallel::ShardedTensor> parts;
  for (const auto& parameter : set.all())
    for (const auto& part : parameter->sharded()) {
      tensors.push_back({part.name, part.global_shape});
      parts.push_back(part);
    }
  const hf::TensorMapping mapping({.rules = std::move(rules)}, tensors);
  mapping.check_stored(files);
  mapping.read(files, parts);
  const auto stored =
      std::ranges::count_if(files.names(), [&](const std::string& name) { return name.starts_with(prefix); });
  EXPECT_EQ(std::ssize(mapping.files()), stored);
}

}  // namespace megalith::testing
