// The pre-tokenizers of tokenizers, one class each, under the names and with the parameters of tokenizer.json. Most
// only cut spans of the same text; those that rewrite it (ByteLevel, Metaspace) build a new text and its spans
// together.
#include "megalith/tokenizer/steps/pre_tokenizer_internal.h"

#include <array>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/tokenizer/regex/pattern_internal.h"
#include "megalith/tokenizer/steps/component_internal.h"
#include "megalith/tokenizer/text/byte_alphabet_internal.h"
#include "megalith/tokenizer/text/unicode_internal.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

namespace {

// Cuts at matches of a pattern. Punctuation, Digits and whitespace are Splits with their own patterns, too.
class SplitPreTokenizer final : public PreTokenizer {
 public:
  SplitPreTokenizer(Pattern pattern, SplitBehavior behavior, bool invert = false)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(Pieces& pieces) const override { split_pieces(pieces, pattern_, behavior_, invert_); }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

// Applies several pre-tokenizers in order, each to the pieces of the one before.
// Only the last step can leave bytes: what follows a rewriting step would see other characters.
class SequencePreTokenizer final : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}
  void apply(Pieces& pieces) const override {
    for (const auto& step : steps_) step->apply(pieces);
  }
  bool leave_bytes() override { return !steps_.empty() && steps_.back()->leave_bytes(); }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

// Rewrites every piece: rewrite(i, piece, text) appends what piece i becomes.
template <typename Rewrite>
void rewrite_pieces(Pieces& pieces, const Rewrite& rewrite) {
  std::string text;
  std::vector<Span> spans;
  text.reserve(pieces.text().size() * 5 / 4);  // prefix spaces and two-byte characters make a text a little longer
  spans.reserve(pieces.spans().size());
  for (size_t i = 0; i < pieces.spans().size(); ++i) {
    const auto begin = static_cast<uint32_t>(text.size());
    rewrite(i, pieces.view(pieces.spans()[i]), text);
    if (text.size() > begin) spans.push_back({begin, static_cast<uint32_t>(text.size())});
  }
  pieces.rewrite(text, spans);
}

// Cuts at words by GPT-2's expression, then writes each byte as its character, unless the model takes bytes.
class ByteLevelPreTokenizer final : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, std::optional<Pattern> words)
      : add_prefix_space_(add_prefix_space), words_(std::move(words)) {}

  void apply(Pieces& pieces) const override {
    if (add_prefix_space_) add_prefix_spaces(pieces);
    if (words_) split_pieces(pieces, *words_, SplitBehavior::kIsolated);
    if (leave_bytes_) return;
    rewrite_pieces(pieces,
                   [](size_t, std::string_view piece, std::string& text) { append_byte_characters(text, piece); });
  }
  // Set once while the tokenizer is loaded, before any thread encodes.
  bool leave_bytes() override { return leave_bytes_ = true; }

 private:
  // Rewriting copies the whole text, so it is skipped if every piece starts with a space.
  static void add_prefix_spaces(Pieces& pieces) {
    bool needed = false;
    for (const Span& span : pieces.spans()) needed = needed || pieces.view(span)[0] != ' ';
    if (!needed) return;
    rewrite_pieces(pieces, [](size_t, std::string_view piece, std::string& text) {
      if (piece[0] != ' ') text += ' ';
      text += piece;
    });
  }

  bool add_prefix_space_;
  std::optional<Pattern> words_;
  bool leave_bytes_ = false;
};

