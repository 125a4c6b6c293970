// Options of the update rule, the gradient buffers and loss scaling as settings of module `optim`, which knows no
// options.
#include "megalith/run/resolve/optimizer_settings.h"

#include <cmath>

#include "megalith/base/error.h"
#include "megalith/optim/rules/adamw.h"
#include "megalith/optim/rules/lion.h"
#include "megalith/optim/rules/muon.h"
#include "megalith/optim/rules/sgd.h"
#include "megalith/run/resolve/model_settings.h"

namespace megalith::run {

namespace {

using RulePtr = std::shared_ptr<const optim::UpdateRule>;

// An update rule is chosen by a table and not by a switch: a new one is a row.
struct NamedRule {
  config::OptimizerKind name;
  RulePtr (*make)(const config::OptimizerConfig& options);
};

// The update rules that options can name, each with the options that are its settings.
constexpr NamedRule kRules[] = {
    {config::OptimizerKind::kAdam,
     [](const config::OptimizerConfig& options) -> RulePtr {
       return std::make_shared<optim::AdamW>(ops::AdamSettings{
           .beta1 = options.adam_beta1, .beta2 = options.adam_beta2, .epsilon = options.adam_epsilon});
     }},
    {config::OptimizerKind::kSgd,
     [](const config::OptimizerConfig& options) -> RulePtr {
       return std::make_shared<optim::Sgd>(ops::SgdSettings{.momentum = options.sgd_momentum});
     }},
    {config::OptimizerKind::kLion,
     [](const config::OptimizerConfig& options) -> RulePtr {
       return std::make_shared<optim::Lion>(
           optim::LionSettings{.beta1 = options.lion_beta1, .beta2 = options.lion_beta2});
     }},
};

// The rule that updates what Muon does not.
config::OptimizerKind scalar_rule(const config::MuonConfig& muon) {
  return muon.scalar_optimizer == config::ScalarOptimizer::kLion ? config::OptimizerKind::kLion
                                                                 : config::OptimizerKind::kAdam;
}

std::shared_ptr<const optim::Muon> make_muon(const config::MuonConfig& muon) {
  return std::make_shared<optim::Muon>(optim::MuonSettings{.momentum = muon.momentum,
                                                           .nesterov = muon.nesterov,
                                                           .split_qkv = muon.split_qkv,
                                                           .scale = muon.scale_mode,
                                                           .extra_scale = muon.extra_scale_factor,
                                                           .tp_mode = muon.tp_mode,
                                                           .coefficients = muon.coefficient_type,
                                                           .steps = muon.num_ns_steps,
                                                           .fp32_products = muon.fp32_matmul_prec != "medium"});
}

// The values of exp_avg_dtype and its siblings.
at::ScalarType format_of(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  return name == "fp8" ? at::kFloat8_e4m3fn : at::kFloat;
}

optim::StateFormats state_formats(const config::OptimizerConfig& optimizer) {
  if (!optimizer.use_precision_aware_optimizer) return {};
  optim::StateFormats formats{.main = format_of(optimizer.main_params_dtype), .remainders = true};
  for (const auto& [state, name] :
       {std::pair{"exp_avg", optimizer.exp_avg_dtype}, {"exp_avg_sq", optimizer.exp_avg_sq_dtype}})
    if (name != "fp32") formats.states[state] = format_of(name);
  return formats;
}

// Without either option `optim` chooses by device and data-parallel size.
optim::BucketSize bucket_size(const config::DdpConfig& ddp) {
  if (ddp.num_buckets) return optim::BucketSize::count(*ddp.num_buckets);
  if (ddp.bucket_size) return optim::BucketSize::elements(*ddp.bucket_size);
  return {};
}

}  // namespace

std::shared_ptr<const optim::UpdateRule> make_rule(config::OptimizerKind name, const config::OptimizerConfig& options) {
  for (const NamedRule& rule : kRules)
    if (rule.name == name) return rule.make(options);
  throw InternalError(fmt::format("optimizer {} has no update rule", config::choice_name(name)));
}

optim::OptimizerSettings optimizer_settings(const config::OptimizerConfig& optimizer, const config::MuonConfig& muon) {
  const bool with_muon = optimizer.optimizer == config::OptimizerKind::kMuon;
  optim::OptimizerSettings settings;
  settings.rule = make_rule(with_muon ? scalar_rule(muon) : optimizer.optimizer, optimizer);
  if (with_muon) settings.muon = make_muon(muon);
  settings.clip_grad = optimizer.max_grad_norm;
  settings.offload_fraction = optimizer.cpu_offload ? optimizer.offload_fraction : 0;
  settings.groups.decoupled_lr = optimizer.decoupled_lr.has_value();
  settings.groups.decay_qk_norms = optimizer.apply_wd_to_qk_layernorm;
  settings.formats = state_formats(optimizer);
  return settings;
}

optim::DdpSettings ddp_settings(const config::TrainingArguments& args) {
  const config::DdpConfig& ddp = args.ddp;
  optim::DdpSettings settings;
  settings.use_distributed_optimizer = args.optimizer.use_distributed_optimizer;
  settings.matrices_apart = args.optimizer.optimizer == config::OptimizerKind::kMuon;
  settings.overlap_grad_reduce = ddp.overlap_grad_reduce;
  settings.average_in_collective = ddp.average_in_collective;
  settings.per_token_loss = ddp.calculate_per_token_loss;
  // fp16 with a dynamic scale meets infinities by design: the optimizer skips those steps.
  settings.check_for_nan = ddp.check_for_nan_in_loss_and_grad && !args.precision.fp16;
  settings.pad_buckets_for_bandwidth = ddp.pad_buckets_for_high_nccl_busbw;
  settings.bucket_size = bucket_size(ddp);
  if (args.precision.grad_reduce_in_bf16 || args.optimizer.main_grads_dtype == "bf16")
    settings.grad_dtype = at::kBFloat16;
  if (args.precision.fp8_param) settings.fp8_params = fp8_recipe(args.precision);
  // The planner and reports see the settings of the first chunk; OptimizedModel makes those of the others.
  return optim::settings_of_chunk(settings, /*chunk=*/0);
}

// Only fp16 needs a scale other than 1.
optim::GradScaler grad_scaler(const config::PrecisionConfig& precision) {
  if (!precision.fp16) return optim::GradScaler::constant(1);
  if (precision.loss_scale) return optim::GradScaler::constant(*precision.loss_scale);
  const double window = precision.loss_scale_window;
  check<ConfigError>(window == std::floor(window) && window >= 1 && window <= 1e15,
                     "loss_scale_window is {}; it must be a whole number of steps, 1 or more", window);
  return optim::GradScaler::dynamic({.initial_scale = precision.initial_loss_scale,
                                     .min_scale = precision.min_loss_scale,
                                     .growth_interval = static_cast<int64_t>(window),
                                     .hysteresis = precision.hysteresis});
}

}  // namespace megalith::run
