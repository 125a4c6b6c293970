// The coefficients are those of NVIDIA's Emerging-Optimizers, which Megatron-LM uses, rounded as there.
#include "megalith/optim/rules/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "megalith/base/error.h"

namespace megalith::optim {

namespace {

using config::MuonCoefficients;
using config::MuonScale;
using ops::NewtonSchulzStep;

// Jordan's quintic: the steepest slope at 0 that keeps singular values in about [0.7, 1.2].
constexpr NewtonSchulzStep kSimple[] = {{3.4445, -4.7750, 2.0315}};
// https://leloykun.github.io/ponder/muon-opt-coeffs
constexpr NewtonSchulzStep kQuintic[] = {{4.0848, -6.8946, 2.9270},
                                         {3.9505, -6.3029, 2.6377},
                                         {3.7418, -5.5913, 2.3037},
                                         {2.8769, -3.1427, 1.2046},
                                         {2.8366, -3.0525, 1.2012}};
// https://arxiv.org/abs/2505.16932
constexpr NewtonSchulzStep kPolarExpress[] = {
    {8.2051, -22.9019, 16.4607}, {4.0664, -2.8612, 0.5184}, {3.9096, -2.8234, 0.5250}, {3.2856, -2.4153, 0.4853},
    {2.2779, -1.6198, 0.3985},   {1.8726, -1.2307, 0.3585}, {1.8564, -1.2132, 0.3568}, {1.8750, -1.2500, 0.3750}};
// https://github.com/thib-s/flash-newton-schulz
constexpr NewtonSchulzStep kAol[] = {
    {4.0098, -7.0585, 2.4635}, {3.4585, -5.5479, 2.5959}, {2.7573, -3.2939, 1.4254}, {2.7215, -3.0494, 1.3169}};

std::span<const NewtonSchulzStep> coefficients_of(MuonCoefficients which) {
  switch (which) {
    case MuonCoefficients::kSimple:
      return kSimple;
    case MuonCoefficients::kQuintic:
      return kQuintic;
    case MuonCoefficients::kPolarExpress:
      return kPolarExpress;
    case MuonCoefficients::kAol:
      return kAol;
  }
  throw InternalError("unknown coefficients of Muon");
}

// Sets repeat as a whole; the last one of Polar Express, which has converged by then, repeats alone.
ops::NewtonSchulz iteration_of(const MuonSettings& settings) {
  const std::span<const NewtonSchulzStep> set = coefficients_of(settings.coefficients);
  ops::NewtonSchulz iteration{.steps = {}, .dtype = settings.fp32_products ? at::kFloat : at::kBFloat16};
  for (size_t i = 0; i < static_cast<size_t>(std::max(settings.steps, 0)); ++i)
    iteration.steps.push_back(settings.coefficients == MuonCoefficients::kPolarExpress
                                  ? set[std::min(i, set.size() - 1)]
                                  : set[i % set.size()]);
  return iteration;
}

// m = β m + (1 - β) g; grad = u. `main` is m; there is no other state.
class Momentum : public UpdateRule {
 public:
  explicit Momentum(const MuonSettings& settings) : settings_(settings) {}
  std::string name() const override { return "muon_momentum"; }
  std::vector<std::string> state_names() const override { return {}; }
  bool is_fused() const override { return true; }  // so that it gets the gradients themselves, to overwrite them

 private:
  // In pieces, which bounds the memory for gradients in 16 bits; those in fp32 are overwritten in place.
  void update(const FlatElements& x, const ops::UpdateScalars& scalars) const override {
    constexpr int64_t kPiece = int64_t{1} << 22;
    for (int64_t begin = 0; begin < x.main.numel(); begin += kPiece) {
      const FlatElements piece = x.slice(begin, std::min(x.main.numel(), begin + kPiece));
      const at::Tensor g = piece.grad.to(at::kFloat);
      if (scalars.grad_scale != 1) g.mul_(scalars.grad_scale);
      piece.main.lerp_(g, 1 - settings_.momentum);
      if (settings_.nesterov)
        g.lerp_(piece.main, settings_.momentum);
      else
        g.copy_(piece.main);
      if (!g.is_same(piece.grad)) piece.grad.copy_(g);
    }
  }

  MuonSettings settings_;
};

// p -= lr (grad + wd p), where grad is the scaled orthogonal matrix.
class Apply : public UpdateRule {
 public:
  std::string name() const override { return "muon_apply"; }
  std::vector<std::string> state_names() const override { return {}; }

 private:
  void update(const FlatElements& x, const ops::UpdateScalars& scalars) const override {
    x.main.mul_(1 - scalars.lr * scalars.weight_decay).sub_(x.grad, scalars.lr);
  }
};

}  // namespace

Muon::Muon(const MuonSettings& settings)
    : settings_(settings),
      iteration_(iteration_of(settings)),
      momentum_(std::make_shared<Momentum>(settings)),
      apply_(std::make_shared<Apply>()) {}

std::vector<std::string> Muon::problems() const {
  std::vector<std::string> found;
  const MuonSettings& s = settings_;
  require_setting(found, s.momentum >= 0 && s.momentum < 1, "muon_momentum", s.momentum, "at least 0 and below 1");
  require_setting(found, s.extra_scale > 0 && std::isfinite(s.extra_scale), "muon_extra_scale_factor", s.extra_scale,
                  "positive");
  require_setting(found, s.steps >= 1 && s.steps < 100, "muon_num_ns_steps", s.steps, "at least 1 and below 100");
  const auto set = static_cast<int>(coefficients_of(s.coefficients).size());
  const bool whole = s.coefficients == MuonCoefficients::kPolarExpress ? s.steps >= set : s.steps % set == 0;
  if (s.steps >= 1 && !whole)
    found.push_back(fmt::format("muon_num_ns_steps is {}; with muon_coefficient_type {} it must be {} {}", s.steps,
                                config::choice_name(s.coefficients),
                                s.coefficients == MuonCoefficients::kPolarExpress ? "at least" : "a multiple of", set));
  return found;
}

double Muon::scale(int64_t rows, int64_t columns) const {
  const auto out = static_cast<double>(rows), in = static_cast<double>(columns);
  switch (settings_.scale) {
    case MuonScale::kSpectral:
      return settings_.extra_scale * std::sqrt(std::max(out, in));
    case MuonScale::kUnitRmsNorm:
      return settings_.extra_scale * std::sqrt(out / in);
    case MuonScale::kShapeScaling:
      return settings_.extra_scale * std::sqrt(std::max(1.0, out / in));
  }
  throw InternalError("unknown scale of Muon");
}

}  // namespace megalith::optim
