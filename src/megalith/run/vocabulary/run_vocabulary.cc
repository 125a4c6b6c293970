// Decides about tokens and rows before ranks exist; only headers and the files of the tokenizer are read.
#include "megalith/run/vocabulary/run_vocabulary.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/model/families/scores.h"
#include "megalith/peft/names.h"
#include "megalith/peft/targets.h"
#include "megalith/tokenizer/new_tokens.h"

namespace megalith::run {

namespace {

namespace fs = std::filesystem;
using config::TrainingArguments;

constexpr int64_t kRowMultiple = 64;  // LLaMA-Factory's and mcore_adapter's padding of a vocabulary that grows

// A model folder without a tokenizer serves data that consists of token ids.
fs::path find_tokenizer(const fs::path& folder, const model::ModelConfig& in_files,
                        const std::optional<model::AdapterSource>& source) {
  fs::path found = model::has_tokenizer(folder) ? folder : fs::path();
  if (!source) return found;
  std::vector<fs::path> adapters = source->merged;
  if (source->trained) adapters.push_back(*source->trained);
  for (const fs::path& adapter : adapters)
    if (model::adapter_vocab_size(adapter, in_files) > in_files.vocab_size && model::has_tokenizer(adapter))
      found = adapter;
  return found;
}

// In the order in which LLaMA-Factory adds them, which decides the ids.
std::vector<tokenizer::NewToken> tokens_to_add(const config::ModelSourceConfig& source) {
  std::vector<tokenizer::NewToken> tokens;
  for (const std::string& token : source.add_tokens) tokens.push_back({token, /*special=*/false});
  for (const std::string& token : source.add_special_tokens) tokens.push_back({token, /*special=*/true});
  return tokens;
}

void read_tokenizer(const std::vector<tokenizer::NewToken>& tokens, RunVocabulary& vocabulary) {
  check<ConfigError>(tokens.empty() || !vocabulary.tokenizer_folder.empty(),
                     "add_tokens and add_special_tokens need a tokenizer, and the model folder has none");
  if (vocabulary.tokenizer_folder.empty()) return;
  tokenizer::GrownTokenizer grown = tokenizer::add_tokens(vocabulary.tokenizer_folder, tokens);
  vocabulary.tokenizer = std::move(grown.tokenizer);
  vocabulary.changed_files = std::move(grown.files);
  vocabulary.new_tokens.assign(grown.new_ids.begin(), grown.new_ids.end());
  std::ranges::sort(vocabulary.new_tokens);
  if (!grown.known.empty())
    vocabulary.notes.push_back(fmt::format("the tokenizer has {} already; {} rows stay as they are",
                                           fmt::join(grown.known, ", "), grown.known.size() == 1 ? "its" : "their"));
}

}  // namespace

bool asks_for_rows(const config::ModelSourceConfig& source) {
  return source.resize_vocab || !source.add_tokens.empty() || !source.add_special_tokens.empty();
}

RunVocabulary run_vocabulary(const TrainingArguments& args, const fs::path& folder, const model::ModelConfig& in_files,
                             const std::optional<model::AdapterSource>& source, bool reads_tokenizer) {
  RunVocabulary vocabulary{.tokenizer_folder = find_tokenizer(folder, in_files, source),
                           .size_in_files = in_files.vocab_size};
  const std::vector<tokenizer::NewToken> tokens = tokens_to_add(args.source);
  if (reads_tokenizer) read_tokenizer(tokens, vocabulary);
  const int64_t before = source ? model::vocab_size_for(*source, in_files) : in_files.vocab_size;
  const int64_t ids = vocabulary.tokenizer ? vocabulary.tokenizer->id_end() : 0;
  vocabulary.grows = asks_for_rows(args.source) && ids > before;
  vocabulary.size = vocabulary.grows ? (ids + kRowMultiple - 1) / kRowMultiple * kRowMultiple : before;
  if (vocabulary.grows)
    vocabulary.notes.push_back(fmt::format("the vocabulary grows from {} to {} rows, for a tokenizer of {} ids", before,
                                           vocabulary.size, ids));
  return vocabulary;
}

model::ModelSettings with_vocabulary(model::ModelSettings settings, const RunVocabulary& vocabulary) {
  settings.overrides.vocab_size = vocabulary.size;
  settings.new_tokens = vocabulary.new_tokens;
  return settings;
}

void train_new_rows(RunVocabulary& vocabulary, const model::ModelConfig& config, model::AdapterSource& adapter) {
  if (!vocabulary.has_new_rows()) return;
  const std::vector<std::string> modules = model::vocabulary_modules(config);
  const std::string names = fmt::format("{}", fmt::join(modules, ","));
  std::vector<std::string>& saved = adapter.fresh.modules_to_save;
  const bool head_alone = std::ranges::all_of(saved, [](const auto& name) { return name == model::kScoreModule; });
  if (!adapter.trained && head_alone) {
    saved.insert(saved.begin(), modules.begin(), modules.end());
    vocabulary.notes.push_back(
        fmt::format("the vocabulary has new rows, so {} are trained in full (additional_target)", names));
    return;
  }
  const peft::AdapterConfig used = model::adapter_config(adapter, config);
  bool all_trained = true;
  for (const std::string& module : modules) {
    const bool is_saved = peft::is_saved(module, used);
    check<ConfigError>(is_saved || !peft::is_target(module, used),
                       "lora_target names {}, and the vocabulary has new rows: a low-rank update on top of them cannot"
                       " be stored. Name it in additional_target instead",
                       module);
    all_trained = all_trained && is_saved;
  }
  if (!all_trained)
    vocabulary.notes.push_back(fmt::format(
        "new rows of the vocabulary are not trained: they keep their initial values. Name {} in additional_target to"
        " train them",
        names));
}

}  // namespace megalith::run
