// A field has a value for every token, and labels are few where prompts are long: memory for it exists only while a
// micro-batch is made.
#include "megalith/train/distillation/taught_samples.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/comm/world.h"
#include "megalith/io/content_hash.h"

namespace megalith::train {

namespace {

// A text: tokens [begin, end) of a row.
struct Stretch {
  int64_t begin, end;
};

// As the collator cuts rows into sequences (data/collator.cc); tokens after the last piece are padding.
std::vector<Stretch> stretches_of(const data::Sequence& row) {
  if (row.pieces.empty()) return {{0, std::ssize(row.ids)}};
  std::vector<Stretch> pieces;
  int64_t begin = 0;
  for (const int32_t piece : row.pieces) {
    pieces.push_back({begin, begin + piece});
    begin += piece;
  }
  return row.pieces_attend ? std::vector<Stretch>{{0, begin}} : pieces;
}

SampleKey parsed(const std::string& text) {
  SampleKey key{};
  for (size_t i = 0; i < key.size(); ++i)
    std::from_chars(text.data() + 16 * i, text.data() + 16 * (i + 1), key[i], /*base=*/16);
  return key;
}

// Everything that the teacher's answers and their rows depend on. Positions restart at pieces that attend to one
// another, so their lengths count.
SampleKey key_of(const data::Sequence& row, const Stretch& text) {
  io::ContentHash hash;
  const auto add = [&](const std::vector<int32_t>& values) {
    const std::span<const int32_t> part(values.data() + text.begin, static_cast<size_t>(text.end - text.begin));
    hash.add(std::string_view(reinterpret_cast<const char*>(part.data()), part.size_bytes()));
  };
  add(row.ids);
  add(row.labels);
  hash.add(row.shifted ? 1 : 0);
  if (row.pieces_attend && row.pieces.size() > 1)
    for (const int32_t piece : row.pieces) hash.add(piece);
  return parsed(hash.text());
}

// Copies [n, k] to the places of its labels in a field.
template <typename T>
void spread(const at::Tensor& values, at::ScalarType type, const std::vector<int64_t>& labels, std::vector<T>& out) {
  const at::Tensor rows = values.to(type).contiguous();
  const int64_t each = rows.numel() / std::max<int64_t>(rows.size(0), 1);
  const T* from = rows.const_data_ptr<T>();
  for (const int64_t label : labels) {
    std::copy_n(from, each, out.begin() + label * each);
    from += each;
  }
}

class TaughtDataset : public data::Dataset {
 public:
  TaughtDataset(std::shared_ptr<const data::Dataset> dataset, std::shared_ptr<const TeacherFiles> files,
                std::optional<int64_t> tail)
      : dataset_(std::move(dataset)), files_(std::move(files)), tail_(tail) {}

  int64_t size() const override { return dataset_->size(); }
  int64_t tokens(int64_t index) const override { return dataset_->tokens(index); }
  data::Sample sample(int64_t index) const override {
    data::Sample sample = dataset_->sample(index);
    add_fields(sample.row);
    return sample;
  }

 private:
  void add_fields(data::Sequence& row) const {
    const int64_t k = files_->index().classes;
    const size_t tokens = row.ids.size(), all = tokens * static_cast<size_t>(k);
    std::vector<int64_t> ids(all);
    std::vector<float> log_probs(all), log_tail(tail_ ? tokens : 0);
    for (const TaughtUnit& unit : units_of(row)) {
      const TaughtRows rows = files_->rows_of(unit.key);
      check(rows.ids.size(0) == std::ssize(unit.labels), "a text has {} labels, and {} rows in the teacher's files",
            unit.labels.size(), rows.ids.size(0));
      spread(rows.ids, at::kLong, unit.labels, ids);
      spread(rows.log_probs, at::kFloat, unit.labels, log_probs);
      if (tail_) spread(rows.log_tails.select(1, *tail_), at::kFloat, unit.labels, log_tail);
    }
    row.fields[kTeacherIds] = {.numbers = std::move(ids), .shape = {k}};
    row.fields[kTeacherLogProbs] = {.numbers = std::move(log_probs), .shape = {k}};
    if (tail_) row.fields[kTeacherLogTail] = {.numbers = std::move(log_tail)};
  }

  const std::shared_ptr<const data::Dataset> dataset_;
  const std::shared_ptr<const TeacherFiles> files_;
  const std::optional<int64_t> tail_;  // the column of log_tails
};

// Returns what differs between the options of the files and those of the run, for a message.
std::string differences(const std::map<std::string, std::string>& files,
                        const std::map<std::string, std::string>& run) {
  std::vector<std::string> found;
  for (const auto& [name, value] : run)
    if (const auto other = files.find(name); other != files.end() && other->second != value)
      found.push_back(fmt::format("{} is {}, and was {} when the files were written", name, value, other->second));
  if (!found.empty()) return fmt::format("{}", fmt::join(found, "; "));
  return "the options that shape samples are the same, so that the data or the tokenizer must differ";
}

}  // namespace

std::vector<TaughtUnit> units_of(const data::Sequence& row) {
  std::vector<TaughtUnit> units;
  for (const Stretch& text : stretches_of(row)) {
    TaughtUnit unit{.key = {}, .labels = {}};
    for (int64_t i = text.begin + (row.shifted ? 0 : 1); i < text.end; ++i)
      if (row.labels[static_cast<size_t>(i)] != data::kIgnoredLabel) unit.labels.push_back(i);
    if (unit.labels.empty()) continue;
    unit.key = key_of(row, text);
    units.push_back(std::move(unit));
  }
  return units;
}

std::shared_ptr<const data::Dataset> with_teacher_files(std::shared_ptr<const data::Dataset> dataset,
                                                        std::shared_ptr<const TeacherFiles> files, double temperature,
                                                        bool tail) {
  std::optional<int64_t> column;
  if (tail && !files->index().is_whole()) {
    column = files->index().tail_of(temperature);
    check(column.has_value(), "the files have no tail for temperature {}", temperature);
  }
  return std::make_shared<TaughtDataset>(std::move(dataset), std::move(files), column);
}

void check_taught(const data::Dataset& dataset, const TeacherFiles& files,
                  const std::map<std::string, std::string>& data, const std::string& what,
                  const parallel::ParallelContext& context) {
  int64_t texts = 0, missing = 0;
  for (int64_t i = context.rank(); i < dataset.size(); i += context.world().world().size())
    for (const TaughtUnit& unit : units_of(dataset.sample(i).row)) {
      ++texts;
      if (files.tokens_of(unit.key) != std::ssize(unit.labels)) ++missing;
    }
  const at::Tensor counts = at::tensor({texts, missing}).to(context.device());
  context.world().world().all_reduce(counts, comm::ReduceOp::kSum, "texts that a teacher's files lack");
  const int64_t all = counts[0].item<int64_t>(), lacking = counts[1].item<int64_t>();
  check<DataError>(lacking == 0,
                   "teacher_logits_path {} lacks {} of the {} texts of the {}: {}. Write files for this data (megalith"
                   " distill with the options of this run), or use the data that they were written for",
                   files.folder().string(), lacking, all, what, differences(files.index().data, data));
}

}  // namespace megalith::train
