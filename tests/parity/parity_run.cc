#include "tests/parity/parity_run.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <regex>
#include <thread>

#include "megalith/config/derive.h"
#include "megalith/model/model_settings.h"
#include "megalith/nn/context_parallel/slice.h"
#include "megalith/run/resolve/schedule.h"
#include "megalith/train/step/microbatch_runner.h"
#include "megalith/train/train_step.h"
#include "tests/support/close.h"
#include "tests/support/reference_model.h"

namespace megalith::testing {

namespace {

constexpr int kSteps = 3, kParitySamples = 8;
constexpr double kSmallestMargin = 3e-5;  // far above the rounding of fp32

// Keeps the losses of the tokens of this rank.
class RecordingObjective : public train::Objective {
 public:
  train::MicrobatchLoss loss(const train::MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                             train::Phase phase) const override {
    slices.emplace_back(output.token_losses.detach(), batch.layout);
    return Objective::loss(output, batch, microbatch, phase);
  }
  mutable std::vector<std::pair<at::Tensor, ops::SequenceLayout>> slices;  // by micro-batch
};

// With the distributed optimizer a rank has a part of the reduced gradients: the rest comes from the others.
void complete_gradients(const train::OptimizedModel& model) {
  for (const optim::DistributedDataParallel* chunk : model.chunks())
    for (const auto& buffer : chunk->buffers()) {
      if (!buffer->groups().sharded) continue;
      const auto& buckets = buffer->layout().buckets;
      for (size_t i = 0; i < buckets.size(); ++i) {
        const at::Tensor own = buffer->own(buffer->grads(), static_cast<int>(i)).clone();
        buffer->groups().shards.all_gather(buffer->grads().narrow(0, buckets[i].begin, buckets[i].numel()), own,
                                           "gradients for a test");
      }
    }
}

// One rank in the middle of its three steps.
class ParityRank {
 public:
  ParityRank(const TrainerRank& rank, const ParityPoint& point)
      : rank_(rank),
        point_(point),
        context_(rank.models.context()),
        guard_(run::rerun_settings(rank.args), {}, context_),
        model_(rank.models, run::update_settings(rank.args),
               run::make_schedule(rank.args, layout::MicrobatchCalculator(config::batch_plan(rank.args, point.dp)),
                                  kSteps),
               context_),
        runner_(rank.models, run::step_settings(rank.args), context_, objective_, trace_) {
    guard_.watch(model_);
  }

  train::StepReport step(const std::vector<data::Sequence>& samples, int number,
                         const std::function<void()>& with_gradients) {
    data::StepBatch batch;
    batch.samples = kParitySamples;
    const int size = kParitySamples / point_.dp / point_.microbatches();
    for (int m = 0; m < point_.microbatches(); ++m) {
      std::vector<data::Sample> each;
      for (int i = 0; i < size; ++i) each.push_back({samples[first_sample(number, m) + static_cast<size_t>(i)], {}});
      batch.microbatches.push_back(rank_.collator.collate(each));
    }
    objective_.slices.clear();
    return train::train_step(model_, runner_, guard_, batch, number + 1, nullptr,
                             {.pre_optimizer_step = with_gradients});
  }

  // By sample of the step; every context-parallel rank calls it.
  std::vector<std::pair<size_t, at::Tensor>> token_losses(const std::vector<data::Sequence>& samples) const {
    std::vector<std::pair<size_t, at::Tensor>> all;
    const comm::Group cp = context_.cp();
    const int size = kParitySamples / point_.dp / point_.microbatches();
    for (size_t m = 0; m < objective_.slices.size(); ++m) {
      const auto& [losses, slice] = objective_.slices[m];
      const at::Tensor whole = nn::gather_slices(losses, slice, cp);
      for (int i = 0; i < size; ++i) {
        const size_t sample = first_sample(0, static_cast<int>(m)) + static_cast<size_t>(i);
        const int64_t begin = slice.cumulative()[static_cast<size_t>(i)] * cp.size();
        all.emplace_back(sample, whole.narrow(0, begin, std::ssize(samples[sample].ids) - 1));
      }
    }
    return all;
  }

