// A name is turned into a pattern by replacing its numbers: "layers.3.mlp.up.weight" -> "layers.{}.mlp.up.weight" and
// {"3"}. A rule matches when one of its patterns is equal, and the numbers then fill the file's pattern. So a family
// needs one rule per kind of tensor, not per layer, and finding a rule is one lookup.
//
// A tensor of the files may hold several of ours, concatenated along the outputs (a fused qkv), and those of all
// experts of a layer, stacked along a separate dimension. TensorMapping computes once where each of ours begins in it;
// place() then only adds offsets, and turns the rectangle as the file stores it:
//
//   ours                    experts.2.gate.weight [i, h] and experts.2.up.weight [i, h]
//   stacked                 gate_up_proj [E, 2i, h]:  row r of gate is [2, r, :], of up [2, i + r, :]
//   stacked and transposed  gate_up_proj [E, h, 2i]:  row r of gate is [2, :, r], of up [2, :, i + r]
//
// A kernel [o, c, t, y, x] has the bytes of the matrix [o, c·t·y·x], so its rectangles are those of the matrix: a part
// of a row, which an optimizer's shard may be, is a rectangle there only.
#include "megalith/hf/name_map.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/hf/block_scales.h"
#include "megalith/hf/scalar_type.h"

namespace megalith::hf {

namespace {

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "model.layers.{}.mlp.{}" and {"3", "1"} -> "model.layers.3.mlp.1"; {+61} adds to the number.
std::string fill_in(std::string_view pattern, const std::vector<std::string>& numbers) {
  std::string name;
  size_t next = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '{') {  // {} or {+n}
      const size_t end = pattern.find('}', i);
      const std::string_view added = pattern.substr(i + 1, end - i - 1);
      const std::string& number = numbers.at(next++);
      name += added.empty() ? number : std::to_string(std::stoll(number) + std::stoll(std::string(added)));
      i = end;
    } else {
      name += pattern[i];
    }
  }
  return name;
}

// Matches a pattern in which '*' stands for any text.
bool matches(std::string_view pattern, std::string_view text) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (text.substr(0, star) != pattern.substr(0, star)) return false;
  for (size_t skip = star; skip <= text.size(); ++skip)
    if (matches(pattern.substr(star + 1), text.substr(skip))) return true;
  return false;
}

bool matches_any(const std::vector<std::string>& patterns, std::string_view text) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) { return matches(pattern, text); });
}

// The largest magnitude is NaN or infinite if any value is: one reduction, without a temporary tensor.
bool all_finite(const at::Tensor& values) {
  const at::Tensor largest = at::linalg_vector_norm(values, std::numeric_limits<double>::infinity());
  return std::isfinite(largest.item<double>());
}

// Appends the problems of one kind to a message, the first kShown of them by name.
void add_problem(std::string& message, const char* kind, const std::vector<std::string>& names) {
  if (names.empty()) return;
  constexpr size_t kShown = 40;
  message += fmt::format("\n  {} ({}):", kind, names.size());
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) message += "\n    " + names[i];
  if (names.size() > kShown) message += fmt::format("\n    … and {} more", names.size() - kShown);
}

}  // namespace

NamePattern pattern_of(std::string_view name) {
  NamePattern result;
  for (const std::string& word : split(name, '.')) {
    if (!result.pattern.empty()) result.pattern += '.';
    if (is_number(word)) {
      result.pattern += "{}";
      result.numbers.push_back(word);
    } else {
      result.pattern += word;
    }
  }
  return result;
}

std::optional<std::string> their_name(const NameMap& map, std::string_view ours) {
  const auto [pattern, numbers] = pattern_of(ours);
  for (const NameRule& rule : map.rules)
    if (std::ranges::find(rule.ours, pattern) != rule.ours.end()) return fill_in(rule.theirs, numbers);
  return std::nullopt;
}

at::Tensor oriented(const FileTensor& file, const at::Tensor& ours) {
  at::Tensor data = file.transposed && ours.dim() == 2 ? ours.t() : ours;
  if (file.channelwise) data = data.unsqueeze(1);
  return file.stacked ? data.unsqueeze(0) : data;
}

