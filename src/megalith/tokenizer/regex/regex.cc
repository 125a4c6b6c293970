// Matching by PCRE2. Each Matcher borrows a State (match data, context, JIT stack) from a pool of its expression, since
// creating these costs more than matching a short text.
//
// An expression is compiled twice if PCRE2's Unicode is older than tokenizers': once as it is, and once with the newer
// characters written out, which is slower and used only for texts that contain one.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdlib>

#include "megalith/base/error.h"
#include "megalith/tokenizer/regex/regex_internal.h"
#include "megalith/tokenizer/text/newer_characters_internal.h"
#include "megalith/tokenizer/text/pool_internal.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

namespace {

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};

// PCRE2's text for an error number.
std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

constexpr int kNewestUnicode = 16;  // the newest version covered by newer_characters

// Returns the major version of Unicode that PCRE2 supports.
int unicode_version() {
  std::array<char, 64> text{};
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, text.data());
  return std::atoi(text.data());
}

constexpr size_t kJitStackBytes = size_t{4} << 20;  // reserved, not touched, unless an expression needs it

}  // namespace

void require_regex(const std::string&) {}

// Everything that a search changes, so that one compiled expression serves many threads.
struct Regex::Matcher::State {
  explicit State(const pcre2_code* compiled, bool with_jit) : code(compiled), jit(with_jit) {
    check(data && context, "PCRE2 could not allocate memory");
    pcre2_set_match_limit(context.get(), kMatchLimit);
    // Bounds the interpreter's backtracking memory at 256 MiB; the match limit bounds its time.
    pcre2_set_heap_limit(context.get(), 256 << 10);  // in KiB
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }

  // Searches from `at`; returns what pcre2_match returns. If the JIT stack is too small, the interpreter takes over.
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

// A compiled expression with the names for its messages and its idle states.
struct Regex::Code {
  Code(const std::string& pcre2_pattern, std::string_view written, const std::string& place);

  std::unique_ptr<pcre2_code, Freer<pcre2_code_free>> code;
  bool jit = false;
  std::string pattern;  // as written in the file
  std::string where;
  mutable Pool<Matcher::State> states;
};

Regex::Code::Code(const std::string& pcre2_pattern, std::string_view written, const std::string& place)
    : pattern(written), where(place) {
  const std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  check(context != nullptr, "PCRE2 could not allocate memory");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // MULTILINE: ^ and $ always refer to lines, as in Oniguruma.
  // NO_UTF_CHECK: the pattern comes from JSON that was checked. \C would cut characters into bytes.
  code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre2_pattern.data()), pcre2_pattern.size(),
                           PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                           &error, &offset, context.get()));
  check<DataError>(code != nullptr, "{}: the regular expression \"{}\" does not compile: {} (at byte {} of \"{}\")",
                   where, pattern, message_of(error), offset, pcre2_pattern);
  jit = pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE) == 0;
}

Regex::Regex(std::string_view oniguruma_pattern, const std::string& where) {
  // Both versions are compiled when the tokenizer is loaded, so that encoding never has to compile.
  const std::string plain = pcre2_from_oniguruma(oniguruma_pattern, where, Coverage::kAsPcre2);
  code_ = std::make_unique<Code>(plain, oniguruma_pattern, where);
  if (unicode_version() >= kNewestUnicode) return;
  const std::string full = pcre2_from_oniguruma(oniguruma_pattern, where, Coverage::kWithNewer);
  if (full != plain) newer_ = std::make_unique<Code>(full, oniguruma_pattern, where);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Matcher::Matcher(const Regex& regex, std::string_view text)
    : code_(regex.newer_ && has_newer_characters(text) ? *regex.newer_ : *regex.code_),
      state_(code_.states.take([&] { return std::make_unique<State>(code_.code.get(), code_.jit); })) {}

Regex::Matcher::~Matcher() { code_.states.give_back(std::move(state_)); }

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
        "too many steps for this text; split the text, or fix the expression.",
        code_.where, code_.pattern, s.subject.size(), message_of(count));
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(s.data.get());
    const size_t begin = offsets[0], end = offsets[1];
    // An empty match directly after the previous match is skipped, as in tokenizers.
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