// Replaces spaces by "▁" and cuts before each.
class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  // "▁" goes in front of every piece, of the piece at the start of the text, or of none.
  enum class Prepend { kAlways, kFirst, kNever };

  MetaspacePreTokenizer(char32_t replacement, Prepend prepend, bool split) : prepend_(prepend), split_(split) {
    append_utf8(replacement_, replacement);
    pattern_ = Pattern::literal(replacement_);
  }

  void apply(Pieces& pieces) const override {
    rewrite_pieces(pieces, [&](size_t i, std::string_view piece, std::string& text) {
      const bool wanted = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && pieces.is_start(i));
      if (wanted && piece[0] != ' ' && !piece.starts_with(replacement_)) text += replacement_;
      for (const char c : piece) {
        if (c == ' ') {
          text += replacement_;
        } else {
          text += c;
        }
      }
    });
    // "▁Hello▁world" -> "▁Hello", "▁world".
    if (split_) split_pieces(pieces, *pattern_, SplitBehavior::kMergedWithNext);
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  bool split_;
  std::optional<Pattern> pattern_;
};

// Cuts every `length` characters.
class FixedLengthPreTokenizer final : public PreTokenizer {
 public:
  explicit FixedLengthPreTokenizer(size_t length) : length_(length) {}
  void apply(Pieces& pieces) const override {
    std::vector<Span> spans;
    for (const Span& span : pieces.spans()) {
      uint32_t begin = span.begin;
      size_t characters = 0;
      for (uint32_t at = span.begin; at < span.end;) {
        at += static_cast<uint32_t>(utf8_length(pieces.text()[at]));
        if (++characters % length_ != 0 && at < span.end) continue;
        spans.push_back({begin, at});
        begin = at;
      }
    }
    pieces.replace_spans(spans);
  }

 private:
  size_t length_;  // characters per piece
};

// \w+|[^\w\s]+: runs of word characters and runs of other characters; whitespace is dropped.
class WhitespacePreTokenizer final : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    std::vector<Span> spans;
    for (const Span& span : pieces.spans()) {
      enum class Kind { kSpace, kWord, kOther };
      Kind last = Kind::kSpace;
      for (uint32_t at = span.begin; at < span.end;) {
        const auto length = static_cast<uint32_t>(utf8_length(pieces.text()[at]));
        const char32_t c = code_point_at(pieces.text(), at);
        const Kind kind = is_whitespace(c) ? Kind::kSpace : is_word(c) ? Kind::kWord : Kind::kOther;
        if (kind != Kind::kSpace && kind == last) {
          spans.back().end = at + length;
        } else if (kind != Kind::kSpace) {
          spans.push_back({at, at + length});
        }
        last = kind;
        at += length;
      }
    }
    pieces.replace_spans(spans);
  }
};

// ------------------------------------------------------------------------------------------------------------- reading

using PreTokenizerPtr = std::unique_ptr<PreTokenizer>;

