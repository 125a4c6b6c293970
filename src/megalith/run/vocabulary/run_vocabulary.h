// The vocabulary of a fine-tuning run: its tokenizer with the tokens that the run adds, and the rows of embedding and
// head that the model needs for it.
//
// The model grows only if it is asked to (resize_vocab, add_tokens, add_special_tokens), and only if the tokenizer has
// ids beyond its rows: LLaMA-Factory's rule. New rows start from the mean of the old ones plus noise (model::
// load_weights), and so do the rows of added tokens that the model holds in reserve.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/training_arguments.h"
#include "megalith/model/adapter.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::run {

struct RunVocabulary {
  std::filesystem::path tokenizer_folder{};            // empty for a model without a tokenizer
  std::optional<tokenizer::Tokenizer> tokenizer{};     // with the tokens that the run adds
  std::map<std::string, std::string> changed_files{};  // texts by name; see tokenizer::GrownTokenizer
  int64_t size_in_files = 0;                           // rows of embedding and head in the model folder
  int64_t size = 0;                                    // … and in this run
  std::vector<int64_t> new_tokens{};                   // ids that the run adds, ascending
  bool grows = false;                                  // `size` is more than the model and its adapters have
  std::vector<std::string> notes{};                    // sentences for the user

  bool has_new_rows() const { return grows || !new_tokens.empty(); }
  // Returns the files that save points and exports have beside their weights.
  model::Assets assets(const std::filesystem::path& model_folder) const {
    return {tokenizer_folder.empty() ? model_folder : tokenizer_folder, changed_files};
  }
};

// Whether the options ask for a vocabulary that may be larger than that of the model.
bool asks_for_rows(const config::ModelSourceConfig& source);

// Returns the vocabulary of a run on the model `in_files` of `folder` with the adapters of `source`, if any: the
// tokenizer is that of the last adapter whose vocabulary is larger than the model's, or else that of the model. `args`
// must be derived. If `reads_tokenizer` is false, its folder is found, but it is not read and nothing grows. Throws
// ConfigError for tokens to add without a tokenizer, and the errors of its files.
RunVocabulary run_vocabulary(const config::TrainingArguments& args, const std::filesystem::path& folder,
                             const model::ModelConfig& in_files, const std::optional<model::AdapterSource>& source,
                             bool reads_tokenizer = true);

// Returns the settings of a model with such a vocabulary.
model::ModelSettings with_vocabulary(model::ModelSettings settings, const RunVocabulary& vocabulary);

// Has the adapter of a run train embedding and head if the run gives them new rows and the options name no module to
// train in full, as LLaMA-Factory does; adds a note about it, or about rows that stay untrained. Throws ConfigError if
// lora_target names embedding or head, whose new rows could then not be stored.
void train_new_rows(RunVocabulary& vocabulary, const model::ModelConfig& config, model::AdapterSource& adapter);

}  // namespace megalith::run
