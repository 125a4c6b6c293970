// Layout strings, in which the user writes out the parts of the model on each pipeline stage.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::layout {

// The parts of a model in a layout string.
inline constexpr char kEmbeddingPart = 'E';
inline constexpr char kDecoderPart = 't';
inline constexpr char kMtpPart = 'm';
inline constexpr char kLossPart = 'L';

// The stages of a pipeline in the order in which data passes through them, each written with the four parts above.
//
// The text form, as the reference reads it: stages are separated by `|`; `,` is ignored; `x*n` repeats one character,
// `(…)*n` a text that may contain `|` and `x*n` but no further parentheses; n may be 0; a stage may be empty.
// "Et*3|(tt|)*29,m|L" has 32 stages.
//
// Invariant: at least one stage, and no character but the four. LayerSplit decides whether the stages make sense for a
// model.
class PipelineLayout {
 public:
  // Both throw ConfigError naming the text that is not understood.
  static PipelineLayout parse(std::string_view text);
  // The list form: stages as lists of "embedding", "decoder", "mtp", "loss" (any case, surrounding blanks ignored).
  static PipelineLayout from_names(std::span<const std::vector<std::string>> stages);
  // Takes stages already written with the four characters; throws InternalError for any other.
  explicit PipelineLayout(std::vector<std::string> stages);

  // Parts by stage, in the order in which data passes them: {"Ett", "ttL"}.
  const std::vector<std::string>& stages() const { return stages_; }
  int num_stages() const { return static_cast<int>(stages_.size()); }
  // Returns how often a part occurs in all stages.
  int count(char part) const;
  // Returns a layout string that parses to this layout, e.g. "Ett|t*5|L".
  std::string text() const;

 private:
  std::vector<std::string> stages_;
};

}  // namespace megalith::layout
