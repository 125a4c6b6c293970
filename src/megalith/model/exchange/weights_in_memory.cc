// A stream knows who owns what from one exchange at its start. Rectangles of a batch then lie one after the other in a
// buffer of bytes per owner, each at a multiple of kAlignment; the owner fills it and broadcasts it, and receivers copy
// the rectangles to their places:
//
//   owner 0:  | q rows 0-7 | k rows 0-3 |  …          q.weight  [16, h]  <- rows 0-7 of owner 0, 8-15 of owner 1
//   owner 1:  | q rows 8-15 | k rows 4-7 | …          k.weight  [8, h]
//
// Bytes and not numbers travel, so a type need not be one that the backend can add up, and -0 stays -0.
#include "megalith/model/exchange/weights_in_memory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/model/families/family.h"
#include "megalith/model/weight_check.h"
#include "megalith/nn/parameter/fp8_value.h"

namespace megalith::model {

namespace {

// A rectangle begins at a multiple of this in the buffer, so that it can be seen in its own type.
constexpr int64_t kAlignment = 16;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

at::ScalarType type_of(const hf::WeightSpec& tensor) { return hf::scalar_type(tensor.dtype); }

int64_t bytes_of(const hf::WeightSpec& tensor) {
  return c10::multiply_integers(tensor.shape) * static_cast<int64_t>(hf::item_bytes(tensor.dtype));
}

// Returns the part of a whole tensor that begins at `offset`: a view.
at::Tensor rectangle_of(const at::Tensor& whole, at::IntArrayRef offset, at::IntArrayRef sizes) {
  at::Tensor part = whole.view(hf::shape_for(whole.sizes().vec(), sizes.size()));
  for (size_t d = 0; d < sizes.size(); ++d) part = part.narrow(static_cast<int64_t>(d), offset[d], sizes[d]);
  return part;
}

ExportedWeights weights_of(const VirtualModels& models, WeightsOf of, std::optional<at::ScalarType> dtype) {
  return of == WeightsOf::kAdapter ? exported_adapter(models)
                                   : exported_weights(models, dtype.value_or(models.config().dtype));
}

}  // namespace

// A rectangle on its way: `held` is set on its owner.
struct WeightStream::Rectangle {
  int owner = 0;
  std::vector<int64_t> offset, sizes;
  const hf::HeldRectangle* held = nullptr;
};

WeightStream::WeightStream(const VirtualModels& models, const StreamOptions& options)
    : options_(options), everyone_(models.context().world().world()) {
  const int ranks = everyone_.size();
  check<ConfigError>(!options.receiver || (*options.receiver >= 0 && *options.receiver < ranks),
                     "rank {} is to receive the weights, and the run has the ranks 0 to {}",
                     options.receiver.value_or(0), ranks - 1);
  const at::NoGradGuard no_grad;
  if (options.of == WeightsOf::kModel) merged_.emplace(models);
  weights_ = weights_of(models, options.of, options.dtype);
  std::unordered_map<std::string_view, size_t> numbers;
  for (const hf::WeightSpec& tensor : weights_.tensors) numbers.emplace(tensor.name, numbers.size());
  nlohmann::json mine = nlohmann::json::array();
  std::vector<const hf::HeldRectangle*> sent;  // in the order of `mine`
  for (const hf::HeldRectangle& held : weights_.held) {
    if (held.replica != 0) continue;
    mine.push_back({numbers.at(held.tensor), held.offset, held.data.sizes().vec()});
    sent.push_back(&held);
  }
  of_tensor_.resize(weights_.tensors.size());
  const std::vector<std::string> tables = everyone_.all_gather_bytes(mine.dump(), "weights: who owns what");
  for (int owner = 0; owner < ranks; ++owner) {
    size_t next = 0;
    for (const auto& each : nlohmann::json::parse(tables[static_cast<size_t>(owner)])) {
      const hf::HeldRectangle* held = owner == everyone_.rank() ? sent[next++] : nullptr;
      of_tensor_[each[0].get<size_t>()].push_back(
          {owner, each[1].get<std::vector<int64_t>>(), each[2].get<std::vector<int64_t>>(), held});
    }
  }
}

WeightStream::~WeightStream() = default;

size_t WeightStream::end_of_batch() const {
  size_t end = next_;
  for (int64_t bytes = 0; end < weights_.tensors.size(); ++end) {
    bytes += bytes_of(weights_.tensors[end]);
    if (end > next_ && bytes > options_.batch_bytes) break;
  }
  return end;
}

std::optional<std::vector<NamedTensor>> WeightStream::next() {
  if (next_ == weights_.tensors.size()) {
    merged_.reset();  // restores the weights below an adapter
    return std::nullopt;
  }
  const at::NoGradGuard no_grad;
  const size_t end = end_of_batch();
  const bool receives = !options_.receiver || *options_.receiver == everyone_.rank();
  std::vector<NamedTensor> batch;
  std::vector<bool> owners(static_cast<size_t>(everyone_.size()));
  for (size_t number = next_; number < end; ++number) {
    const hf::WeightSpec& tensor = weights_.tensors[number];
    const at::TensorOptions like = at::TensorOptions(type_of(tensor)).device(everyone_.device());
    batch.push_back({tensor.name, receives ? at::empty(tensor.shape, like) : at::Tensor()});
    for (const Rectangle& rectangle : of_tensor_[number]) owners[static_cast<size_t>(rectangle.owner)] = true;
  }
  for (size_t owner = 0; owner < owners.size(); ++owner)
    if (owners[owner]) exchange(static_cast<int>(owner), end, batch);
  next_ = end;
  return batch;
}

// Broadcasts what one rank owns of the tensors next_ to end-1, and puts it into `batch`.
void WeightStream::exchange(int owner, size_t end, std::vector<NamedTensor>& batch) {
  struct Move {
    const Rectangle* rectangle;
    size_t tensor;  // its number
    int64_t begin, bytes;
  };
  std::vector<Move> moves;
  int64_t total = 0;
  for (size_t number = next_; number < end; ++number)
    for (const Rectangle& rectangle : of_tensor_[number])
      if (rectangle.owner == owner) {
        const auto item = static_cast<int64_t>(hf::item_bytes(weights_.tensors[number].dtype));
        const int64_t bytes = c10::multiply_integers(rectangle.sizes) * item;
        moves.push_back({&rectangle, number, total, bytes});
        total += aligned(bytes);
      }
  const at::Tensor buffer = at::empty({total}, at::TensorOptions(at::kByte).device(everyone_.device()));
  const auto place = [&](const Move& move) {
    return buffer.narrow(0, move.begin, move.bytes)
        .view(type_of(weights_.tensors[move.tensor]))
        .view(move.rectangle->sizes);
  };
  if (owner == everyone_.rank())
    for (const Move& move : moves) place(move).copy_(move.rectangle->held->elements());
  everyone_.broadcast(buffer, owner, "weights: rectangles of one owner");
  for (const Move& move : moves)
    if (const at::Tensor& whole = batch[move.tensor - next_].tensor; whole.defined())
      rectangle_of(whole, move.rectangle->offset, move.rectangle->sizes).copy_(place(move));
}

std::vector<WeightShard> weight_shards(const VirtualModels& models, WeightsOf of) {
  check<ConfigError>(of != WeightsOf::kModel || !has_adapter(models),
                     "the model has an adapter, which is merged only where whole tensors are made; ask for shards of"
                     " the base or of the adapter");
  const at::NoGradGuard no_grad;
  const ExportedWeights weights = weights_of(models, of, {});
  std::unordered_map<std::string_view, const hf::WeightSpec*> specs;
  for (const hf::WeightSpec& tensor : weights.tensors) specs.emplace(tensor.name, &tensor);
  std::vector<WeightShard> shards;
  for (const hf::HeldRectangle& held : weights.held) {
    const hf::WeightSpec& tensor = *specs.at(held.tensor);
    const auto dims = static_cast<size_t>(held.data.dim());
    shards.push_back({held.tensor, hf::shape_for(tensor.shape, dims), held.offset, held.elements(), held.replica});
  }
  return shards;
}

namespace {

// The tensors that can be set, under the names that they have in files.
struct Settable {
  hf::NameMap names;
  hf::TensorMapping mapping;
  std::unordered_map<std::string, const hf::FileTensor*> by_name;
  std::vector<nn::Parameter*> parameters;
};

std::unique_ptr<const Settable> settable(const VirtualModels& models, WeightsOf of) {
  if (of == WeightsOf::kAdapter) {
    const AdapterFile file(models);
    auto found = std::make_unique<Settable>(Settable{{}, file.mapping(), {}, {}});
    for (const hf::FileTensor& tensor : found->mapping.files()) found->by_name.emplace(file.name_of(tensor), &tensor);
    for (nn::Parameter* parameter : models.parameters())
      if (file.has(*parameter)) found->parameters.push_back(parameter);
    return found;
  }
  auto found = std::make_unique<Settable>(
      Settable{name_map(models.config()), {name_map(models.config()), global_tensors(models.config())}, {}, {}});
  const std::string& prefix = found->names.optional_prefix;
  for (const hf::FileTensor& tensor : found->mapping.files()) {
    found->by_name.emplace(tensor.name, &tensor);
    if (tensor.name.starts_with(prefix)) found->by_name.emplace(tensor.name.substr(prefix.size()), &tensor);
  }
  for (nn::Parameter* parameter : models.parameters())
    if (parameter->spec.role != nn::ParameterRole::kAdapter) found->parameters.push_back(parameter);
  return found;
}

// Given tensors by those that can be set, and what is wrong with them.
class GivenTensors {
 public:
  // `settable` outlives it.
  GivenTensors(const Settable& settable, const std::vector<GivenWeight>& given)
      : names_(settable.names), mapping_(settable.mapping) {
    for (const GivenWeight& each : given) {
      const auto found = settable.by_name.find(each.name);
      if (found == settable.by_name.end()) {
        if (!is_known_otherwise(each.name)) outcome_.unexpected.push_back(each.name);
        continue;
      }
      check_form(*found->second, each);
      by_file_[found->second] = &each;
    }
    std::unordered_map<const hf::FileTensor*, std::string_view> longest;  // name of each tensor
    for (const auto& [name, file] : settable.by_name)
      if (std::string_view& found = longest[file]; name.size() > found.size()) found = name;
    for (const hf::FileTensor& file : mapping_.files())
      if (!by_file_.contains(&file)) outcome_.missing.emplace_back(longest.at(&file));
  }

