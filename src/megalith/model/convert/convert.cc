// Converts a checkpoint tensor by tensor: the source is memory-mapped, a tensor is read, changed, written and released,
// so that memory holds one tensor at a time. Two TensorMappings, before and after, translate between the names in files
// and the model; they differ only in the shape of the vocabulary.
#include "megalith/model/convert/convert.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"
#include "megalith/hf/block_scales.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/io/file_io.h"
#include "megalith/io/staged_folder.h"
#include "megalith/model/adapter.h"
#include "megalith/model/convert/fp8_blocks.h"
#include "megalith/model/families/family.h"
#include "megalith/model/families/value_head.h"
#include "megalith/model/pretrained.h"
#include "megalith/peft/file_merge.h"

namespace megalith::model {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMeanRows = 4096;  // rows of an embedding per step, which bounds the fp64 copy

// Mean over the rows, fp64 [h]: the same value that load_weights computes over ranks, up to the order of the sum.
at::Tensor mean_of_rows(const at::Tensor& rows) {
  at::Tensor sum = at::zeros({rows.size(1)}, at::kDouble);
  for (int64_t first = 0; first < rows.size(0); first += kMeanRows)
    sum += rows.narrow(0, first, std::min(kMeanRows, rows.size(0) - first)).to(at::kDouble).sum(0);
  return sum / static_cast<double>(rows.size(0));
}

// The names of a vocabulary tensor in the model and in the files. Random numbers of new rows depend on the former.
struct VocabularyTensor {
  std::string ours, theirs;
};
// The embedding, the head unless it is tied, and the copies of both that multi-token-prediction layers have in files.
std::vector<VocabularyTensor> vocabulary_tensors(const ModelConfig& config) {
  std::vector<VocabularyTensor> found;
  for (const hf::NameRule& rule : name_map(config).rules)
    if (rule.ours[0] == "embedding.weight" || (rule.ours[0] == "head.weight" && !config.tied_embeddings)) {
      found.push_back({rule.ours[0], rule.theirs});
      for (const std::string& copy : rule.copies) found.push_back({rule.ours[0], copy});
    }
  return found;
}

// A tensor to write, and the one it is read from.
struct Conversion {
  hf::WeightSpec spec;
  std::string source;
  const hf::FileTensor* file;  // its entry in the mapping `after`, which outlives it; nullptr if it is carried through
  bool in_fp8 = false;         // written in blocks, with scales
};
// Lists the tensors in the order of the new files, with copies after their originals, and then those that are carried
// through. Without a `dtype`, each keeps the type of its values in the old file, which may differ between tensors.
// Those in `in_fp8` are written in fp8.
std::vector<Conversion> conversions(const hf::WeightFiles& files, const ModelConfig& config,
                                    const hf::TensorMapping& before, const hf::TensorMapping& after,
                                    std::optional<at::ScalarType> dtype,
                                    const std::unordered_set<std::string>& in_fp8) {
  std::vector<Conversion> all;
  for (const hf::FileTensor& file : after.files()) {
    const std::string source = before.name_in(files, file.name);
    const hf::Dtype own = before.is_scaled(files, source) ? hf::dtype_of(config.dtype) : files.find(source)->dtype;
    const bool fp8 = in_fp8.contains(file.name);
    const hf::Dtype type = fp8 ? hf::Dtype::kF8E4M3 : dtype ? hf::dtype_of(*dtype) : own;
    all.push_back({{file.name, type, file.shape}, source, &file, fp8});
    for (const std::string& copy : file.copies) all.push_back({{copy, type, file.shape}, source, &file, fp8});
  }
  for (const std::string& name : before.carried_in(files)) {
    const hf::TensorInfo& info = *files.find(name);
    all.push_back({{name, dtype ? carried_dtype(info, config, *dtype) : info.dtype, info.shape}, name, nullptr});
  }
  return all;
}

// Merges adapters, which name modules, into the tensors of files, which may have older names and stacks of experts. As
// in a model, each is added to what those before it have made, rounded.
class Merge {
 public:
  Merge(const std::vector<fs::path>& adapters, const ModelConfig& config, const hf::TensorMapping& files)
      : tensors_(global_tensors(config)), files_(files), modules_(module_names(config), tensors_) {
    for (const fs::path& adapter : adapters)
      merges_.push_back(std::make_unique<const peft::FileMerge>(adapter, module_names(config), modules_.files()));
    for (const hf::GlobalTensor& ours : tensors_) module_of_[&files_.file_of(ours.name)] = &modules_.file_of(ours.name);
  }

