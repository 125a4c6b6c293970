// Character properties from utf8proc, extended by the table of newer characters.
//
// Normalization is the hot path. Most text is already normalized, so a table tells for each character whether text may
// be cut before it and whether it stays as it is; only the stretches between such stable characters go through
// utf8proc.
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdlib>
#include <memory>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/tokenizer/text/newer_characters_internal.h"
#include "megalith/tokenizer/text/unicode_internal.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

namespace {

// Characters that utf8proc does not know yet are looked up in our own table.
utf8proc_category_t category(char32_t c) {
  const utf8proc_category_t found = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  const std::string_view newer = found == UTF8PROC_CATEGORY_CN ? newer_category(c) : std::string_view();
  if (newer.empty()) return found;
  constexpr std::pair<std::string_view, utf8proc_category_t> kNames[] = {
      {"Lu", UTF8PROC_CATEGORY_LU}, {"Ll", UTF8PROC_CATEGORY_LL}, {"Lm", UTF8PROC_CATEGORY_LM},
      {"Lo", UTF8PROC_CATEGORY_LO}, {"Mn", UTF8PROC_CATEGORY_MN}, {"Mc", UTF8PROC_CATEGORY_MC},
      {"Nd", UTF8PROC_CATEGORY_ND}, {"No", UTF8PROC_CATEGORY_NO}, {"Po", UTF8PROC_CATEGORY_PO},
      {"Pd", UTF8PROC_CATEGORY_PD}, {"Sm", UTF8PROC_CATEGORY_SM}, {"So", UTF8PROC_CATEGORY_SO},
      {"Sk", UTF8PROC_CATEGORY_SK}, {"Sc", UTF8PROC_CATEGORY_SC}, {"Cf", UTF8PROC_CATEGORY_CF}};
  for (const auto& [name, value] : kNames)
    if (name == newer) return value;
  return found;
}

// utf8proc numbers categories so that those of one letter are adjacent: Lu … Lo, Mn … Me, and so on.
bool category_within(char32_t c, utf8proc_category_t first, utf8proc_category_t last) {
  const utf8proc_category_t found = category(c);
  return found >= first && found <= last;
}

constexpr size_t kTableSize = 0x30000;  // no character beyond it has a decomposition or a combining class

// STABLE keeps to Unicode's stability policy, by which the normal form of an assigned character never changes.
constexpr int options_of(NormalForm form) {
  const int options = UTF8PROC_STABLE;
  switch (form) {
    case NormalForm::kNfc:
      return options | UTF8PROC_COMPOSE;
    case NormalForm::kNfd:
      return options | UTF8PROC_DECOMPOSE;
    case NormalForm::kNfkc:
      return options | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    case NormalForm::kNfkd:
      return options | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  }
  return options;
}

// utf8proc allocates the result with malloc.
void append_normalized(std::string& out, std::string_view text, int options) {
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &result, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  check(length >= 0, "utf8proc: {}", utf8proc_errmsg(length));
  out.append(reinterpret_cast<const char*>(result), static_cast<size_t>(length));
}

using CharacterSet = std::bitset<kTableSize>;

// tokenizers normalizes by Unicode 9.0: younger characters stay as and where they are. These are the ones that newer
// tables would decompose, compose or move; all of newer_characters() are added to them.
constexpr std::pair<char32_t, char32_t> kYounger[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1AEB},   {0x1DF6, 0x1DFA},
    {0x32FF, 0x32FF},   {0xA7F1, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x107BA},
    {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFA, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

bool is_younger(char32_t c) {
  const auto* found = std::ranges::lower_bound(kYounger, c, {}, &std::pair<char32_t, char32_t>::second);
  return (found != std::end(kYounger) && found->first <= c) || !newer_category(c).empty();
}

// Normalizes the stretches between younger characters.
void append_around_younger(std::string& out, std::string_view text, int options) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text[at]);
    if (is_younger(code_point_at(text, at))) {
      if (begin < at) append_normalized(out, text.substr(begin, at - begin), options);
      out += text.substr(at, length);
      begin = at + length;
    }
    at += length;
  }
  if (begin < text.size()) append_normalized(out, text.substr(begin), options);
}