  train::OptimizedModel& model() { return model_; }

 private:
  size_t first_sample(int step, int microbatch) const {
    const int each = kParitySamples / point_.dp;
    return static_cast<size_t>(step * kParitySamples + context_.place().dp_rank * each +
                               microbatch * each / point_.microbatches());
  }

  const TrainerRank& rank_;
  const ParityPoint& point_;
  parallel::ParallelContext& context_;
  train::RerunGuard guard_;
  train::OptimizedModel model_;
  RecordingObjective objective_;
  TraceRecorder trace_;
  train::MicrobatchRunner runner_;
};

// The weighted sum of the losses of multi-token prediction; labels [1, s] beside their tokens.
at::Tensor mtp_loss(const ReferenceOutput& out, at::Tensor labels) {
  at::Tensor sum = at::zeros({}, at::kDouble);
  const double weight = ParityPoint{}.trainer_case().args.shape.mtp_loss_scaling_factor;
  for (const at::Tensor& logits : out.mtp_logits) {
    labels = at::constant_pad_nd(labels.slice(1, 1), {0, 1}, -100);
    sum = sum + reference_token_losses(logits, labels).sum() * (weight / static_cast<double>(out.mtp_logits.size()));
  }
  return sum;
}

// max|a-b| / max|b|.
double difference(const at::Tensor& a, const at::Tensor& b) {
  const double error = (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
  const double size = b.abs().max().item<double>();
  return std::isfinite(error) ? (size > 0 ? error / size : error) : INFINITY;
}

double difference(double a, double b) {
  return difference(at::scalar_tensor(a, at::kDouble), at::scalar_tensor(b, at::kDouble));
}

// The number in "model.layers.3.mlp…" or "transformer.h.3.…"; -1: none.
int layer_of(const std::string& name) {
  std::smatch found;
  return std::regex_search(name, found, std::regex(R"((?:layers|h)\.(\d+)\.)")) ? std::stoi(found[1]) : -1;
}

// The largest difference of the tensors; `bad`: those beyond the tolerance.
double compare(const NamedTensors& actual, const NamedTensors& expected, std::vector<std::string>& bad) {
  double worst = 0;
  for (const auto& [name, tensor] : expected) {
    const double error = difference(actual.at(name), tensor);
    if (!(error <= kClose)) bad.push_back(fmt::format("{} ({:.1e})", name, error));
    worst = std::max(worst, error);
  }
  return worst;
}

// Backward runs from the last layer to the first: where it goes wrong is the last layer that differs.
std::string describe(const std::vector<std::string>& bad) {
  const auto later = [](const std::string& a, const std::string& b) { return layer_of(a) < layer_of(b); };
  const std::string& first = *std::max_element(bad.begin(), bad.end(), later);
  return fmt::format("{} tensors differ, in the order of backward first in layer {}: {}", bad.size(), layer_of(first),
                     first);
}

}  // namespace

double ParityErrors::worst() const { return std::max({loss, token_losses, grad_norm, gradients, parameters}); }

ParityModel::ParityModel(const std::string& family)
    : family_(family),
      config_(parity_config(family)),
      samples_(random_sequences(kSteps * kParitySamples, is_grown(family) ? kGrownRows : config_.vocab_size, 5)) {
  // Rounding must not change which experts are chosen.
  for (uint64_t seed = 1; compute_expected(seed) < kSmallestMargin; ++seed)
    check(seed < 50, "no model of {} routes all tokens clearly", family);
}

model::ModelConfig ParityModel::run_config() const {
  model::ModelOverrides grown;
  if (is_grown(family_)) grown.vocab_size = kGrownRows;
  return grown.applied_to(model::read_model_config(folder_.path()));
}

ReferenceModel ParityModel::plain_model() const {
  if (!is_grown(family_)) return ReferenceModel::from_folder(folder_.path()).to(at::kDouble);
  NamedTensors weights = whole_tensors(run_config());
  run_trainer_ranks(folder_.path(), ParityPoint{.family = family_}.trainer_case(), [&](const TrainerRank& r) {
    fill_in(weights, r.models, [](const nn::Parameter& p) { return p.value.detach(); });
  });
  ReferenceConfig config = config_;
  config.vocab_size = kGrownRows;
  const ReferenceModel grown = ReferenceModel::random(config, 1);
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : grown.parameters()) at::Tensor(parameter).copy_(weights.at(name));
  return grown.to(at::kDouble);
}

double ParityModel::compute_expected(uint64_t seed) {
  const ReferenceModel made = ReferenceModel::random(config_, seed);
  {
    // Gentle layers, so that rounding does not grow from layer to layer.
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : made.parameters())
      if (parameter.dim() == 2) parameter.mul_(0.5);
  }
  made.save(folder_.path());
  expected_ = {};
  double margin = std::numeric_limits<double>::infinity();
  const ReferenceModel model = plain_model();
  const double rate = ParityPoint{}.trainer_case().args.optimizer.learning_rate.value();
  for (int step = 0; step < kSteps; ++step) {
    model.zero_grad();
    at::Tensor sum = at::zeros({}, at::kDouble), further = sum;
    int64_t tokens = 0;
    for (int i = 0; i < kParitySamples; ++i) {
      const data::Sequence& s = samples_[static_cast<size_t>(step * kParitySamples + i)];
      const at::Tensor ids = at::tensor(std::vector<int64_t>(s.ids.begin(), s.ids.end())).unsqueeze(0);
      const at::Tensor labels = at::tensor(std::vector<int64_t>(s.labels.begin(), s.labels.end())).unsqueeze(0);
      const ReferenceOutput out = model.forward(ids);
      margin = std::min(margin, out.router_margin);
      const at::Tensor losses = reference_token_losses(out.logits, labels, {}, smoothing_of(family_));
      if (step == 0) expected_.token_losses.push_back(losses.detach()[0].narrow(0, 0, ids.size(1) - 1));
      sum = sum + losses.sum();
      further = further + mtp_loss(out, labels);
      tokens += reference_label_count(labels);
    }
    ((sum + further) / tokens).backward();
    expected_.losses.push_back(sum.item<double>() / static_cast<double>(tokens));
    expected_.grad_norms.push_back(model.grad_norm());
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : model.parameters()) {
      if (step == 0) expected_.gradients[name] = model.grad(name).clone();
      at::Tensor(parameter).sub_(model.grad(name), rate);
    }
  }
  for (const auto& [name, parameter] : model.parameters()) expected_.parameters[name] = parameter.detach();
  return margin;
}