  const GivenNames& outcome() const { return outcome_; }

  // Returns the elements of a rectangle of ours, in the file's orientation; undefined if its tensor is not given. Notes
  // a rectangle that no part covers.
  at::Tensor source(const hf::TensorMapping::Place& place) {
    const auto found = by_file_.find(place.file);
    if (found == by_file_.end()) return {};
    for (const GivenWeight::Piece& piece : found->second->pieces) {
      const at::Tensor tensor =
          place.file->is_kernel && piece.tensor.dim() > 2 ? piece.tensor.flatten(1) : piece.tensor;
      std::vector<int64_t> offset = piece.offset;
      offset.resize(static_cast<size_t>(tensor.dim()), 0);
      bool inside = true;
      for (int64_t d = 0; d < tensor.dim(); ++d) {
        const auto i = static_cast<size_t>(d);
        inside &= place.offset[i] >= offset[i] && place.offset[i] + place.data.size(d) <= offset[i] + tensor.size(d);
      }
      if (!inside) continue;
      at::Tensor part = tensor;
      for (int64_t d = 0; d < tensor.dim(); ++d)
        part =
            part.narrow(d, place.offset[static_cast<size_t>(d)] - offset[static_cast<size_t>(d)], place.data.size(d));
      return part;
    }
    problems_.push_back(fmt::format("{}: this rank holds [{}] from [{}] on, and no part covers it", place.file->name,
                                    fmt::join(place.data.sizes(), ", "), fmt::join(place.offset, ", ")));
    return {};
  }
  hf::TensorMapping::Place place(const parallel::ShardedTensor& part) const { return mapping_.place(part); }
  bool holds(const std::string& ours) const { return mapping_.holds(ours); }

