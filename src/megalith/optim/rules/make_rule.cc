#include "megalith/optim/rules/make_rule.h"

#include "megalith/base/error.h"
#include "megalith/optim/rules/adamw.h"
#include "megalith/optim/rules/sgd.h"

namespace megalith::optim {

namespace {

struct NamedRule {
  config::OptimizerKind name;
  std::shared_ptr<const UpdateRule> (*make)(const config::OptimizerConfig& config);
};

constexpr NamedRule kRules[] = {
    {config::OptimizerKind::kAdam, AdamW::from},
    {config::OptimizerKind::kSgd, Sgd::from},
};

}  // namespace

std::shared_ptr<const UpdateRule> make_rule(const config::OptimizerConfig& config) {
  for (const NamedRule& rule : kRules)
    if (rule.name == config.optimizer) return rule.make(config);
  throw InternalError(fmt::format("optimizer {} has no update rule", config::choice_name(config.optimizer)));
}

}  // namespace megalith::optim
