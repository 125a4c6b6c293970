// Pieces: a text on its way to the model, cut into pieces.
//
//   text    Hello world!                     spans   [0,5) [5,11) [11,12)
//   pieces  "Hello" " world" "!"             cutting changes spans only; rewriting makes a new text with its spans
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tokenizer {

// A range of bytes.
struct Span {
  uint32_t begin, end;
};

// Spans of one text, in order, none of them empty. Pre-tokenizers cut them further, and some rewrite the text.
class Pieces {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 31;  // offsets are 32 bits wide

  // Starts with one piece: the whole text, which outlives this object. `at_start` says that it begins where the input
  // begins.
  void reset(std::string_view text, bool at_start);

  // The current text, the part of it that a span covers, and all spans.
  std::string_view text() const { return rewritten_ ? std::string_view(own_) : borrowed_; }
  std::string_view view(const Span& span) const { return text().substr(span.begin, span.end - span.begin); }
  const std::vector<Span>& spans() const { return spans_; }
  // Returns whether piece i begins where the input begins.
  bool is_start(size_t i) const { return at_start_ && i == 0 && spans_[0].begin == 0; }

  // Replaces the spans of the same text. Swaps, so that the caller gets memory to reuse.
  void replace_spans(std::vector<Span>& spans) { spans_.swap(spans); }
  // Replaces the text and its spans; the first span belongs to the former first piece.
  void rewrite(std::string& text, std::vector<Span>& spans);

 private:
  // The text belongs to the caller until a step rewrites it.
  std::string_view borrowed_;
  std::string own_;
  std::vector<Span> spans_;
  // Whether own_ replaces borrowed_, and whether the text begins the input.
  bool rewritten_ = false;
  bool at_start_ = false;
};

}  // namespace megalith::tokenizer
