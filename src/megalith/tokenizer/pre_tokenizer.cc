#include "megalith/tokenizer/pre_tokenizer_internal.h"

#include <array>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/tokenizer/byte_alphabet_internal.h"
#include "megalith/tokenizer/component_internal.h"
#include "megalith/tokenizer/pattern_internal.h"
#include "megalith/tokenizer/unicode_internal.h"
#include "megalith/tokenizer/utf8.h"

namespace megalith::tokenizer {

namespace {

class SplitStep final : public PreTokenizer {
 public:
  SplitStep(Pattern pattern, SplitBehavior behavior, bool invert = false)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(Pieces& pieces) const override { split_pieces(pieces, pattern_, behavior_, invert_); }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class SequenceStep final : public PreTokenizer {
 public:
  explicit SequenceStep(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}
  void apply(Pieces& pieces) const override {
    for (const auto& step : steps_) step->apply(pieces);
  }
  bool leave_bytes() override { return !steps_.empty() && steps_.back()->leave_bytes(); }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

// Writes every piece anew: rewrite(i, piece, text) appends what piece i becomes.
template <typename Rewrite>
void rewrite_pieces(Pieces& pieces, const Rewrite& rewrite) {
  std::string text;
  std::vector<Span> spans;
  text.reserve(pieces.text().size() * 5 / 4);
  spans.reserve(pieces.spans().size());
  for (size_t i = 0; i < pieces.spans().size(); ++i) {
    const auto begin = static_cast<uint32_t>(text.size());
    rewrite(i, pieces.view(pieces.spans()[i]), text);
    if (text.size() > begin) spans.push_back({begin, static_cast<uint32_t>(text.size())});
  }
  pieces.rewrite(text, spans);
}

class ByteLevelStep final : public PreTokenizer {
 public:
  ByteLevelStep(bool add_prefix_space, std::optional<Pattern> words)
      : add_prefix_space_(add_prefix_space), words_(std::move(words)) {}

  void apply(Pieces& pieces) const override {
    if (add_prefix_space_) add_prefix_spaces(pieces);
    if (words_) split_pieces(pieces, *words_, SplitBehavior::kIsolated);
    if (leave_bytes_) return;
    rewrite_pieces(pieces,
                   [](size_t, std::string_view piece, std::string& text) { append_byte_characters(text, piece); });
  }
  bool leave_bytes() override { return leave_bytes_ = true; }

 private:
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

class MetaspaceStep final : public PreTokenizer {
 public:
  enum class Prepend { kAlways, kFirst, kNever };

  MetaspaceStep(char32_t replacement, Prepend prepend, bool split) : prepend_(prepend), split_(split) {
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
    if (split_) split_pieces(pieces, *pattern_, SplitBehavior::kMergedWithNext);
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  bool split_;
  std::optional<Pattern> pattern_;
};

class FixedLengthStep final : public PreTokenizer {
 public:
  explicit FixedLengthStep(size_t length) : length_(length) {}
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
  size_t length_;  // characters of a piece
};

// \w+|[^\w\s]+: runs of word characters and runs of others, without what lies between.
class WhitespaceStep final : public PreTokenizer {
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

// --------------------------------------------------------------------------------------------------------------
// reading

using StepPointer = std::unique_ptr<PreTokenizer>;

SplitBehavior read_behavior(const JsonNode& node) {
  return read_choice<SplitBehavior>(node, {{"Removed", SplitBehavior::kRemoved},
                                           {"Isolated", SplitBehavior::kIsolated},
                                           {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
                                           {"MergedWithNext", SplitBehavior::kMergedWithNext},
                                           {"Contiguous", SplitBehavior::kContiguous}});
}

StepPointer read_byte_level(const JsonNode& node) {
  constexpr std::string_view kWords = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  std::optional<Pattern> words;
  if (node.boolean_or("use_regex", true)) words = Pattern::regex(Regex(kWords, node.where()));
  return std::make_unique<ByteLevelStep>(node.boolean_or("add_prefix_space", true), std::move(words));
}

StepPointer read_metaspace(const JsonNode& node) {
  using Prepend = MetaspaceStep::Prepend;
  Prepend prepend = Prepend::kAlways;
  if (const auto scheme = node.find("prepend_scheme"))
    prepend = read_choice<Prepend>(
        *scheme, {{"always", Prepend::kAlways}, {"first", Prepend::kFirst}, {"never", Prepend::kNever}});
  // Files from before prepend_scheme.
  if (!node.boolean_or("add_prefix_space", true)) prepend = Prepend::kNever;
  return std::make_unique<MetaspaceStep>(node.at("replacement").character(), prepend, node.boolean_or("split", true));
}

StepPointer read_split(const JsonNode& node) {
  return std::make_unique<SplitStep>(read_pattern(node.at("pattern")), read_behavior(node.at("behavior")),
                                     node.boolean_or("invert", false));
}

StepPointer read_digits(const JsonNode& node) {
  const bool single = node.boolean_or("individual_digits", false);
  return std::make_unique<SplitStep>(Pattern::characters(is_numeric),
                                     single ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
}

StepPointer read_punctuation(const JsonNode& node) {
  const auto behavior = node.find("behavior");
  return std::make_unique<SplitStep>(Pattern::characters(is_punctuation),
                                     behavior ? read_behavior(*behavior) : SplitBehavior::kIsolated);
}

StepPointer white_space_split() {
  return std::make_unique<SplitStep>(Pattern::characters(is_whitespace), SplitBehavior::kRemoved);
}

StepPointer read_bert(const JsonNode&) {
  std::vector<StepPointer> steps;
  steps.push_back(white_space_split());
  steps.push_back(std::make_unique<SplitStep>(Pattern::characters(is_punctuation), SplitBehavior::kIsolated));
  return std::make_unique<SequenceStep>(std::move(steps));
}

StepPointer read_delimiter(const JsonNode& node) {
  std::string delimiter;
  append_utf8(delimiter, node.at("delimiter").character());
  return std::make_unique<SplitStep>(Pattern::literal(delimiter), SplitBehavior::kRemoved);
}

StepPointer read_fixed_length(const JsonNode& node) {
  const auto length = node.find("length");
  return std::make_unique<FixedLengthStep>(length ? static_cast<size_t>(length->integer(1, 1 << 30)) : 5);
}

StepPointer read_sequence(const JsonNode& node) {
  std::vector<StepPointer> steps;
  const JsonNode list = node.at("pretokenizers");
  for (size_t i = 0; i < list.array_size(); ++i) steps.push_back(read_pre_tokenizer(list.at(i)));
  return std::make_unique<SequenceStep>(std::move(steps));
}

}  // namespace

std::unique_ptr<PreTokenizer> read_pre_tokenizer(const JsonNode& node) {
  return read_component<StepPointer>(
      node, "pre-tokenizer",
      {{"ByteLevel", read_byte_level},
       {"Split", read_split},
       {"Sequence", read_sequence},
       {"Metaspace", read_metaspace},
       {"Digits", read_digits},
       {"Punctuation", read_punctuation},
       {"Whitespace", [](const JsonNode&) -> StepPointer { return std::make_unique<WhitespaceStep>(); }},
       {"WhitespaceSplit", [](const JsonNode&) { return white_space_split(); }},
       {"BertPreTokenizer", read_bert},
       {"CharDelimiterSplit", read_delimiter},
       {"Delimiter", read_delimiter},
       {"FixedLength", read_fixed_length}});
}

}  // namespace megalith::tokenizer
