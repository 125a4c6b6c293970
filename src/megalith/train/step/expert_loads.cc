#include "megalith/train/step/expert_loads.h"

#include <ATen/ATen.h>

#include "megalith/model/virtual_models.h"

namespace megalith::train {

// Called in every step, so it must not touch the device: it keeps references to the routers' counters, and only take(),
// which runs when the dashboard's file is written, sums and reads them. A router without tokens counts as zeros, so
// that all ranks have the same shapes.
void ExpertLoads::note() {
  noted_.clear();
  const auto options = at::dtype(at::kFloat).device(models_.context().device());
  for (const auto& chunk : models_)
    for (const auto& place : chunk->routers()) {
      const nn::Router& router = *place.router;
      const at::Tensor& load = router.statistics().load;
      noted_.emplace_back(place.layer, load.defined() ? load : at::zeros({router.shape().experts}, options));
    }
}

std::vector<ExpertLoad> ExpertLoads::take() const {
  std::vector<ExpertLoad> loads;
  if (noted_.empty()) return loads;  // all ranks of a stage agree on this
  std::vector<at::Tensor> own_loads;
  for (const auto& [layer, load] : noted_) own_loads.push_back(load);
  const at::Tensor all = at::stack(own_loads);
  const comm::Group group = models_.context().group(layout::GroupKind::kTpDpCp);
  group.all_reduce(all, comm::ReduceOp::kSum, "load of the experts, to be shown");
  if (group.rank() != 0) return loads;
  const at::Tensor read = all.to(at::kCPU);
  const int64_t experts = read.size(1);
  const float* values = read.const_data_ptr<float>();
  for (size_t i = 0; i < noted_.size(); ++i) {
    const float* row = values + static_cast<int64_t>(i) * experts;
    loads.push_back({noted_[i].first, {row, row + experts}});
  }
  return loads;
}

}  // namespace megalith::train
