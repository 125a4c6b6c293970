// A post hook on the parameter's accumulation node runs after every use of the parameter in backward. By then its
// gradient lies in main_grad, which the layer has written, or in value.grad(), where autograd has added it.
#include "megalith/peft/frozen_rows.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace megalith::peft {

namespace {

void zero_rows(const at::Tensor& gradient, const std::vector<FrozenRows::Range>& ranges) {
  if (!gradient.defined()) return;
  const at::NoGradGuard no_grad;
  for (const auto& [first, count] : ranges) gradient.narrow(0, first, count).zero_();
}

}  // namespace

FrozenRows::FrozenRows(nn::Parameter& parameter, std::vector<Range> ranges)
    : accumulator_(torch::autograd::impl::grad_accumulator(parameter.value)) {
  using torch::autograd::variable_list;
  hook_ = accumulator_->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [&parameter, ranges = std::move(ranges)](const variable_list& outputs, const variable_list& /*inputs*/) {
        zero_rows(parameter.value.grad(), ranges);
        if (!parameter.grad.stale) zero_rows(parameter.grad.main_grad, ranges);
        return outputs;
      }));
}

FrozenRows::~FrozenRows() {
  if (accumulator_) accumulator_->del_post_hook(hook_);
}

}  // namespace megalith::peft