  // Throws DataError if anything is wrong.
  void check_all(bool strict) const {
    std::vector<std::string> problems = problems_;
    const auto list = [&](const char* kind, const std::vector<std::string>& names) {
      if (strict && !names.empty()) problems.push_back(fmt::format("{}: {}", kind, list_in_words(names, 8)));
    };
    list("missing", outcome_.missing);
    list("unexpected", outcome_.unexpected);
    check<DataError>(problems.empty(), "the given tensors are not those of this model:\n  {}",
                     fmt::join(problems, "\n  "));
  }

 private:
  // Buffers, tensors of parts that are not run, and repetitions of a tensor under a second name.
  bool is_known_otherwise(const std::string& name) const {
    const auto matches = [&](const std::string& pattern) { return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0; };
    return std::ranges::any_of(names_.ignored, matches) || std::ranges::any_of(names_.carried, matches) ||
           std::ranges::any_of(mapping_.files(), [&](const hf::FileTensor& file) {
             return std::ranges::find(file.copies, name) != file.copies.end();
           });
  }

  void check_form(const hf::FileTensor& file, const GivenWeight& given) {
    if (given.shape != file.shape && given.shape != hf::shape_for(file.shape, given.shape.size()))
      problems_.push_back(fmt::format("{}: [{}] was given, and the model has [{}]", given.name,
                                      fmt::join(given.shape, ", "), fmt::join(file.shape, ", ")));
    for (const GivenWeight::Piece& piece : given.pieces)
      if (const at::ScalarType type = piece.tensor.scalar_type(); !at::isFloatingType(type) || at::isFloat8Type(type))
        problems_.push_back(fmt::format("{}: {} was given; Double, Float, Half or BFloat16 can be loaded", given.name,
                                        c10::toString(type)));
  }

