// The decoders of tokenizers, one class each, under the names and with the parameters of tokenizer.json. Each changes
// the list of tokens; read_decoder at the end maps "type" to a class. A typical chain, that of Llama 2:
//   Replace ▁ by a space, ByteFallback, Fuse, Strip one space at the start
//   ["▁Hi", "<0xC3>", "<0xA9>"]  ->  [" Hi", "<0xC3>", "<0xA9>"]  ->  [" Hi", "é"]  ->  [" Hié"]  ->  ["Hié"]
#include "megalith/tokenizer/steps/decoder_internal.h"

#include <algorithm>
#include <charconv>

#include "megalith/tokenizer/steps/component_internal.h"
#include "megalith/tokenizer/text/byte_alphabet_internal.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

namespace {

using Tokens = std::vector<std::string>;
using DecoderPtr = std::unique_ptr<Decoder>;

std::string join(const Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

// Replaced text is not searched again, so `to` may contain `from`.
void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  size_t at = 0;
  while ((at = text.find(from, at)) != std::string::npos) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
}

// A chain of one step is as bytewise as that step; longer chains may look at neighbors.
class SequenceDecoder final : public Decoder {
 public:
  explicit SequenceDecoder(std::vector<DecoderPtr> steps) : steps_(std::move(steps)) {}
  void apply(Tokens& tokens) const override {
    for (const auto& step : steps_) step->apply(tokens);
  }
  bool is_bytewise() const override { return steps_.size() == 1 && steps_[0]->is_bytewise(); }
  std::string bytes_of(std::string_view token) const override { return steps_[0]->bytes_of(token); }

 private:
  std::vector<DecoderPtr> steps_;
};

// Base of decoders that work on bytes, token by token.
class BytewiseDecoder : public Decoder {
 public:
  void apply(Tokens& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) bytes += bytes_of(token);
    tokens.assign(1, replace_invalid_utf8(bytes));
  }
  bool is_bytewise() const override { return true; }
};

// GPT-2's alphabet back to bytes: "Ġhi" -> " hi".
class ByteLevelDecoder final : public BytewiseDecoder {
 public:
  // A token with a character that stands for no byte is text.
  std::string bytes_of(std::string_view token) const override {
    return bytes_of_characters(token).value_or(std::string(token));
  }
};

// Returns the byte that a token such as <0xE4> stands for.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

// For Tokenizer::bytes, whose tokens are <0x00> to <0xFF> and some special ones.
class ByteTokenDecoder final : public BytewiseDecoder {
 public:
  std::string bytes_of(std::string_view token) const override {
    const auto byte = byte_of(token);
    return byte ? std::string(1, *byte) : std::string(token);
  }
};

// A run of byte tokens that is not valid UTF-8 becomes one U+FFFD per byte.
class ByteFallbackDecoder final : public Decoder {
 public:
  void apply(Tokens& tokens) const override {
    Tokens result;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (first_invalid_utf8(bytes)) {
        result.insert(result.end(), bytes.size(), std::string(kReplacementCharacter));
      } else {
        result.push_back(bytes);
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const auto byte = byte_of(token)) {
        bytes += *byte;
      } else {
        flush();
        result.push_back(std::move(token));
      }
    }
    flush();
    tokens.swap(result);
  }
};

// Joins all tokens into one.
class FuseDecoder final : public Decoder {
 public:
  void apply(Tokens& tokens) const override { tokens.assign(1, join(tokens)); }
};

// Removes `content` up to `start` times from the start of each token, and up to `stop` times from its end.
class StripDecoder final : public Decoder {
 public:
  StripDecoder(char32_t content, size_t start, size_t stop) : start_(start), stop_(stop) {
    append_utf8(content_, content);
  }
  void apply(Tokens& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (size_t i = 0; i < start_ && rest.starts_with(content_); ++i) rest.remove_prefix(content_.size());
      for (size_t i = 0; i < stop_ && rest.ends_with(content_); ++i) rest.remove_suffix(content_.size());
      token = std::string(rest);
    }
  }

 private:
  std::string content_;
  size_t start_, stop_;
};

// Works on each token alone, so a match cannot span two.
class ReplaceDecoder final : public Decoder {
 public:
  ReplaceDecoder(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(Tokens& tokens) const override {
    for (std::string& token : tokens) token = replace_matches(token, pattern_, content_);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

// The replacement character ("▁") becomes a space again.
class MetaspaceDecoder final : public Decoder {
 public:
  MetaspaceDecoder(char32_t replacement, bool drop_first) : drop_first_(drop_first) {
    append_utf8(replacement_, replacement);
  }
  void apply(Tokens& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], replacement_, i == 0 && drop_first_ ? "" : " ");
  }

 private:
  std::string replacement_;
  bool drop_first_;  // in the first token they were added, not found
};

// Removes spaces that English does not put before punctuation.
void clean_up(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) replace_all(text, from, to);
}