TensorMapping::TensorMapping(const NameMap& map, const std::vector<GlobalTensor>& ours) : map_(map) {
  // Pattern -> rule, so that each tensor costs one lookup however many rules there are.
  std::unordered_map<std::string_view, const NameRule*> rule_of;
  for (const NameRule& rule : map_.rules)
    for (const std::string& pattern : rule.ours) rule_of.emplace(pattern, &rule);
  std::unordered_map<std::string, const GlobalTensor*> by_name;
  for (const GlobalTensor& tensor : ours) by_name.emplace(tensor.name, &tensor);
  for (const GlobalTensor& tensor : ours) {
    if (sources_.contains(tensor.name)) continue;  // came with an earlier part of the same file tensor
    const auto [pattern, numbers] = pattern_of(tensor.name);
    const auto found = rule_of.find(pattern);
    check(found != rule_of.end(), "no rule says where {} lies in the checkpoint", tensor.name);
    const NameRule& rule = *found->second;
    FileTensor file{
        fill_in(rule.theirs, numbers), tensor.shape, rule.transposed, rule.channelwise, rule.copies, rule.stacked,
        !rule.kernel.empty()};
    // Concatenates the parts along the outputs; each of them learns its first row.
    const auto add_parts = [&](const std::vector<std::string>& of, int64_t index) {
      file.shape[0] = 0;
      for (const std::string& part : rule.ours) {
        const auto held = by_name.find(fill_in(part, of));
        check(held != by_name.end(), "{} should hold {}, which the model does not have", file.name, fill_in(part, of));
        sources_[held->first] = {files_.size(), file.shape[0], index};
        file.shape[0] += held->second->shape[0];
      }
    };
    int64_t experts = 0;
    if (rule.stacked) {
      std::vector<std::string> expert = numbers;
      for (expert.back() = "0"; by_name.contains(fill_in(rule.ours[0], expert));
           expert.back() = std::to_string(experts))
        add_parts(expert, experts++);
    } else {
      add_parts(numbers, 0);
    }
    if (file.transposed) std::reverse(file.shape.begin(), file.shape.end());
    if (file.channelwise) file.shape.insert(file.shape.begin() + 1, 1);
    if (file.stacked) file.shape.insert(file.shape.begin(), experts);
    if (file.is_kernel) {
      const int64_t inputs = std::accumulate(rule.kernel.begin(), rule.kernel.end(), int64_t{1}, std::multiplies<>());
      check(file.shape.size() == 2 && file.shape[1] == inputs, "{} should hold a kernel of {} numbers per output",
            file.name, inputs);
      file.shape.pop_back();
      file.shape.insert(file.shape.end(), rule.kernel.begin(), rule.kernel.end());
    }
    files_.push_back(std::move(file));
  }
}

const FileTensor& TensorMapping::file_of(const std::string& ours) const {
  const auto source = sources_.find(ours);
  check(source != sources_.end(), "{} is not a tensor of this model", ours);
  return files_[source->second.file];
}

// A rectangle keeps its size; only its offset moves by the rows of the parts in front of it, and both turn if the file
// stores the transpose.
TensorMapping::Place TensorMapping::place(const parallel::ShardedTensor& ours) const {
  const auto source = sources_.find(ours.name);
  check(source != sources_.end(), "{} is not a tensor of this model", ours.name);
  const FileTensor& file = files_[source->second.file];
  Place place{&file, ours.offset, oriented(file, ours.local)};
  place.offset[0] += source->second.first_row;
  if (file.transposed) std::reverse(place.offset.begin(), place.offset.end());
  if (file.channelwise) place.offset.insert(place.offset.begin() + 1, 0);
  if (file.stacked) place.offset.insert(place.offset.begin(), source->second.index);
  return place;
}

std::string TensorMapping::name_in(const WeightFiles& files, const std::string& name) const {
  if (files.contains(name) || map_.optional_prefix.empty() || !name.starts_with(map_.optional_prefix)) return name;
  std::string shorter = name.substr(map_.optional_prefix.size());
  return files.contains(shorter) ? shorter : name;
}

std::vector<std::string> TensorMapping::others_in(const WeightFiles& files) const {
  std::set<std::string, std::less<>> expected;
  for (const FileTensor& file : files_) {
    expected.insert(name_in(files, file.name));
    expected.insert(file.copies.begin(), file.copies.end());
    if (!map_.scale_block) continue;
    expected.insert(block_scale_name(name_in(files, file.name)));
    for (const std::string& copy : file.copies) expected.insert(block_scale_name(copy));
  }
  std::vector<std::string> others;
  for (const std::string& name : files.names())
    if (!expected.contains(name) && !matches_any(map_.ignored, name)) others.push_back(name);
  return others;
}

std::vector<std::string> TensorMapping::unexpected_in(const WeightFiles& files) const {
  std::vector<std::string> names = others_in(files);
  std::erase_if(names, [&](const std::string& name) { return matches_any(map_.carried, name); });
  return names;
}

std::vector<std::string> TensorMapping::carried_in(const WeightFiles& files) const {
  if (map_.carried.empty()) return {};
  std::vector<std::string> names = others_in(files);
  std::erase_if(names, [&](const std::string& name) { return !matches_any(map_.carried, name); });
  return names;
}

bool TensorMapping::is_scaled(const WeightFiles& files, const std::string& name) const {
  if (!map_.scale_block) return false;
  const TensorInfo* info = files.find(name);
  return info && info->dtype == Dtype::kF8E4M3 && info->shape.size() >= 2;
}

