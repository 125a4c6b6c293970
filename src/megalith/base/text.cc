// Small text functions that do not depend on the locale: numbers are parsed by std::from_chars, and only ASCII letters
// have a case, so options and files read the same on every machine.
#include "megalith/base/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>

namespace megalith {

std::string list_in_words(std::span<const std::string> items, size_t limit) {
  if (items.size() > limit) return fmt::format("{}, … ({} in all)", fmt::join(items.first(limit), ", "), items.size());
  if (items.size() < 2) return items.empty() ? "none" : items.front();
  return fmt::format("{} and {}", fmt::join(items.first(items.size() - 1), ", "), items.back());
}

std::string list_in_words(std::span<const int> items, size_t limit) {
  std::vector<std::string> words;
  for (int item : items) words.push_back(std::to_string(item));
  return list_in_words(words, limit);
}

// "a,,b" -> {"a", "", "b"}, and "" -> {""}: there is always one part more than separators.
std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n\f\v";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string to_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

// from_chars takes a minus but no plus: a plus is left out unless another sign follows it. The whole text must be the
// number.
std::optional<int64_t> parse_int(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::optional<double> parse_double(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

// Optimal string alignment: like the Levenshtein distance, with a swap of two neighbors as one edit. Only three rows of
// the table are alive at a time: the current one and, since a swap looks back two rows, the two before it.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  std::iota(above.begin(), above.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

// A candidate is close enough if at most a third of its characters differ. One that begins or ends with `word` (an
// abbreviation, a missing prefix) also counts, but ranks after such typos.
std::vector<std::string> nearest(std::string_view word, std::span<const std::string> candidates, size_t limit) {
  const std::string lower = to_lower(word);
  std::vector<std::pair<size_t, const std::string*>> ranked;
  for (const std::string& candidate : candidates) {
    const size_t allowed = std::max<size_t>(1, std::max(word.size(), candidate.size()) / 3);
    const size_t distance = edit_distance(lower, to_lower(candidate));
    if (distance <= allowed) {
      ranked.emplace_back(distance, &candidate);
    } else if (lower.size() >= 3 && (candidate.starts_with(lower) || candidate.ends_with(lower))) {
      ranked.emplace_back(allowed + candidate.size() - lower.size(), &candidate);
    }
  }
  std::ranges::stable_sort(ranked, {}, &std::pair<size_t, const std::string*>::first);
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(limit, ranked.size()); ++i) names.push_back(*ranked[i].second);
  return names;
}

// The standard 64-bit offset basis and prime. The result is stable over versions and machines.
uint64_t fnv1a64(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3ULL;
  return hash;
}

}  // namespace megalith
