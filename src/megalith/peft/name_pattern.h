// NamePattern: a regular expression of an adapter's configuration that selects modules by name. peft's expressions are
// Python's; all that the two languages share is understood (classes, groups, |, *, +, ?, lookahead).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace megalith::peft {

// Immutable; copies share the compiled expression.
class NamePattern {
 public:
  // These throw ConfigError for an expression that is not understood.
  // Matches whole names.
  static NamePattern whole(const std::string& text);
  // Matches names, or their ends after a dot: the keys of rank_pattern and alpha_pattern.
  static NamePattern end(const std::string& text);
  // Finds the number of a layer: the word after the one that `text` matches ("layers").
  static NamePattern layer(const std::string& text);

  const std::string& text() const { return text_; }
  bool matches(std::string_view name) const;
  // For NamePattern::layer: returns the number in `name`, if it is there.
  std::optional<int64_t> number_in(std::string_view name) const;

 private:
  struct Compiled;
  NamePattern(std::string text, const std::string& expression);

  std::string text_;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace megalith::peft
