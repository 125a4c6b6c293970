// RecordEncoder: turns records of data files into samples, as the options of a run say.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/data/scored_rows.h"
#include "megalith/data/sft/convert_record.h"
#include "megalith/data/sft/encode.h"
#include "megalith/data/sft/media_text.h"
#include "megalith/data/sft/sft_settings.h"

namespace megalith::data {

// How rows are made. After the collator has shifted it, a row has at most cutoff_len tokens, or exactly that many if
// packed. Derived from the options once, so that cutoff_len and its off-by-one cases are treated in one place.
struct RowPlan {
  SampleKind kind = SampleKind::kConversation;
  int64_t cutoff = 2049;  // tokens of a sample
  bool packing = false;
  bool neat = false;  // samples of a row do not attend to one another

  // Returns the most tokens of a text: a scored row has one more.
  int64_t text_cutoff() const { return cutoff - (is_scored(kind) ? 1 : 0); }
  // Whether rows depend on all records of a batch: packed ones, and those with the answers of other records.
  bool needs_batch() const { return packing || kind == SampleKind::kFeedback; }
};
// Returns the plan that the settings describe. Throws a ConfigError for meaningless combinations (packing of preference
// pairs, mask_history in stage pt, batches of one record in stage kto).
RowPlan row_plan(const SftSettings& settings);

// Why a record gives no sample.
enum class LeftOutBecause {
  kInvalid,      // it is not a conversation, or lacks an answer
  kCutMedium,    // cutoff_len would cut a medium
  kBrokenMedium  // a medium cannot be read, and such records are skipped
};

// The result of encoding one record.
struct EncodedRecord {
  std::optional<Sample> sample;  // std::nullopt: the record is skipped
  std::string problem;           // the reason
  bool cut = false;              // tokens were left out to fit
  LeftOutBecause because = LeftOutBecause::kInvalid;
};

// Counts; they add up over batches.
struct BuildReport {
  int64_t records = 0;       // records read
  int64_t left_out = 0;      // invalid records; the next two are not among them
  int64_t cut_media = 0;     // records left out because the cutoff would cut a medium
  int64_t broken_media = 0;  // records left out because a medium cannot be read
  int64_t cut = 0;           // samples that were longer than the cutoff
  int64_t too_long = 0;      // samples that did not fit into a packed row
  int64_t samples = 0;       // rows, or pairs
  int64_t tokens = 0;        // tokens without padding
  int64_t room = 0;          // tokens including the padding of packed rows
  int64_t loss_tokens = 0;   // tokens with a label
  int64_t longest = 0;       // tokens of the longest row

  // Adds the counts of another batch; `longest` becomes the larger one.
  void add(const BuildReport& other);
  // Returns how many records or samples were left out, for whatever reason.
  int64_t all_left_out() const { return left_out + cut_media + broken_media + too_long; }
  // Returns the fraction of packed rows that is not padding; 1 without packing.
  double packing_efficiency() const;
  // Returns one line for the log.
  std::string text() const;
  bool operator==(const BuildReport&) const = default;
};

// Options of a RecordEncoder. Everything that changes the ids or labels of a sample, besides the template and the
// tokenizer.
struct RecordEncoderOptions {
  RowPlan plan;
  bool train_on_prompt = false;
  bool mask_history = false;
  bool documents_get_bos = false;        // adds_bos_token of the tokenizer
  bool documents_are_plain = false;      // split_special_tokens for documents; conversations: TemplateOptions
  std::optional<int64_t> vocab_size;     // vocabulary size of the model; larger ids are refused
  std::optional<MediaSettings> media{};  // std::nullopt: the model takes no media, and records with some are refused
  LabelForm labels{};                    // the labels that stage cls takes
  // The padding that transformers finds the last token of a text by (mark_scored); std::nullopt if there is none.
  std::optional<int32_t> score_pad{};
};

// Immutable and thread-safe. encode() is called from many threads; rows() needs a whole batch, and its result depends
// on the batch's size.
class RecordEncoder {
 public:
  // `turns` may be nullptr if no record holds conversations, `tokenizer` std::nullopt if all hold ids. Throws a
  // ConfigError if the tokenizer pads with an id outside the vocabulary, and warns if it has any such id.
  RecordEncoder(RecordEncoderOptions options, std::shared_ptr<const TurnEncoder> turns,
                std::optional<tokenizer::Tokenizer> tokenizer);

  // Throws a ConfigError if the dataset needs a tokenizer or template that is missing, or if it holds pairs and the
  // stage does not train on them (or the reverse).
  void check_dataset(const DatasetDescription& dataset) const;
  // Encodes one record. Throws a DataError that names `place` for a record that no option makes valid, for an id
  // outside the vocabulary, and for a preference pair with an answer that is empty or removed entirely by the cutoff.
  EncodedRecord encode(const io::Json& record, const DatasetDescription& dataset, const std::string& place) const;
  // Whether encode() would return a sample. Does not tokenize.
  bool is_complete(const io::Json& record, const DatasetDescription& dataset, const std::string& place) const;
  // Returns the rows of a batch of records, packed if the plan says so. Each answer with a verdict gets the answer of
  // the sample before it in the batch, the first one that of the last sample, as in LLaMA-Factory. Adds to the report.
  std::vector<Sample> rows(std::vector<EncodedRecord> batch, BuildReport& report) const;

  // The form of rows, and the id that fills them up.
  const RowPlan& plan() const { return options_.plan; }
  int32_t pad_id() const { return tokens_.pad; }
  // Identifies the options, the template and its tokens in the key of a cache.
  std::string description() const;

 private:
  Sample encode_text(const Conversation& conversation, bool* cut) const;
  // Encodes a conversation with its media; a result without sample says why it is left out.
  EncodedRecord encode_with_media(Conversation conversation) const;
  void check_media() const;
  void check_vocabulary() const;
  void check_ids(const Sequence& row, const std::string& place) const;
  // A text, or a conversation with an answer, which gets a label later.
  Sequence encode_labelled(const Conversation& conversation, const EncodeSettings& settings, bool* cut) const;
  void mark_rows(Sample& sample, const io::Json& record, const Columns& columns, const std::string& place) const;

  RecordEncoderOptions options_;
  std::shared_ptr<const TurnEncoder> turns_;
  std::optional<tokenizer::Tokenizer> tokenizer_;
  TemplateTokens tokens_;
  MediaPads pads_;  // set with options_.media
};

}  // namespace megalith::data
