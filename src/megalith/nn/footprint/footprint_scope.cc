#include "megalith/nn/footprint/footprint_scope.h"

#include <algorithm>

#include "megalith/ops/update/newton_schulz.h"

namespace megalith::nn {

namespace {

double step_flop(int64_t rows, int64_t columns) {
  return ops::newton_schulz_flop(static_cast<double>(std::min(rows, columns)),
                                 static_cast<double>(std::max(rows, columns)));
}

}  // namespace

bool is_in_layer(std::string_view name) { return name.starts_with("layers."); }

MatrixWork& MatrixWork::operator+=(const MatrixWork& more) {
  blocks += more.blocks;
  whole += more.whole;
  shared += more.shared;
  return *this;
}

// The shared products sum over the dimension that is cut: A has the side of the other one.
MatrixWork MatrixWork::of_rows(int64_t rows, int64_t columns, int64_t ranks, int64_t count) {
  const auto n = static_cast<double>(count);
  const double whole = n * step_flop(rows * ranks, columns);
  const double shared = n * ops::newton_schulz_flop(static_cast<double>(columns), static_cast<double>(rows));
  return {n * step_flop(rows, columns), whole, ranks == 1 ? whole : shared};
}

MatrixWork MatrixWork::of_columns(int64_t rows, int64_t columns, int64_t ranks, int64_t count) {
  return of_rows(columns, rows, ranks, count);  // the iteration transposes as it likes
}

FootprintScope FootprintScope::child(std::string_view name) const {
  FootprintScope result = *this;
  if (updates_ || trains_ || rank_->quantization)
    result.prefix_.append(name).append(".");  // otherwise nobody looks at names
  return result;
}

bool FootprintScope::keeps_quantized() const { return rank_->quantization && is_in_layer(prefix_); }

void FootprintScope::add(ParameterSize parameter) const {
  if (updates_ || (trains_ && !(*trains_)(prefix_))) parameter.trained = false;
  to_->weights.push_back(parameter);
}

void FootprintScope::add(ParameterSize parameter, const std::string& name) const {
  add(parameter);
  if (updates_) to_->weights.back().trained = updates_->trains_whole(prefix_ + name);
}

void FootprintScope::add_bias(std::vector<UpdatedPart> parts) const {
  ParameterSize bias;
  for (const UpdatedPart& part : parts) bias.numel += part.rows;
  if (updates_) bias.trained = updates_->trains_bias(full(std::move(parts)));
  if (trains_) bias.trained = (*trains_)(prefix_);
  to_->weights.push_back(bias);
}

std::vector<UpdatedPart> FootprintScope::full(std::vector<UpdatedPart> parts) const {
  for (UpdatedPart& part : parts) {
    part.name.insert(0, prefix_);
    if (part.name.ends_with('.')) part.name.pop_back();  // the scope itself
  }
  return parts;
}

// A comes before B and the magnitudes, as peft adds them; a test compares the two lists.
UpdateSize FootprintScope::add_update(std::vector<UpdatedPart> parts, int64_t inputs, int64_t copies,
                                      bool expert) const {
  if (!updates_) return {};
  const UpdateSize update = updates_->of(full(std::move(parts)), inputs, copies);
  if (!update.any()) return update;
  to_->updates.push_back({.numel = update.a, .expert = expert, .adapter = true});
  to_->updates.push_back({.numel = update.b, .expert = expert, .adapter = true});
  if (update.magnitudes > 0) to_->updates.push_back({.numel = update.magnitudes, .adapter = true});
  return update;
}

}  // namespace megalith::nn
