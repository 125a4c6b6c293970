#include "megalith/run/resolve/layer_list_internal.h"

#include <algorithm>
#include <charconv>

#include "megalith/base/error.h"

namespace megalith::run {

namespace {

// Parses Python's list arithmetic as far as the option uses it: [1,0], (…), a+b, a*n. A recursive-descent parser with
// limits on depth and length, since the text comes from the user.
class LayerList {
 public:
  LayerList(std::string_view option, const std::string& text) : option_(option), text_(text) { std::erase(text_, ' '); }

  std::vector<bool> parse() {
    std::vector<bool> all = sum();
    need(at_ == text_.size());
    return all;
  }

 private:
  // One message for every syntax error: the text is short enough to see the place.
  void need(bool ok) const {
    check<ConfigError>(ok, "{} is \"{}\"; give a number, or a list such as ([1]*3+[0]*2)", option_, text_);
  }
  // Consumes `c` if it comes next.
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  // Repeats beyond 100 000 layers are mistakes, and the limit bounds the work of a hostile text.
  int64_t number() {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    need(error == std::errc() && value >= 0 && value <= 100'000);
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }
  // sum = product { '+' product }
  std::vector<bool> sum() {
    std::vector<bool> all = product();
    while (take('+')) {
      const std::vector<bool> more = product();
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }
  // product = ( '(' sum ')' | '[' number { ',' number } ']' ) [ '*' number ]
  std::vector<bool> product() {
    std::vector<bool> once;
    if (take('(')) {
      need(++depth_ < 100);
      once = sum();
      need(take(')'));
      --depth_;
    } else {
      need(take('['));
      do once.push_back(number() != 0);
      while (take(','));
      need(take(']'));
    }
    if (!take('*')) return once;
    std::vector<bool> all;
    for (int64_t n = number(); n > 0; --n) {
      all.insert(all.end(), once.begin(), once.end());
      need(all.size() <= 1'000'000);
    }
    return all;
  }

  std::string_view option_;
  std::string text_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::optional<int64_t> layer_step(std::string_view option, const std::string& text) {
  if (text.empty() || !std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  const int64_t step = text.size() < 7 ? std::stoll(text) : 0;
  check<ConfigError>(step > 0, "{} is {}; it must be 1 or more: a number of layers", option, text);
  return step;
}

std::vector<bool> parse_layer_list(std::string_view option, const std::string& text, int64_t layers) {
  std::vector<bool> all = LayerList(option, text).parse();
  check<ConfigError>(static_cast<int64_t>(all.size()) == layers, "{} \"{}\" describes {} layers, but num_layers is {}",
                     option, text, all.size(), layers);
  return all;
}

}  // namespace megalith::run