at::Tensor TensorMapping::values_in(const WeightFiles& files, const std::string& name, at::ScalarType dtype) const {
  const at::Tensor stored = files.tensor(name);
  if (!is_scaled(files, name)) return stored;
  at::Tensor values = at::empty(stored.sizes(), dtype);
  copy_dequantized(values, stored, files.tensor(block_scale_name(name)),
                   std::vector<int64_t>(static_cast<size_t>(stored.dim()), 0), *map_.scale_block);
  return values;
}

// DeepSeek's scales are F32; other publishers write BF16.
void TensorMapping::check_scales(const WeightFiles& files, const TensorInfo& weight,
                                 std::vector<std::string>& misshapen, std::vector<std::string>& mistyped) const {
  const std::string name = block_scale_name(weight.name);
  const TensorInfo* scales = files.find(name);
  if (!scales) {
    mistyped.push_back(fmt::format("{}: F8_E4M3 in the file, which lacks its scales, {}", weight.name, name));
    return;
  }
  const std::vector<int64_t> expected = block_scale_shape(weight.shape, *map_.scale_block);
  if (scales->shape != expected)
    misshapen.push_back(fmt::format("{}: [{}] in the file, [{}] by weight_block_size", name,
                                    fmt::join(scales->shape, ", "), fmt::join(expected, ", ")));
  if (scales->dtype != Dtype::kF32 && scales->dtype != Dtype::kBF16)
    mistyped.push_back(fmt::format("{}: {} in the file; scales are F32 or BF16", name, hf::name(scales->dtype)));
}

std::string TensorMapping::problems_of_stored(const WeightFiles& files) const {
  std::vector<std::string> misshapen, mistyped;
  for (const FileTensor& file : files_) {
    const std::string name = name_in(files, file.name);
    const TensorInfo* info = files.find(name);
    if (!info) continue;
    if (info->shape != file.shape)
      misshapen.push_back(fmt::format("{}: [{}] in the file, [{}] in the model", name, fmt::join(info->shape, ", "),
                                      fmt::join(file.shape, ", ")));
    const at::ScalarType type = scalar_type(info->dtype);
    if (is_scaled(files, name))
      check_scales(files, *info, misshapen, mistyped);
    else if (!at::isFloatingType(type) || at::isFloat8Type(type))
      mistyped.push_back(
          fmt::format("{}: {} in the file; F64, F32, F16 or BF16 can be read", name, hf::name(info->dtype)));
  }
  std::string message;
  add_problem(message, "of another shape", misshapen);
  add_problem(message, "of another type", mistyped);
  return message;
}

// All problems of a kind are collected, because one of them alone rarely tells that the whole checkpoint is another
// one.
void TensorMapping::check_files(const WeightFiles& files, std::string_view whose) const {
  std::vector<std::string> missing;
  for (const FileTensor& file : files_)
    if (const std::string name = name_in(files, file.name); !files.contains(name)) missing.push_back(name);
  std::string message;
  add_problem(message, "missing", missing);
  add_problem(message, "unexpected", unexpected_in(files));
  message += problems_of_stored(files);
  check<DataError>(message.empty(), "the weights in {} are not {}:{}", files.folder().string(), whose, message);
}

void TensorMapping::check_stored(const WeightFiles& files) const {
  const std::string message = problems_of_stored(files);
  check<DataError>(message.empty(), "the weights in {} are not those of the model that config.json describes:{}",
                   files.folder().string(), message);
}

void TensorMapping::read(const WeightFiles& files, const std::vector<parallel::ShardedTensor>& into,
                         std::vector<NonFiniteValues>* found) const {
  const at::NoGradGuard no_grad;
  for (const auto& tensor : into) {
    if (tensor.local.numel() == 0) continue;
    const Place target = place(tensor);
    const std::string name = name_in(files, target.file->name);
    at::Tensor source = files.tensor(name);
    if (target.file->is_kernel) source = source.flatten(1);
    // Narrowing a mapped view reads nothing; copy_ below touches just the pages of the rectangle and converts the type.
    for (size_t d = 0; d < target.offset.size(); ++d)
      source = source.narrow(static_cast<int64_t>(d), target.offset[d], target.data.size(static_cast<int64_t>(d)));
    at::Tensor data = target.data;  // a view: writes go to the parameter
    const bool scaled = is_scaled(files, name);
    if (scaled)
      copy_dequantized(data, source, files.tensor(block_scale_name(name)), target.offset, *map_.scale_block);
    else
      data.copy_(source);
    if (found != nullptr && !all_finite(data))
      found->push_back({.tensor = name,
                        .file = files.file_of(name).filename().string(),
                        .offset = target.offset,
                        .count = data.numel() - at::isfinite(data).sum().item<int64_t>(),
                        .too_large_for = !scaled && all_finite(source) ? toString(data.scalar_type()) : ""});
    files.release(name);
  }
}

}  // namespace megalith::hf
