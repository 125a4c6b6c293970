// Pieces of a text, patterns, and cutting. A text is cut into spans again and again, each pre-tokenizer working on the
// result of the one before; spans are two 32-bit offsets, so cutting never copies text.
#include "megalith/tokenizer/regex/pattern_internal.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

void Pieces::reset(std::string_view text, bool at_start) {
  check<DataError>(text.size() < kMaxBytes, "a text of {} bytes is too long; split it into parts below 2 GiB",
                   text.size());
  borrowed_ = text;
  rewritten_ = false;
  at_start_ = at_start;
  spans_.clear();
  if (!text.empty()) spans_.push_back({0, static_cast<uint32_t>(text.size())});
}

// Takes a new text with its spans. Whether the first piece starts the text is asked before the old spans are replaced.
void Pieces::rewrite(std::string& text, std::vector<Span>& spans) {
  check<DataError>(text.size() < kMaxBytes, "a text of {} bytes is too long; split it into parts below 2 GiB",
                   text.size());
  at_start_ = !spans_.empty() && is_start(0);
  own_.swap(text);
  spans_.swap(spans);
  rewritten_ = true;
}

// ------------------------------------------------------------------------------------------------------------- matches

Pattern::Search::Search(const Pattern& pattern, std::string_view whole) : pattern_(pattern) {
  if (const auto* regex = std::get_if<Regex>(&pattern.kind_)) matcher_.emplace(*regex, whole);
}

void Pattern::Search::start(std::string_view text) {
  text_ = text;
  at_ = 0;
  if (matcher_) matcher_->start(text);
}

// Three kinds of search in one function; matches of texts and characters are never empty.
std::optional<std::pair<size_t, size_t>> Pattern::Search::next() {
  if (matcher_) return matcher_->next();
  if (const auto* literal = std::get_if<std::string>(&pattern_.kind_)) {
    const size_t found = literal->empty() ? std::string_view::npos : text_.find(*literal, at_);
    if (found == std::string_view::npos) return std::nullopt;
    at_ = found + literal->size();
    return std::pair(found, at_);
  }
  const Predicate predicate = std::get<Predicate>(pattern_.kind_);
  while (at_ < text_.size()) {
    const size_t begin = at_;
    at_ += utf8_length(text_[at_]);
    if (predicate(code_point_at(text_, begin))) return std::pair(begin, at_);
  }
  return std::nullopt;
}

std::string replace_matches(std::string_view text, const Pattern& pattern, std::string_view content) {
  // The pattern ".*" would otherwise replace nothing by something.
  if (text.empty()) return {};  // not even an expression that matches the empty text is searched for here
  std::string result;
  Pattern::Search search(pattern, text);
  search.start(text);
  size_t done = 0;
  while (const auto match = search.next()) {
    result += text.substr(done, match->first - done);
    result += content;
    done = match->second;
  }
  result += text.substr(done);
  return result;
}

// ------------------------------------------------------------------------------------------------------------- cutting

namespace {

// A stretch of a piece: a match, or the text between two (the other way round if the step inverts).
struct Part {
  Span span;
  bool match;
};

void add_span(std::vector<Span>& spans, Span span) {
  if (span.begin < span.end) spans.push_back(span);
}

// Returns the matches and the stretches between them, covering the piece.
// "a-b" at "-" gives a, -, b.
void find_parts(Pattern::Search& search, std::string_view text, const Span& piece, bool invert,
                std::vector<Part>& parts) {
  parts.clear();
  search.start(text.substr(piece.begin, piece.end - piece.begin));
  uint32_t done = piece.begin;
  while (const auto match = search.next()) {
    const auto begin = static_cast<uint32_t>(piece.begin + match->first);
    const auto end = static_cast<uint32_t>(piece.begin + match->second);
    if (done != begin) parts.push_back({{done, begin}, invert});
    parts.push_back({{begin, end}, !invert});
    done = end;
  }
  if (done != piece.end) parts.push_back({{done, piece.end}, invert});
}

// The remaining behaviors join neighbors; each follows tokenizers' NormalizedString::split. "the-final--countdown" at
// "-":
//   MergedWithPrevious  the-  final-  -  countdown
//   MergedWithNext      the  -final  -  -countdown
//   Contiguous          the  -  final  --  countdown
void join_parts(const std::vector<Part>& parts, SplitBehavior behavior, std::vector<Span>& out) {
  const size_t first = out.size();
  bool previous = false;
  if (behavior == SplitBehavior::kMergedWithNext) {
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (part->match && !previous && out.size() > first) {
        out.back().begin = part->span.begin;
      } else {
        out.push_back(part->span);
      }
      previous = part->match;
    }
    std::reverse(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
  } else {
    for (const Part& part : parts) {
      const bool join = behavior == SplitBehavior::kContiguous ? part.match == previous : part.match && !previous;
      if (join && out.size() > first) {
        out.back().end = part.span.end;
      } else {
        out.push_back(part.span);
      }
      previous = part.match;
    }
  }
  out.erase(std::remove_if(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
                           [](const Span& span) { return span.begin == span.end; }),
            out.end());
}

}  // namespace

// Cuts within pieces, never across them: a match cannot span two pieces.
void split_pieces(Pieces& pieces, const Pattern& pattern, SplitBehavior behavior, bool invert) {
  Pattern::Search search(pattern, pieces.text());
  std::vector<Span> out;
  out.reserve(pieces.spans().size() + pieces.text().size() / 4);
  std::vector<Part> parts;
  for (const Span& piece : pieces.spans()) {
    find_parts(search, pieces.text(), piece, invert, parts);
    if (behavior == SplitBehavior::kIsolated) {
      for (const Part& part : parts) add_span(out, part.span);
    } else if (behavior == SplitBehavior::kRemoved) {
      for (const Part& part : parts)
        if (!part.match) add_span(out, part.span);
    } else {
      join_parts(parts, behavior, out);
    }
  }
  pieces.replace_spans(out);
}

}  // namespace megalith::tokenizer
