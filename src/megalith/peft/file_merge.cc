// Merges an adapter into a checkpoint's tensors without a model: W + s·B·A per tensor, with use_dora scaled to the
// norms that the adapter has for the outputs, in fp32 and rounded once. Before
// the first tensor is merged, every tensor of the adapter is matched with one of the base, so that an adapter of
// another model is refused instead of merged in part.
#include "megalith/peft/file_merge.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <limits>
#include <set>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/peft/adapter_files.h"
#include "megalith/peft/names.h"
#include "megalith/peft/principal_part.h"
#include "megalith/peft/targets.h"

namespace megalith::peft {

namespace fs = std::filesystem;

namespace {

// Returns [o, i] of a tensor as the update sees it, whichever way the file stores it.
std::pair<int64_t, int64_t> sizes_of(const hf::FileTensor& file) {
  return file.transposed ? std::pair(file.shape[1], file.shape[0]) : std::pair(file.shape[0], file.shape[1]);
}

// Compares the tensors of an adapter with those of the base model and collects every difference.
// Shapes, for a weight [o, i] and rank r: A [r, i] and B [o, r]; for an embedding [v, h]: A [r, v] and B [h, r].
class Checker {
 public:
  Checker(const hf::WeightFiles& files, bool use_dora) : files_(files), use_dora_(use_dora) {}

  // `rank` is that of the tensor's update, if it has one.
  void look_at(const hf::FileTensor& base, int64_t rank) {
    const UpdateNames names = update_names(base.name);
    expect(names.whole, base.shape);
    expect(base.name, base.shape);  // saved beside the update
    if (base.shape.size() != 2 || names.a.empty()) return;
    const auto [out, in] = sizes_of(base);
    pair(names.a, {rank, in}, names.b, {out, rank});
    if (use_dora_ && !expect(names.magnitude, {out}) && files_.find(names.a) != nullptr)
      problems_.push_back(fmt::format("{} is present, but {} is missing", names.a, names.magnitude));
    pair(names.lookup_a, {rank, out}, names.lookup_b, {in, rank});
  }

  void finish(const fs::path& folder) const {
    std::vector<std::string> problems = problems_;
    for (const std::string& name : files_.names())
      if (!known_.contains(name)) problems.push_back(fmt::format("the model has no tensor that {} belongs to", name));
    check<DataError>(problems.empty(), "the adapter {} does not fit the model: {}", folder.string(),
                     list_in_words(problems, 20));
  }

 private:
  bool expect(const std::string& name, const std::vector<int64_t>& shape) {
    const hf::TensorInfo* info = files_.find(name);
    if (info == nullptr) return false;
    known_.insert(name);
    if (info->shape != shape)
      problems_.push_back(fmt::format("{} is [{}] and the model needs [{}]", name, fmt::join(info->shape, ", "),
                                      fmt::join(shape, ", ")));
    return true;
  }
  // Neither or both of A and B must be there.
  void pair(const std::string& a, const std::vector<int64_t>& a_shape, const std::string& b,
            const std::vector<int64_t>& b_shape) {
    const bool has_a = expect(a, a_shape), has_b = expect(b, b_shape);
    if (has_a != has_b)
      problems_.push_back(fmt::format("{} is present, but {} is missing", has_a ? a : b, has_a ? b : a));
  }

  const hf::WeightFiles& files_;
  const bool use_dora_;
  std::set<std::string> known_;
  std::vector<std::string> problems_;
};

// The start of an adapter has its A's and B's, and nothing else.
void check_start(const hf::WeightFiles& start, const hf::WeightFiles& files, const fs::path& folder) {
  std::vector<std::string> problems;
  for (const std::string& name : files.names()) {
    if (!name.ends_with(".lora_A.weight") && !name.ends_with(".lora_B.weight")) continue;
    const hf::TensorInfo* there = start.find(name);
    if (there == nullptr || there->shape != files.find(name)->shape) problems.push_back(name);
  }
  check<DataError>(problems.empty(), "{} lacks these tensors of {}, or has them in other shapes: {}",
                   (folder / fmt::format("{}.safetensors", kStartStem)).string(), kWeightsStem,
                   list_in_words(problems, 20));
}

}  // namespace

FileMerge::FileMerge(const fs::path& adapter, hf::NameMap names, const std::vector<hf::FileTensor>& base)
    : config_(with_newer_names(read_adapter_config(adapter), names)),
      names_(std::move(names)),
      files_(open_adapter(adapter, config_, names_)) {
  Checker checker(*files_, config_.use_dora);
  for (const hf::FileTensor& file : base) {
    const auto update = update_of_file(names_, file.name, config_);
    checker.look_at(file, update ? update->rank : config_.rank);
  }
  checker.finish(adapter);
  if (!config_.pissa) return;
  start_ = open_start(adapter, config_);
  if (start_) check_start(*start_, *files_, adapter);
}

at::Tensor FileMerge::start_of(const hf::FileTensor& file, const at::Tensor& tensor, int64_t rank, double scale) const {
  const UpdateNames names = update_names(file.name);
  if (start_) return start_->tensor(names.b).to(at::kFloat).mm(start_->tensor(names.a).to(at::kFloat));
  const auto [a, b] = principal_part(file.transposed ? tensor.t() : tensor, rank, scale, /*iterations=*/-1, {});
  return b.mm(a);
}

at::Tensor FileMerge::merged(const hf::FileTensor& file, const at::Tensor& tensor) const {
  const UpdateNames names = update_names(file.name);
  if (files_->contains(names.whole)) return files_->tensor(names.whole).to(tensor.scalar_type());
  const auto number = [this](const std::string& name) { return files_->tensor(name).to(at::kFloat); };
  const at::Tensor base = files_->contains(file.name) ? files_->tensor(file.name) : tensor;
  // peft's formulas: B·A for linear layers, (B·A)ᵀ for embeddings, whose factors are stored for [h, v].
  at::Tensor delta;  // [o, i]
  if (files_->contains(names.a)) {
    delta = number(names.b).mm(number(names.a));
    if (config_.pissa) {
      const auto update = update_of_file(names_, file.name, config_);
      delta.sub_(start_of(file, base, number(names.a).size(0), update ? update->scale : config_.scale()));
    }
    if (file.transposed) delta = delta.t();
  } else if (files_->contains(names.lookup_a)) {
    delta = number(names.lookup_b).mm(number(names.lookup_a)).t();
  } else {
    return base.to(tensor.scalar_type());
  }
  const auto update = update_of_file(names_, file.name, config_);
  const at::Tensor sum = at::add(base.to(at::kFloat), delta, update ? update->scale : config_.scale());
  if (!config_.use_dora) return sum.to(tensor.scalar_type());
  const int64_t inputs = file.transposed ? 0 : 1;  // the dimension over which norms are taken
  const at::Tensor norms = sum.square().sum(inputs).sqrt_().clamp_min_(std::numeric_limits<float>::min());
  return sum.mul(number(names.magnitude).div(norms).unsqueeze(inputs)).to(tensor.scalar_type());
}

}  // namespace megalith::peft
