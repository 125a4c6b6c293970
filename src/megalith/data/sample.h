// Sample: an item of a dataset, one or two token sequences with a label for each token.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "megalith/data/media_reference.h"

namespace megalith::data {

// Label of a token that does not contribute to the loss. Stored on disk and in users' files: must not change.
inline constexpr int32_t kIgnoredLabel = -100;

// The part of a row that a value of a field belongs to.
enum class FieldOf {
  kLabel,  // one value per label. It is shifted with its label, so it lines up with the loss of the prediction
  kToken,  // one value per token
  kRow,    // one value for the row
};

// Additional numbers of a row, such as a weight per label or a reward for the row. They reach objective and loss as an
// extra tensor of the micro-batch (MicroBatch::extras). Only the program knows what they mean.
struct Field {
  // All values, one after the other: floats become an fp32 tensor, integers an int64 tensor. kLabel and kToken have one
  // value per id. Each value has as many numbers as `shape` says.
  std::variant<std::vector<float>, std::vector<int64_t>> numbers;
  FieldOf of = FieldOf::kLabel;
  std::vector<int64_t> shape{};  // shape of one value; empty for a single number
  double fill = 0;               // the value of padding; unused for kRow
  bool operator==(const Field&) const = default;
};

// The tokens of one row. labels[i] belongs to ids[i]: it is the id that is to be predicted at token i from the tokens
// before it, or kIgnoredLabel. The collator shifts labels. `labels` is as long as `ids`.
struct Sequence {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;
  // Lengths of the samples packed into the row, in order; positions restart in each. Empty if the row is one sample.
  // Tokens after the last piece are padding.
  std::vector<int32_t> pieces;
  // False: pieces do not attend to one another. True: a token attends to all tokens before it in the row (plain
  // packing).
  bool pieces_attend = false;
  // True: labels[i] is already the token that token i has to predict, and no token is only a label. This is the form of
  // samples cut out of a stream of tokens; token tables cannot hold it.
  bool shifted = false;
  // Time, height and width of each token (media_positions.h), 3 · ids.size() numbers, all times first. Empty for text
  // alone, and where the collator counts them from `media`. Token tables cannot hold them.
  std::vector<float> coordinates{};
  // By name. All rows of a micro-batch must have the same fields; token tables cannot hold them.
  std::map<std::string, Field> fields{};
  // The images, videos and sounds of the row, in the order of their tokens. Those of a piece lie within it.
  std::vector<MediaReference> media{};
  bool operator==(const Sequence&) const = default;
};

// The verdict on a single answer (KTO), and the prompt with the answer of another sample.
struct Feedback {
  bool desirable = true;
  Sequence mismatched;
  bool operator==(const Feedback&) const = default;
};

// log p of a sample's two rows, given the prompt, under a reference model: of the chosen and the rejected answer, or of
// an answer with a verdict and the mismatched one.
struct ReferenceScores {
  float chosen = 0;
  float rejected = 0;
  bool operator==(const ReferenceScores&) const = default;
};

// One item of a dataset. Preference pairs have two rows with the same prompt: the chosen one, then the rejected one. An
// answer with a verdict has `feedback`. A value: the collator copies from it and does not keep it.
struct Sample {
  Sequence row;
  std::optional<Sequence> rejected;
  std::optional<ReferenceScores>
      reference{};                     // samples of two rows; set if computed in advance (with_reference_scores)
  std::optional<Feedback> feedback{};  // not together with `rejected`

  // Returns the second row of a sample that has two; otherwise nullptr.
  const Sequence* second() const { return rejected ? &*rejected : feedback ? &feedback->mismatched : nullptr; }
  bool operator==(const Sample&) const = default;
};

}  // namespace megalith::data