ParityNumbers ParityModel::run(const ParityPoint& point) const {
  const model::ModelConfig config = run_config();
  ParityNumbers result{{}, {}, std::vector<at::Tensor>(kParitySamples), whole_tensors(config), whole_tensors(config)};
  std::mutex mutex;
  run_trainer_ranks(folder_.path(), point.trainer_case(), [&](const TrainerRank& r) {
    ParityRank rank(r, point);
    for (int step = 0; step < kSteps; ++step) {
      const train::StepReport report = rank.step(samples_, step, [&] {
        if (step > 0) return;
        complete_gradients(rank.model());
        fill_in(result.gradients, r.models, [](const nn::Parameter& p) { return p.grad.main_grad; });
      });
      const auto token_losses = step == 0 ? rank.token_losses(samples_) : decltype(rank.token_losses(samples_)){};
      const std::lock_guard lock(mutex);
      for (const auto& [sample, losses] : token_losses) result.token_losses[sample] = losses;
      if (r.rank.rank != 0) continue;
      result.losses.push_back(report.loss.mean());
      result.grad_norms.push_back(report.update.step.grad_norm.value_or(NAN));
    }
    rank.model().finish_param_gather();
    fill_in(result.parameters, r.models, [](const nn::Parameter& p) { return p.value.detach(); });
  });
  return result;
}

