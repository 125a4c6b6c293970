// Chooses the tokenizer of a pre-training run by Megatron's options: tokenizer_type if given, otherwise by the files
// that the other options name. A null tokenizer has only a vocabulary size, for data that is already tokenized.
#include "megalith/run/resolve/run_tokenizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"

namespace megalith::run {

namespace {

namespace fs = std::filesystem;

// Ways in which a tokenizer is stored.
enum class Kind { kNull, kFolder, kSentencePiece, kGpt2 };

// Megatron's class names, of which several read the same files.
Kind kind_of(const std::string& type) {
  if (type == "NullTokenizer") return Kind::kNull;
  if (type == "HuggingFaceTokenizer") return Kind::kFolder;
  if (type == "SentencePieceTokenizer" || type == "Llama2Tokenizer") return Kind::kSentencePiece;
  if (type == "GPT2BPETokenizer") return Kind::kGpt2;
  throw ConfigError(
      fmt::format("tokenizer_type is {}; known are NullTokenizer, HuggingFaceTokenizer, SentencePieceTokenizer,"
                  " Llama2Tokenizer and GPT2BPETokenizer. Others can be stored as a tokenizer.json, for"
                  " HuggingFaceTokenizer",
                  type));
}

// Without a type the files decide; a vocabulary size alone means data that is already tokenized.
std::optional<Kind> kind_of(const config::TrainingArguments& args) {
  const config::TokenizerConfig& options = args.tokenizer;
  if (options.type) return kind_of(*options.type);
  if (options.vocab_file || options.merge_file) return Kind::kGpt2;
  if (options.model) return Kind::kFolder;
  if (args.shape.vocab_size) return Kind::kNull;
  return std::nullopt;
}

// As in the reference, the end-of-document id follows the vocabulary.
RunTokenizer null_tokenizer(const config::TrainingArguments& args) {
  check<ConfigError>(args.shape.vocab_size.has_value(), "tokenizer_type NullTokenizer needs vocab_size");
  const int64_t vocab = *args.shape.vocab_size;
  return {.tokenizer = std::nullopt,
          .tokens = {.vocab_size = vocab + 1,
                     .eod_id = vocab,
                     .pad_id = std::nullopt,
                     .identity = nlohmann::ordered_json{{"class", "NullTokenizer"}, {"vocab_size", vocab}}.dump()},
          .folder = {}};
}

// GPT-2's files do not name an EOS token, and the reference does not require one: use <|endoftext|>.
data::PretrainTokens tokens_of(const tokenizer::Tokenizer& tokenizer, const std::string& path) {
  const auto end_of_text = tokenizer.id_of("<|endoftext|>");
  if (tokenizer.eos_id() || !end_of_text) return data::pretrain_tokens(tokenizer, path);
  const nlohmann::ordered_json identity{{"class", "GPT2BPETokenizer"}, {"tokenizer_path", {path}}};
  return {
      .vocab_size = tokenizer.id_end(), .eod_id = *end_of_text, .pad_id = std::nullopt, .identity = identity.dump()};
}

RunTokenizer from_folder(const fs::path& folder) {
  tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::from_folder(folder);
  data::PretrainTokens tokens = tokens_of(tokenizer, folder.string());
  return {.tokenizer = std::move(tokenizer), .tokens = std::move(tokens), .folder = folder};
}

// Returns the folder of a file, which must have this name.
fs::path folder_of(const std::optional<std::string>& file, const char* option, const char* name) {
  check<ConfigError>(file.has_value(), "{} is not given; the tokenizer needs it: a file called {}", option, name);
  const fs::path path(*file);
  check<ConfigError>(path.filename() == name, "{} is {}; the file must be called {}", option, *file, name);
  check<DataError>(fs::is_regular_file(path), "{} is {}, which is not a file", option, *file);
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Tokenizers are read from folders, so both files must lie in the same one under their usual names.
RunTokenizer gpt2_tokenizer(const config::TokenizerConfig& options) {
  const fs::path folder = folder_of(options.vocab_file, "vocab_file", "vocab.json");
  check<ConfigError>(folder_of(options.merge_file, "merge_file", "merges.txt") == folder,
                     "vocab_file {} and merge_file {} must be in one folder", *options.vocab_file, *options.merge_file);
  return from_folder(folder);
}

RunTokenizer folder_tokenizer(const config::TokenizerConfig& options) {
  check<ConfigError>(options.model.has_value(), "tokenizer_model is not given; set it to the tokenizer's folder");
  return from_folder(*options.model);
}

}  // namespace

// The end-of-document token serves as the model's EOS.
ModelVocabulary RunTokenizer::vocabulary() const {
  ModelVocabulary vocabulary{.size = tokens.vocab_size, .bos_id = {}, .eos_id = tokens.eod_id, .pad_id = {}};
  if (tokenizer) vocabulary.bos_id = tokenizer->bos_id();
  if (tokenizer) vocabulary.pad_id = tokenizer->pad_id();
  return vocabulary;
}

std::optional<RunTokenizer> make_run_tokenizer(const config::TrainingArguments& args) {
  const auto kind = kind_of(args);
  if (!kind) return std::nullopt;
  switch (*kind) {
    case Kind::kNull:
      return null_tokenizer(args);
    case Kind::kFolder:
      return folder_tokenizer(args.tokenizer);
    case Kind::kGpt2:
      return gpt2_tokenizer(args.tokenizer);
    case Kind::kSentencePiece:
      break;
  }
  return from_folder(folder_of(args.tokenizer.model, "tokenizer_model", "tokenizer.model"));
}

const RunTokenizer& required(const std::optional<RunTokenizer>& tokenizer) {
  check<ConfigError>(tokenizer.has_value(),
                     "there is no tokenizer; set tokenizer_type with tokenizer_model, or vocab_file with merge_file, or"
                     " vocab_size for data without text");
  return *tokenizer;
}

}  // namespace megalith::run
