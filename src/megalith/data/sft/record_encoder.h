// Records of data files to samples, as the options of a run say.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/data/sft/convert_record.h"
#include "megalith/data/sft/encode.h"
#include "megalith/data/sft/sft_settings.h"

namespace megalith::data {

// How rows are made. A row has at most cutoff_len tokens once the
// collator has shifted it, exactly so many when packed.
struct RowPlan {
  SampleKind kind = SampleKind::kConversation;
  int64_t cutoff = 2049;  // tokens of a sample
  bool packing = false;
  bool neat = false;  // samples of a row do not see one another
};
// Throws ConfigError for combinations that have no meaning (packing of preference pairs, mask_history in pt).
RowPlan row_plan(const SftSettings& settings);

// What a record becomes.
struct EncodedRecord {
  std::optional<Sample> sample;  // nothing: the record was left out
  std::string problem;           // why
  bool cut = false;              // tokens were left out to fit
};

// How many of what; adds up over batches.
struct BuildReport {
  int64_t records = 0;      // read
  int64_t left_out = 0;     // invalid records
  int64_t cut = 0;          // samples that were longer than the cutoff
  int64_t too_long = 0;     // samples that did not fit into a packed row
  int64_t samples = 0;      // rows, or pairs
  int64_t tokens = 0;       // without padding
  int64_t room = 0;         // with padding of packed rows
  int64_t loss_tokens = 0;  // with a label
  int64_t longest = 0;      // tokens of the longest row

  void add(const BuildReport& other);
  // The part of packed rows that is not padding; 1 without packing.
  double packing_efficiency() const;
  // For the log and for people: one line.
  std::string text() const;
  bool operator==(const BuildReport&) const = default;
};

struct RecordEncoderOptions {
  RowPlan plan;
  bool train_on_prompt = false;
  bool mask_history = false;
  bool documents_get_bos = false;     // adds_bos_token of the tokenizer
  std::optional<int64_t> vocab_size;  // of the model; ids beyond it are refused
};

// Immutable; any number of threads.
class RecordEncoder {
 public:
  // `turns` may be absent when no record holds conversations, `tokenizer` when all hold ids. Throws ConfigError when
  // the tokenizer pads with an id outside of the vocabulary, and warns when it has any such id.
  RecordEncoder(RecordEncoderOptions options, std::shared_ptr<const TurnEncoder> turns,
                std::optional<tokenizer::Tokenizer> tokenizer);

  // Throws ConfigError when the dataset needs what is absent, or is of pairs and the stage is not (or the reverse).
  void check_dataset(const DatasetDescription& dataset) const;
  // Throws DataError, naming `place`, for records that no option makes valid, for ids beyond the vocabulary, and for a
  // preference pair with an answer that is empty or that the cutoff leaves nothing of.
  EncodedRecord encode(const io::Json& record, const DatasetDescription& dataset, const std::string& place) const;
  // Whether the record would give a sample, without making it.
  bool is_complete(const io::Json& record, const DatasetDescription& dataset, const std::string& place) const;
  // The rows of a batch of records: packed, or as they are. Adds to the report.
  std::vector<Sample> rows(std::vector<EncodedRecord> batch, BuildReport& report) const;

  const RowPlan& plan() const { return options_.plan; }
  int32_t pad_id() const { return tokens_.pad; }
  // Stands for the options, the template and its tokens in the key of a cache.
  std::string description() const;

 private:
  Sample encode_text(const Conversation& conversation, bool* cut) const;
  void check_vocabulary() const;
  void check_ids(const Sequence& row, const std::string& place) const;

  RecordEncoderOptions options_;
  std::shared_ptr<const TurnEncoder> turns_;
  std::optional<tokenizer::Tokenizer> tokenizer_;
  TemplateTokens tokens_;
};

}  // namespace megalith::data
