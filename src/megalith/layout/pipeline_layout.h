// Layout strings: which parts of the model stand on which pipeline stage, written out by the user.
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

// The stages of a pipeline in the order in which data passes through them, each a text of the four parts above.
//
// The written form (spec/training_args.md §1, as the reference reads it): stages are split at `|`; `,` is ignored;
// `x*n` repeats one character, `(…)*n` a text that may contain `|` and `x*n` but no further parentheses; n may be 0; a
// stage may be empty. "Et*3|(tt|)*29,m|L" is 32 stages.
//
// Invariant: at least one stage, and no character but the four. Whether the stages make sense for a model is for
// LayerSplit to say.
class PipelineLayout {
 public:
  // Both throw ConfigError naming what is not understood.
  static PipelineLayout parse(std::string_view text);
  // The list form: stages as lists of "embedding", "decoder", "mtp", "loss" (any case, blanks around ignored).
  static PipelineLayout from_names(std::span<const std::vector<std::string>> stages);
  // Stages already written with the four characters; an InternalError otherwise.
  explicit PipelineLayout(std::vector<std::string> stages);

  const std::vector<std::string>& stages() const { return stages_; }
  int num_stages() const { return static_cast<int>(stages_.size()); }
  // How often a part occurs in all stages.
  int count(char part) const;
  // A layout string that parses to this, e.g. "Ett|t*5|L".
  std::string text() const;

 private:
  std::vector<std::string> stages_;
};

}  // namespace megalith::layout
