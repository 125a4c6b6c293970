// The vocabulary of character sets. Where PCRE2 and Oniguruma agree on a name, the name is used; where they differ, or
// PCRE2 has none, the set is written out as ranges. Nested complements and intersections, which a PCRE2 class cannot
// express, become alternations and look-aheads.
#include "megalith/tokenizer/regex/onig_class_internal.h"

#include <array>
#include <cctype>
#include <utility>

#include "megalith/base/text.h"
#include "megalith/tokenizer/text/newer_characters_internal.h"

namespace megalith::tokenizer {

namespace {

using Entry = std::pair<std::string_view, std::string_view>;

// Unicode's White_Space and its complement. PCRE2's own \s is another set: it also contains U+180E.
constexpr std::string_view kSpaceItems =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e})"
    R"(\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
// Alphabetic without marks: letters, letter numbers, letters in circles and squares.
constexpr std::string_view kWordItems =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169})"
    R"(\x{1f170}-\x{1f189})";
constexpr std::string_view kHex = "0-9A-Fa-f";
constexpr std::string_view kNotHex = R"(\x{0}-\x{2f}\x{3a}-\x{40}\x{47}-\x{60}\x{67}-\x{10ffff})";

// Categories by their long names, and the POSIX names. The keys are in the form of loose_name.
constexpr std::array kNamed{Entry{"letter", "L"},
                            Entry{"casedletter", "Lu Ll Lt"},
                            Entry{"lc", "Lu Ll Lt"},
                            Entry{"uppercaseletter", "Lu"},
                            Entry{"lowercaseletter", "Ll"},
                            Entry{"titlecaseletter", "Lt"},
                            Entry{"modifierletter", "Lm"},
                            Entry{"otherletter", "Lo"},
                            Entry{"mark", "M"},
                            Entry{"combiningmark", "M"},
                            Entry{"nonspacingmark", "Mn"},
                            Entry{"spacingmark", "Mc"},
                            Entry{"enclosingmark", "Me"},
                            Entry{"number", "N"},
                            Entry{"decimalnumber", "Nd"},
                            Entry{"digit", "Nd"},
                            Entry{"letternumber", "Nl"},
                            Entry{"othernumber", "No"},
                            Entry{"punctuation", "P"},
                            Entry{"punct", "P"},
                            Entry{"connectorpunctuation", "Pc"},
                            Entry{"dashpunctuation", "Pd"},
                            Entry{"openpunctuation", "Ps"},
                            Entry{"closepunctuation", "Pe"},
                            Entry{"initialpunctuation", "Pi"},
                            Entry{"finalpunctuation", "Pf"},
                            Entry{"otherpunctuation", "Po"},
                            Entry{"symbol", "S"},
                            Entry{"mathsymbol", "Sm"},
                            Entry{"currencysymbol", "Sc"},
                            Entry{"modifiersymbol", "Sk"},
                            Entry{"othersymbol", "So"},
                            Entry{"separator", "Z"},
                            Entry{"spaceseparator", "Zs"},
                            Entry{"lineseparator", "Zl"},
                            Entry{"paragraphseparator", "Zp"},
                            Entry{"other", "C"},
                            Entry{"control", "Cc"},
                            Entry{"cntrl", "Cc"},
                            Entry{"format", "Cf"},
                            Entry{"unassigned", "Cn"},
                            Entry{"privateuse", "Co"},
                            Entry{"surrogate", "Cs"},
                            Entry{"alpha", "Alphabetic"},
                            Entry{"upper", "Uppercase"},
                            Entry{"lower", "Lowercase"}};

// Sets that have no name in PCRE2.
constexpr std::array kWritten{Entry{"space", kSpaceItems},
                              Entry{"whitespace", kSpaceItems},
                              Entry{"word", kWordItems},
                              Entry{"xdigit", kHex},
                              Entry{"alnum", R"(\p{Alphabetic}\p{Nd})"},
                              Entry{"blank", R"(\x{9}\p{Zs})"},
                              Entry{"any", R"(\x{0}-\x{10ffff})"},
                              Entry{"ascii", R"(\x{0}-\x{7f})"}};

// Binary properties that PCRE2 knows by the same name; everything else is a script.
constexpr std::array<std::string_view, 34> kBinary{"alphabetic",
                                                   "asciihexdigit",
                                                   "bidicontrol",
                                                   "cased",
                                                   "caseignorable",
                                                   "dash",
                                                   "defaultignorablecodepoint",
                                                   "diacritic",
                                                   "emoji",
                                                   "emojicomponent",
                                                   "emojimodifier",
                                                   "emojimodifierbase",
                                                   "emojipresentation",
                                                   "extendedpictographic",
                                                   "extender",
                                                   "graphemebase",
                                                   "graphemeextend",
                                                   "hexdigit",
                                                   "idcontinue",
                                                   "ideographic",
                                                   "idstart",
                                                   "joincontrol",
                                                   "lowercase",
                                                   "math",
                                                   "noncharactercodepoint",
                                                   "patternsyntax",
                                                   "quotationmark",
                                                   "radical",
                                                   "regionalindicator",
                                                   "softdotted",
                                                   "unifiedideograph",
                                                   "uppercase",
                                                   "xidcontinue",
                                                   "xidstart"};

