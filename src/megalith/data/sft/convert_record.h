// Converts the records of a data file into conversations, as the dataset's description says.
#pragma once

#include <optional>
#include <string>

#include "megalith/data/sample.h"
#include "megalith/data/sft/conversation.h"
#include "megalith/data/sft/dataset_info.h"

namespace megalith::data {

// The kind of sample that records become, in stages pt, sft, dpo, kto, rm and cls. It decides which records are
// complete. The numbers are part of the names of caches.
enum class SampleKind { kDocument, kConversation, kPreference, kFeedback, kScoredPair, kLabelled };
// Whether such samples are pairs of a chosen and a rejected answer, and whether rows are scored (scored_rows.h).
constexpr bool is_pair(SampleKind kind) { return kind == SampleKind::kPreference || kind == SampleKind::kScoredPair; }
constexpr bool is_scored(SampleKind kind) { return kind == SampleKind::kScoredPair || kind == SampleKind::kLabelled; }

// The result of convert_record. Exactly one of the two is set.
struct ConvertedRecord {
  std::optional<Conversation> conversation;  // std::nullopt: the record is skipped
  std::string problem;                       // the reason: "turn 2 should be …"
};

// Converts one record. Like LLaMA-Factory, skips a record whose turns do not alternate, whose number of turns is wrong,
// or that lacks the answers `kind` needs. Throws a DataError that names `place` if a column is missing or has the wrong
// type.
ConvertedRecord convert_record(const io::Json& record, const DatasetDescription& dataset, SampleKind kind,
                               const std::string& place);

// Converts a record that holds ids: input_ids and, parallel to them, labels (if absent, all tokens are trained); for
// pairs chosen_* and rejected_*; for answers with verdicts also kto_tag, and Feedback::mismatched stays empty. Throws a
// DataError that names `place` and the column if a list does not consist of integers or the lengths differ.
Sample pretokenized_sample(const io::Json& record, SampleKind kind, const std::string& place);

}  // namespace megalith::data
