#include "megalith/model/convert.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/hf/file_io.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/staged_folder.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/model/families/family.h"
#include "megalith/model/pretrained.h"

namespace megalith::model {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMeanRows = 4096;  // of an embedding, at a time

at::Tensor mean_of_rows(const at::Tensor& rows) {
  at::Tensor sum = at::zeros({rows.size(1)}, at::kDouble);
  for (int64_t first = 0; first < rows.size(0); first += kMeanRows)
    sum += rows.narrow(0, first, std::min(kMeanRows, rows.size(0) - first)).to(at::kDouble).sum(0);
  return sum / static_cast<double>(rows.size(0));
}

// The tensor of the model that a vocabulary tensor of the files is: its name decides the random numbers of new rows.
struct VocabularyTensor {
  std::string ours, theirs;
};
std::vector<VocabularyTensor> vocabulary_tensors(const ModelConfig& config) {
  std::vector<VocabularyTensor> found;
  for (const hf::NameRule& rule : name_map(config).rules)
    if (rule.ours[0] == "embedding.weight" || (rule.ours[0] == "head.weight" && !config.tied_embeddings))
      found.push_back({rule.ours[0], rule.theirs});
  return found;
}

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
  const ModelConfig in_files = read_model_config(source);
  ModelConfig config = in_files;
  config.vocab_size = options.vocab_size.value_or(config.vocab_size);
  check<ConfigError>(config.vocab_size >= in_files.vocab_size,
                     "the vocabulary of {} ids cannot shrink to {}; give at least {}", in_files.vocab_size,
                     config.vocab_size, in_files.vocab_size);
  std::error_code error;
  check<ConfigError>(!fs::equivalent(source, target, error), "the output is the input, {}; choose another folder",
                     source.string());
  const hf::WeightFiles files(source);
  const hf::TensorMapping before(name_map(in_files), global_tensors(in_files));
  before.check_files(files);
  const hf::TensorMapping after(name_map(config), global_tensors(config));
  std::vector<hf::WeightSpec> specs;
  for (const hf::FileTensor& file : after.files()) {
    const hf::Dtype own = files.find(before.name_in(files, file.name))->dtype;
    specs.push_back({file.name, options.dtype ? hf::dtype_of(*options.dtype) : own, file.shape});
  }
  const auto vocabulary = vocabulary_tensors(config);

  hf::StagedFolder staged(target, "convert", {.overwrite = options.overwrite});
  hf::WeightWriter writer(staged.path(), specs, {.max_shard_bytes = options.max_shard_bytes});
  writer.create_files();
  for (const hf::WeightSpec& spec : specs) {
    const std::string name = before.name_in(files, spec.name);
    const at::Tensor tensor = files.tensor(name);
    const auto grown = std::ranges::find(vocabulary, spec.name, &VocabularyTensor::theirs);
    if (grown != vocabulary.end() && config.vocab_size > in_files.vocab_size) {
      write_grown(writer, *grown, tensor, config.vocab_size, options.seed);
    } else {
      writer.write(spec.name, tensor);
    }
    files.release(name);
  }
  writer.sync();
  writer.write_index();
  hf::write_text_file(staged.path() / "config.json", config_json(config, options.dtype.value_or(config.dtype)));
  copy_assets(source, staged.path(), config);
  staged.commit();
  return {static_cast<int64_t>(specs.size()), writer.total_bytes(), static_cast<int64_t>(writer.file_names().size())};
}

}  // namespace megalith::model
