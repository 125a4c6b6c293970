// A pipeline of three stages (ordered_pipeline.h):
//
//   LineBlocks (1 thread)  ->  BlockEncoder (`workers` threads)  ->  IndexedWriter per key (calling thread)
//   1 MiB of whole lines       ids of all documents of a block       in the order of the input
//
// Blocks are the unit of work because a line is too small to pay for a lock. A worker parses and checks a line
// completely before it encodes any of it, so that a bad line leaves nothing behind.
#include "megalith/data/corpus/tokenize_corpus.h"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <set>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/data/corpus/line_blocks.h"
#include "megalith/data/corpus/ordered_pipeline.h"
#include "megalith/data/indexed/indexed_writer.h"
#include "megalith/io/json_text.h"

namespace megalith::data {

namespace {

constexpr size_t kShownBadLines = 10;  // messages kept; all bad lines are counted

// The documents of a block for one key, concatenated.
struct EncodedKey {
  std::vector<int32_t> ids;
  std::vector<size_t> sequence_lengths;
  std::vector<size_t> document_sequences;  // number of sequences in each document
};

// The result of a worker: plain arrays, so that the writing thread only copies.
struct EncodedBlock {
  std::vector<EncodedKey> keys;
  int64_t documents = 0, bytes = 0, bad_lines = 0;
  std::vector<std::string> bad_line_messages;
};

// Used by all workers at once: it has no state but the options.
class BlockEncoder {
 public:
  BlockEncoder(const tokenizer::Tokenizer& tokenizer, const TokenizeCorpusOptions& options)
      : tokenizer_(tokenizer), options_(options) {}

  EncodedBlock encode(const LineBlock& block) const {
    EncodedBlock encoded{.keys = std::vector<EncodedKey>(options_.json_keys.size()),
                         .bytes = static_cast<int64_t>(block.text.size())};
    std::string_view rest = block.text;
    for (int64_t line = block.first_line; !rest.empty(); ++line) {
      const size_t end = rest.find('\n');
      const std::string_view text = rest.substr(0, end);
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      try {
        add_document(encoded, read_texts(text, block, line));
      } catch (const DataError& error) {
        if (!options_.skip_bad_lines) throw;
        ++encoded.bad_lines;
        if (encoded.bad_line_messages.size() < kShownBadLines) encoded.bad_line_messages.emplace_back(error.what());
      }
    }
    return encoded;
  }

 private:
  using Texts = std::vector<std::string>;

  // Returns the texts of each key. Finds everything that can be wrong with a line, before any of it is added.
  std::vector<Texts> read_texts(std::string_view line, const LineBlock& block, int64_t number) const {
    const std::string place = fmt::format("{} {} {}", block.input, block.is_table ? "row" : "line", number);
    check<DataError>(!trim(line).empty(), "{}: the line is empty; every line must be a JSON object", place);
    io::Json document = io::parse_json(line, place);
    check<DataError>(document.is_object(), "{}: {} is given; every line must be a JSON object", place,
                     io::json_in_words(document));
    std::vector<Texts> texts;
    for (const std::string& key : options_.json_keys) {
      const auto field = document.find(key);
      check<DataError>(field != document.end(), "{}: there is no \"{}\"; --json-keys says which fields are tokenized",
                       place, key);
      // CSV has no other way to write an empty text than a missing one.
      if (block.is_table && field->is_null())
        texts.emplace_back();
      else
        texts.push_back(texts_of(*field, fmt::format("{}: \"{}\"", place, key)));
    }
    return texts;
  }

  // A string is one text, a list of strings several. Takes the strings out of the field instead of copying them.
  static Texts texts_of(io::Json& field, const std::string& place) {
    const auto take = [&](io::Json& value) {
      check<DataError>(value.is_string(), "{} is {}; it must be a string or a list of strings", place,
                       io::json_in_words(value));
      return std::move(value.get_ref<std::string&>());
    };
    if (!field.is_array()) return {take(field)};
    Texts texts;
    for (io::Json& value : field) texts.push_back(take(value));
    return texts;
  }

  // Like preprocess_data.py, leaves out texts without tokens and appends EOD to the last sequence of the document.
  void add_document(EncodedBlock& block, const std::vector<Texts>& texts) const {
    ++block.documents;
    for (size_t k = 0; k < texts.size(); ++k) {
      EncodedKey& key = block.keys[k];
      size_t sequences = 0;
      for (const std::string& text : texts[k]) {
        const std::vector<int32_t> ids = tokenizer_.encode(text, {.add_special_tokens = options_.add_special_tokens});
        if (ids.empty()) continue;
        key.ids.insert(key.ids.end(), ids.begin(), ids.end());
        key.sequence_lengths.push_back(ids.size());
        ++sequences;
      }
      if (sequences > 0 && options_.append_eod) {
        key.ids.push_back(*tokenizer_.eos_id());
        ++key.sequence_lengths.back();
      }
      key.document_sequences.push_back(sequences);
    }
  }

