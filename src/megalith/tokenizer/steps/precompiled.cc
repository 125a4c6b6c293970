// SentencePiece's compiled rules: a trie from UTF-8 keys to replacement texts, in the double-array form of darts-clone.
// A unit has the label of the edge that leads to it (8 bits), whether it has a value (bit 8), and the offset of its
// children (22 bits and a shift in bit 9); a child is found by XOR of offset and label.
#include "megalith/tokenizer/steps/precompiled_internal.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "megalith/tokenizer/text/base64_internal.h"
#include "megalith/tokenizer/text/unicode_internal.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

namespace {

// The format is little-endian on all machines.
uint32_t little_endian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return value;
}

// The layout on disk is SentencePiece's: the size of the trie in bytes, the trie as 32-bit units of a double array
// (darts-clone), and the texts, each ended by a zero byte, to which the trie's values point.
class PrecompiledStep final : public Normalizer {
 public:
  PrecompiledStep(std::vector<uint32_t> units, std::string texts)
      : units_(std::move(units)), texts_(std::move(texts)) {}

  // Like tokenizers: replaces a grapheme of fewer than 6 bytes as a whole, otherwise character by character.
  void apply(std::string& text) const override {
    std::string result;
    result.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const size_t end = grapheme_end(text, at);
      const std::string_view grapheme = std::string_view(text).substr(at, end - at);
      if (const auto whole = grapheme.size() < 6 ? find(grapheme) : std::nullopt) {
        result += *whole;
      } else {
        for (size_t i = 0; i < grapheme.size(); i += utf8_length(grapheme[i])) {
          const std::string_view character = grapheme.substr(i, utf8_length(grapheme[i]));
          result += find(character).value_or(character);
        }
      }
      at = end;
    }
    text.swap(result);
  }

 private:
  // Bits 10 to 31, shifted left by 8 if bit 9 is set: far children are aligned to 256 units.
  static size_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

  // Returns the replacement of the shortest key that `text` starts with; tokenizers takes that one, too.
  std::optional<std::string_view> find(std::string_view text) const {
    if (units_.empty()) return std::nullopt;
    size_t node = offset_of(units_[0]);
    for (const char c : text) {
      const auto label = static_cast<unsigned char>(c);
      node ^= label;
      if (label == 0 || node >= units_.size()) return std::nullopt;
      const uint32_t unit = units_[node];
      // Bit 31 is set in units that hold values; these have no label and never match.
      if ((unit & ((1u << 31) | 0xFF)) != label) return std::nullopt;
      node ^= offset_of(unit);
      if ((unit >> 8 & 1) == 0) continue;
      const size_t begin = node < units_.size() ? units_[node] & ((1u << 31) - 1) : texts_.size();
      if (begin >= texts_.size()) return std::nullopt;
      return std::string_view(texts_).substr(begin, texts_.find('\0', begin) - begin);
    }
    return std::nullopt;
  }

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace

std::unique_ptr<Normalizer> read_precompiled(const JsonNode& node) {
  const JsonNode field = node.at("precompiled_charsmap");
  const auto bytes = decode_base64(field.string());
  if (!bytes) field.fail("is not base64");
  std::vector<uint32_t> units;
  std::string texts;
  if (!bytes->empty()) {
    // The first four bytes are the size of the trie.
    const size_t size = bytes->size() < 4 ? 0 : little_endian(*bytes, 0);
    if (bytes->size() < 4 || size % 4 != 0 || size > bytes->size() - 4) field.fail("is cut off");
    for (size_t at = 4; at < 4 + size; at += 4) units.push_back(little_endian(*bytes, at));
    texts = bytes->substr(4 + size);
    if (first_invalid_utf8(texts)) field.fail("contains texts that are not valid UTF-8");
  }
  return std::make_unique<PrecompiledStep>(std::move(units), std::move(texts));
}

}  // namespace megalith::tokenizer