// Returns the characters before which text may be cut for this form, and which stay as they are if the next cut follows
// at once: combining class 0, equal to their own normal form, and never a later part of a decomposition (which might
// combine with what is before it).
std::unique_ptr<const CharacterSet> stable_characters(NormalForm form) {
  auto set = std::make_unique<CharacterSet>();
  set->set();
  const bool compat = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  // Decomposition shows all parts of a character, also for the composed forms: the parts after the first are those that
  // may combine with what is before them.
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compat ? UTF8PROC_COMPAT : 0));
  for (size_t c = 0; c < kTableSize; ++c) {
    const auto code = static_cast<utf8proc_int32_t>(c);
    if (utf8proc_get_property(code)->combining_class != 0 || is_younger(static_cast<char32_t>(c))) set->reset(c);
    std::array<utf8proc_int32_t, 32> parts{};
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(code, parts.data(), parts.size(), options, &boundary);
    if (count == 1 && parts[0] == code) continue;
    for (utf8proc_ssize_t i = 1; i < count; ++i) set->reset(static_cast<size_t>(parts.at(static_cast<size_t>(i))));
    std::string text, result;
    append_utf8(text, static_cast<char32_t>(c));
    append_normalized(result, text, options_of(form));
    if (result != text) set->reset(c);
  }
  return set;
}

// Built once per process, on first use: NFC alone, since most models need only that.
const CharacterSet& stable_set(NormalForm form) {
  static const std::unique_ptr<const CharacterSet> nfc = stable_characters(NormalForm::kNfc);
  if (form == NormalForm::kNfc) return *nfc;
  static const std::array<std::unique_ptr<const CharacterSet>, 3> others{
      stable_characters(NormalForm::kNfd), stable_characters(NormalForm::kNfkc), stable_characters(NormalForm::kNfkd)};
  return *others.at(static_cast<size_t>(form) - 1);
}

}  // namespace

void require_unicode(const std::string&) {}

bool is_numeric(char32_t c) { return category_within(c, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO); }

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  return category_within(c, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

// TR18's \w: Alphabetic, marks, decimal digits, connecting punctuation and the two joiners.
bool is_word(char32_t c) {
  const utf8proc_category_t found = category(c);
  if (found >= UTF8PROC_CATEGORY_LU && found <= UTF8PROC_CATEGORY_NL) return true;  // letters, marks, Nd, Nl
  if (found == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D) return true;
  // Letters in circles and squares are alphabetic, too.
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

bool is_mark(char32_t c) { return category_within(c, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME); }
bool is_nonspacing_mark(char32_t c) { return category(c) == UTF8PROC_CATEGORY_MN; }

bool is_other(char32_t c) { return category(c) >= UTF8PROC_CATEGORY_CC; }

// U+0130 is the only character whose lower case is two characters: i and a combining dot.
void append_lower(std::string& text, char32_t c) {
  if (c == 0x130) {
    text += "i\u0307";
  } else {
    append_utf8(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

bool is_letter(char32_t c) { return category_within(c, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO); }
bool is_upper_letter(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower_letter(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LL; }
bool is_decimal_digit(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

// ß is the common one of some hundred characters whose upper case is longer; the others keep utf8proc's simple mapping.
void append_upper(std::string& text, char32_t c) {
  if (c == 0xDF) {
    text += "SS";
  } else {
    append_utf8(text, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
}

void append_title(std::string& text, char32_t c) {
  if (c == 0xDF) {
    text += "Ss";
  } else {
    append_utf8(text, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
  }
}

bool is_printable(char32_t c) {
  const utf8proc_category_t found = category(c);
  return c == ' ' || (found != UTF8PROC_CATEGORY_CN && found < UTF8PROC_CATEGORY_ZS);
}

std::string normalize(NormalForm form, std::string_view text) {
  // U+00A0 is the first character that any of the four forms changes.
  const CharacterSet& stable = stable_set(form);
  const auto is_stable = [&](size_t at) {
    const char32_t c = code_point_at(text, at);
    return c < 0xA0 || (c < kTableSize ? stable[c] : true);
  };
  std::string out;
  size_t copied = 0;       // text before this is already in `out`
  size_t last_stable = 0;  // offset of the latest stable character
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80 || is_stable(at)) {
      last_stable = at;
      at += utf8_length(text[at]);
      continue;
    }
    // From the previous stable character, which may combine, to the next one.
    size_t end = at;
    while (end < text.size() && !is_stable(end)) end += utf8_length(text[end]);
    const size_t begin = std::max(last_stable, copied);
    out += text.substr(copied, begin - copied);
    append_around_younger(out, text.substr(begin, end - begin), options_of(form));
    copied = at = last_stable = end;
  }
  out += text.substr(copied);
  return out;
}

// Grapheme clusters of UAX #29; `state` carries what the rules for emoji and flags need beyond two characters.
size_t grapheme_end(std::string_view text, size_t at) {
  utf8proc_int32_t state = 0;
  char32_t before = code_point_at(text, at);
  for (at += utf8_length(text[at]); at < text.size(); at += utf8_length(text[at])) {
    const char32_t c = code_point_at(text, at);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before), static_cast<utf8proc_int32_t>(c),
                                         &state))
      break;
    before = c;
  }
  return at;
}

}  // namespace megalith::tokenizer
