// Tokenization ahead of training. With a cache folder, the result is a folder of tokens (token_table.h) whose name is a
// hash of everything that the tokens depend on: the content of all data and tokenizer files, the template, and each
// option that changes a sample. An option that does not is left out of the key, so that changing it reuses the cache.
// io::build_once lets one process build while all others wait for the folder.
#include "megalith/data/sft/tokenized_data.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"
#include "megalith/data/sft/chat_encoder.h"
#include "megalith/data/sft/problem_log_internal.h"
#include "megalith/data/sft/record_set.h"
#include "megalith/data/sft/template.h"
#include "megalith/data/token_table.h"
#include "megalith/io/build_once.h"
#include "megalith/io/content_hash.h"
#include "megalith/io/parallel_for.h"
#include "megalith/io/staged_folder.h"
#include "megalith/tokenizer/chat/chat_template.h"

namespace megalith::data {
namespace {

namespace fs = std::filesystem;

// Increase it when the same records become other tokens: caches of older versions are then ignored.
constexpr int64_t kEncodingVersion = 2;

// Tokenizes records batch by batch and passes the rows of each batch to `take`.
class Build {
 public:
  Build(const DataRequest& request, const RecordEncoder& encoder, const RecordSet& records, bool shows_progress)
      : request_(request), encoder_(encoder), records_(records), shows_progress_(shows_progress) {}

  TokenTableInfo run(const std::vector<RecordRef>& refs, const std::function<void(const TokenTable&)>& take) {
    TokenTableInfo info{.pairs = is_pair(encoder_.plan().kind),
                        .pieces_attend = encoder_.plan().packing && !encoder_.plan().neat,
                        .feedback = encoder_.plan().kind == SampleKind::kFeedback};
    BuildReport report;
    const auto step = static_cast<size_t>(request_.data.preprocessing_batch_size);
    TaskProgress progress("tokenizing", TaskProgress::Unit::kCount, std::ssize(refs), "records", shows_progress_);
    for (size_t begin = 0; begin < refs.size(); begin += step) {
      const std::span batch(refs.data() + begin, std::min(step, refs.size() - begin));
      TokenTable table;
      for (const Sample& sample : encoder_.rows(encode(batch), report)) table.append(sample);
      // Kept for later runs: a model with a smaller vocabulary refuses the folder without reading it.
      for (const int32_t id : table.ids) info.max_id = std::max<int64_t>(info.max_id, id);
      take(table);
      progress.add(std::ssize(batch));
    }
    check<DataError>(report.samples > 0, "the data gives no samples ({}){}", report.text(), problems_.in_words());
    check<DataError>(report.loss_tokens > 0,
                     "nothing of the data is trained: all labels are {} ({}). Give labels, or raise cutoff_len if "
                     "prompts leave no room for answers",
                     kIgnoredLabel, report.text());
    info.report = report.text();
    info.left_out = report.all_left_out();
    return info;
  }

 private:
  // Problems are logged after the parallel loop, in the order of the records.
  std::vector<EncodedRecord> encode(std::span<const RecordRef> refs) {
    std::vector<EncodedRecord> result(refs.size());
    io::parallel_for(std::ssize(refs), request_.data.preprocessing_num_workers, [&](int64_t i) {
      const RecordRef& ref = refs[static_cast<size_t>(i)];
      const DatasetDescription& dataset = records_.datasets()[static_cast<size_t>(ref.dataset)];
      result[static_cast<size_t>(i)] = encoder_.encode(records_.record(ref), dataset, records_.place(ref));
    });
    for (size_t i = 0; i < refs.size(); ++i)
      if (!result[i].sample) problems_.add(records_.place(refs[i]), result[i].problem);
    return result;
  }