  const hf::NameMap& names_;
  const hf::TensorMapping& mapping_;
  std::unordered_map<const hf::FileTensor*, const GivenWeight*> by_file_;
  GivenNames outcome_;
  std::vector<std::string> problems_;
};

}  // namespace

GivenNames set_weights(const VirtualModels& models, const std::vector<GivenWeight>& given, bool strict, WeightsOf of) {
  const at::NoGradGuard no_grad;
  const auto targets = settable(models, of);
  GivenTensors tensors(*targets, given);
  tensors.check_all(strict);
  struct Copy {
    hf::TensorMapping::Place to;
    at::Tensor from;
  };
  std::vector<Copy> copies;
  for (const nn::Parameter* parameter : targets->parameters) {
    if (parameter->value.is_meta()) continue;
    for (const parallel::ShardedTensor& part : parameter->sharded(nn::loadable(*parameter))) {
      if (part.local.numel() == 0 || !tensors.holds(part.name)) continue;
      Copy copy{tensors.place(part), {}};
      copy.from = tensors.source(copy.to);
      if (copy.from.defined()) copies.push_back(std::move(copy));
    }
  }
  tensors.check_all(strict);
  std::vector<hf::NonFiniteValues> not_finite;
  for (const Copy& copy : copies) {
    copy.to.data.copy_(copy.from);
    if (const int64_t bad = copy.to.data.numel() - at::isfinite(copy.to.data).sum().item<int64_t>(); bad > 0)
      not_finite.push_back({.tensor = copy.to.file->name,
                            .file = "memory",
                            .offset = copy.to.offset,
                            .count = bad,
                            .too_large_for = at::isfinite(copy.from).all().item<bool>()
                                                 ? c10::toString(copy.to.data.scalar_type())
                                                 : ""});
  }
  require_finite(not_finite, "the given tensors", models.context());
  return tensors.outcome();
}

}  // namespace megalith::model