  at::Tensor merged(const hf::FileTensor& file, const at::Tensor& tensor) const {
    if (!file.stacked) return merged_module(*module_of_.at(&file), tensor);
    at::Tensor whole = tensor.clone();
    for (const hf::GlobalTensor& ours : tensors_) {
      if (&files_.file_of(ours.name) != &file) continue;
      // The place of the expert's matrix in the stack, as a view of it.
      const at::Tensor shape = at::empty(ours.shape, at::TensorOptions(tensor.scalar_type()).device(at::kMeta));
      const auto place = files_.place({ours.name, ours.shape, std::vector<int64_t>(ours.shape.size(), 0), shape});
      at::Tensor part = whole;
      for (size_t d = 0; d < place.offset.size(); ++d)
        part = part.narrow(static_cast<int64_t>(d), place.offset[d], place.data.size(static_cast<int64_t>(d)));
      part = file.transposed ? part.squeeze(0).t() : part.squeeze(0);
      part.copy_(merged_module(modules_.file_of(ours.name), part));
    }
    return whole;
  }

 private:
  at::Tensor merged_module(const hf::FileTensor& module, at::Tensor tensor) const {
    for (const auto& merge : merges_) tensor = merge->merged(module, tensor);
    return tensor;
  }

  const std::vector<hf::GlobalTensor> tensors_;
  const hf::TensorMapping& files_;
  const hf::TensorMapping modules_;
  // The module's tensor by that of the files. A stack has many, of which this is one.
  std::unordered_map<const hf::FileTensor*, const hf::FileTensor*> module_of_;
  std::vector<std::unique_ptr<const peft::FileMerge>> merges_;
};

// Returns a vocabulary tensor with the old rows and new ones, for an adapter that replaces or updates it.
at::Tensor grown_tensor(const VocabularyTensor& tensor, const at::Tensor& old, int64_t vocab, uint64_t seed) {
  const int64_t rows = old.size(0);
  const at::Tensor added =
      new_vocab_rows(mean_of_rows(old), tensor.ours, {vocab, old.size(1)}, rows, vocab - rows, seed);
  return at::cat({old, added.to(old.scalar_type())});
}

// The tensors to write: those of conversions(), each in fp8 followed by its scales.
std::vector<hf::WeightSpec> specs_of(const std::vector<Conversion>& planned) {
  std::vector<hf::WeightSpec> specs;
  for (const Conversion& each : planned) {
    specs.push_back(each.spec);
    if (each.in_fp8)
      specs.push_back({hf::block_scale_name(each.spec.name), hf::Dtype::kF32,
                       hf::block_scale_shape(each.spec.shape, hf::ScaleBlock{})});
  }
  return specs;
}

// Writes a tensor in fp8 with its scales: bit for bit what its file holds (`as_stored`), or `values` rounded.
void write_in_fp8(hf::WeightWriter& writer, const Conversion& conversion, const hf::WeightFiles& files, bool as_stored,
                  const at::Tensor& values) {
  const std::string scales = hf::block_scale_name(conversion.spec.name);
  if (as_stored) {
    writer.write(conversion.spec.name, files.tensor(conversion.source));
    writer.write(scales, files.tensor(hf::block_scale_name(conversion.source)));
    return;
  }
  const hf::BlockQuantized rounded = hf::block_quantized(values, hf::ScaleBlock{});
  writer.write(conversion.spec.name, rounded.weight);
  writer.write(scales, rounded.scales);
}

// Writes a vocabulary tensor: the old rows, then new ones.
void write_grown(hf::WeightWriter& writer, const VocabularyTensor& tensor, const at::Tensor& old, int64_t vocab,
                 uint64_t seed) {
  writer.write(tensor.theirs, {0, 0}, old);
  const at::Tensor mean = mean_of_rows(old);
  for (int64_t first = old.size(0); first < vocab; first += kMeanRows) {
    const int64_t count = std::min(kMeanRows, vocab - first);
    writer.write(tensor.theirs, {first, 0},
                 new_vocab_rows(mean, tensor.ours, {vocab, old.size(1)}, first, count, seed));
  }
}

}  // namespace

