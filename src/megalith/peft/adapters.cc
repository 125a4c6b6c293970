// How A and B of a weight are laid out.
//
// A weight may hold several tensors of the files (q, k and v), and a grouped weight those of all local experts. Only
// some of these may be targets. One LowRank covers the whole weight, so that its layer runs two products whatever it
// fuses:
//
//   A  [groups · modules · r, i]   r rows per targeted module; tensors that the files keep in one module share them
//   B  [groups · rows, r]          rows of the targets, target by target, each with the rows of all groups
//
// r is the largest rank among the modules of the weight (rank_pattern). A smaller one leaves its last rows of A and
// columns of B at zero; their gradients are products of each other, so they stay zero.
//
// With use_dora the magnitudes are [rows] in the order of B, split and replicated like B.
//
// Tensor parallelism follows the weight: a column-parallel weight has a replicated A and a split B, a row-parallel one
// a split A and a replicated B. A replicated factor sees only a part of the outputs or tokens, so its gradient is a
// partial sum over tp (partial_grad_over_tp).
#include "megalith/peft/adapters.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/dora.h"
#include "megalith/peft/names.h"
#include "megalith/peft/targets.h"

namespace megalith::peft {

using nn::LowRank;
using nn::Parameter;
using nn::ParameterPart;
using nn::ParameterRole;
using nn::ParameterSpec;
using nn::WeightUse;

namespace {

// Grouped weights hold the matrices of all local experts, one below the other.
bool is_grouped(WeightUse use) { return use == WeightUse::kGroupedColumn || use == WeightUse::kGroupedRow; }
bool splits_outputs(WeightUse use) { return use == WeightUse::kColumn || use == WeightUse::kGroupedColumn; }
bool splits_inputs(WeightUse use) { return use == WeightUse::kRow || use == WeightUse::kGroupedRow; }

// The tensors of a weight that have an update. For a grouped weight these are the tensors of one expert; all experts
// have the same.
struct Targets {
  struct Part {
    size_t number;      // among the tensors of a group
    int64_t module;     // among the targeted modules of a group
    int64_t out, rows;  // first output row in the group, and number of rows
    int64_t rank;
    double scale;
  };
  int64_t groups = 1;
  size_t parts_a_group = 1;  // tensors per group
  std::vector<Part> parts;
  int64_t modules = 0;
  int64_t rank() const { return std::ranges::max_element(parts, {}, &Part::rank)->rank; }
  int64_t rows() const {
    int64_t sum = 0;
    for (const Part& part : parts) sum += part.rows;
    return sum;
  }
};

// Finds the targets of a weight. The tensors of one expert are those whose names have the same numbers as the first.
Targets targets_of(const Parameter& weight, const hf::NameMap& names, const AdapterConfig& config) {
  Targets targets;
  targets.parts_a_group = weight.spec.parts.size();
  if (is_grouped(weight.spec.use)) {
    const auto numbers = hf::pattern_of(weight.spec.parts[0].name).numbers;
    targets.parts_a_group = static_cast<size_t>(std::ranges::count_if(
        weight.spec.parts, [&](const ParameterPart& part) { return hf::pattern_of(part.name).numbers == numbers; }));
    targets.groups = static_cast<int64_t>(weight.spec.parts.size() / targets.parts_a_group);
  }
  const int64_t group_rows = weight.value.size(0) / targets.groups;
  std::string last;
  for (size_t i = 0; i < targets.parts_a_group; ++i) {
    const auto update = update_of(names, weight.spec.parts[i].name, config);
    if (!update) continue;
    if (update->module != last) ++targets.modules;
    last = update->module;
    const int64_t end = i + 1 < targets.parts_a_group ? weight.spec.parts[i + 1].row : group_rows;
    targets.parts.push_back({i, targets.modules - 1, weight.spec.parts[i].row, end - weight.spec.parts[i].row,
                             update->rank, update->scale});
  }
  // One grouped product serves all experts, so they must have the same targets.
  for (size_t i = targets.parts_a_group; i < weight.spec.parts.size(); ++i) {
    const auto update = update_of(names, weight.spec.parts[i].name, config);
    const auto first = std::ranges::find(targets.parts, i % targets.parts_a_group, &Targets::Part::number);
    const bool wanted = first != targets.parts.end();
    check<ConfigError>(wanted == update.has_value(), "lora_target names {} of some experts; name it of all or of none",
                       module_of(names, weight.spec.parts[i].name));
    check<ConfigError>(!wanted || (update->rank == first->rank && update->scale == first->scale),
                       "rank_pattern or alpha_pattern names {} of some experts; name it of all or of none",
                       module_of(names, weight.spec.parts[i].name));
  }
  return targets;
}

// Describes A, [groups · modules · r, i]: replicated, or split along the inputs like its weight.
ParameterSpec make_a(const ParameterSpec& weight, const Targets& targets) {
  ParameterSpec a{.name = a_name(weight.name)};
  for (int64_t group = 0; group < targets.groups; ++group) {
    int64_t made = 0;
    for (const Targets::Part& target : targets.parts) {
      if (target.module < made) continue;  // shares the A of the tensor before it
      const ParameterPart& part = weight.parts[static_cast<size_t>(group) * targets.parts_a_group + target.number];
      const int64_t inputs = part.global_shape[1], rank = target.rank;
      const int64_t row = (group * targets.modules + made++) * targets.rank();
      if (splits_inputs(weight.use))
        a.parts.push_back({a_name(part.name), {rank, inputs}, {0, part.offset[1]}, {rank, part.extent[1]}, row});
      else
        a.parts.push_back({a_name(part.name), {rank, inputs}, {0, 0}, {rank, inputs}, row});
    }
  }
  return a;
}

// Describes B: the rows of the targets, one target after the other, each with the rows of all groups.
ParameterSpec make_b(const ParameterSpec& weight, const Targets& targets, LowRank& update) {
  ParameterSpec b{.name = b_name(weight.name)};
  int64_t row = 0;
  for (const Targets::Part& target : targets.parts) {
    update.parts.push_back(
        {.out = target.out, .rows = target.rows, .a = target.module * targets.rank(), .b = row, .scale = target.scale});
    const int64_t rank = target.rank;
    for (int64_t group = 0; group < targets.groups; ++group, row += target.rows) {
      const ParameterPart& part = weight.parts[static_cast<size_t>(group) * targets.parts_a_group + target.number];
      b.parts.push_back(
          {b_name(part.name), {part.global_shape[0], rank}, {part.offset[0], 0}, {part.extent[0], rank}, row});
    }
  }
  return b;
}

// Describes the magnitudes of a weight that is not grouped, [rows] in the order of B.
ParameterSpec make_magnitudes(const ParameterSpec& weight, const Targets& targets) {
  ParameterSpec m{.name = m_name(weight.name), .init = nn::Init::ones()};
  int64_t row = 0;
  for (const Targets::Part& target : targets.parts) {
    const ParameterPart& part = weight.parts[target.number];
    m.parts.push_back({m_name(part.name), {part.global_shape[0]}, {part.offset[0]}, {part.extent[0]}, row});
    row += target.rows;
  }
  return m;
}

// peft has magnitudes for linear layers and embeddings alone; here linear layers have them.
void check_can_have_magnitudes(const Parameter& weight, const std::string& module) {
  const WeightUse use = weight.spec.use;
  check<ConfigError>(use == WeightUse::kColumn || use == WeightUse::kRow || use == WeightUse::kReplicated,
                     "use_dora works for linear layers, but {} is one of {}; leave it out of lora_target (all includes"
                     " experts), or leave out use_dora",
                     module,
                     use == WeightUse::kLookup   ? "the embeddings"
                     : use == WeightUse::kRouter ? "the routers and gates"
                                                 : "the experts");
  check<ConfigError>(!weight.attached.in_fp8, "use_dora does not work with fp8, in which {} is multiplied here",
                     module);
}

// peft decomposes linear layers alone: experts are parts of one tensor there. A matrix has no more singular values than
// its smaller side.
void check_can_start(const Parameter& weight, const Targets& targets, const hf::NameMap& names) {
  for (const Targets::Part& first : targets.parts) {
    const std::string module = module_of(names, weight.spec.parts[first.number].name);
    const WeightUse use = weight.spec.use;
    check<ConfigError>(use == WeightUse::kColumn || use == WeightUse::kRow || use == WeightUse::kReplicated,
                       "pissa_init works for linear layers, but {} is one of {}; leave it out of lora_target (all"
                       " includes experts), or leave out pissa_init",
                       module, use == WeightUse::kRouter ? "the routers and gates" : "the experts");
    int64_t outputs = 0;
    for (const Targets::Part& part : targets.parts)
      if (part.module == first.module) outputs += weight.spec.parts[part.number].global_shape[0];
    const int64_t most = std::min(outputs, weight.spec.parts[first.number].global_shape[1]);
    check<ConfigError>(first.rank <= most,
                       "lora_rank is {}, and {} has {} singular values; with pissa_init set lora_rank to {} or less,"
                       " or leave the module out of lora_target",
                       first.rank, module, most, most);
  }
}

// rows += scale · b a, then rows *= factors [rows] if these are defined; computed in fp32 and rounded once.
void add_update(const at::Tensor& rows, const at::Tensor& b, const at::Tensor& a, double scale,
                const at::Tensor& factors = {}) {
  const at::Tensor sum = at::addmm(rows.to(at::kFloat), b.to(at::kFloat), a.to(at::kFloat), 1, scale);
  if (factors.defined()) sum.mul_(factors.unsqueeze(1));
  rows.copy_(sum);
}

}  // namespace

Adapters::Adapters(AdapterConfig config, hf::NameMap names, nn::TensorParallel tp, parallel::ParallelContext& context)
    : config_(std::move(config)), names_(std::move(names)), tp_(std::move(tp)), context_(context) {}

Adapters::~Adapters() {
  frozen_rows_.clear();
  for (const Before& before : before_) {
    before.parameter->attached.update = before.update;
    before.parameter->value.requires_grad_(before.requires_grad);
  }
}

bool Adapters::saves(const Parameter& parameter) const {
  std::vector<std::string> saved, other;
  for (const ParameterPart& part : parameter.spec.parts)
    (trains_whole(names_, part.name, config_) ? saved : other).push_back(module_of(names_, part.name));
  check<ConfigError>(saved.empty() || other.empty() || parameter.spec.name.ends_with(".bias"),
                     "additional_target names {}, which is one parameter with {} here; name all of them or none",
                     fmt::join(saved, ", "), fmt::join(other, ", "));
  return !saved.empty();
}

// "lora_only" with q and v as targets trains two thirds of the bias that query, key and value share.
void Adapters::train_whole(Parameter& parameter) {
  saved_.push_back(&parameter);
  std::vector<FrozenRows::Range> frozen;
  for (const ParameterPart& part : parameter.spec.parts)
    if (!trains_whole(names_, part.name, config_)) frozen.push_back({part.row, part.extent[0]});
  if (!frozen.empty()) frozen_rows_.emplace_back(parameter, std::move(frozen));
}

void Adapters::add(const nn::ParameterScope& scope, std::span<Parameter* const> parameters) {
  for (Parameter* parameter : parameters) {
    const bool own = config_.on_mtp || !parameter->spec.name.starts_with("mtp.");
    const bool saved = own && parameter->spec.role != ParameterRole::kBuffer && saves(*parameter);
    // The state to restore: a temporary adapter (model::merge_adapter) must leave no trace.
    before_.push_back({parameter, parameter->value.requires_grad(), parameter->attached.update});
    parameter->value.requires_grad_(saved);
    if (saved)
      train_whole(*parameter);
    else if (own && parameter->spec.role != ParameterRole::kTiedCopy && parameter->spec.use == WeightUse::kLookup)
      attach_lookup(scope, *parameter);
    else if (own && parameter->spec.use != WeightUse::kOther && parameter->spec.use != WeightUse::kLookup)
      attach(scope, *parameter);
  }
}

void Adapters::attach(const nn::ParameterScope& scope, Parameter& weight) {
  const Targets targets = targets_of(weight, names_, config_);
  if (targets.parts.empty()) return;
  if (config_.pissa) check_can_start(weight, targets, names_);
  auto update = std::make_unique<LowRank>();
  const ParameterSpec& spec = weight.spec;
  ParameterSpec a = make_a(spec, targets), b = make_b(spec, targets, *update);
  const bool grouped = is_grouped(spec.use), replicated = !splits_outputs(spec.use) && !splits_inputs(spec.use);
  const int ranks = grouped ? context_.grid().etp() : tp_.size();
  const int rank = grouped ? context_.place().etp_rank : tp_.rank();
  a.expert = b.expert = spec.expert;
  a.split_over_tp = splits_inputs(spec.use) && ranks > 1;
  b.split_over_tp = splits_outputs(spec.use) && ranks > 1;
  // A replicated factor that sees only a part of the outputs, inputs or tokens has a partial gradient.
  a.partial_grad_over_tp = replicated ? spec.partial_grad_over_tp : splits_outputs(spec.use) && ranks > 1;
  b.partial_grad_over_tp = replicated ? spec.partial_grad_over_tp : splits_inputs(spec.use) && ranks > 1;
  a.equal_grad_over_tp = b.equal_grad_over_tp = replicated && ranks > 1 && !spec.partial_grad_over_tp;
  a.replica = a.split_over_tp ? 0 : rank;
  b.replica = b.split_over_tp ? 0 : rank;
  // Kaiming-uniform with a slope of √5, as peft draws it: uniform within ±1/√i.
  a.init = nn::Init::uniform(1 / std::sqrt(static_cast<double>(spec.parts[0].global_shape[1])));
  a.dtype = b.dtype = at::kFloat;
  a.role = b.role = ParameterRole::kAdapter;
  const int64_t inputs = weight.value.size(1);
  update->rank = targets.rank();
  update->a = &scope.add(std::move(a), {targets.groups * targets.modules * update->rank, inputs});
  update->b = &scope.add(std::move(b), {targets.groups * targets.rows(), update->rank});
  update->dropout = config_.dropout;
  if (config_.use_dora) {
    check_can_have_magnitudes(weight, module_of(names_, spec.parts[targets.parts[0].number].name));
    ParameterSpec m = make_magnitudes(spec, targets);
    // Laid out like B, whose rows they scale.
    const ParameterSpec& like = update->b->spec;
    m.split_over_tp = like.split_over_tp;
    m.partial_grad_over_tp = like.partial_grad_over_tp;
    m.equal_grad_over_tp = like.equal_grad_over_tp;
    m.replica = like.replica;
    m.dtype = at::kFloat;
    m.role = ParameterRole::kAdapter;
    update->magnitude = &scope.add(std::move(m), {targets.rows()});
    if (splits_inputs(spec.use) && ranks > 1) update->inputs_over = tp_.group;
  }
  finish(weight, std::move(update));
}

// Attaches an update to the embedding: A is looked up, B multiplies; as in peft, A starts as zeros and B is normal.
void Adapters::attach_lookup(const nn::ParameterScope& scope, Parameter& weight) {
  const ParameterPart& part = weight.spec.parts[0];
  const auto target = update_of(names_, part.name, config_);
  if (!target) return;
  if (config_.use_dora) check_can_have_magnitudes(weight, target->module);
  check<ConfigError>(!config_.pissa,
                     "pissa_init works for linear layers, but {} is one of the embeddings; leave it out of lora_target,"
                     " or leave out pissa_init",
                     target->module);
  const int64_t r = target->rank, hidden = part.global_shape[1];
  auto update = std::make_unique<LowRank>();
  ParameterSpec a{.name = a_name(weight.spec.name),
                  .role = ParameterRole::kAdapter,
                  .dtype = at::kFloat,
                  .split_over_tp = weight.spec.split_over_tp};
  a.parts.push_back({a_name(part.name), {part.global_shape[0], r}, {part.offset[0], 0}, {part.extent[0], r}, 0});
  ParameterSpec b{.name = b_name(weight.spec.name),
                  .init = nn::Init::normal(1),
                  .role = ParameterRole::kAdapter,
                  .dtype = at::kFloat,
                  .partial_grad_over_tp = tp_.size() > 1,
                  .replica = tp_.rank()};
  update->a = &scope.add(std::move(a), {weight.value.size(0), r});
  update->b = &scope.add(std::move(b), {hidden, r});
  update->rank = r;
  update->parts = {{.out = 0, .rows = hidden, .a = 0, .b = 0, .scale = target->scale}};
  finish(weight, std::move(update));
}

// Sets the fields that linear layers and embeddings share, and hands the update to the weight.
void Adapters::finish(Parameter& weight, std::unique_ptr<LowRank> update) {
  update->rng = &context_.rng();
  update->state = &state_;
  weight.attached.update = update.get();
  attached_.push_back({&weight, std::move(update)});
}

PrincipalStarts& Adapters::make_start() {
  check(config_.pissa.has_value(), "the adapter does not start from principal parts");
  std::vector<UpdatedWeight> updates;
  for (const auto& [weight, update] : attached_)
    if (!weight->value.is_meta()) updates.push_back({weight, update.get()});
  start_ =
      std::make_unique<PrincipalStarts>(updates, tp_.group, context_.dp(/*with_cp=*/true), config_.pissa->iterations);
  return *start_;
}

std::vector<PrincipalStarts::Factor> Adapters::started_with() const {
  return start_ ? start_->factors() : std::vector<PrincipalStarts::Factor>{};
}

void Adapters::start_magnitudes() const {
  const at::NoGradGuard no_grad;
  for (const auto& [weight, update] : attached_)
    if (update->magnitude != nullptr && !weight->value.is_meta())
      update->magnitude->value.copy_(nn::updated_norms(*weight, *update));
}

void Adapters::merge() const {
  const at::NoGradGuard no_grad;
  for (const auto& [weight, update] : attached_) {
    const at::Tensor value = weight->value.detach(), a = update->a->value.detach(), b = update->b->value.detach();
    if (value.is_meta()) continue;
    // Embedding rows: W [v, h] += s · A [v, r] · Bᵀ [r, h].
    if (weight->spec.use == WeightUse::kLookup) {
      add_update(value, a, b.t(), update->parts[0].scale);
      continue;
    }
    at::Tensor factors;  // one number per row, in the order of B
    if (update->magnitude != nullptr)
      factors = update->magnitude->value.detach() /
                nn::updated_norms(*weight, *update).clamp_min_(std::numeric_limits<float>::min());
    const int64_t modules = update->parts.back().a + update->rank;  // rows of A per group
    const int64_t groups = a.size(0) / modules;
    for (int64_t group = 0; group < groups; ++group)
      for (const LowRank::Part& part : update->parts)
        add_update(value.narrow(0, group * (value.size(0) / groups) + part.out, part.rows),
                   b.narrow(0, part.b + group * part.rows, part.rows),
                   a.narrow(0, group * modules + part.a, update->rank), part.scale,
                   factors.defined() ? factors.narrow(0, part.b, part.rows) : at::Tensor());
  }
}

std::vector<Parameter*> Adapters::merged_weights() const {
  std::vector<Parameter*> weights;
  for (const Attached& attached : attached_) weights.push_back(attached.weight);
  return weights;
}

void Adapters::keep_originals() {
  originals_.clear();
  for (const Parameter* parameter : saved_) originals_.push_back(parameter->value.detach().clone());
}

Adapters::Off::Off(Adapters& adapters) : adapters_(adapters), before_(adapters.state_.active) {
  adapters_.state_.active = false;
  if (before_) exchange();
}

Adapters::Off::~Off() {
  if (before_) exchange();
  adapters_.state_.active = before_;
}

// Swaps handles, not values: free, and undone by a second call.
void Adapters::Off::exchange() {
  for (size_t i = 0; i < adapters_.originals_.size(); ++i)
    std::swap(adapters_.saved_[i]->value, adapters_.originals_[i]);
}

}  // namespace megalith::peft