  const tokenizer::Tokenizer& tokenizer_;
  const TokenizeCorpusOptions& options_;
};

// Writes the documents of a block; each ends even if it has no sequences, so that documents match lines of the input.
void write_key(const EncodedKey& key, IndexedWriter& writer) {
  std::span<const int32_t> ids = key.ids;
  auto length = key.sequence_lengths.begin();
  for (const size_t sequences : key.document_sequences) {
    for (size_t i = 0; i < sequences; ++i, ++length) {
      writer.add_sequence(ids.first(*length));
      ids = ids.subspan(*length);
    }
    writer.end_document();
  }
}

// Before any file is created: a mistake in the options leaves nothing behind.
void check_options(const tokenizer::Tokenizer& tokenizer, const TokenizeCorpusOptions& options) {
  check<ConfigError>(!options.inputs.empty(), "no input is given; name files of JSON lines, tables, or - for stdin");
  check<ConfigError>(std::ranges::count(options.inputs, "-") <= 1, "- (stdin) is given twice");
  check<ConfigError>(options.workers >= 1, "workers is {}; it must be at least 1", options.workers);
  check<ConfigError>(!options.json_keys.empty(), "json_keys is empty; name the fields to tokenize");
  std::set<std::string> keys;
  for (const std::string& key : options.json_keys)
    check<ConfigError>(!key.empty() && key.find('/') == std::string::npos && keys.insert(key).second,
                       "json_keys has \"{}\"; each key is named once and becomes part of a file name", key);
  check<ConfigError>(!options.append_eod || tokenizer.eos_id().has_value(),
                     "append_eod needs the tokenizer's EOS token, and it names none; add eos_token to its "
                     "tokenizer_config.json");
}

}  // namespace

TokenizeCorpusResult tokenize_corpus(const tokenizer::Tokenizer& tokenizer, const TokenizeCorpusOptions& options,
                                     StagedFiles& files,
                                     const std::function<void(const TokenizeCorpusProgress&)>& progress) {
  check_options(tokenizer, options);
  // By the larger of both, since added tokens may have ids beyond vocab_size.
  const TokenType type = token_type_for_vocabulary(std::max(tokenizer.vocab_size(), tokenizer.id_end()));
  // A deque, whose elements stay where they are while it grows.
  std::deque<IndexedWriter> writers;
  for (const std::string& key : options.json_keys)
    writers.emplace_back(files, fmt::format("{}_{}_document", options.output, key), type);

  TokenizeCorpusResult result;
  LineBlocks blocks(options.inputs);
  const BlockEncoder encoder(tokenizer, options);
  OrderedPipeline<LineBlock, EncodedBlock> pipeline;
  pipeline.produce = [&](const std::stop_token& stop) { return blocks.next(stop); };
  pipeline.transform = [&](LineBlock& block) { return encoder.encode(block); };
  pipeline.consume = [&](EncodedBlock& block) {
    for (size_t k = 0; k < writers.size(); ++k) {
      write_key(block.keys[k], writers[k]);
      result.total.tokens += static_cast<int64_t>(block.keys[k].ids.size());
    }
    result.total.documents += block.documents;
    result.total.input_bytes += block.bytes;
    result.total.bad_lines += block.bad_lines;
    for (std::string& message : block.bad_line_messages)
      if (result.bad_line_messages.size() < kShownBadLines) result.bad_line_messages.push_back(std::move(message));
    if (progress) progress(result.total);
  };
  pipeline.run(options.workers, 2 * static_cast<size_t>(options.workers) + 2);  // per worker: one in work, one waiting

  for (IndexedWriter& writer : writers) {
    check<DataError>(writer.token_count() > 0,
                     "{} has no tokens: {} documents and {} bad lines were read from {}. Nothing is written",
                     writer.prefix(), writer.document_count(), result.total.bad_lines, list_in_words(options.inputs));
    writer.finish();
    result.outputs.push_back({.key = options.json_keys[result.outputs.size()],
                              .prefix = writer.prefix(),
                              .type = writer.token_type(),
                              .documents = writer.document_count(),
                              .sequences = writer.sequence_count(),
                              .tokens = writer.token_count()});
  }
  return result;
}

}  // namespace megalith::data