ConvertReport convert_checkpoint(const fs::path& source, const fs::path& target, const ConvertOptions& options) {
  const at::NoGradGuard no_grad;
  const ModelConfig in_files = read_pretrained_config(source);
  ModelConfig config = in_files;
  config.vocab_size = options.vocab_size.value_or(config.vocab_size);
  // An adapter may have been trained on a vocabulary that had grown.
  fs::path assets = source;
  for (const fs::path& adapter : options.adapters) {
    const int64_t rows = adapter_vocab_size(adapter, in_files);
    if (rows <= config.vocab_size) continue;
    config.vocab_size = rows;
    if (has_tokenizer(adapter)) assets = adapter;  // it has the tokens of the new rows
  }
  check<ConfigError>(config.vocab_size >= in_files.vocab_size,
                     "the vocabulary of {} ids cannot shrink to {}; give at least {}", in_files.vocab_size,
                     config.vocab_size, in_files.vocab_size);
  // fs::equivalent compares inodes, so another path to the same folder is also refused.
  std::error_code error;
  check<ConfigError>(!fs::equivalent(source, target, error), "the output is the input, {}; choose another folder",
                     source.string());
  const hf::WeightFiles files(source);
  const hf::TensorMapping before(name_map(in_files), global_tensors(in_files));
  before.check_files(files);
  const hf::TensorMapping after(name_map(config), global_tensors(config));
  std::optional<Merge> merge;
  for (const fs::path& adapter : options.adapters) check_mergeable(peft::read_adapter_config(adapter), in_files);
  if (!options.adapters.empty()) merge.emplace(options.adapters, config, after);
  const auto in_fp8 =
      options.fp8_blocks ? fp8_block_names(config, global_tensors(config), after) : std::unordered_set<std::string>{};
  const auto planned = conversions(files, in_files, before, after, options.dtype, in_fp8);
  const std::vector<hf::WeightSpec> specs = specs_of(planned);
  const auto vocabulary = vocabulary_tensors(config);

  // From here on something is written, so all checks are above.
  io::StagedFolder staged(target, "convert", {.overwrite = options.overwrite});
  hf::WeightWriter writer(staged.path(), specs, {.max_shard_bytes = options.max_shard_bytes});
  writer.create_files();
  TaskProgress progress("converting", TaskProgress::Unit::kCount, std::ssize(planned), "tensors");
  for (const Conversion& conversion : planned) {
    const auto& [spec, name, file, fp8] = conversion;
    const bool as_stored = fp8 && !merge && in_files.scale_block == hf::ScaleBlock{} && before.is_scaled(files, name);
    const at::ScalarType values = fp8 ? at::kFloat : options.dtype.value_or(in_files.dtype);
    const at::Tensor tensor = as_stored || !file ? files.tensor(name) : before.values_in(files, name, values);
    const auto grown = std::ranges::find(vocabulary, spec.name, &VocabularyTensor::theirs);
    const bool grows = grown != vocabulary.end() && config.vocab_size > in_files.vocab_size;
    if (fp8) {
      write_in_fp8(writer, conversion, files, as_stored, merge ? merge->merged(*file, tensor) : tensor);
    } else if (merge && file) {
      writer.write(spec.name, merge->merged(*file, grows ? grown_tensor(*grown, tensor, config.vocab_size, options.seed)
                                                         : tensor));
    } else if (grows) {
      write_grown(writer, *grown, tensor, config.vocab_size, options.seed);
    } else {
      writer.write(spec.name, tensor);
    }
    // Drops the tensor's pages from the page cache of this process; a 100 GB model would otherwise fill memory.
    files.release(name);
    progress.add(1);
  }
  writer.sync();
  writer.write_index();
  const std::string described = config_json(config, options.dtype.value_or(config.dtype));
  io::write_text_file(
      staged.path() / "config.json",
      options.fp8_blocks ? with_fp8_block_config(described, config, global_tensors(config), after, in_fp8) : described);
  copy_assets(assets, staged.path(), config);
  // A reward model of LLaMA-Factory stays one, with the head of the last adapter that has one.
  fs::path head = source;
  for (const fs::path& adapter : options.adapters)
    if (has_value_head(adapter)) head = adapter;
  copy_value_head(head, staged.path());
  staged.commit();
  return {static_cast<int64_t>(specs.size()), writer.total_bytes(), static_cast<int64_t>(writer.file_names().size())};
}

}  // namespace megalith::model
