// One optimizer step on this rank, and its state in model space.
//
// The usual step is: gradient statistics (a collective; the host waits), loss scale, clip factor, update, gather. That
// wait would leave the device idle for a launch latency in every step. begin_step avoids it: the update is queued with
// a gate, a small device tensor computed from the sum of squares of all ranks, which holds the clip factor and whether
// to update at all. finish_step then needs the norm only for the report and the loss scale.
//
// Saved names and shapes are those of the model's tensors, never of buffers or shards, so any layout can load them.
#include "megalith/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/fp8_value.h"
#include "megalith/nn/parameter/matrix.h"
#include "megalith/optim/fp8_params.h"
#include "megalith/optim/model_space.h"

namespace megalith::optim {

namespace {

using nlohmann::ordered_json;

// Checkpoints contain these names: they must not change.
constexpr const char* kMain = "optimizer.main.";
std::string prefix_of(const std::string& state) { return fmt::format("optimizer.{}.", state); }

// Numbers the copies of a piece of state such that exactly one rank has number 0. The tied copy of an embedding on the
// last stage is numbered after all copies of the original; 2^20 exceeds any number of tp ranks.
int replica_of(const StatePiece& piece, const StateBlock& block) {
  const int among_tp =
      piece.parameter->spec.replica + (piece.parameter->spec.role == nn::ParameterRole::kTiedCopy ? 1 << 20 : 0);
  return among_tp * block.copies + block.copy;
}

// The tensors of a block in the form that a rule takes; `param` only where main is a copy of it that the rule can make.
StoredElements elements_of(const StateBlock& block, const at::Tensor& gate) {
  return {.main = block.main,
          .grad = block.grads,
          .states = block.states,
          .param = block.own_main && !block.main.high.defined() && !block.in_fp8() ? block.params : at::Tensor(),
          .gate = gate};
}

// Whether a block is state of this chunk.
bool is_part(const StateBlock& block, const DistributedDataParallel& chunk) {
  return std::ranges::any_of(chunk.buffers(), [&](const auto& buffer) { return buffer.get() == block.buffer; });
}

// Returns elements [begin, begin + n) of stored state in fp32. Other elements of the first and last scale are read with
// them: n only has to lie within the block.
at::Tensor numbers_of(const ops::StoredValues& stored, int64_t begin, int64_t n) {
  const int64_t first = begin / ops::kScaleBlock * ops::kScaleBlock, last = round_up(begin + n, ops::kScaleBlock);
  const at::Tensor numbers = at::empty({last - first}, stored.values.options().dtype(at::kFloat));
  ops::read_values(stored.slice(first, last), numbers);
  return numbers.narrow(0, begin - first, n);
}

// A stand-in for [n] numbers in fp32 that has no memory: views of it know their places.
at::Tensor without_memory(int64_t n) { return at::empty({n}, at::TensorOptions(at::kFloat).device(at::kMeta)); }

// Whether saved state has the shape that is wanted, or fewer rows of a tensor that may have grown since.
bool fits(const std::vector<int64_t>& saved, const parallel::ShardedTensor& wanted,
          const std::set<std::string>& grown) {
  if (saved == wanted.global_shape) return true;
  // "optimizer.exp_avg.embedding.weight" -> "embedding.weight"
  const std::string tensor = wanted.name.substr(wanted.name.find('.', wanted.name.find('.') + 1) + 1);
  return grown.contains(tensor) && saved.size() == wanted.global_shape.size() && saved[0] < wanted.global_shape[0] &&
         std::equal(saved.begin() + 1, saved.end(), wanted.global_shape.begin() + 1);
}

}  // namespace

Optimizer::Optimizer(std::vector<DistributedDataParallel*> chunks, OptimizerSettings settings,
                     const parallel::ParallelContext& context, ParamGather gather)
    : chunks_(std::move(chunks)), settings_(std::move(settings)), context_(context), gather_(gather) {
  settings_.validate();
  for (const DistributedDataParallel* chunk : chunks_) {
    sharded_ = chunk->settings().use_distributed_optimizer;
    check(sharded_ == chunks_[0]->settings().use_distributed_optimizer,
          "some chunks use the distributed optimizer and others do not");
  }
  groups_ = all_groups(settings_.groups);
  blocks_ = make_state(chunks_, settings_);
  if (settings_.muon) make_matrix_updates();
  check_gather();
  if (!has_fp8()) return;
  offer_main_params();
  gather_params();
  for (DistributedDataParallel* chunk : chunks_) chunk->finish_param_gather();
}

Optimizer::~Optimizer() {
  for (const StateBlock& block : blocks_)
    if (block.in_fp8())
      for (const nn::Parameter* parameter : block.buffer->parameters()) parameter->attached.bytes->main = nullptr;
}

void Optimizer::make_matrix_updates() {
  for (const DistributedDataParallel* chunk : chunks_) {
    check(chunk->settings().matrices_apart, "Muon needs buffers of matrices alone: DdpSettings::matrices_apart");
    for (const auto& buffer : chunk->buffers())
      if (nn::is_matrix(buffer->parameters()[0]->spec))
        matrix_updates_.emplace_back(buffer.get(), MatrixUpdate(settings_.muon, *buffer, context_));
  }
}

void Optimizer::check_gather() const {
  check<ConfigError>(
      sharded_ || gather_ == ParamGather::kInStep,
      "overlap_param_gather is true without use_distributed_optimizer: there is nothing to gather; switch"
      " the first off or the second on");
  if (gather_ != ParamGather::kDuringUpdate) return;
  check<ConfigError>(!has_fp8(),
                     "overlap_param_gather_with_optimizer_step does not work with fp8_param, whose weights"
                     " are cast after the whole update; leave one of them out");
  check<ConfigError>(std::ranges::none_of(blocks_, &StateBlock::on_host),
                     "overlap_param_gather_with_optimizer_step does not work with optimizer_cpu_offload, whose weights"
                     " arrive after the whole update; leave one of them out");
}

bool Optimizer::has_fp8() const { return std::ranges::any_of(blocks_, &StateBlock::in_fp8); }

// Every parameter in fp8 gets one, also where this rank owns nothing of it.
void Optimizer::offer_main_params() {
  std::set<const ParamBuffer*> buffers;
  for (const StateBlock& block : blocks_)
    if (block.in_fp8()) buffers.insert(block.buffer);
  for (const ParamBuffer* buffer : buffers)
    for (const nn::Parameter* parameter : buffer->parameters())
      parameter->attached.bytes->main = [this, parameter] {
        std::vector<parallel::ShardedTensor> owned;
        for (const StateBlock& block : blocks_)
          for (const StatePiece& piece : block.pieces)
            if (piece.parameter == parameter)
              for (auto& part : shards_of(block, piece, "", block.main)) owned.push_back(std::move(part));
        return owned;
      };
}

// A negative or infinite rate would ruin the weights silently, so it is refused in every step, at the cost of a few
// comparisons.
void Optimizer::check_groups() const {
  for (const ParamGroup& group : groups_) {
    const auto good = [](double x) { return std::isfinite(x) && x >= 0; };
    check<ConfigError>(good(group.lr), "the learning rate of the parameters {} is {}; it must be a finite number >= 0",
                       group.name(), group.lr);
    check<ConfigError>(good(group.weight_decay),
                       "the weight decay of the parameters {} is {}; it must be a finite number >= 0", group.name(),
                       group.weight_decay);
  }
}

// Offloaded state is updated by the host, which has to know the norm.
bool Optimizer::begins_steps() const {
  return rule().is_fused() && !settings_.muon &&
         std::ranges::none_of(blocks_, [](const StateBlock& block) { return block.on_host; });
}

at::Tensor Optimizer::norm_terms() const {
  finish_update();
  return optim::norm_terms(blocks_, sharded_, settings_.count_zeros, context_);
}

void Optimizer::begin_step(const GradScaler& scaler, const at::Tensor& squares) {
  check(begins_steps(), "this optimizer cannot begin a step before the norm is known");
  check_groups();
  const at::NoGradGuard no_grad;
  update({.gate = ops::clip_gate(std::span(&squares, 1),
                                 {.unscale = scaler.inverse_scale(), .clip = settings_.clip_grad})});
}

StepResult Optimizer::step(GradScaler& scaler) {
  return finish_step(scaler, gradient_stats(blocks_, sharded_, settings_.count_zeros, context_), /*begun=*/false);
}

// With `begun` the update is already queued, and the device has decided by itself whether to apply it.
StepResult Optimizer::finish_step(GradScaler& scaler, const GradStats& stats, bool begun) {
  check_groups();
  const at::NoGradGuard no_grad;
  const double unscale = scaler.inverse_scale();  // before the update below: these gradients used the old scale
  scaler.update(stats.non_finite);
  if (stats.non_finite) {
    if (has_fp8()) gather_params();  // the weights are the same, but a delayed scale moves on
    return {.updated = false, .grad_norm = std::nullopt, .num_zeros = std::nullopt};
  }
  const double norm = stats.norm * unscale;
  StepResult result{.updated = true, .grad_norm = norm, .num_zeros = std::nullopt};
  if (settings_.count_zeros) result.num_zeros = stats.zeros;
  if (!begun) update({.grad_scale = ops::clip_factor(stats.norm, {.unscale = unscale, .clip = settings_.clip_grad})});
  ++steps_;
  if (gather_ != ParamGather::kDuringUpdate) gather_params();
  return result;
}

ops::UpdateScalars Optimizer::scalars_of(size_t group, double grad_scale) const {
  return {.lr = groups_[group].applied_lr(),
          .weight_decay = groups_[group].applied_decay(),
          .grad_scale = grad_scale,
          .step = steps_ + 1};
}

std::vector<ops::UpdateRun> Optimizer::runs_of(const StateBlock& block, double grad_scale) const {
  std::vector<ops::UpdateRun> runs;
  for (const StateRun& run : block.runs) runs.push_back({run.begin, run.end, scalars_of(run.group, grad_scale)});
  return runs;
}

bool Optimizer::can_overlap() const {
  const auto gathers = [](const DistributedDataParallel* chunk) {
    return std::ranges::any_of(chunk->buffers(), [](const auto& buffer) {
      return buffer->groups().sharded && buffer->groups().shards.size() > 1;
    });
  };
  return begins_steps() && rule().can_be_confined() && settings_.muon == nullptr && !has_fp8() &&
         std::ranges::none_of(chunks_, gathers);
}

void Optimizer::overlap_with_forward(std::vector<ForwardPart> parts, const OverlapSettings& settings,
                                     std::unique_ptr<SideQueue> queue) {
  check(can_overlap(), "this optimizer cannot update parameters beside the next forward pass");
  overlapped_ =
      std::make_unique<OverlappedUpdate>(update_blocks(blocks_), std::move(parts), settings, std::move(queue));
}

void Optimizer::wait_for_params(std::span<nn::Parameter* const> parameters) {
  if (overlapped_) overlapped_->wait_for(parameters);
}

void Optimizer::finish_update() const {
  if (overlapped_) overlapped_->finish();
}

// Rates and the number of the step are read now: a piece may run when those of the next step are set.
void Optimizer::update_overlapped(const Factor& factor) {
  std::vector<std::vector<ops::UpdateRun>> runs;
  for (const StateBlock& block : blocks_) runs.push_back(runs_of(block, factor.grad_scale));
  const auto update = [this, factor, runs = std::move(runs)](const UpdatePiece& where, int multiprocessors) {
    const at::NoGradGuard no_grad;
    StoredElements piece = elements_of(blocks_[where.block], factor.gate).slice(where.begin, where.end);
    piece.multiprocessors = multiprocessors;
    update_stored(rule(), piece, runs_within(runs[where.block], where.begin, where.end));
  };
  overlapped_->run(next_tokens_, update);
}

// Device blocks are queued first, so that the device works while the host updates its own. A gather that is started for
// a step whose gate is closed moves the parameters as they were.
void Optimizer::update(const Factor& factor) {
  if (overlapped_) return update_overlapped(factor);
  for (DistributedDataParallel* chunk : chunks_) {
    for (const StateBlock& block : blocks_)
      if (!block.on_host && !block.matrices && is_part(block, *chunk))
        update_stored(rule(), elements_of(block, factor.gate), runs_of(block, factor.grad_scale));
    update_matrices(*chunk, factor.grad_scale);
    if (gather_ == ParamGather::kDuringUpdate) chunk->start_param_gather();
  }
  host_update_.run(blocks_, [this, &factor](const StoredElements& piece, size_t group) {
    const ops::UpdateRun run{0, piece.main.numel(), scalars_of(group, factor.grad_scale)};
    update_stored(rule(), piece, std::span(&run, 1));
  });
}

// Between its elementwise halves Muon needs whole matrices, which may have elements in several blocks of a buffer.
void Optimizer::update_matrices(const DistributedDataParallel& chunk, double grad_scale) {
  const auto for_each_block = [&](const auto& update) {
    for (const StateBlock& block : blocks_)
      if (block.matrices && is_part(block, chunk)) update(block);
  };
  for_each_block([&](const StateBlock& block) {
    update_stored(settings_.muon->momentum(), {.main = block.states[0], .grad = block.grads},
                  runs_of(block, grad_scale));
  });
  for (const auto& [buffer, matrices] : matrix_updates_)
    if (std::ranges::any_of(chunk.buffers(), [&](const auto& own) { return own.get() == buffer; })) matrices.run();
  for_each_block([&](const StateBlock& block) {
    StoredElements elements = elements_of(block, /*gate=*/{});
    elements.states.clear();
    update_stored(settings_.muon->apply(), elements, runs_of(block, /*grad_scale=*/1));
  });
}

// With overlap the gathers run while the next forward begins; each part of the model waits for its own.
void Optimizer::gather_params() {
  cast_fp8_params(blocks_);
  for (DistributedDataParallel* chunk : chunks_) chunk->start_param_gather();
  if (gather_ != ParamGather::kInStep) return;
  for (DistributedDataParallel* chunk : chunks_) chunk->finish_param_gather();
}

double Optimizer::parameter_norm() const {
  finish_update();
  return optim::parameter_norm(blocks_, sharded_, context_);
}

void Optimizer::main_from_model() {
  finish_update();
  const at::NoGradGuard no_grad;
  for (const StateBlock& block : blocks_)
    if (block.own_main) main_from_params(block);
}

void Optimizer::reload_main_params() {
  main_from_model();
  if (has_fp8()) gather_params();
}

std::vector<std::pair<std::string, ops::StoredValues>> Optimizer::state_of(const StateBlock& block) const {
  std::vector<std::pair<std::string, ops::StoredValues>> state;
  if (block.own_main) state.emplace_back(kMain, block.main);
  const std::vector<std::string> names = settings_.state_names(block.matrices);
  for (size_t i = 0; i < names.size(); ++i) state.emplace_back(prefix_of(names[i]), block.states[i]);
  return state;
}

// Rectangles of the model's tensors that a piece covers, as views of `flat`, the piece's numbers.
std::vector<parallel::ShardedTensor> Optimizer::rectangles_of(const StateBlock& block, const StatePiece& piece,
                                                              const std::string& prefix, const at::Tensor& flat) {
  return sharded_range(*piece.parameter, piece.offset, piece.offset + flat.numel(), flat, prefix,
                       replica_of(piece, block));
}

std::vector<parallel::ShardedTensor> Optimizer::shards_of(const StateBlock& block, const StatePiece& piece,
                                                          const std::string& prefix, const ops::StoredValues& stored) {
  const int64_t n = piece.end - piece.begin;
  const at::Tensor flat = stored.is_direct() ? stored.values.narrow(0, piece.begin, n) : without_memory(n);
  std::vector<parallel::ShardedTensor> parts = rectangles_of(block, piece, prefix, flat);
  if (stored.is_direct()) return parts;
  for (parallel::ShardedTensor& part : parts)
    part.load = [stored = stored, begin = piece.begin, place = part.local] {
      int64_t span = place.numel() > 0 ? 1 : 0;  // elements from the first to the last of the rectangle
      for (int64_t d = 0; d < place.dim() && span > 0; ++d) span += (place.size(d) - 1) * place.stride(d);
      return numbers_of(stored, begin + place.storage_offset(), span).as_strided(place.sizes(), place.strides());
    };
  return parts;
}

// block -> tensor (main, states) -> piece (parameter) -> rectangles of the model's tensors.
std::vector<parallel::ShardedTensor> Optimizer::sharded_state() const {
  finish_update();
  std::vector<parallel::ShardedTensor> all;
  for (const StateBlock& block : blocks_)
    for (const auto& [prefix, stored] : state_of(block))
      for (const StatePiece& piece : block.pieces)
        for (auto& part : shards_of(block, piece, prefix, stored)) all.push_back(std::move(part));
  return all;
}

std::vector<std::string> Optimizer::state_prefixes(at::ScalarType parameter, bool matrix) const {
  std::vector<std::string> prefixes;
  if (parameter != at::kFloat) prefixes.emplace_back(kMain);
  for (const std::string& state : settings_.state_names(matrix)) prefixes.push_back(prefix_of(state));
  return prefixes;
}

std::string Optimizer::progress_json() const {
  return ordered_json{{"optimizer", settings_.name()}, {"step", steps_}}.dump();
}

int64_t Optimizer::read_progress(const std::string& progress, const std::string& origin) const {
  const ordered_json saved = ordered_json::parse(progress, nullptr, /*allow_exceptions=*/false);
  check<DataError>(saved.is_object() && saved.contains("optimizer") && saved.contains("step") &&
                       saved["step"].is_number_integer() && saved["step"].get<int64_t>() >= 0,
                   "{}: the optimizer's progress is not an object with \"optimizer\" and \"step\"", origin);
  check<ConfigError>(
      saved["optimizer"] == settings_.name(),
      "{} holds the state of the optimizer {}; this run uses {}. Use the same optimizer, or start without"
      " its state (no_load_optim)",
      origin, saved["optimizer"].dump(), settings_.name());
  return saved["step"].get<int64_t>();
}

bool Optimizer::is_main(const std::string& name) { return name.starts_with(kMain); }

// All problems are reported at once, and before any state changes.
Optimizer::Shapes Optimizer::check_tensors(const StateSource& source, bool only_main,
                                           const StateTolerance& tolerance) const {
  Shapes saved;
  for (auto& tensor : source.tensors()) saved[tensor.name] = tensor.global_shape;
  std::map<std::string, std::string> problems;  // by tensor: each once
  for (const parallel::ShardedTensor& wanted : sharded_state()) {
    const auto stored = saved.find(wanted.name);
    const bool main = is_main(wanted.name);
    if (only_main && !main) continue;
    if (stored == saved.end()) {
      // Main parameters may be missing: load_state derives them from the model's.
      if (!main && !tolerance.may_lack) problems[wanted.name] = fmt::format("{} is missing", wanted.name);
    } else if (!fits(stored->second, wanted, tolerance.grown)) {
      problems[wanted.name] = fmt::format("{} is [{}] there and [{}] in this model", wanted.name,
                                          fmt::join(stored->second, ", "), fmt::join(wanted.global_shape, ", "));
    }
  }
  std::vector<std::string> lines;
  for (const auto& [name, line] : problems) lines.push_back(line);
  check<DataError>(lines.empty(), "{} does not hold this model's optimizer state: {}", source.name(),
                   fmt::join(lines, "; "));
  return saved;
}

// Order matters: main parameters come from the model first, then from the source where it has them, and at last the
// model is rounded from main, so that both agree on every rank.
void Optimizer::load_state(const StateSource& source, const std::string& progress, const StateTolerance& tolerance) {
  const int64_t steps = read_progress(progress, source.name());
  const Shapes saved = check_tensors(source, /*only_main=*/false, tolerance);
  const at::NoGradGuard no_grad;
  main_from_model();  // for those that the source lacks
  for (const StateBlock& block : blocks_)
    for (const auto& [prefix, stored] : state_of(block)) read_state(block, prefix, stored, source, saved);
  for (const StateBlock& block : blocks_)
    if (block.own_main) params_from_main(block);
  steps_ = steps;
  gather_params();
}

void Optimizer::load_main_params(const StateSource& source, const std::set<std::string>& grown) {
  const Shapes saved = check_tensors(source, /*only_main=*/true, {.grown = grown});
  const at::NoGradGuard no_grad;
  main_from_model();  // for those that the source lacks
  for (const StateBlock& block : blocks_) {
    if (!block.own_main) continue;
    read_state(block, kMain, block.main, source, saved);
    params_from_main(block);
  }
  gather_params();
}

// Directly into the state where it holds the numbers themselves; otherwise parameter by parameter through fp32, since a
// scale needs all numbers that it covers.
void Optimizer::read_state(const StateBlock& block, const std::string& prefix, const ops::StoredValues& stored,
                           const StateSource& source, const Shapes& saved) {
  for (const StatePiece& piece : block.pieces) {
    // piece.begin is a multiple of 64.
    const int64_t n = piece.end - piece.begin, end = round_up(piece.end, ops::kScaleBlock);
    const at::Tensor numbers = stored.is_direct() ? stored.values.narrow(0, piece.begin, n)
                                                  : numbers_of(stored, piece.begin, end - piece.begin);
    auto parts = rectangles_of(block, piece, prefix, numbers.narrow(0, 0, n));
    bool found = false;
    for (parallel::ShardedTensor& wanted : parts) {
      const auto shape = saved.find(wanted.name);
      if (shape == saved.end()) continue;
      // Rows that a tensor has grown by since are not in the source.
      const int64_t rows = std::min(wanted.local.size(0), shape->second[0] - wanted.offset[0]);
      if (rows <= 0) continue;
      wanted.local = wanted.local.narrow(0, 0, rows);
      wanted.global_shape = shape->second;
      source.read(wanted);
      found = true;
    }
    if (found && !stored.is_direct()) ops::write_values(numbers, stored.slice(piece.begin, end));
  }
}

int64_t Optimizer::state_bytes(bool on_host) const {
  int64_t bytes = 0;
  for (const StateBlock& block : blocks_) {
    if (block.on_host != on_host) continue;
    for (const auto& [prefix, stored] : state_of(block)) bytes += stored.bytes();
  }
  return bytes;
}

}  // namespace megalith::optim
