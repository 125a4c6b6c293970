// Every tensor of the folder is expanded into the names of single layers and experts. Each name has a place: the stored
// tensor, and its index in the dimensions that are stacked. Nothing is read until whole() copies one place.
#include "megalith/model/foreign/megatron_dcp.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/hf/foreign/torch_file.h"

namespace megalith::model {

namespace {

constexpr std::string_view kLayerNames = "decoder.layers.", kJoinedExperts = ".experts.experts.",
                           kOneExpert = ".experts.";

constexpr int64_t kMostStacked = 1 << 20;  // layers times experts

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "…experts.experts.linear_fc1.weight" becomes "…experts.3.linear_fc1.weight".
std::string with_expert(const std::string& name, int64_t expert) {
  const size_t at = name.find(kJoinedExperts);
  return fmt::format("{}.experts.{}.{}", name.substr(0, at), expert, name.substr(at + kJoinedExperts.size()));
}

bool is_optimizer(std::string_view name) {
  return name.starts_with("optimizer") || name.find(".optimizer.") != std::string_view::npos ||
         name.starts_with("chained_");
}

}  // namespace

bool has_megatron_names(const hf::DcpFolder& folder) {
  return std::ranges::any_of(folder.tensors(), [](const auto& each) {
    return each.first.starts_with("decoder.") || each.first.starts_with("embedding.word_embeddings.");
  });
}

MegatronDcp::MegatronDcp(const hf::DcpFolder& folder) : folder_(folder) {
  const auto common = folder.folder() / "common.pt";
  if (std::filesystem::exists(common)) unread_ = find_unread_arguments(hf::TorchFile(common).root());
  for (const auto& [name, tensor] : folder.tensors()) {
    if (is_optimizer(name))
      ++optimizer_tensors_;
    else if (!is_megatron_extra(name) && !name.starts_with("rng_state") && !name.starts_with("rerun_state"))
      add(name, name, tensor);
  }
}

MegatronDcp::MegatronDcp(const hf::DcpFolder& folder, const std::string& prefix) : folder_(folder) {
  for (const auto& [name, tensor] : folder.tensors())
    if (name.starts_with(prefix)) add(name, name.substr(prefix.size()), tensor);
}

void MegatronDcp::add(const std::string& stored, std::string name, const hf::DcpTensor& tensor) {
  // Gate and up apart: X.weight_w and X.weight_v are the parts of X.weight, in this order.
  const bool is_gate = name.ends_with("_w"), is_up = name.ends_with("_v");
  if (is_gate || is_up) name.resize(name.size() - 2);
  std::vector<std::pair<std::string, std::vector<int64_t>>> found{{name, {}}};
  const auto expand = [&](size_t dim, const auto& rename) {
    std::vector<std::pair<std::string, std::vector<int64_t>>> expanded;
    const int64_t size = dim < tensor.shape.size() ? tensor.shape[dim] : 0;
    check<DataError>(size <= kMostStacked && std::ssize(found) * size <= kMostStacked, "{}: {} is a stack of {}",
                     folder_.folder().string(), stored, size);
    for (const auto& [each, index] : found)
      for (int64_t i = 0; i < size; ++i) {
        std::vector<int64_t> deeper = index;
        deeper.push_back(i);
        expanded.emplace_back(rename(each, i), std::move(deeper));
      }
    found = std::move(expanded);
  };
  size_t dims = 0;
  if (name.starts_with(kLayerNames) && name.size() > kLayerNames.size() && !is_digit(name[kLayerNames.size()]))
    expand(dims++, [](const std::string& each, int64_t layer) {
      return fmt::format("{}{}.{}", kLayerNames, layer, each.substr(kLayerNames.size()));
    });
  if (const size_t at = name.find(kJoinedExperts); at != std::string::npos) {
    if (is_digit(name[at + kJoinedExperts.size()])) {
      for (auto& [each, index] : found) each.replace(each.find(kJoinedExperts), kJoinedExperts.size(), kOneExpert);
    } else {
      expand(dims, with_expert);
    }
  }
  for (auto& [each, index] : found) {
    Place& place = places_[each];
    place.index = std::move(index);
    place.stored.insert(is_gate ? place.stored.begin() : place.stored.end(), stored);
  }
}

std::vector<std::string> MegatronDcp::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

at::ScalarType MegatronDcp::dtype(const std::string& name) const {
  return folder_.find(places_.at(name).stored[0])->dtype;
}

std::vector<int64_t> MegatronDcp::shape_of(const Place& place) const {
  std::vector<int64_t> shape;
  for (const std::string& stored : place.stored) {
    const std::vector<int64_t>& whole = folder_.find(stored)->shape;
    const std::vector<int64_t> own(whole.begin() + std::ssize(place.index), whole.end());
    if (shape.empty() || own.empty())
      shape = own;
    else
      shape[0] += own[0];
  }
  return shape;
}

std::string MegatronDcp::problem(const std::string& name, const std::vector<int64_t>& shape, int64_t /*parts*/) const {
  std::vector<int64_t> found = shape_of(places_.at(name)), expected = shape;
  if (!found.empty() && !expected.empty() && expected[0] < 0 && found[0] >= -expected[0]) expected[0] = found[0];
  if (found == expected) return "";
  return fmt::format("{}: [{}] in the checkpoint, {} in the model", name, fmt::join(found, ", "),
                     expected_in_words(shape));
}

at::Tensor MegatronDcp::whole(const std::string& name, const std::vector<int64_t>& /*shape*/, int64_t /*parts*/) const {
  const Place& place = places_.at(name);
  std::vector<at::Tensor> parts;
  for (const std::string& stored : place.stored) {
    std::vector<int64_t> offset = place.index, size(place.index.size(), 1);
    const std::vector<int64_t>& whole = folder_.find(stored)->shape;
    offset.resize(whole.size(), 0);
    size.insert(size.end(), whole.begin() + std::ssize(place.index), whole.end());
    const std::vector<int64_t> own(whole.begin() + std::ssize(place.index), whole.end());
    parts.push_back(folder_.read(stored, offset, size).view(own));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

}  // namespace megalith::model
