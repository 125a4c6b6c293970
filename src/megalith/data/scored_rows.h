// Rows of texts that a model scores as a whole, for stages rm and cls. The score of a text belongs to its last token,
// so that is the only token with a label, and the label is a number that says what the score is for:
//
//   row      a b c d .        one more token than the text, which the collator drops: it is only a label
//   labels   - - - - 2        after its shift:  ids a b c d, labels - - - 2
//
//   problem                      label
//   pairs (stage rm)             margin of the chosen answer, as the bits of an fp32 number; 0 for the rejected one
//   regression                   the number, likewise
//   single_label_classification  the class
//   multi_label_classification   bit i is class i
//
// kIgnoredLabel is the bits of a NaN, which no label is. So scored rows are packed, cached, cut for context-parallel
// ranks and streamed like all others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/enums.h"
#include "megalith/data/sample.h"
#include "megalith/io/json_text.h"

namespace megalith::data {

// The labels that a model is trained on.
struct LabelForm {
  config::ProblemType problem = config::ProblemType::kSingleLabel;
  int64_t num_labels = 0;
  bool operator==(const LabelForm&) const = default;
};

// Returns the number that stands for a real one in the labels of a row: its bits.
int32_t label_of_number(float number);
// Returns the label of a record: `column` holds a number, or a list of numbers. Throws a DataError that names `place`
// for a record without one, and for labels that the form does not have.
int32_t label_in(const io::Json& record, const std::string& column, const LabelForm& form, const std::string& place);
// Returns the margin of a pair; 0 for a record without one, and for an empty `column`. Throws a DataError that names
// `place` unless it is a finite number.
float margin_in(const io::Json& record, const std::string& column, const std::string& place);

// Makes a row of tokens a scored one, as above: `label` is its only label. Tokens at its end that equal `pad` are left
// out, since transformers scores the last token that is not padding. Throws a DataError that names `place` if no token
// is left.
void mark_scored(Sequence& row, int32_t label, std::optional<int32_t> pad, const std::string& place);

}  // namespace megalith::data
