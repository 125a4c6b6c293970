// What a dataset gives: token sequences with labels beside their tokens.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace megalith::data {

// Label of a token that takes no part in the loss. On disk and in user's files: may not change.
inline constexpr int32_t kIgnoredLabel = -100;

// What the values of a field belong to.
enum class FieldOf {
  kLabel,  // each label has a value. It moves with its label and so stands beside the loss of its prediction
  kToken,  // each token has a value
  kRow,    // the row has one
};

// Further numbers of a row, which reach objective and loss as an extra tensor of the micro-batch (MicroBatch::extras):
// a weight for each label, a reward for the row. Only the program knows what they mean.
struct Field {
  // One value after the other: floats become an fp32 tensor, integers an int64 tensor. For kLabel and kToken there are
  // as many values as ids; each has the numbers of `shape`.
  std::variant<std::vector<float>, std::vector<int64_t>> numbers;
  FieldOf of = FieldOf::kLabel;
  std::vector<int64_t> shape{};  // of one value; empty for a single number
  double fill = 0;               // what padding gets; unused for kRow
  bool operator==(const Field&) const = default;
};

// Tokens that form a row. labels[i] belongs to ids[i]: it says whether, and as what, token i is to be predicted from
// the tokens before it; the collator shifts. labels is as long as ids.
struct Sequence {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;
  // Lengths of the samples packed into the row, in order; positions restart in each. Empty: all of it is one sample.
  // Tokens behind the last are padding.
  std::vector<int32_t> pieces;
  // False: pieces do not see one another. True: a token sees all tokens before it in the row (plain packing).
  bool pieces_attend = false;
  // True: labels[i] is already what token i has to predict, and no token is a label only. Samples that are cut out of a
  // stream of tokens come so; token tables do not hold them.
  bool shifted = false;
  // By name. All rows of a micro-batch have the same ones; token tables do not hold them.
  std::map<std::string, Field> fields{};
  bool operator==(const Sequence&) const = default;
};

// log p of a pair's answers, given the prompt, by a reference model.
struct ReferenceScores {
  float chosen = 0;
  float rejected = 0;
  bool operator==(const ReferenceScores&) const = default;
};

// One item of a dataset. Preference pairs have two rows with the same prompt: the chosen one, then the rejected one.
struct Sample {
  Sequence row;
  std::optional<Sequence> rejected;
  std::optional<ReferenceScores> reference{};  // of a pair, where they were computed before (with_reference_scores)
  bool operator==(const Sample&) const = default;
};

}  // namespace megalith::data
