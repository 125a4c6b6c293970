// open_streamed_data of tokenized_data.h: encodes records while training runs.
//
// A sample is encoded only by the rank that trains on it. skip(), which passes over samples of other ranks, only checks
// that a record would give a sample, so that all ranks count alike. Where rows depend on all records of a batch
// (RowPlan::needs_batch), skip() has to do all the work.
#include <deque>
#include <nlohmann/json.hpp>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/data/sft/problem_log_internal.h"
#include "megalith/data/sft/record_stream.h"
#include "megalith/data/sft/tokenized_data.h"
#include "megalith/data/token_table.h"

namespace megalith::data {
namespace {

// The state that all epochs share.
struct Plan {
  std::vector<DatasetDescription> datasets;
  std::shared_ptr<const RecordEncoder> encoder;
  MixOptions mix;
  int64_t buffer_size = 1;
  int64_t batch_size = 1000;
  uint64_t seed = 42;
  int64_t held_out = 0;  // number of records at the start that are not trained on
};

std::string place_of(const Plan& plan, const StreamedRecord& record) {
  return fmt::format("{}:{}", plan.datasets[record.dataset].files[record.file].string(), record.line);
}

io::Json parsed(const Plan& plan, const StreamedRecord& record) {
  return parse_record(record.text, record.format, plan.datasets[record.dataset].files[record.file], record.line);
}

// Encodes a record. Adds the reason to `problems`, if not nullptr, when the record is skipped.
EncodedRecord encode(const Plan& plan, const StreamedRecord& record, ProblemLog* problems) {
  const std::string place = place_of(plan, record);
  EncodedRecord result = plan.encoder->encode(parsed(plan, record), plan.datasets[record.dataset], place);
  if (!result.sample && problems != nullptr) problems->add(place, result.problem);
  return result;
}

// Parses and converts, but does not tokenize, which is most of the cost of a record.
bool is_complete(const Plan& plan, const StreamedRecord& record) {
  return plan.encoder->is_complete(parsed(plan, record), plan.datasets[record.dataset], place_of(plan, record));
}

// The samples of one epoch.
class EncodedStream : public SampleStream {
 public:
  EncodedStream(std::shared_ptr<const Plan> plan, int64_t epoch)
      : plan_(std::move(plan)),
        first_epoch_(epoch == 0),
        records_(plan_->datasets, plan_->mix, plan_->buffer_size, mix_seed(plan_->seed, static_cast<uint64_t>(epoch)),
                 plan_->held_out) {}

  std::optional<Sample> next() override {
    while (ready_.empty())
      if (!fill()) return std::nullopt;
    Sample sample = std::move(ready_.front());
    ready_.pop_front();
    return sample;
  }

  bool skip() override {
    if (plan_->encoder->plan().needs_batch()) return next().has_value();
    StreamedRecord record;
    while (records_.next(record))
      if (is_complete(*plan_, record)) return true;
    return false;
  }

 private:
  // Makes the rows of one record, or of a batch where rows need it. Returns false at the end.
  bool fill() {
    const int64_t wanted = plan_->encoder->plan().needs_batch() ? plan_->batch_size : 1;
    std::vector<EncodedRecord> batch;
    StreamedRecord record;
    while (std::ssize(batch) < wanted && records_.next(record))
      batch.push_back(encode(*plan_, record, first_epoch_ ? &problems_ : nullptr));
    if (batch.empty()) return false;
    BuildReport unused;
    for (Sample& sample : plan_->encoder->rows(std::move(batch), unused)) ready_.push_back(std::move(sample));
    return true;
  }

  std::shared_ptr<const Plan> plan_;
  bool first_epoch_;
  ProblemLog problems_;  // first epoch only: later ones have the same problems
  RecordStream records_;
  std::deque<Sample> ready_;
};

// Options that need the number of records, or all of them at once.
void check_stream(const SftSettings& data) {
  check<ConfigError>(!data.max_samples, "max_samples cannot be used with streaming; end the run with max_steps");
  check<ConfigError>(
      data.val_size == 0 || data.val_size >= 1,
      "val_size is {}; with streaming, which does not know the number of records, it must be a whole number "
      "of them",
      data.val_size);
  check<ConfigError>(!data.tokenized_path,
                     "tokenized_path cannot be used with streaming, which tokenizes nothing in advance; leave one of "
                     "them out");
}

// Returns the samples of the held-out records, in file order.
std::shared_ptr<const Dataset> held_out_samples(const Plan& plan) {
  RecordStream records(plan.datasets, plan.mix, 1, plan.seed);
  std::vector<EncodedRecord> batch;
  StreamedRecord record;
  ProblemLog problems;
  while (std::ssize(batch) < plan.held_out && records.next(record)) batch.push_back(encode(plan, record, &problems));
  BuildReport report;
  TokenTable table;
  for (const Sample& sample : plan.encoder->rows(std::move(batch), report)) table.append(sample);
  check<DataError>(report.samples > 0, "the records held out by val_size give no samples ({}){}", report.text(),
                   problems.in_words());
  return dataset_of(std::move(table), {.pairs = is_pair(plan.encoder->plan().kind),
                                       .pieces_attend = plan.encoder->plan().packing && !plan.encoder->plan().neat,
                                       .feedback = plan.encoder->plan().kind == SampleKind::kFeedback});
}

}  // namespace

// The plan is shared by all epochs, and outlives this function in the closure below.
StreamedData open_streamed_data(const DataRequest& request) {
  check_stream(request.data);
  auto plan = std::make_shared<Plan>();
  plan->datasets = find_datasets(request.data.dataset, request.data.dataset_dir);
  plan->encoder = make_record_encoder(request);
  for (const DatasetDescription& dataset : plan->datasets) plan->encoder->check_dataset(dataset);
  plan->mix = mix_options(request);
  plan->buffer_size = request.data.buffer_size;
  plan->batch_size = request.data.preprocessing_batch_size;
  plan->seed = request.seed;
  plan->held_out = static_cast<int64_t>(request.data.val_size);
  StreamedData result;
  if (plan->held_out > 0) result.validation = held_out_samples(*plan);
  result.train = [plan = std::shared_ptr<const Plan>(plan)](int64_t epoch) {
    return std::make_unique<EncodedStream>(plan, epoch);
  };
  return result;
}

}  // namespace megalith::data
