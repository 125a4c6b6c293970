#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "megalith/base/error.h"
#include "megalith/tokenizer/pool_internal.h"
#include "megalith/tokenizer/regex_internal.h"
#include "megalith/tokenizer/utf8.h"

namespace megalith::tokenizer {

namespace {

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

constexpr size_t kJitStackBytes = size_t{4} << 20;  // reserved, not touched, unless an expression needs it

}  // namespace

void require_regex(const std::string&) {}

struct Regex::Matcher::State {
  explicit State(const pcre2_code* compiled, bool with_jit) : code(compiled), jit(with_jit) {
    check(data && context, "PCRE2 could not allocate memory");
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_heap_limit(context.get(), 256 << 10);  // in KiB
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }

  // What pcre2_match returns for a search from `at`.
  int search() {
    const auto* text = reinterpret_cast<PCRE2_SPTR>(subject.data());
    if (jit) {
      const int count = pcre2_jit_match(code, text, subject.size(), at, 0, data.get(), context.get());
      if (count != PCRE2_ERROR_JIT_STACKLIMIT) return count;
    }
    return pcre2_match(code, text, subject.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(), context.get());
  }

  const pcre2_code* code;
  bool jit;
  std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(size_t{32} << 10, kJitStackBytes, nullptr)};
  std::string_view subject;
  size_t at = 0;
  std::optional<size_t> last_end;
};

struct Regex::Code {
  std::unique_ptr<pcre2_code, Freer<pcre2_code_free>> code;
  bool jit = false;
  std::string pattern;  // as written
  std::string where;
  Pool<Matcher::State> states;
};

Regex::Regex(std::string_view oniguruma_pattern, std::string where) {
  const std::string pattern = pcre2_from_oniguruma(oniguruma_pattern, where);
  const std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  check(context != nullptr, "PCRE2 could not make a context");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // ^ and $ always mean lines, and the group options i and x are set within the expression.
  auto code = std::make_unique<Code>();
  code->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                 &error, &offset, context.get()));
  check<DataError>(code->code != nullptr,
                   "{}: the regular expression \"{}\" does not compile: {} (at byte {} of \"{}\")", where,
                   oniguruma_pattern, message_of(error), offset, pattern);
  code->jit = pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE) == 0;
  code->pattern = oniguruma_pattern;
  code->where = std::move(where);
  code_ = std::move(code);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Matcher::Matcher(const Regex& regex)
    : regex_(regex), state_(regex.code_->states.take([&] {
        return std::make_unique<State>(regex.code_->code.get(), regex.code_->jit);
      })) {}

Regex::Matcher::~Matcher() { regex_.code_->states.give_back(std::move(state_)); }

void Regex::Matcher::start(std::string_view subject) {
  state_->subject = subject;
  state_->at = 0;
  state_->last_end.reset();
}

std::optional<std::pair<size_t, size_t>> Regex::Matcher::next() {
  State& s = *state_;
  while (s.at <= s.subject.size()) {
    const int count = s.search();
    if (count == PCRE2_ERROR_NOMATCH) {
      s.at = s.subject.size() + 1;
      break;
    }
    check<DataError>(
        count >= 0,
        "{}: matching the regular expression \"{}\" with a text of {} bytes failed: {}. The expression needs "
        "too many steps for this text; split the text, or mend the expression.",
        regex_.code_->where, regex_.code_->pattern, s.subject.size(), message_of(count));
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(s.data.get());
    const size_t begin = found[0], end = found[1];
    if (begin == end && s.last_end == end) {
      s.at = end < s.subject.size() ? end + utf8_length(s.subject[end]) : end + 1;
      continue;
    }
    s.at = end;
    s.last_end = end;
    return std::pair(begin, end);
  }
  return std::nullopt;
}

}  // namespace megalith::tokenizer
