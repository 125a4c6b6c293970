// Chooses the tokenizer of a pre-training run by Megatron's options: tokenizer_type if given, otherwise by the files
// that the other options name. A null tokenizer has only a vocabulary size, for data that is already tokenized.
#include "megalith/run/resolve/run_tokenizer.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/io/file_io.h"
#include "megalith/run/resolve/inputs.h"
#include "megalith/tokenizer/tiktoken.h"

namespace megalith::run {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostVocabularyBytes = 256 << 20;

// Ways in which a tokenizer is stored.
enum class Kind { kNull, kFolder, kSentencePiece, kGpt2, kTiktoken };

// Megatron's class names, of which several read the same files.
Kind kind_of(const std::string& type) {
  if (type == "NullTokenizer") return Kind::kNull;
  if (type == "HuggingFaceTokenizer") return Kind::kFolder;
  if (type == "SentencePieceTokenizer" || type == "GPTSentencePieceTokenizer" || type == "Llama2Tokenizer")
    return Kind::kSentencePiece;
  if (type == "GPT2BPETokenizer") return Kind::kGpt2;
  if (type == "TikTokenizer") return Kind::kTiktoken;
  throw ConfigError(
      fmt::format("tokenizer_type is {}; known are NullTokenizer, HuggingFaceTokenizer, SentencePieceTokenizer,"
                  " GPTSentencePieceTokenizer, Llama2Tokenizer, GPT2BPETokenizer and TikTokenizer. Others can be stored"
                  " as a tokenizer.json, for HuggingFaceTokenizer",
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

// A temporary folder that gives the files of a tokenizer the names that Hugging Face gives them, so that one reader and
// one export serve gpt2-vocab.json, a SentencePiece model of any name and files that are made from others. Owned by one
// process; the folder disappears with the object.
class TokenizerFolder {
 public:
  TokenizerFolder() {
    std::string name = (fs::temp_directory_path() / "megalith-tokenizer-XXXXXX").string();
    check<DataError>(mkdtemp(name.data()) != nullptr, "cannot make a folder for the tokenizer in {}; set TMPDIR",
                     fs::temp_directory_path().string());
    path_ = name;
  }
  ~TokenizerFolder() {
    std::error_code ignored;  // a temporary file that cannot be removed is the system's to clean up
    fs::remove_all(path_, ignored);
  }
  TokenizerFolder(const TokenizerFolder&) = delete;
  TokenizerFolder& operator=(const TokenizerFolder&) = delete;

  const fs::path& path() const { return path_; }
  // Add a link to an existing file, or a file with this content.
  void link(const fs::path& file, const std::string& name) const {
    fs::create_symlink(fs::absolute(file), path_ / name);
  }
  void write(const std::string& name, const std::string& content) const { io::write_text_file(path_ / name, content); }

 private:
  fs::path path_;
};

// Returns the file that an option names.
fs::path given_file(const std::optional<std::string>& file, const char* option, const char* what) {
  check<ConfigError>(file.has_value(), "{} is not given; the tokenizer needs it: {}", option, what);
  check<DataError>(fs::is_regular_file(*file), "{} is {}, which is not a file: give {}", option, *file, what);
  return *file;
}

fs::path parent_of(const fs::path& file) { return file.has_parent_path() ? file.parent_path() : fs::path("."); }

// Opens files that have been given their usual names; messages name the file that the user gave.
RunTokenizer from_renamed(std::shared_ptr<const TokenizerFolder> renamed, const fs::path& given) {
  try {
    tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::from_folder(renamed->path());
    data::PretrainTokens tokens = tokens_of(tokenizer, given.string());
    const fs::path folder = renamed->path();
    return {.tokenizer = std::move(tokenizer),
            .tokens = std::move(tokens),
            .folder = folder,
            .temporary = std::move(renamed)};
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", given.string(), error.what()));
  }
}

// A folder that already has the usual names may hold more files, such as tokenizer_config.json.
RunTokenizer gpt2_tokenizer(const config::TokenizerConfig& options) {
  const fs::path vocabulary = given_file(options.vocab_file, "vocab_file", "a vocabulary such as gpt2-vocab.json");
  const fs::path merges = given_file(options.merge_file, "merge_file", "merges such as gpt2-merges.txt");
  const bool usual_names = vocabulary.filename() == "vocab.json" && merges.filename() == "merges.txt";
  if (usual_names && parent_of(vocabulary) == parent_of(merges)) return from_folder(parent_of(vocabulary));
  const auto renamed = std::make_shared<TokenizerFolder>();
  renamed->link(vocabulary, "vocab.json");
  renamed->link(merges, "merges.txt");
  return from_renamed(renamed, vocabulary);
}

RunTokenizer sentencepiece_tokenizer(const config::TokenizerConfig& options) {
  const fs::path file = given_file(options.model, "tokenizer_model", "a SentencePiece model such as tokenizer.model");
  if (file.filename() == "tokenizer.model") return from_folder(parent_of(file));
  const auto renamed = std::make_shared<TokenizerFolder>();
  renamed->link(file, "tokenizer.model");
  return from_renamed(renamed, file);
}

RunTokenizer tiktoken_tokenizer(const config::TrainingArguments& args) {
  const config::TokenizerConfig& options = args.tokenizer;
  const fs::path file = given_file(options.model, "tokenizer_model", "a tiktoken vocabulary in JSON");
  const auto renamed = std::make_shared<TokenizerFolder>();
  const tokenizer::TiktokenSettings settings{.pattern = options.tiktoken_pattern.value_or("v2"),
                                             .num_special_tokens = options.tiktoken_num_special_tokens,
                                             .special_tokens = options.tiktoken_special_tokens,
                                             .vocab_size = args.shape.vocab_size};
  for (const auto& [name, content] :
       tokenizer::tiktoken_files(io::read_text_file(file, kMostVocabularyBytes), file.string(), settings))
    renamed->write(name, content);
  return from_renamed(renamed, file);
}

RunTokenizer folder_tokenizer(const config::TokenizerConfig& options) {
  check<ConfigError>(options.model.has_value(), "tokenizer_model is not given; set it to the tokenizer's folder");
  if (fs::is_directory(*options.model)) return from_folder(*options.model);
  return from_folder(find_model(*options.model, /*weights=*/false));  // a name on the hub, from the local cache
}

RunTokenizer make_tokenizer(Kind kind, const config::TrainingArguments& args) {
  switch (kind) {
    case Kind::kNull:
      return null_tokenizer(args);
    case Kind::kFolder:
      return folder_tokenizer(args.tokenizer);
    case Kind::kGpt2:
      return gpt2_tokenizer(args.tokenizer);
    case Kind::kTiktoken:
      return tiktoken_tokenizer(args);
    case Kind::kSentencePiece:
      break;
  }
  return sentencepiece_tokenizer(args.tokenizer);
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
  RunTokenizer made = make_tokenizer(*kind, args);
  made.tokens.vocab_size += args.tokenizer.vocab_extra_ids;
  return made;
}

const RunTokenizer& required(const std::optional<RunTokenizer>& tokenizer) {
  check<ConfigError>(tokenizer.has_value(),
                     "there is no tokenizer; set tokenizer_type with tokenizer_model, or vocab_file with merge_file, or"
                     " vocab_size for data without text");
  return *tokenizer;
}

}  // namespace megalith::run