ParityErrors expect_parity(const ParityPoint& point, const ParityNumbers& actual, const ParityNumbers& expected) {
  ParityErrors errors;
  if (actual.losses.size() != expected.losses.size()) {
    ADD_FAILURE() << point.name() << ": " << actual.losses.size() << " steps";
    return errors;
  }
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    errors.loss = std::max(errors.loss, difference(actual.losses[i], expected.losses[i]));
    errors.grad_norm = std::max(errors.grad_norm, difference(actual.grad_norms[i], expected.grad_norms[i]));
  }
  EXPECT_LE(errors.loss, kClose) << point.name() << ": loss";
  EXPECT_LE(errors.grad_norm, kClose) << point.name() << ": gradient norm";
  for (size_t i = 0; i < expected.token_losses.size(); ++i) {
    const double error =
        actual.token_losses[i].defined() ? difference(actual.token_losses[i], expected.token_losses[i]) : INFINITY;
    EXPECT_LE(error, kClose) << point.name() << ": token losses of sample " << i;
    errors.token_losses = std::max(errors.token_losses, error);
  }
  std::vector<std::string> bad;
  errors.gradients = compare(actual.gradients, expected.gradients, bad);
  EXPECT_TRUE(bad.empty()) << point.name() << ": gradients: " << describe(bad);
  bad.clear();
  errors.parameters = compare(actual.parameters, expected.parameters, bad);
  EXPECT_TRUE(bad.empty()) << point.name() << ": parameters after " << kSteps << " steps: " << describe(bad);
  return errors;
}

void ParityErrors::raise_to(const ParityErrors& other) {
  loss = std::max(loss, other.loss);
  token_losses = std::max(token_losses, other.token_losses);
  grad_norm = std::max(grad_norm, other.grad_norm);
  gradients = std::max(gradients, other.gradients);
  parameters = std::max(parameters, other.parameters);
}

void ParityReport::run(const std::vector<ParityPoint>& points, int at_once) {
  for (const ParityPoint& point : points)
    if (auto& model = models_[point.family]; !model) model = std::make_unique<ParityModel>(point.family);
  std::atomic<size_t> next = 0;
  const auto take_points = [&] {
    for (size_t i = next++; i < points.size() && !::testing::Test::HasFailure(); i = next++) {
      const ParityModel& model = *models_.at(points[i].family);
      add(points[i], expect_parity(points[i], model.run(points[i]), model.expected()));
    }
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < at_once; ++i) others.emplace_back(take_points);
  take_points();
}

void ParityReport::add(const ParityPoint& point, const ParityErrors& errors) {
  const std::lock_guard lock(mutex_);
  Row& row = rows_[point.layout()];
  ++row.points, ++run_;
  row.errors.raise_to(errors);
}

std::string ParityReport::summary(size_t valid) const {
  ParityErrors largest;
  for (const auto& [layout, row] : rows_) largest.raise_to(row.errors);
  return fmt::format(
      "{} points run, {} points valid; largest differences: loss {:.1e}, token losses {:.1e}, gradient norm {:.1e}, "
      "gradients {:.1e}, parameters {:.1e}\n",
      run_, valid, largest.loss, largest.token_losses, largest.grad_norm, largest.gradients, largest.parameters);
}

std::string ParityReport::csv() const {
  std::string text = "layout,points,loss,token_losses,gradient_norm,gradients,parameters\n";
  for (const auto& [layout, row] : rows_)  // a layout has commas, so it is quoted
    text += fmt::format("\"{}\",{},{:.1e},{:.1e},{:.1e},{:.1e},{:.1e}\n", layout, row.points, row.errors.loss,
                        row.errors.token_losses, row.errors.grad_norm, row.errors.gradients, row.errors.parameters);
  return text;
}

}  // namespace megalith::testing