  const DataRequest& request_;
  const RecordEncoder& encoder_;
  const RecordSet& records_;
  const bool shows_progress_;
  ProblemLog problems_;
};

// Chooses the records to train on and those held out, before anything is tokenized.
RecordSplit selected(const DataRequest& request, const RecordSet& records) {
  const SelectionOptions options{.max_samples = request.data.max_samples, .mix = mix_options(request)};
  return split_records(records.select(options), request.data.val_size, request.seed);
}

// Without a folder, every rank tokenizes for itself.
TokenizedData in_memory(const DataRequest& request, const RecordEncoder& encoder, const RecordSet& records,
                        bool shows_progress) {
  const auto make = [&](const std::vector<RecordRef>& refs, TokenTableInfo& info) {
    TokenTable all;
    info =
        Build(request, encoder, records, shows_progress).run(refs, [&](const TokenTable& table) { all.append(table); });
    return dataset_of(std::move(all), info);
  };
  const RecordSplit split = selected(request, records);
  TokenizedData result;
  TokenTableInfo info, unused;
  result.train = make(split.train, info);
  result.report = std::move(info.report);
  result.left_out = info.left_out;
  if (!split.validation.empty()) result.validation = make(split.validation, unused);
  return result;
}

// Builds a folder with the parts train and validation. It gets its name once it is complete, so a killed run leaves no
// half of one.
void write_folder(const fs::path& target, const DataRequest& request, const RecordEncoder& encoder,
                  const RecordSet& records) {
  io::StagedFolder staged(target, "tokens");
  const RecordSplit split = selected(request, records);
  const auto make = [&](const std::vector<RecordRef>& refs, const char* name) {
    if (refs.empty()) return;
    fs::create_directory(staged.path() / name);
    TokenFolderWriter writer(staged.path() / name);
    writer.finish(Build(request, encoder, records, /*shows_progress=*/true).run(refs, [&](const TokenTable& table) {
      writer.append(table);
    }));
  };
  make(split.train, "train");
  make(split.validation, "validation");
  staged.commit();
}

// Opens one part and checks that it fits the run: tokens may come from a tokenized_path made for another one.
OpenedTokens open_part(const fs::path& folder, const DataRequest& request) {
  OpenedTokens tokens = open_token_folder(folder);
  const bool pairs = is_pair(request.data.kind);
  check<DataError>(tokens.info.pairs == pairs, "{} holds {}preference pairs, and stage {} needs {}", folder.string(),
                   tokens.info.pairs ? "" : "no ", pairs ? "dpo or rm" : "pt, sft, kto or cls",
                   pairs ? "them" : "single samples");
  const bool feedback = request.data.kind == SampleKind::kFeedback;
  check<DataError>(tokens.info.feedback == feedback, "{} holds {}answers with verdicts, and stage {} needs {}",
                   folder.string(), tokens.info.feedback ? "" : "no ", feedback ? "kto" : "pt, sft, dpo, rm or cls",
                   feedback ? "them" : "others");
  check<DataError>(!request.vocab_size || tokens.info.max_id < *request.vocab_size,
                   "{} has the token id {}, which is outside of the model's vocabulary of {}. It was made with another "
                   "tokenizer: remove it, or give another tokenized_path",
                   folder.string(), tokens.info.max_id, request.vocab_size.value_or(0));
  return tokens;
}

// A folder written here has the parts train and validation; a folder with tokens of its own is training data.
TokenizedData open_folder(const fs::path& folder, const DataRequest& request) {
  const bool ours = fs::is_directory(folder / "train");
  OpenedTokens train = open_part(ours ? folder / "train" : folder, request);
  TokenizedData result{
      .train = std::move(train.dataset), .report = std::move(train.info.report), .left_out = train.info.left_out};
  if (fs::is_directory(folder / "validation")) result.validation = open_part(folder / "validation", request).dataset;
  return result;
}

// Adds the content of the tokenizer's files to the key; only its sizes if it was not read from a folder.
void add_tokenizer(const DataRequest& request, io::ContentHash& key) {
  key.add(request.tokenizer->vocab_size()).add(request.tokenizer->id_end());
  if (request.tokenizer_folder.empty()) return;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model",
                           "vocab.json", "merges.txt", "added_tokens.json"}) {
    const fs::path file = request.tokenizer_folder / name;
    if (fs::exists(file)) key.add(name).add_file(file);
  }
  for (const fs::path& file : tokenizer::ChatTemplate::files_in(request.tokenizer_folder))
    key.add(file.filename().string()).add_file(file);
  for (const auto& [name, text] : request.changed_tokenizer_files) key.add(name).add(text);
}

// preprocessing_batch_size is part of the key, since packing works within a batch; the number of workers is not.
std::string cache_key(const DataRequest& request, const RecordEncoder& encoder, const RecordSet& records,
                      bool shows_progress) {
  const SftSettings& data = request.data;
  io::ContentHash key;
  key.add(kEncodingVersion).add(encoder.description()).add(static_cast<int64_t>(request.seed));
  key.add(fmt::format("{} {} {} {}", data.val_size, data.max_samples.value_or(-1), data.preprocessing_batch_size,
                      static_cast<int>(data.mix_strategy)));
  for (const std::string& word : data.interleave_probs) key.add(word);
  TaskProgress progress("looking for tokens in the cache", TaskProgress::Unit::kBytes,
                        bytes_of_files(records.datasets()), "", shows_progress);
  const auto read = [&](int64_t bytes) { progress.add(bytes); };
  for (const DatasetDescription& dataset : records.datasets()) {
    const Columns& c = dataset.columns;
    const Tags& t = dataset.tags;
    key.add(static_cast<int64_t>(dataset.formatting))
        .add(dataset.ranking ? 1 : 0)
        .add(dataset.num_samples.value_or(-1));
    for (const std::string* name :
         {&c.prompt, &c.query, &c.response, &c.messages, &c.history, &c.system, &c.tools, &c.chosen, &c.rejected,
          &t.role, &t.content, &t.user, &t.assistant, &t.observation, &t.function, &t.system})
      key.add(*name);
    if (!c.images.empty()) key.add("images").add(c.images);
    if (!c.videos.empty()) key.add("videos").add(c.videos);
    if (!c.audios.empty()) key.add("audios").add(c.audios);
    if (!c.kto_tag.empty()) key.add("kto_tag").add(c.kto_tag);
    if (is_scored(data.kind)) key.add("margin").add(c.margin).add("label").add(c.label);
    for (const fs::path& file : dataset.files) key.add(file.extension().string()).add_file(file, read);
  }
  if (request.tokenizer) add_tokenizer(request, key);
  return key.text();
}

}  // namespace

