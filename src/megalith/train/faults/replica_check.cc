// Replicas apply the same update to the same numbers, so their parameters must agree to the last bit. A checksum per
// parameter is enough to find a difference, and 16 bytes per parameter are cheap to exchange; the parameters themselves
// are read once, at the bandwidth of the device's memory.
#include "megalith/train/faults/replica_check.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <map>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/comm/world.h"
#include "megalith/nn/parameter/quantized_value.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::train {

namespace {

// Two sums over the bits, int64 [2]: a flipped bit changes the first, two different numbers that swap places the
// second.
at::Tensor bit_sums(const at::Tensor& value) {
  const at::ScalarType words = value.element_size() == 2 ? at::kShort : at::kInt;
  const at::Tensor bits = value.detach().contiguous().flatten().view(words);
  const at::Tensor weighted = bits * at::arange(1, bits.numel() + 1, bits.options().dtype(at::kInt));
  return at::stack({bits.sum(at::kLong), weighted.sum(at::kLong)});
}

// The same over the codes of a weight in 4 or 8 bits, one byte per word, and over its scales.
at::Tensor bit_sums(const nn::QuantizedValue& value, const at::Tensor& like) {
  at::Tensor sums = at::zeros({2}, like.options().dtype(at::kLong).requires_grad(false));
  for (const ops::QuantizedMatrix& part : value.parts)
    for (const at::Tensor& t : ops::tensors_of(part)) sums += bit_sums(t.view(-1).view(at::kByte).to(at::kInt));
  return sums;
}

// Describes which ranks hold which value: "on rank 1 and on ranks 0 and 2". With two replicas nobody can tell which is
// wrong.
std::string sides(const at::Tensor& sums, const comm::Group& replicas) {
  std::map<std::pair<int64_t, int64_t>, std::vector<int>> holders;
  for (int64_t i = 0; i < sums.size(0); ++i)
    holders[{sums[i][0].item<int64_t>(), sums[i][1].item<int64_t>()}].push_back(
        replicas.ranks()[static_cast<size_t>(i)]);
  std::vector<std::string> groups;
  for (const auto& [sum, ranks] : holders)
    groups.push_back(fmt::format("on rank{} {}", ranks.size() == 1 ? "" : "s", list_in_words(ranks)));
  return list_in_words(groups);
}

// One all-gather of 16 bytes per parameter and rank.
void compare(const std::vector<const nn::Parameter*>& parameters, const comm::Group& replicas, int64_t step) {
  if (replicas.size() == 1 || parameters.empty()) return;
  std::vector<at::Tensor> sums;
  for (const nn::Parameter* p : parameters)
    sums.push_back(p->attached.quantized ? bit_sums(*p->attached.quantized, p->value) : bit_sums(p->value));
  const at::Tensor own = at::stack(sums);  // [parameters, 2]
  at::Tensor all = at::empty({replicas.size() * own.size(0), 2}, own.options());
  replicas.all_gather(all, own, "sums of parameters");
  all = all.view({replicas.size(), own.size(0), 2}).cpu();
  for (int64_t i = 0; i < own.size(0); ++i) {
    const at::Tensor one = all.select(1, i);  // [replicas, 2]
    if (one.eq(one[0]).all().item<bool>()) continue;
    throw CommError(fmt::format(
        "after step {} the replicas of {} are not equal: it has {} values, {}. A device, its memory or a link "
        "is broken. Test these machines, and resume from an earlier checkpoint",
        step, parameters[static_cast<size_t>(i)]->spec.name, std::get<0>(at::unique_dim(one, 0)).size(0),
        sides(one, replicas)));
  }
}

}  // namespace

void check_replicas(const model::VirtualModels& models, int64_t step) {
  const at::NoGradGuard no_grad;
  std::vector<const nn::Parameter*> dense, experts;
  for (const nn::Parameter* p : models.parameters()) (p->spec.expert ? experts : dense).push_back(p);
  compare(dense, models.context().dp(/*with_cp=*/true), step);
  compare(experts, models.context().edp(), step);
}

}  // namespace megalith::train
