// std::regex knows the expressions of ECMAScript, which have the same meaning in Python for everything that both know.
#include "megalith/peft/name_pattern.h"

#include <regex>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::peft {

struct NamePattern::Compiled {
  std::regex regex;
};

NamePattern::NamePattern(std::string text, const std::string& expression) : text_(std::move(text)) {
  try {
    compiled_ = std::make_shared<const Compiled>(Compiled{std::regex(expression)});
  } catch (const std::regex_error& error) {
    throw ConfigError(
        fmt::format("the regular expression {} is not understood ({}); write the adapter's"
                    " configuration without it, for example with lists of module names",
                    text_, error.what()));
  }
}

NamePattern NamePattern::whole(const std::string& text) { return {text, text}; }
NamePattern NamePattern::end(const std::string& text) { return {text, fmt::format("(?:.*\\.)?(?:{})", text)}; }
NamePattern NamePattern::layer(const std::string& text) {
  return {text, fmt::format("(?:.*?\\.)?(?:{})\\.(\\d+)\\..*", text)};
}

bool NamePattern::matches(std::string_view name) const {
  return std::regex_match(name.begin(), name.end(), compiled_->regex);
}

std::optional<int64_t> NamePattern::number_in(std::string_view name) const {
  std::match_results<std::string_view::const_iterator> found;
  if (!std::regex_match(name.begin(), name.end(), found, compiled_->regex)) return std::nullopt;
  return parse_int(found[compiled_->regex.mark_count()].str());  // the number is the last group
}

}  // namespace megalith::peft
