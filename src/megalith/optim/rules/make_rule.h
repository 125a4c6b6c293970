// The update rules that options can name.
#pragma once

#include <memory>

#include "megalith/config/optimizer_config.h"
#include "megalith/optim/rules/update_rule.h"

namespace megalith::optim {

// The rule that the option `optimizer` names, with its settings. They are not checked: see UpdateRule::problems.
std::shared_ptr<const UpdateRule> make_rule(const config::OptimizerConfig& config);

}  // namespace megalith::optim