// Lower case without spaces, hyphens and underscores.
std::string loose_name(std::string_view name) {
  std::string result;
  for (const char c : name)
    if (c != ' ' && c != '-' && c != '_') result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

// Tables are small and read once per expression, so a linear search will do.
template <typename Table>
std::optional<std::string_view> find_in(const Table& table, std::string_view key) {
  for (const auto& [name, value] : table)
    if (name == key) return value;
  return std::nullopt;
}

std::string property_item(std::string_view name) { return "\\p{" + std::string(name) + "}"; }

// Returns PCRE2's spelling of a category: "Lu" for "lu".
// The second letters that each first letter allows, in the order of kMajor: Cc Cf Cn Co Cs, Mc Me Mn, and so on.
std::optional<std::string> category_name(std::string_view loose) {
  if (loose.empty() || loose.size() > 2) return std::nullopt;
  constexpr std::array<std::string_view, 7> kKinds{"cfnosc", "cemn", "dlo", "cdefios", "ckmo", "lps", "lmotu"};
  constexpr std::string_view kMajor = "cmnpszl";
  const size_t major = kMajor.find(loose[0]);
  if (major == std::string_view::npos) return std::nullopt;
  if (loose.size() == 2 && kKinds.at(major).find(loose[1]) == std::string_view::npos) return std::nullopt;
  std::string result(loose);
  result[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(result[0])));
  return result;
}

// Adds the newer characters of every category that occurs in the items.
std::string covered(std::string items, Coverage coverage) {
  if (coverage == Coverage::kAsPcre2) return items;
  std::string more;
  for (size_t at = 0; (at = items.find("\\p{", at)) != std::string::npos;) {
    const size_t end = items.find('}', at);
    const std::string_view name = std::string_view(items).substr(at + 3, end - at - 3);
    at = end;
    if (name.size() <= 2) {
      more += newer_items(name);
    } else if (name == "Alphabetic") {
      more += newer_items("L") + newer_items("Nl");
    } else if (name == "sc:han") {
      more += R"(\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})";
    }
  }
  return items + more;
}

bool is_plain(const CharacterSetNode& node) { return node.nested.empty() && node.also.empty(); }

// An empty set never matches; its complement matches any character.
std::string bracket(const std::string& items, bool negated) {
  if (items.empty()) return negated ? "(?s:.)" : "(?!)";
  return (negated ? "[^" : "[") + items + "]";
}

}  // namespace

// \h is a hexadecimal digit in Oniguruma, but horizontal space in PCRE2.
std::optional<CharacterItems> class_of_escape(char letter, Coverage coverage) {
  switch (letter) {
    case 's':
      return CharacterItems{std::string(kSpaceItems)};
    case 'S':
      return CharacterItems{std::string(kNotSpace)};
    case 'd':
      return CharacterItems{covered(R"(\p{Nd})", coverage)};
    case 'D':
      return CharacterItems{covered(R"(\p{Nd})", coverage), true};
    case 'w':
      return CharacterItems{covered(std::string(kWordItems), coverage)};
    case 'W':
      return CharacterItems{covered(std::string(kWordItems), coverage), true};
    case 'h':
      return CharacterItems{std::string(kHex)};
    case 'H':
      return CharacterItems{std::string(kNotHex)};
    default:
      return std::nullopt;
  }
}

CharacterItems class_of_property(std::string_view name, Coverage coverage) {
  CharacterItems result;
  if (name.starts_with('^')) {
    result.negated = true;
    name.remove_prefix(1);
  }
  const std::string loose = loose_name(name);
  if (const auto written = find_in(kWritten, loose)) {
    result.items = *written;
  } else if (const auto known = find_in(kNamed, loose)) {
    for (const std::string& part : split(*known, ' ')) result.items += property_item(part);
  } else if (const auto category = category_name(loose)) {
    result.items = property_item(*category);
  } else if (loose == "graph" || loose == "print") {
    result.items =
        R"(\x{9}-\x{d}\x{85}\x{2028}\x{2029}\p{Cc}\p{Cn}\p{Cs})" + std::string(loose == "graph" ? R"(\p{Zs})" : "");
    result.negated = !result.negated;
  } else {
    bool binary = false;
    for (const std::string_view known_name : kBinary) binary = binary || known_name == loose;
    // Whatever is not a category or a known binary property must be a script; PCRE2 reports an unknown name.
    // A bare script name means Script_Extensions in PCRE2, but Script in Oniguruma.
    result.items = property_item(binary ? loose : "sc:" + loose);
  }
  result.items = covered(std::move(result.items), coverage);
  return result;
}

// A complement of several items cannot stand inside a bracket class: it becomes a nested class.
void CharacterSetNode::add(const CharacterItems& set) {
  const bool one_property = set.items.starts_with("\\p{") && set.items.find('}') == set.items.size() - 1;
  if (!set.negated) {
    items += set.items;
  } else if (one_property) {
    items += "\\P" + set.items.substr(2);
  } else {
    nested.push_back({.items = set.items, .negated = true});
  }
}

// Examples, with sets A and B:
//   [A[^B]]   ->  (?:[A]|[^B])              a union with a complement
//   [A&&B]    ->  (?:(?=[B])(?:[A]))        an intersection
//   [^A[^B]]  ->  (?:(?!(?:[A]|[^B]))(?s:.))
std::string pcre2_class(const CharacterSetNode& node) {
  std::string items = node.items;
  std::vector<std::string> choices;
  for (const CharacterSetNode& inner : node.nested) {
    if (is_plain(inner) && !inner.negated) {
      items += inner.items;
    } else {
      choices.push_back(pcre2_class(inner));
    }
  }
  if (choices.empty() && node.also.empty()) return bracket(items, node.negated);
  // A union of classes is an alternation, an intersection a look-ahead, a complement a negative look-ahead.
  std::string text;
  if (choices.empty() || !items.empty()) choices.insert(choices.begin(), bracket(items, false));
  for (const std::string& choice : choices) text += (text.empty() ? "(?:" : "|") + choice;
  text += ")";
  for (const CharacterSetNode& other : node.also) text = "(?:(?=" + pcre2_class(other) + ")" + text + ")";
  return node.negated ? "(?:(?!" + text + ")(?s:.))" : text;
}

}  // namespace megalith::tokenizer
