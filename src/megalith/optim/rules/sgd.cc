// The kernel is in ops/update; this binds it to the optimizer's flat elements.
#include "megalith/optim/rules/sgd.h"

namespace megalith::optim {

std::vector<std::string> Sgd::problems() const {
  std::vector<std::string> found;
  const bool below_one = settings_.momentum >= 0 && settings_.momentum < 1;  // false for NaN
  require_setting(found, below_one, "sgd_momentum", settings_.momentum, "at least 0 and below 1");
  return found;
}

void Sgd::update(const FlatElements& x, const ops::UpdateScalars& scalars) const {
  ops::sgd_update(
      {.main = x.main, .grad = x.grad, .exp_avg = x.states[0], .exp_avg_sq = {}, .param = x.param, .gate = x.gate},
      settings_, scalars);
}

}  // namespace megalith::optim