// Everything that shapes samples stays: evaluation data is tokenized like training data.
DataRequest evaluation_request(DataRequest request, const std::vector<std::string>& names) {
  request.data.dataset = names;
  request.data.eval_dataset.clear();
  request.data.mix_strategy = config::MixStrategy::kConcat;
  request.data.interleave_probs.clear();
  request.data.val_size = 0;
  request.data.tokenized_path.reset();
  return request;
}

std::vector<EvaluationRequest> evaluation_requests(const DataRequest& request) {
  const std::vector<std::string>& names = request.data.eval_dataset;
  if (names.empty()) return {};
  if (!request.data.eval_on_each_dataset) return {{"", evaluation_request(request, names)}};
  std::vector<EvaluationRequest> all;
  for (const std::string& name : names) all.push_back({name, evaluation_request(request, {name})});
  return all;
}

std::shared_ptr<const RecordEncoder> make_record_encoder(const DataRequest& request) {
  std::shared_ptr<const TurnEncoder> turns = request.turns;
  // Documents have no turns; only a named template matters to them, by how it ends a document.
  const bool needless = request.data.kind == SampleKind::kDocument && request.data.chat.is_own();
  if (!turns && request.tokenizer && !needless)
    turns = make_turn_encoder(request.data.chat, *request.tokenizer, request.tokenizer_folder);
  return std::make_shared<RecordEncoder>(
      RecordEncoderOptions{.plan = row_plan(request.data),
                           .train_on_prompt = request.data.train_on_prompt,
                           .mask_history = request.data.mask_history,
                           .documents_get_bos = adds_bos_token(request.tokenizer_folder),
                           .documents_are_plain = request.data.kind == SampleKind::kDocument &&
                                                  request.data.chat.options.split_special_tokens,
                           .vocab_size = request.vocab_size,
                           .media = request.media,
                           .labels = request.labels,
                           .score_pad = request.score_pad},
      std::move(turns), request.tokenizer);
}

MixOptions mix_options(const DataRequest& request) {
  return {.strategy = request.data.mix_strategy,
          .probabilities = parse_probabilities(request.data.interleave_probs, request.data.dataset.size()),
          .seed = request.seed};
}

// Rounding lengths up keeps the number of different shapes small, and with it the allocations of varying size.
CollatorOptions collator_options(SampleKind kind, int32_t pad_id) {
  return {.pad_id = pad_id, .length_multiple = kind == SampleKind::kDocument ? 8 : 64};
}

// Options are checked before the wait for another rank, so that a mistake shows at once on all of them.
TokenizedData load_tokenized_data(const DataRequest& request, bool shows_progress) {
  const auto& tokenized_path = request.data.tokenized_path;
  if (tokenized_path && fs::exists(*tokenized_path)) return open_folder(*tokenized_path, request);
  check<ConfigError>(!request.data.dataset.empty(), "dataset is not set; give names of dataset_info.json or paths");
  const auto encoder = make_record_encoder(request);
  // Beside the tokens, which take more room than the texts that may have to wait there.
  const fs::path scratch_folder = tokenized_path ? fs::absolute(*tokenized_path).parent_path() : request.cache_folder;
  const RecordSet records(find_datasets(request.data.dataset, request.data.dataset_dir), scratch_folder,
                          shows_progress);
  for (const DatasetDescription& dataset : records.datasets()) encoder->check_dataset(dataset);
  if (!tokenized_path && request.cache_folder.empty()) return in_memory(request, *encoder, records, shows_progress);
  // All ranks compute the same name, so they meet at the same lock.
  const fs::path target =
      tokenized_path ? *tokenized_path : request.cache_folder / cache_key(request, *encoder, records, shows_progress);
  io::build_once(target, [&] { write_folder(target, request, *encoder, records); }, {.limit = request.wait_limit});
  return open_folder(target, request);
}

}  // namespace megalith::data
