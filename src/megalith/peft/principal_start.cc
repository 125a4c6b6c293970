// A rank holds a rectangle of each weight, and a decomposition needs all of it: the rectangles are summed over tp into
// the whole tensor, which costs one message per weight and run, and one tensor of memory. The alternative, reading
// whole tensors from the files, would not serve weights into which adapters were merged, or random ones.
#include "megalith/peft/principal_start.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/init.h"
#include "megalith/peft/principal_part.h"

namespace megalith::peft {

namespace {

// Returns the rectangle of a whole tensor that a part describes.
at::Tensor rectangle(const at::Tensor& whole, const nn::ParameterPart& part) {
  return whole.narrow(0, part.offset[0], part.extent[0]).narrow(1, part.offset[1], part.extent[1]);
}

// The same rectangle in the value of the parameter.
at::Tensor held(const at::Tensor& value, const nn::ParameterPart& part) {
  return value.narrow(0, part.row, part.extent[0]).narrow(1, 0, part.extent[1]);
}

at::TensorOptions in_fp32(const nn::Parameter& like) {
  return at::TensorOptions(at::kFloat).device(like.value.device());
}

}  // namespace

PrincipalStarts::PrincipalStarts(const std::vector<UpdatedWeight>& updates, comm::Group tp, comm::Group replicas,
                                 int iterations)
    : updates_(updates), tp_(std::move(tp)), replicas_(std::move(replicas)), iterations_(iterations) {
  for (const UpdatedWeight& each : updates_) {
    const auto& a_parts = each.update->a->spec.parts;
    for (size_t a = 0; a < a_parts.size(); ++a) {
      Module module{.of = each, .a = a};
      module.inputs = a_parts[a].global_shape[1];
      for (size_t part = 0; part < each.update->parts.size(); ++part) {
        if (each.update->parts[part].a != a_parts[a].row) continue;
        module.parts.push_back(part);
        module.outputs += tensor_of(module, part).global_shape[0];
      }
      modules_.push_back(std::move(module));
    }
  }
}

const nn::ParameterPart& PrincipalStarts::tensor_of(const Module& module, size_t part) {
  const auto& tensors = module.of.weight->spec.parts;
  const int64_t row = module.of.update->parts[part].out;
  const auto found = std::ranges::find(tensors, row, &nn::ParameterPart::row);
  check(found != tensors.end(), "{} has no tensor at row {}", module.of.weight->spec.name, row);
  return *found;
}

at::Tensor PrincipalStarts::whole(const Module& module) const {
  const nn::Parameter& weight = *module.of.weight;
  at::Tensor all = at::zeros({module.outputs, module.inputs}, in_fp32(weight));
  int64_t row = 0;
  for (const size_t part : module.parts) {
    const nn::ParameterPart& tensor = tensor_of(module, part);
    const int64_t rows = tensor.global_shape[0];
    // One of the ranks that hold the same adds it: a sum with zeros rounds nothing.
    if (weight.spec.replica == 0) rectangle(all.narrow(0, row, rows), tensor).copy_(held(weight.value, tensor));
    row += rows;
  }
  tp_.all_reduce(all, comm::ReduceOp::kSum, "whole weight for PiSSA");
  return all;
}

void PrincipalStarts::decompose(const std::vector<Module>& modules, uint64_t seed) const {
  const int ranks = tp_.size(), me = replicas_.rank() * ranks + tp_.rank();
  PrincipalPart mine;
  for (size_t i = 0; i < modules.size(); ++i) {
    const at::Tensor weight = whole(modules[i]);
    if (static_cast<int>(i) != me) continue;
    const int64_t rank = modules[i].rank(), smaller = std::min(modules[i].outputs, modules[i].inputs);
    at::Tensor random = at::empty({smaller, rank}, at::kFloat);
    nn::fill_normal(random, seed, modules[i].of.update->a->spec.parts[modules[i].a].name, random.sizes(), {0, 0}, 0, 1);
    mine = principal_part(weight, rank, modules[i].scale(), iterations_, random);
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    const int owner = static_cast<int>(i);
    const at::TensorOptions options = in_fp32(*modules[i].of.weight);
    const at::Tensor a =
        owner == me ? mine.a.to(options).contiguous() : at::empty({modules[i].rank(), modules[i].inputs}, options);
    const at::Tensor b =
        owner == me ? mine.b.to(options).contiguous() : at::empty({modules[i].outputs, modules[i].rank()}, options);
    for (const at::Tensor& factor : {a, b}) {
      if (replicas_.rank() == owner / ranks) tp_.broadcast(factor, owner % ranks, "factors of PiSSA");
      replicas_.broadcast(factor, owner / ranks, "factors of PiSSA");
    }
    adopt(modules[i], a, b);
  }
}

void PrincipalStarts::from_weights(uint64_t seed) {
  const at::NoGradGuard no_grad;
  clear();
  const auto at_once = static_cast<size_t>(tp_.size() * replicas_.size());
  for (size_t first = 0; first < modules_.size(); first += at_once) {
    const size_t end = std::min(first + at_once, modules_.size());
    decompose({modules_.begin() + static_cast<long>(first), modules_.begin() + static_cast<long>(end)}, seed);
  }
  keep();
}

void PrincipalStarts::from_files(const hf::TensorMapping& mapping, const hf::WeightFiles& files) {
  const at::NoGradGuard no_grad;
  clear();
  for (const Module& module : modules_) {
    const nn::LowRank& update = *module.of.update;
    const at::TensorOptions options = in_fp32(*module.of.weight);
    const nn::ParameterPart& a_part = update.a->spec.parts[module.a];
    const at::Tensor a = at::empty(a_part.global_shape, options);
    const at::Tensor b = at::empty({module.outputs, module.rank()}, options);
    std::vector<parallel::ShardedTensor> wanted{{a_part.name, a_part.global_shape, {0, 0}, a}};
    int64_t row = 0;
    for (const size_t part : module.parts) {
      const nn::ParameterPart& b_part = update.b->spec.parts[part];
      wanted.push_back({b_part.name, b_part.global_shape, {0, 0}, b.narrow(0, row, b_part.global_shape[0])});
      row += b_part.global_shape[0];
    }
    mapping.read(files, wanted);
    adopt(module, a, b);
  }
  keep();
}

// The product is that of the whole factors, of which the rank keeps a rectangle: the same bits in every layout.
void PrincipalStarts::adopt(const Module& module, const at::Tensor& a, const at::Tensor& b) const {
  const auto& [weight, update] = module.of;
  const at::Tensor product = b.mm(a).mul_(module.scale());
  const nn::ParameterPart& a_part = update->a->spec.parts[module.a];
  held(update->a->value, a_part).copy_(rectangle(a, a_part));
  int64_t row = 0;
  for (const size_t part : module.parts) {
    const nn::ParameterPart &tensor = tensor_of(module, part), &b_part = update->b->spec.parts[part];
    const int64_t rows = tensor.global_shape[0];
    held(update->b->value, b_part).copy_(rectangle(b.narrow(0, row, rows), b_part));
    const at::Tensor value = held(weight->value, tensor);
    value.copy_(at::sub(value.to(at::kFloat), rectangle(product.narrow(0, row, rows), tensor)));
    row += rows;
  }
}

void PrincipalStarts::clear() const {
  for (const UpdatedWeight& each : updates_) {
    each.update->a->value.zero_();
    each.update->b->value.zero_();
  }
}

void PrincipalStarts::keep() {
  factors_.clear();
  for (const UpdatedWeight& each : updates_)
    for (const nn::Parameter* factor : {each.update->a, each.update->b})
      factors_.push_back({factor, factor->value.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true)});
}

}  // namespace megalith::peft
