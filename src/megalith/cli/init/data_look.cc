// A look at the first records of the data: what they are, how long, and about how many there are.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/cli/init/init_internal.h"
#include "megalith/data/sft/dataset_info.h"
#include "megalith/data/sft/record_file.h"
#include "megalith/model/pretrained.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::cli {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostRecordsRead = 1000;
constexpr double kBytesPerToken = 3;  // without a tokenizer; rather too many tokens than too few

// Counts the tokens of all strings in a record, by the tokenizer if there is one. Marks of a chat template come on top.
class TokenCounter {
 public:
  explicit TokenCounter(const fs::path& model_folder) {
    if (model::has_tokenizer(model_folder)) tokenizer_ = tokenizer::Tokenizer::from_folder(model_folder);
  }
  int64_t count(const io::Json& value) const {
    constexpr int64_t kMarksPerText = 4;  // around each turn, by the chat template
    if (value.is_string()) return tokens_of(value.get_ref<const std::string&>()) + kMarksPerText;
    int64_t sum = 0;
    if (value.is_array() && !value.empty() && value.front().is_number()) return static_cast<int64_t>(value.size());
    if (value.is_structured())
      for (const io::Json& each : value) sum += count(each);
    return sum;
  }

 private:
  int64_t tokens_of(const std::string& text) const {
    return tokenizer_ ? std::ssize(tokenizer_->encode(text, {}))
                      : static_cast<int64_t>(static_cast<double>(text.size()) / kBytesPerToken);
  }
  std::optional<tokenizer::Tokenizer> tokenizer_;
};

std::string format_in_words(const data::DatasetDescription& dataset) {
  using data::Formatting;
  const data::Columns& columns = dataset.columns;
  if (dataset.formatting == Formatting::kPretokenized)
    return dataset.ranking           ? "pairs of tokens (columns chosen_input_ids and rejected_input_ids)"
           : columns.kto_tag.empty() ? "tokens (column input_ids)"
                                     : "tokens with verdicts (columns input_ids and kto_tag)";
  if (dataset.ranking) return fmt::format("preference pairs (columns {} and {})", columns.chosen, columns.rejected);
  if (!columns.kto_tag.empty()) return fmt::format("answers with verdicts (column {})", columns.kto_tag);
  if (dataset.formatting != Formatting::kAlpaca) return fmt::format("conversations (column {})", columns.messages);
  if (columns.response.empty()) return fmt::format("documents (column {})", columns.prompt);
  return fmt::format("questions and answers (columns {} and {})", columns.prompt, columns.response);
}

constexpr double kMostClasses = 1000;  // a larger whole number is not a class

// Widens a form to hold one more label: a class, a list with 0 or 1 for each class, or a number. Once a label is not a
// class, all are numbers. The checks of the run find values that are not labels.
void widen(data::LabelForm& form, const io::Json& label) {
  using config::ProblemType;
  if (label.is_array()) form = {ProblemType::kMultiLabel, std::ssize(label)};
  if (form.problem != ProblemType::kSingleLabel) return;
  const auto number = label.is_number()    ? std::optional(label.get<double>())
                      : label.is_boolean() ? std::optional(label.get<bool>() ? 1.0 : 0.0)
                      : label.is_string()  ? parse_double(label.get<std::string>())
                                           : std::nullopt;
  if (!number) return;
  if (*number >= 0 && *number == std::floor(*number) && *number < kMostClasses)
    form.num_labels = std::max({form.num_labels, static_cast<int64_t>(*number) + 1, int64_t{2}});
  else
    form = {ProblemType::kRegression, 1};
}

// Reads the first records of a file, whose labels are in the column `label` unless that is empty. Returns how many the
// file has: counted, by the table, or by its size.
int64_t look_at_file(const fs::path& path, const std::string& label, const TokenCounter& counter, int64_t& read,
                     int64_t& tokens, DataLook& look) {
  data::RecordScanner scanner(path);
  std::string text;
  data::RecordPlace place;
  int64_t here = 0;
  double bytes = 0;
  bool more = scanner.next(text, place);
  for (; more && read < kMostRecordsRead; more = scanner.next(text, place)) {
    const io::Json record = data::parse_record(text, scanner.format(), path, place.line);
    const int64_t length = counter.count(record);
    if (const auto found = label.empty() ? record.end() : record.find(label); found != record.end()) {
      if (!look.labels) look.labels.emplace();
      widen(*look.labels, *found);
    }
    look.longest_tokens = std::max(look.longest_tokens, length);
    tokens += length;
    bytes += static_cast<double>(text.size()) + 1;
    ++here;
    ++read;
  }
  if (!more) return here;
  const bool table = scanner.format() == data::RecordFormat::kParquet || scanner.format() == data::RecordFormat::kArrow;
  if (table || here == 0) return data::RecordFile(path).size();
  return static_cast<int64_t>(static_cast<double>(fs::file_size(path)) / bytes * static_cast<double>(here));
}

}  // namespace

Task DataLook::usual_task() const {
  if (verdicts) return Task::kKto;
  return documents ? Task::kPretrain : pairs ? Task::kPreference : Task::kSft;
}

DataLook look_at_data(const std::vector<std::string>& names, const fs::path& model_folder) {
  const auto datasets = data::find_datasets(names, ".");
  DataLook look{.names = names};
  int64_t read = 0, tokens = 0;
  const TokenCounter counter(model_folder);
  for (const data::DatasetDescription& dataset : datasets) {
    const std::string words = format_in_words(dataset);
    check<ConfigError>(look.in_words.empty() || look.in_words == words,
                       "{} holds {}, and {} holds {}; a run needs data of one kind", names.front(), look.in_words,
                       dataset.name, words);
    look.in_words = words;
    look.pairs = dataset.ranking;
    look.verdicts = !dataset.columns.kto_tag.empty();
    look.documents = words.starts_with("documents");
    for (const fs::path& file : dataset.files)
      look.records += look_at_file(file, dataset.columns.label, counter, read, tokens, look);
  }
  check<DataError>(read > 0, "{} holds no record", fmt::format("{}", fmt::join(names, ", ")));
  look.tokens_per_record = static_cast<double>(tokens) / static_cast<double>(read);
  return look;
}

}  // namespace megalith::cli