// pattern.cc shows an example of each.
SplitBehavior read_behavior(const JsonNode& node) {
  return read_choice<SplitBehavior>(node, {{"Removed", SplitBehavior::kRemoved},
                                           {"Isolated", SplitBehavior::kIsolated},
                                           {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
                                           {"MergedWithNext", SplitBehavior::kMergedWithNext},
                                           {"Contiguous", SplitBehavior::kContiguous}});
}

PreTokenizerPtr read_byte_level_pre_tokenizer(const JsonNode& node) {
  // GPT-2's expression: contractions, words, numbers and punctuation with at most one space in front, then whitespace,
  // of which the last character before a word is left to that word.
  constexpr std::string_view kWords = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  std::optional<Pattern> words;
  if (node.boolean_or("use_regex", true)) words = Pattern::regex(Regex(kWords, node.where()));
  return std::make_unique<ByteLevelPreTokenizer>(node.boolean_or("add_prefix_space", true), std::move(words));
}

PreTokenizerPtr read_metaspace_pre_tokenizer(const JsonNode& node) {
  using Prepend = MetaspacePreTokenizer::Prepend;
  Prepend prepend = Prepend::kAlways;
  if (const auto scheme = node.find("prepend_scheme"))
    prepend = read_choice<Prepend>(
        *scheme, {{"always", Prepend::kAlways}, {"first", Prepend::kFirst}, {"never", Prepend::kNever}});
  // For files from before prepend_scheme existed.
  if (!node.boolean_or("add_prefix_space", true)) prepend = Prepend::kNever;
  return std::make_unique<MetaspacePreTokenizer>(node.at("replacement").character(), prepend,
                                                 node.boolean_or("split", true));
}

PreTokenizerPtr read_split_pre_tokenizer(const JsonNode& node) {
  return std::make_unique<SplitPreTokenizer>(read_pattern(node.at("pattern")), read_behavior(node.at("behavior")),
                                             node.boolean_or("invert", false));
}

// "a12" -> a, 1, 2 with individual_digits, otherwise a, 12.
PreTokenizerPtr read_digits_pre_tokenizer(const JsonNode& node) {
  const bool single = node.boolean_or("individual_digits", false);
  return std::make_unique<SplitPreTokenizer>(Pattern::characters(is_numeric),
                                             single ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
}

PreTokenizerPtr read_punctuation_pre_tokenizer(const JsonNode& node) {
  const auto behavior = node.find("behavior");
  return std::make_unique<SplitPreTokenizer>(Pattern::characters(is_punctuation),
                                             behavior ? read_behavior(*behavior) : SplitBehavior::kIsolated);
}

PreTokenizerPtr white_space_split() {
  return std::make_unique<SplitPreTokenizer>(Pattern::characters(is_whitespace), SplitBehavior::kRemoved);
}

// Whitespace removed, each punctuation mark on its own.
PreTokenizerPtr read_bert_pre_tokenizer(const JsonNode&) {
  std::vector<PreTokenizerPtr> steps;
  steps.push_back(white_space_split());
  steps.push_back(std::make_unique<SplitPreTokenizer>(Pattern::characters(is_punctuation), SplitBehavior::kIsolated));
  return std::make_unique<SequencePreTokenizer>(std::move(steps));
}

// A single character; matches vanish.
PreTokenizerPtr read_delimiter_pre_tokenizer(const JsonNode& node) {
  std::string delimiter;
  append_utf8(delimiter, node.at("delimiter").character());
  return std::make_unique<SplitPreTokenizer>(Pattern::literal(delimiter), SplitBehavior::kRemoved);
}

PreTokenizerPtr read_fixed_length_pre_tokenizer(const JsonNode& node) {
  const auto length = node.find("length");
  // 5 is tokenizers' default.
  return std::make_unique<FixedLengthPreTokenizer>(length ? static_cast<size_t>(length->integer(1, 1 << 30)) : 5);
}

PreTokenizerPtr read_sequence_pre_tokenizer(const JsonNode& node) {
  std::vector<PreTokenizerPtr> steps;
  const JsonNode list = node.at("pretokenizers");
  for (size_t i = 0; i < list.array_size(); ++i) steps.push_back(read_pre_tokenizer(list.at(i)));
  return std::make_unique<SequencePreTokenizer>(std::move(steps));
}

}  // namespace

std::unique_ptr<PreTokenizer> read_pre_tokenizer(const JsonNode& node) {
  return read_component<PreTokenizerPtr>(
      node, "pre-tokenizer",
      {{"ByteLevel", read_byte_level_pre_tokenizer},
       {"Split", read_split_pre_tokenizer},
       {"Sequence", read_sequence_pre_tokenizer},
       {"Metaspace", read_metaspace_pre_tokenizer},
       {"Digits", read_digits_pre_tokenizer},
       {"Punctuation", read_punctuation_pre_tokenizer},
       {"Whitespace", [](const JsonNode&) -> PreTokenizerPtr { return std::make_unique<WhitespacePreTokenizer>(); }},
       {"WhitespaceSplit", [](const JsonNode&) { return white_space_split(); }},
       {"BertPreTokenizer", read_bert_pre_tokenizer},
       {"CharDelimiterSplit", read_delimiter_pre_tokenizer},
       {"Delimiter", read_delimiter_pre_tokenizer},
       {"FixedLength", read_fixed_length_pre_tokenizer}});
}

}  // namespace megalith::tokenizer
