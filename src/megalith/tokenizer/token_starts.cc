// Finds where in a text its tokens begin.
//
// Byte-level tokens concatenate to the normalized text, so their places there are exact; `origins` maps them back to
// the text before normalization. All other models lose information (unknown tokens, lowercase), so their tokens are
// searched for one after another, which can only be approximate.
#include <algorithm>

#include "megalith/tokenizer/text/unicode_internal.h"
#include "megalith/tokenizer/text/utf8.h"
#include "megalith/tokenizer/tokenizer_impl_internal.h"

namespace megalith::tokenizer {

namespace {

constexpr size_t kSearchBytes = 64;  // how far after its expected place a token is searched for

// Returns for each byte of `normalized` where in `text` the characters begin that it comes from. Works cluster by
// cluster, since normal forms do not reach across grapheme clusters; std::nullopt when the normalizer does more than
// that.
std::optional<std::vector<size_t>> origins(const Normalizer& normalizer, std::string_view text,
                                           std::string_view normalized) {
  std::vector<size_t> result;
  result.reserve(normalized.size());
  for (size_t at = 0; at < text.size();) {
    const size_t end = grapheme_end(text, at);
    std::string cluster(text.substr(at, end - at));
    // An unchanged cluster maps byte to byte; all bytes of a changed one map to its beginning.
    const bool same = normalized.substr(result.size()).starts_with(cluster);
    normalizer.apply(cluster);
    if (!normalized.substr(result.size()).starts_with(cluster)) return std::nullopt;
    for (size_t i = 0; i < cluster.size(); ++i) result.push_back(same && cluster.size() == end - at ? at + i : at);
    at = end;
  }
  return result.size() == normalized.size() ? std::optional(result) : std::nullopt;
}

// Returns the text that a token of a text vocabulary stands for: "▁" is a space, "<0x0A>" a byte, "##" joins.
std::string surface(std::string_view token) {
  constexpr std::string_view kBlank = "\xE2\x96\x81";
  if (token.size() == 6 && token.starts_with("<0x") && token.ends_with('>')) {
    const auto digit = [](char c) { return c >= 'A' ? (c | 0x20) - 'a' + 10 : c - '0'; };
    return std::string(1, static_cast<char>(digit(token[3]) * 16 + digit(token[4])));
  }
  if (token.starts_with("##") && token.size() > 2) token.remove_prefix(2);
  std::string text;
  for (size_t at = 0; at < token.size();) {
    if (token.substr(at).starts_with(kBlank)) {
      text += ' ';
      at += kBlank.size();
    } else {
      text += token[at++];
    }
  }
  return text;
}

// Finds the tokens' texts one after another. One that is not there (unknown, or changed by the normalizer) begins where
// the one before it ended.
std::vector<size_t> found_in_order(std::string_view text, const std::vector<std::string>& surfaces) {
  std::vector<size_t> starts;
  size_t at = 0;
  for (std::string_view part : surfaces) {
    if (!text.substr(at).starts_with(part) && part.starts_with(' ')) part.remove_prefix(1);
    const size_t found = text.substr(at, kSearchBytes + part.size()).find(part);
    if (found != std::string_view::npos) at += found;
    starts.push_back(at);
    if (found != std::string_view::npos) at += part.size();
  }
  return starts;
}

}  // namespace

std::vector<size_t> Tokenizer::Impl::starts_within(std::string_view part, std::span<const int32_t> ids) const {
  std::vector<std::string> surfaces;
  for (const int32_t id : ids)
    surfaces.push_back(by_bytes ? std::string(bytes_of(id)) : surface(decoded_token(id).value_or("")));
  if (!by_bytes) return found_in_order(part, surfaces);

  std::string normalized(part);
  if (normalizer) normalizer->apply(normalized);
  std::vector<size_t> starts;
  // The offset of each token in the concatenation of all of them.
  std::string joined;
  for (const std::string& piece : surfaces) {
    starts.push_back(joined.size());
    joined += piece;
  }
  if (joined != normalized) return found_in_order(part, surfaces);
  if (normalized != part) {
    const auto from = origins(*normalizer, part, normalized);
    if (!from) return found_in_order(part, surfaces);
    for (size_t& start : starts) start = start < from->size() ? (*from)[start] : part.size();
  }
  for (size_t& start : starts)  // to the beginning of the character
    while (start > 0 && start < part.size() && (part[start] & '\xC0') == '\x80') --start;
  return starts;
}

// Follows encode(): the text between added tokens is encoded and located part by part, so an error cannot spread.
TokenizedText Tokenizer::encode_with_starts(std::string_view text) const {
  const Impl& impl = *impl_;
  require_valid_utf8(text);
  TokenizedText result;
  for (const TextPart& part : impl.added.split(text, AddedTokens::Stage::kPlain, {})) {
    if (part.id) {
      result.ids.push_back(*part.id);
      result.starts.push_back(part.begin);
      continue;
    }
    const size_t before = result.ids.size();
    const std::string_view content = text.substr(part.begin, part.end - part.begin);
    impl.encode_text(content, part.begin == 0, {}, result.ids);
    for (const size_t start : impl.starts_within(content, std::span(result.ids).subspan(before)))
      result.starts.push_back(part.begin + start);
  }
  return result;
}

}  // namespace megalith::tokenizer
