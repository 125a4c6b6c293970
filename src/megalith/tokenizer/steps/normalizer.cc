// The normalizers of tokenizers, one class or function each, under the names and with the parameters of tokenizer.json;
// read_normalizer at the end maps "type" to them.
#include "megalith/tokenizer/steps/normalizer_internal.h"

#include <vector>

#include "megalith/tokenizer/regex/pattern_internal.h"
#include "megalith/tokenizer/steps/component_internal.h"
#include "megalith/tokenizer/steps/precompiled_internal.h"
#include "megalith/tokenizer/text/byte_alphabet_internal.h"
#include "megalith/tokenizer/text/unicode_internal.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

namespace {

using NormalizerPtr = std::unique_ptr<Normalizer>;

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<NormalizerPtr> steps) : steps_(std::move(steps)) {}
  void apply(std::string& text) const override {
    for (const auto& step : steps_) step->apply(text);
  }

 private:
  std::vector<NormalizerPtr> steps_;
};

// NFC, NFD, NFKC or NFKD.
class FormNormalizer final : public Normalizer {
 public:
  explicit FormNormalizer(NormalForm form) : form_(form) {}
  // ASCII is its own normal form in all four; most texts are ASCII.
  void apply(std::string& text) const override {
    if (has_non_ascii(text)) text = normalize(form_, text);
  }

 private:
  static bool has_non_ascii(std::string_view text) {
    unsigned char seen = 0;
    for (const char c : text) seen |= static_cast<unsigned char>(c);
    return seen >= 0x80;
  }
  NormalForm form_;
};

// Llama 2's "▁" in front of the text; an empty text stays empty.
class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::string& text) const override { text = replace_matches(text, pattern_, content_); }

 private:
  Pattern pattern_;
  std::string content_;
};

// Whitespace at either end, by Unicode's White_Space.
class StripNormalizer final : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text) const override {
    size_t begin = 0, end = text.size();
    while (left_ && begin < end && is_whitespace(code_point_at(text, begin))) begin += utf8_length(text[begin]);
    while (right_ && begin < end) {
      const size_t last = previous_character(text, end);
      if (!is_whitespace(code_point_at(text, last))) break;
      end = last;
    }
    text = text.substr(begin, end - begin);
  }

 private:
  bool left_, right_;
};

// Replaces each character by what `map` appends for it.
template <typename Map>
void map_characters(std::string& text, const Map& map) {
  std::string result;
  // Most normalizers change few characters, so the size is about the same.
  result.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) map(code_point_at(text, at), result);
  text.swap(result);
}

// Lowercase of tokenizers: character by character, without Python's final sigma.
void lower(std::string& text) {
  map_characters(text, [](char32_t c, std::string& out) { append_lower(out, c); });
}

// Removes the characters for which `unwanted` is true.
void remove_if(std::string& text, bool (*unwanted)(char32_t)) {
  map_characters(text, [&](char32_t c, std::string& out) {
    if (!unwanted(c)) append_utf8(out, c);
  });
}

// Normalizers without parameters are plain functions.
class FunctionNormalizer final : public Normalizer {
 public:
  explicit FunctionNormalizer(void (*function)(std::string&)) : function_(function) {}
  void apply(std::string& text) const override { function_(text); }

 private:
  void (*function_)(std::string&);
};