// ["play", "##ing", "now"] -> ["play", "ing", " now"].
class WordPieceDecoder final : public Decoder {
 public:
  WordPieceDecoder(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void apply(Tokens& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) tokens[i] = tokens[i].starts_with(prefix_) ? tokens[i].substr(prefix_.size()) : " " + tokens[i];
      if (cleanup_) clean_up(tokens[i]);
    }
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

// A suffix marks the end of a word: it becomes a space.
class BpeDecoder final : public Decoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(Tokens& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
  }

 private:
  std::string suffix_;  // marks the last token of a word
};

// Connectionist temporal classification: repeated tokens and padding vanish.
class CtcDecoder final : public Decoder {
 public:
  CtcDecoder(std::string pad, std::string delimiter, bool cleanup)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), cleanup_(cleanup) {}
  void apply(Tokens& tokens) const override {
    const auto repeats = std::ranges::unique(tokens);
    tokens.erase(repeats.begin(), repeats.end());
    for (std::string& token : tokens) {
      replace_all(token, pad_, "");
      if (!cleanup_) continue;
      clean_up(token);
      replace_all(token, delimiter_, " ");
    }
    std::erase(tokens, "");
  }

 private:
  std::string pad_, delimiter_;
  bool cleanup_;
};

// ------------------------------------------------------------------------------------------------------------- reading

DecoderPtr read_sequence_decoder(const JsonNode& node) {
  std::vector<DecoderPtr> steps;
  const JsonNode list = node.at("decoders");
  for (size_t i = 0; i < list.array_size(); ++i) steps.push_back(read_decoder(list.at(i)));
  return std::make_unique<SequenceDecoder>(std::move(steps));
}

DecoderPtr read_strip_decoder(const JsonNode& node) {
  const auto count = [&](const char* name) { return static_cast<size_t>(node.at(name).integer(0, INT32_MAX)); };
  return std::make_unique<StripDecoder>(node.at("content").character(), count("start"), count("stop"));
}

DecoderPtr read_replace_decoder(const JsonNode& node) {
  return std::make_unique<ReplaceDecoder>(read_pattern(node.at("pattern")), node.at("content").string());
}

DecoderPtr read_metaspace_decoder(const JsonNode& node) {
  // "add_prefix_space" is the older name for the scheme.
  const bool never =
      node.string_or("prepend_scheme", "always") == "never" || !node.boolean_or("add_prefix_space", true);
  return std::make_unique<MetaspaceDecoder>(node.at("replacement").character(), !never);
}

DecoderPtr read_word_piece_decoder(const JsonNode& node) {
  return std::make_unique<WordPieceDecoder>(node.string_or("prefix", "##"), node.boolean_or("cleanup", true));
}

DecoderPtr read_ctc_decoder(const JsonNode& node) {
  return std::make_unique<CtcDecoder>(node.string_or("pad_token", "<pad>"), node.string_or("word_delimiter_token", "|"),
                                      node.boolean_or("cleanup", true));
}

// Decoders without parameters.
template <typename T>
DecoderPtr read_plain_decoder(const JsonNode&) {
  return std::make_unique<T>();
}

}  // namespace

std::unique_ptr<Decoder> make_byte_decoder() { return std::make_unique<ByteTokenDecoder>(); }

std::unique_ptr<Decoder> read_decoder(const JsonNode& node) {
  return read_component<DecoderPtr>(
      node, "decoder",
      {{"ByteLevel", read_plain_decoder<ByteLevelDecoder>},
       {"Sequence", read_sequence_decoder},
       {"ByteFallback", read_plain_decoder<ByteFallbackDecoder>},
       {"Fuse", read_plain_decoder<FuseDecoder>},
       {"Strip", read_strip_decoder},
       {"Replace", read_replace_decoder},
       {"Metaspace", read_metaspace_decoder},
       {"WordPiece", read_word_piece_decoder},
       {"BPEDecoder",
        [](const JsonNode& n) -> DecoderPtr { return std::make_unique<BpeDecoder>(n.string_or("suffix", "</w>")); }},
       {"CTC", read_ctc_decoder}});
}

}  // namespace megalith::tokenizer
