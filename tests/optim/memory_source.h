// Optimizer state as a checkpoint holds it, in memory.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "megalith/optim/optimizer.h"

namespace megalith::testing {

// Saved state as whole tensors, as a checkpoint holds it: every rank of one run fills it in, any other reads it.
class MemorySource : public optim::StateSource {
 public:
  void save(const std::vector<parallel::ShardedTensor>& state) {
    const std::lock_guard lock(mutex_);
    for (const auto& part : state) {
      at::Tensor& whole = tensors_.try_emplace(part.name, at::full(part.global_shape, NAN, at::kFloat)).first->second;
      if (part.replica == 0) place(whole, part).copy_(part.data());
    }
  }
  std::string name() const override { return "memory"; }
  std::vector<Tensor> tensors() const override {
    std::vector<Tensor> all;
    for (const auto& [name, tensor] : tensors_) all.push_back({name, tensor.sizes().vec()});
    return all;
  }
  void read(const parallel::ShardedTensor& wanted) const override {
    wanted.local.copy_(place(tensors_.at(wanted.name), wanted));
  }
  std::map<std::string, at::Tensor>& whole() { return tensors_; }

 private:
  static at::Tensor place(const at::Tensor& whole, const parallel::ShardedTensor& part) {
    at::Tensor view = whole;
    for (int64_t d = 0; d < whole.dim(); ++d)
      view = view.narrow(d, part.offset[static_cast<size_t>(d)], part.local.size(d));
    return view;
  }
  std::mutex mutex_;
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace megalith::testing
