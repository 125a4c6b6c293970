// Records of a data file to conversations, as the dataset's description says.
#pragma once

#include <optional>
#include <string>

#include "megalith/data/sample.h"
#include "megalith/data/sft/conversation.h"
#include "megalith/data/sft/dataset_info.h"

namespace megalith::data {

// What becomes of the records: it decides which of them are complete.
enum class SampleKind { kDocument, kConversation, kPreference };

struct ConvertedRecord {
  std::optional<Conversation> conversation;  // nothing: the record is left out
  std::string problem;                       // why: "turn 2 has the role \"gpt\"…"
};

// Leaves out, as the reference does: turns that do not alternate, a number of turns that does not fit, a record without
// the answers that `kind` needs. Throws DataError, naming `place`, when a column is missing or not of its type.
ConvertedRecord convert_record(const io::Json& record, const DatasetDescription& dataset, SampleKind kind,
                               const std::string& place);

// A record with ids: input_ids and, beside them, labels (absent: all are trained); for pairs chosen_* and rejected_*.
// Throws DataError, naming `place` and column, for lists that are not of whole numbers or not of the same length.
Sample pretokenized_sample(const io::Json& record, SampleKind kind, const std::string& place);

}  // namespace megalith::data
