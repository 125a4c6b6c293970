// Parses layout strings in two passes, as the reference does: first groups "(…)*n", then single characters "x*n". The
// passes are plain text expansion, so a group may contain repetitions but not another group; whatever is not one of the
// four parts or '|' afterwards is an error. Lengths are limited before anything is expanded.
#include "megalith/layout/pipeline_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::layout {
namespace {

constexpr std::string_view kParts = "EtmL";
constexpr size_t kMaxExpandedLength = 1'000'000;  // far beyond any model; guards against t*99999999

// "*12" is {12, 3}.
struct Repeat {
  size_t count;
  size_t length;  // characters of "*n" in the text
};

// Reads "*n" at `at`; std::nullopt if there is none.
std::optional<Repeat> read_repeat(std::string_view text, size_t at) {
  if (at >= text.size() || text[at] != '*') return std::nullopt;
  const size_t begin = at + 1;
  size_t end = begin;
  while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
  if (end == begin) return std::nullopt;
  // Eight digits cannot be a number of layers, and would take long to expand.
  const auto count = end - begin > 7 ? std::nullopt : parse_int(text.substr(begin, end - begin));
  check<ConfigError>(count.has_value(), "pipeline_model_parallel_layout repeats {} times; no model has so many layers",
                     text.substr(begin, end - begin));
  return Repeat{static_cast<size_t>(*count), end - at};
}

// The limit is checked before anything is copied.
void append_repeated(std::string& out, std::string_view piece, size_t count) {
  check<ConfigError>(out.size() + piece.size() * count <= kMaxExpandedLength,
                     "pipeline_model_parallel_layout has more than {} parts when its repetitions are written out",
                     kMaxExpandedLength);
  for (size_t i = 0; i < count; ++i) out += piece;
}

// Expands "(tt|)*2" to "tt|tt|". A parenthesis that does not belong to such a piece stays and is rejected later.
std::string expand_groups(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t close = text[i] == '(' ? text.find(')', i) : std::string_view::npos;
    const auto repeat = close == std::string_view::npos || close == i + 1 ? std::nullopt : read_repeat(text, close + 1);
    if (!repeat) {
      out += text[i++];
      continue;
    }
    append_repeated(out, text.substr(i + 1, close - i - 1), repeat->count);
    i = close + 1 + repeat->length;
  }
  return out;
}

// Expands "t*3" to "ttt".
std::string expand_characters(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto repeat = read_repeat(text, i + 1);
    append_repeated(out, text.substr(i, 1), repeat ? repeat->count : 1);
    i += 1 + (repeat ? repeat->length : 0);
  }
  return out;
}

// Blanks are named in words: a quoted one is easily overlooked.
std::string quoted(char c) { return c == '\t' ? "a tab" : c == ' ' ? "a blank" : fmt::format("'{}'", c); }

// Translates a word of the list form.
char part_of(const std::string& given, size_t stage) {
  const std::string word = to_lower(trim(given));
  if (word == "embedding") return kEmbeddingPart;
  if (word == "decoder") return kDecoderPart;
  if (word == "mtp") return kMtpPart;
  check<ConfigError>(word == "loss",
                     "pipeline_model_parallel_layout names '{}' in stage {}; a part is embedding, decoder, mtp or loss",
                     given, stage);
  return kLossPart;
}

}  // namespace

PipelineLayout::PipelineLayout(std::vector<std::string> stages) : stages_(std::move(stages)) {
  check(!stages_.empty(), "a pipeline layout needs a stage");
  for (const std::string& stage : stages_) {
    check(stage.find_first_not_of(kParts) == std::string::npos, "'{}' is not a stage of a pipeline layout", stage);
  }
}

PipelineLayout PipelineLayout::parse(std::string_view text) {
  std::string plain(text);
  // Commas are decoration: "E,t*3|t*4,L" and "Et*3|t*4L" are the same layout.
  std::erase(plain, ',');
  const std::string expanded = expand_characters(expand_groups(plain));
  const size_t unknown = expanded.find_first_not_of("EtmL|");
  check<ConfigError>(unknown == std::string::npos,
                     "pipeline_model_parallel_layout '{}' contains {}. Allowed: E (embedding), t (decoder layer), m "
                     "(mtp layer), L (loss), | between stages, x*n and (…)*n to repeat (not nested), commas anywhere; "
                     "e.g. 'Et*3|t*4|t*4|t*3L'",
                     text, unknown == std::string::npos ? "" : quoted(expanded[unknown]));
  return PipelineLayout(split(expanded, '|'));
}

// The reference's list form: [["embedding", "decoder"], ["decoder", "loss"]].
PipelineLayout PipelineLayout::from_names(std::span<const std::vector<std::string>> stages) {
  check<ConfigError>(!stages.empty(),
                     "pipeline_model_parallel_layout is an empty list; it needs a list for each stage");
  std::vector<std::string> texts(stages.size());
  for (size_t s = 0; s < stages.size(); ++s) {
    for (const std::string& part : stages[s]) texts[s] += part_of(part, s);
  }
  return PipelineLayout(std::move(texts));
}

int PipelineLayout::count(char part) const {
  std::ptrdiff_t total = 0;
  for (const std::string& stage : stages_) total += std::count(stage.begin(), stage.end(), part);
  return static_cast<int>(total);
}

// Writes runs of more than three equal parts as x*n.
std::string PipelineLayout::text() const {
  constexpr size_t kLongestRunWrittenOut = 3;
  std::string out;
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (s > 0) out += '|';
    const std::string& stage = stages_[s];
    for (size_t i = 0; i < stage.size();) {
      const size_t next = std::min(stage.find_first_not_of(stage[i], i), stage.size());
      const size_t run = next - i;
      out += run > kLongestRunWrittenOut ? fmt::format("{}*{}", stage[i], run) : std::string(run, stage[i]);
      // Neither a part nor '|' is a digit, so the count cannot merge with the text that follows.
      i = next;
    }
  }
  return out;
}

}  // namespace megalith::layout