// SentencePiece's nmt rules: control characters vanish, unusual spaces become spaces.
void nmt(std::string& text) {
  map_characters(text, [](char32_t c, std::string& out) {
    const bool control =
        (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
    const bool blank = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                       c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
    if (!control) append_utf8(out, blank ? U' ' : c);
  });
}

// The ByteLevel pre-tokenizer's alphabet as a normalizer; some newer files use it so.
void byte_level(std::string& text) {
  std::string result;
  append_byte_characters(result, text);
  text.swap(result);
}

// BERT's cleaning: control characters vanish, Chinese characters stand alone, accents and case are removed.
class BertNormalizer final : public Normalizer {
 public:
  BertNormalizer(bool clean, bool chinese, bool accents, bool lowercase)
      : clean_(clean), chinese_(chinese), accents_(accents), lowercase_(lowercase) {}

  void apply(std::string& text) const override {
    if (clean_) map_characters(text, clean_character);
    if (chinese_) map_characters(text, space_out);
    if (accents_) {
      text = normalize(NormalForm::kNfd, text);
      remove_if(text, is_nonspacing_mark);
    }
    if (lowercase_) lower(text);
  }

 private:
  static void clean_character(char32_t c, std::string& out) {
    const bool blank = is_whitespace(c);
    if (c == 0 || c == 0xFFFD || (is_other(c) && c != '\t' && c != '\n' && c != '\r')) return;
    append_utf8(out, blank ? U' ' : c);
  }
  // The CJK blocks of BERT's original code; Korean and Japanese syllables are not among them.
  static void space_out(char32_t c, std::string& out) {
    const bool chinese = (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
                         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
                         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
                         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
    if (chinese) out += ' ';
    append_utf8(out, c);
    if (chinese) out += ' ';
  }

  bool clean_, chinese_, accents_, lowercase_;
};

// ------------------------------------------------------------------------------------------------------------- reading

template <NormalForm kForm>
NormalizerPtr read_form_normalizer(const JsonNode&) {
  return std::make_unique<FormNormalizer>(kForm);
}

template <void (*kFunction)(std::string&)>
NormalizerPtr read_function_normalizer(const JsonNode&) {
  return std::make_unique<FunctionNormalizer>(kFunction);
}

// Removes marks alone; files put NFD before it, which separates them from their letters.
void strip_accents(std::string& text) { remove_if(text, is_mark); }

NormalizerPtr read_sequence_normalizer(const JsonNode& node) {
  std::vector<NormalizerPtr> steps;
  const JsonNode list = node.at("normalizers");
  for (size_t i = 0; i < list.array_size(); ++i) steps.push_back(read_normalizer(list.at(i)));
  return std::make_unique<SequenceNormalizer>(std::move(steps));
}

NormalizerPtr read_replace_normalizer(const JsonNode& node) {
  return std::make_unique<ReplaceNormalizer>(read_pattern(node.at("pattern")), node.at("content").string());
}

NormalizerPtr read_prepend_normalizer(const JsonNode& node) {
  return std::make_unique<PrependNormalizer>(node.at("prepend").string());
}

NormalizerPtr read_strip_normalizer(const JsonNode& node) {
  return std::make_unique<StripNormalizer>(node.at("strip_left").boolean(), node.at("strip_right").boolean());
}

NormalizerPtr read_bert_normalizer(const JsonNode& node) {
  const bool lowercase = node.boolean_or("lowercase", true);
  return std::make_unique<BertNormalizer>(node.boolean_or("clean_text", true),
                                          node.boolean_or("handle_chinese_chars", true),
                                          // Without a value, accents are removed exactly if the text is lowercased, as
                                          // in BERT's code.
                                          node.boolean_or("strip_accents", lowercase), lowercase);
}

}  // namespace

std::unique_ptr<Normalizer> read_normalizer(const JsonNode& node) {
  return read_component<NormalizerPtr>(node, "normalizer",
                                       {{"NFC", read_form_normalizer<NormalForm::kNfc>},
                                        {"NFD", read_form_normalizer<NormalForm::kNfd>},
                                        {"NFKC", read_form_normalizer<NormalForm::kNfkc>},
                                        {"NFKD", read_form_normalizer<NormalForm::kNfkd>},
                                        {"Sequence", read_sequence_normalizer},
                                        {"Prepend", read_prepend_normalizer},
                                        {"Replace", read_replace_normalizer},
                                        {"Lowercase", read_function_normalizer<lower>},
                                        {"Strip", read_strip_normalizer},
                                        {"StripAccents", read_function_normalizer<strip_accents>},
                                        {"Nmt", read_function_normalizer<nmt>},
                                        {"Precompiled", read_precompiled},
                                        {"BertNormalizer", read_bert_normalizer},
                                        // Bert is the name in files of early versions.
                                        {"Bert", read_bert_normalizer},
                                        {"ByteLevel", read_function_normalizer<byte_level>}});
}

}  // namespace megalith::tokenizer
