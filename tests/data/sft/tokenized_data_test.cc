// From data files to datasets of tokens: options, caches, streams, and bad input.
#include "megalith/data/sft/tokenized_data.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/data/sft/sft_settings.h"
#include "megalith/data/sft/turn_encoder.h"
#include "megalith/data/token_table.h"
#include "tests/support/expect.h"
#include "tests/support/tokenizers.h"

namespace megalith::data {
namespace {

namespace fs = std::filesystem;
using testing::expect_contains;
using testing::TemporaryFolder;

std::string alpaca(int count, const std::string& mark = "q") {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += fmt::format("{{\"instruction\": \"{}{}{}\", \"output\": \"a{}\"}}\n", mark, i,
                        std::string(static_cast<size_t>(i % 7), '.'), i);
  return text;
}

// Bytes as tokens and a template without tokens of its own: ids are readable.
DataRequest request_for(const TemporaryFolder& folder, const std::vector<std::string>& names) {
  DataRequest request;
  request.data.dataset = names;
  request.data.dataset_dir = folder.path().string();
  request.data.chat.name = "vicuna";
  request.data.chat.options.default_system = "S";
  request.tokenizer = tokenizer::Tokenizer::bytes();
  return request;
}

std::string sample_text(const Sample& sample) { return tokenizer::Tokenizer::bytes().decode(sample.row.ids); }

std::vector<std::string> texts(const Dataset& dataset) {
  std::vector<std::string> result;
  for (int64_t i = 0; i < dataset.size(); ++i) result.push_back(sample_text(dataset.sample(i)));
  return result;
}

std::vector<Sample> samples_of(const Dataset& dataset) {
  std::vector<Sample> result;
  for (int64_t i = 0; i < dataset.size(); ++i) result.push_back(dataset.sample(i));
  return result;
}

std::string tokenizing_error(const DataRequest& request) {
  try {
    load_tokenized_data(request);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(TokenizedData, records_become_samples_in_order) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"a.jsonl", alpaca(3)}});
  const TokenizedData data = load_tokenized_data(request_for(folder, {"a.jsonl"}));
  EXPECT_EQ(texts(*data.train),
            (std::vector<std::string>{"SUSER: q0 ASSISTANT:a0<|eos|>", "SUSER: q1. ASSISTANT:a1<|eos|>",
                                      "SUSER: q2.. ASSISTANT:a2<|eos|>"}));
  EXPECT_EQ(data.validation, nullptr);
  expect_contains(data.report, "3 samples of 3 records");
}

TEST(TokenizedData, threads_and_caches_do_not_change_the_result) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"a.jsonl", alpaca(250)}, {"b.jsonl", alpaca(100, "other")}});
  for (const bool packing : {false, true}) {
    DataRequest request = request_for(folder, {"a.jsonl", "b.jsonl"});
    request.data.packing = packing ? Packing::kNeat : Packing::kNone;
    request.data.cutoff_len = 200;
    request.data.preprocessing_batch_size = 64;
    request.data.val_size = 0.1;
    request.data.preprocessing_num_workers = 1;
    const TokenizedData one = load_tokenized_data(request);
    request.data.preprocessing_num_workers = 5;
    const TokenizedData many = load_tokenized_data(request);
    request.cache_folder = folder.path() / (packing ? "cache1" : "cache2");
    const TokenizedData written = load_tokenized_data(request);
    const TokenizedData cached = load_tokenized_data(request);
    EXPECT_EQ(samples_of(*one.train), samples_of(*many.train));
    EXPECT_EQ(samples_of(*one.train), samples_of(*written.train));
    EXPECT_EQ(samples_of(*one.train), samples_of(*cached.train));
    EXPECT_EQ(samples_of(*one.validation), samples_of(*cached.validation));
    EXPECT_EQ(one.report, cached.report);
    EXPECT_EQ(one.left_out, cached.left_out);
    EXPECT_EQ(std::distance(fs::directory_iterator(request.cache_folder), fs::directory_iterator()), 1);
    // Another option, another cache; another file, another cache.
    request.data.mask_history = true;
    load_tokenized_data(request);
    EXPECT_EQ(std::distance(fs::directory_iterator(request.cache_folder), fs::directory_iterator()), 2);
    folder.write("b.jsonl", alpaca(100, "changed"));
    load_tokenized_data(request);
    EXPECT_EQ(std::distance(fs::directory_iterator(request.cache_folder), fs::directory_iterator()), 3);
    folder.write("b.jsonl", alpaca(100, "other"));
  }
}

TEST(TokenizedData, ranks_share_one_cache) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"a.jsonl", alpaca(200)}});
  DataRequest request = request_for(folder, {"a.jsonl"});
  request.cache_folder = folder.path() / "cache";
  std::vector<int64_t> sizes(4, 0);
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < sizes.size(); ++r)
    ranks.emplace_back([&, r] { sizes[r] = load_tokenized_data(request).train->size(); });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(sizes, (std::vector<int64_t>(4, 200)));
}

TEST(TokenizedData, tokenized_path_is_saved_then_loaded) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"a.jsonl", alpaca(20)}});
  DataRequest request = request_for(folder, {"a.jsonl"});
  request.data.tokenized_path = (folder.path() / "tokens").string();
  const auto saved = samples_of(*load_tokenized_data(request).train);
  fs::remove(folder.path() / "a.jsonl");
  EXPECT_EQ(samples_of(*load_tokenized_data(request).train), saved);
  request.vocab_size = 100;
  expect_contains(tokenizing_error(request), "token id 257, which is outside of the model's vocabulary of 100");
  request.vocab_size.reset();
  request.data.kind = SampleKind::kPreference;
  expect_contains(tokenizing_error(request), "holds no preference pairs");
  // So is what was held out.
  folder.write("b.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 900]}\n");
  request = request_for(folder, {"b.jsonl"});
  request.data.tokenized_path = (folder.path() / "split").string();
  request.data.val_size = 1;
  const TokenizedData parts = load_tokenized_data(request);
  request.vocab_size = 500;
  expect_contains(tokenizing_error(request),
                  parts.validation->sample(0).row.ids[1] == 900 ? "split/validation" : "split/train");
  // A folder of the Python package `datasets` is named as such.
  folder.write("dataset_dict.json", "{}");
  request.data.tokenized_path = folder.path().string();
  expect_contains(tokenizing_error(request), "Arrow");
}

TEST(TokenizedData, samples_of_each_dataset_are_selected_then_mixed) {
  const TemporaryFolder folder(TemporaryFolder::Files{
      {"dataset_info.json", R"({"few": {"file_name": "a.jsonl", "num_samples": 4}, "many": {"file_name": "b.jsonl"},
                                 "more": {"file_name": "b.jsonl", "num_samples": 14}})"},
      {"a.jsonl", alpaca(10)},
      {"b.jsonl", alpaca(10, "b")}});
  DataRequest request = request_for(folder, {"few", "many"});
  request.data.max_samples = 6;
  EXPECT_EQ(load_tokenized_data(request).train->size(), 4 + 6);
  request.data.mix_strategy = config::MixStrategy::kInterleaveUnder;
  const auto mixed = texts(*load_tokenized_data(request).train);
  ASSERT_EQ(mixed.size(), 8U);
  for (size_t i = 0; i < mixed.size(); ++i) expect_contains(mixed[i], i % 2 == 0 ? "USER: q" : "USER: b");
  // More than there are: all of them, then some again.
  request = request_for(folder, {"more"});
  const auto drawn = texts(*load_tokenized_data(request).train);
  EXPECT_EQ(drawn.size(), 14U);
  EXPECT_EQ(std::set<std::string>(drawn.begin(), drawn.begin() + 10).size(), 10U);
}

TEST(TokenizedData, validation_is_held_out) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"a.jsonl", alpaca(40)}});
  for (const auto& [val_size, held_out] : {std::pair{0.1, 4}, {0.11, 5}, {1.0, 1}, {7.0, 7}}) {
    DataRequest request = request_for(folder, {"a.jsonl"});
    request.data.val_size = val_size;
    const TokenizedData data = load_tokenized_data(request);
    EXPECT_EQ(data.validation->size(), held_out);
    std::multiset<std::string> all;
    for (const auto& part : {texts(*data.train), texts(*data.validation)}) all.insert(part.begin(), part.end());
    EXPECT_EQ(all.size(), 40U);
    EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), 40U);
  }
  DataRequest request = request_for(folder, {"a.jsonl"});
  request.data.val_size = 40;
  expect_contains(tokenizing_error(request), "val_size 40 holds out 40 of 40");
}

TEST(TokenizedData, rows_have_cutoff_len_tokens_after_the_shift) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"a.jsonl", alpaca(60)}, {"t.txt", std::string(3000, 'x')}});
  const auto longest_row = [&](DataRequest request) {
    const auto data = load_tokenized_data(request);
    size_t longest = 0;
    for (const Sample& sample : samples_of(*data.train)) longest = std::max(longest, sample.row.ids.size());
    return longest;
  };
  DataRequest request = request_for(folder, {"a.jsonl"});
  request.data.cutoff_len = 20;
  EXPECT_EQ(longest_row(request), 21U);
  expect_contains(load_tokenized_data(request).report, "were longer than cutoff_len and were cut");
  request.data.cutoff_len = 64;
  for (const Packing packing : {Packing::kPlain, Packing::kNeat}) {
    DataRequest packed = request;
    packed.data.packing = packing;
    EXPECT_EQ(longest_row(packed), 65U);
    expect_contains(load_tokenized_data(packed).report, "% full");
  }
  request.data.dataset = {"t.txt"};
  request.data.kind = SampleKind::kDocument;
  request.data.packing = Packing::kPlain;
  request.data.chat.name.reset();
  EXPECT_EQ(longest_row(request), 65U);
  EXPECT_EQ(load_tokenized_data(request).train->size(), 3001 / 65);
  request.data.packing = Packing::kNone;
  EXPECT_EQ(load_tokenized_data(request).train->size(), 1);
}

TEST(TokenizedData, documents_begin_with_bos_where_the_tokenizer_says_so) {
  const TemporaryFolder folder(
      TemporaryFolder::Files{{"t.txt", "abcdefgh\n"}, {"tokenizer_config.json", "{\"add_bos_token\": true}"}});
  DataRequest request = request_for(folder, {"t.txt"});
  request.data.kind = SampleKind::kDocument;
  request.data.packing = Packing::kPlain;
  request.data.cutoff_len = 3;
  EXPECT_EQ(texts(*load_tokenized_data(request).train), (std::vector<std::string>{"abcd", "efgh"}));
  request.tokenizer_folder = folder.path();
  EXPECT_EQ(texts(*load_tokenized_data(request).train), (std::vector<std::string>{"<|bos|>bcd", "<|bos|>fgh"}));
  request.data.packing = Packing::kNone;
  EXPECT_EQ(texts(*load_tokenized_data(request).train), (std::vector<std::string>{"<|bos|>abc"}));
}

TEST(TokenizedData, pairs_share_their_prompt) {
  const TemporaryFolder folder(TemporaryFolder::Files{
      {"p.jsonl", "{\"prompt\": \"Q\", \"chosen\": \"good\", \"rejected\": \"bad\"}\n{\"prompt\": \"no answer\"}\n"}});
  DataRequest request = request_for(folder, {"p.jsonl"});
  request.data.kind = SampleKind::kPreference;
  expect_contains(tokenizing_error(request), "p.jsonl:2: column \"chosen\" is missing");
  folder.write("p.jsonl", "{\"prompt\": \"Q\", \"chosen\": \"good\", \"rejected\": \"bad\"}\n");
  request.cache_folder = folder.path() / "cache";
  const Sample sample = load_tokenized_data(request).train->sample(0);
  EXPECT_EQ(sample_text(sample), "SUSER: Q ASSISTANT:good<|eos|>");
  ASSERT_TRUE(sample.rejected);
  EXPECT_EQ(tokenizer::Tokenizer::bytes().decode(sample.rejected->ids), "SUSER: Q ASSISTANT:bad<|eos|>");
  EXPECT_EQ(std::ranges::count(sample.rejected->labels, kIgnoredLabel), std::ssize(std::string("SUSER: Q ASSISTANT:")));
  request.data.kind = SampleKind::kConversation;
  expect_contains(tokenizing_error(request), "which only stages dpo and rm train on");
}

std::string rated(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += fmt::format("{{\"instruction\": \"q{}\", \"output\": \"answer{}\", \"kto_tag\": {}}}\n", i,
                        std::string(static_cast<size_t>(i), 'x'), i % 3 == 0);
  return text;
}

// Samples with verdicts as lines: verdict, row, mismatched row.
std::vector<std::string> verdict_lines(const std::vector<Sample>& samples) {
  std::vector<std::string> lines;
  for (const Sample& sample : samples)
    lines.push_back(fmt::format("{} {} | {}", sample.feedback.value().desirable, sample_text(sample),
                                tokenizer::Tokenizer::bytes().decode(sample.feedback->mismatched.ids)));
  return lines;
}

TEST(TokenizedData, verdicts_have_the_answer_of_the_record_before) {
  const TemporaryFolder folder(TemporaryFolder::Files{
      {"a.jsonl", rated(3)},
      {"s.jsonl", R"({"turns": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}], "good": false}
{"turns": [{"from": "human", "value": "R"}, {"from": "gpt", "value": "B"}], "good": true}
{"turns": [{"from": "human", "value": "S"}, {"from": "gpt", "value": "C"}]}
)"},
      {"ids.jsonl", R"({"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "kto_tag": true}
{"input_ids": [4, 5], "labels": [-100, 5], "kto_tag": false}
)"},
      {"dataset_info.json", R"({"turns": {"file_name": "s.jsonl", "formatting": "sharegpt",
                                          "columns": {"messages": "turns", "kto_tag": "good"}}})"}});
  DataRequest request = request_for(folder, {"a.jsonl"});
  request.data.kind = SampleKind::kFeedback;
  const std::vector<std::string> expected{
      "true SUSER: q0 ASSISTANT:answer<|eos|> | SUSER: q0 ASSISTANT:answerxx<|eos|>",
      "false SUSER: q1 ASSISTANT:answerx<|eos|> | SUSER: q1 ASSISTANT:answer<|eos|>",
      "false SUSER: q2 ASSISTANT:answerxx<|eos|> | SUSER: q2 ASSISTANT:answerx<|eos|>"};
  const auto samples = samples_of(*load_tokenized_data(request).train);
  EXPECT_EQ(verdict_lines(samples), expected);
  const Sequence& other = samples[1].feedback->mismatched;
  EXPECT_EQ(std::ranges::count(other.labels, kIgnoredLabel), std::ssize(std::string("SUSER: q1 ASSISTANT:")));
  // The same from files, and as a stream.
  request.cache_folder = folder.path() / "cache";
  EXPECT_EQ(samples_of(*load_tokenized_data(request).train), samples);
  EXPECT_EQ(samples_of(*load_tokenized_data(request).train), samples);
  request.data.buffer_size = 1;
  const auto stream = open_streamed_data(request).train(0);
  EXPECT_EQ(*stream->next(), samples[0]);
  EXPECT_TRUE(stream->skip());
  EXPECT_EQ(*stream->next(), samples[2]);
  EXPECT_FALSE(stream->next());
  // A record without a verdict is left out.
  request.data.dataset = {"turns"};
  EXPECT_EQ(verdict_lines(samples_of(*load_tokenized_data(request).train)),
            (std::vector<std::string>{"false SUSER: Q ASSISTANT:A<|eos|> | SUSER: Q ASSISTANT:B<|eos|>",
                                      "true SUSER: R ASSISTANT:B<|eos|> | SUSER: R ASSISTANT:A<|eos|>"}));
  request.data.dataset = {"ids.jsonl"};
  const Sample ids = load_tokenized_data(request).train->sample(0);
  EXPECT_EQ(ids.feedback->mismatched.ids, (std::vector<int32_t>{1, 5}));
  EXPECT_EQ(ids.feedback->mismatched.labels, (std::vector<int32_t>{-100, 5}));
}

// The prompt stays whole: only the other answer is cut.
TEST(TokenizedData, mismatched_answers_fit_into_cutoff_len) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"a.jsonl", rated(20)}});
  DataRequest request = request_for(folder, {"a.jsonl"});
  request.data.kind = SampleKind::kFeedback;
  request.data.cutoff_len = 36;
  for (const Sample& sample : samples_of(*load_tokenized_data(request).train)) {
    const Sequence& other = sample.feedback->mismatched;
    EXPECT_LE(other.ids.size(), 37U);
    EXPECT_EQ(other.labels.size(), other.ids.size());
    const auto prompt = std::ranges::count(sample.row.labels, kIgnoredLabel);
    EXPECT_EQ(std::ranges::count(other.labels, kIgnoredLabel), prompt);
    EXPECT_TRUE(std::equal(other.ids.begin(), other.ids.begin() + prompt, sample.row.ids.begin()));
  }
}

TEST(TokenizedData, verdicts_that_are_not_right_are_named) {
  const TemporaryFolder folder(
      TemporaryFolder::Files{{"a.jsonl", rated(4)},
                             {"plain.jsonl", alpaca(2)},
                             {"number.jsonl", R"({"instruction": "q", "output": "a", "kto_tag": 1})"},
                             {"empty.jsonl", R"({"instruction": "q", "output": "", "kto_tag": true})"}});
  DataRequest request = request_for(folder, {"a.jsonl"});
  expect_contains(tokenizing_error(request), "which only stage kto trains on");
  request.data.kind = SampleKind::kFeedback;
  request.data.preprocessing_batch_size = 1;
  expect_contains(tokenizing_error(request), "preprocessing_batch_size is 1");
  request.data.preprocessing_batch_size = 1000;
  request.data.packing = Packing::kNeat;
  expect_contains(tokenizing_error(request), "packing is not for answers with verdicts");
  request.data.packing = Packing::kNone;
  const auto error_in = [&](const std::string& file) {
    request.data.dataset = {file};
    return tokenizing_error(request);
  };
  expect_contains(error_in("plain.jsonl"), "stage kto needs answers with verdicts");
  expect_contains(error_in("number.jsonl"), "number.jsonl:1: column \"kto_tag\" is 1");
  expect_contains(error_in("empty.jsonl"), "empty.jsonl:1: the answer is empty");
  // A folder of tokens says what it holds.
  request = request_for(folder, {"a.jsonl"});
  request.data.kind = SampleKind::kFeedback;
  request.data.tokenized_path = (folder.path() / "tokens").string();
  load_tokenized_data(request);
  request.data.kind = SampleKind::kConversation;
  expect_contains(tokenizing_error(request), "holds answers with verdicts");
  fs::resize_file(folder.path() / "tokens" / "train" / "desirable.bin", 3);
  request.data.kind = SampleKind::kFeedback;
  expect_contains(tokenizing_error(request), "the files do not fit one another");
}

TEST(TokenizedData, answers_that_are_empty_or_do_not_fit_are_named) {
  const TemporaryFolder folder(
      TemporaryFolder::Files{{"p.jsonl", R"({"prompt": "Q", "chosen": "good", "rejected": "bad"}
{"prompt": "Q", "chosen": "good", "rejected": ""}
)"}});
  DataRequest request = request_for(folder, {"p.jsonl"});
  request.data.kind = SampleKind::kPreference;
  expect_contains(tokenizing_error(request), "p.jsonl:2: the rejected answer is empty; give a text");
  const auto ids = [&](const std::string& text) {
    folder.write("ids.jsonl", text);
    request.data.dataset = {"ids.jsonl"};
    return tokenizing_error(request);
  };
  const std::string good = R"("rejected_input_ids": [1, 2, 3], "rejected_labels": [-100, -100, 3]})";
  expect_contains(ids(R"({"chosen_input_ids": [1, 2], "chosen_labels": [-100, -100], )" + good),
                  "ids.jsonl:1: the chosen answer is empty: none of its 2 tokens has a label");
  expect_contains(ids(R"({"chosen_input_ids": [], )" + good), "the chosen answer is empty");
  expect_contains(ids(R"({"chosen_input_ids": [7], )" + good), "the chosen answer is empty");  // no token before it
  request.data.cutoff_len = 1;
  expect_contains(ids(R"({"chosen_input_ids": [1, 2], )" + good),
                  "ids.jsonl:1: the rejected answer does not fit: cutoff_len 1 leaves no room");
  request.data.cutoff_len = 2;
  EXPECT_EQ(ids(R"({"chosen_input_ids": [1, 2], )" + good), "no error");
}

TEST(TokenizedData, ids_need_no_tokenizer_and_are_checked) {
  const TemporaryFolder folder(TemporaryFolder::Files{
      {"ids.jsonl", "{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, 3]}\n{\"input_ids\": [4, 99]}\n"},
      {"empty.jsonl", "\n"},
      {"minus.jsonl", "{\"input_ids\": [1, -5]}\n"}});
  DataRequest request;
  request.data.dataset = {"ids.jsonl"};
  request.data.dataset_dir = folder.path().string();
  const auto data = load_tokenized_data(request);
  ASSERT_EQ(data.train->size(), 2);
  EXPECT_EQ(data.train->sample(0).row.labels, (std::vector<int32_t>{-100, 2, 3}));
  request.vocab_size = 50;
  const std::string error = tokenizing_error(request);
  expect_contains(error, "ids.jsonl:2: token id 99 at position 1");
  expect_contains(error, "vocabulary of 50");
  request.data.dataset = {"minus.jsonl"};
  expect_contains(tokenizing_error(request), "minus.jsonl:1: token id -5");
  request.data.dataset = {"empty.jsonl"};
  expect_contains(tokenizing_error(request), "has no records");
  request.data.dataset = {};
  expect_contains(tokenizing_error(request), "dataset is not set");
}

TEST(TokenizedData, evaluation_data_is_read_whole) {
  const TemporaryFolder folder(
      TemporaryFolder::Files{{"a.jsonl", alpaca(9)}, {"b.jsonl", alpaca(9, "b")}, {"e.jsonl", alpaca(4, "e")}});
  DataRequest request = request_for(folder, {"a.jsonl", "b.jsonl"});
  request.data.eval_dataset = {"e.jsonl"};
  request.data.mix_strategy = config::MixStrategy::kInterleaveOver;
  request.data.interleave_probs = {"0.5", "0.5"};
  request.data.val_size = 2;
  request.data.tokenized_path = (folder.path() / "tokens").string();
  load_tokenized_data(request);
  const TokenizedData evaluation = load_tokenized_data(evaluation_request(request, request.data.eval_dataset));
  request = request_for(folder, {"e.jsonl"});
  EXPECT_EQ(texts(*evaluation.train), texts(*load_tokenized_data(request).train));
  EXPECT_EQ(evaluation.validation, nullptr);
}

TEST(TokenizedData, a_tokenizer_of_another_model_is_reported) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"a.jsonl", alpaca(5)}});
  DataRequest request = request_for(folder, {"a.jsonl"});
  request.vocab_size = 259;
  EXPECT_EQ(tokenizing_error(request), "no error");
  request.vocab_size = 258;
  const std::string error = tokenizing_error(request);
  expect_contains(error, "pads with the token 258 (\"<|pad|>\")");
  expect_contains(error, "vocabulary of 258");
  expect_contains(error, "another model");
}

TEST(TokenizedData, data_that_trains_nothing_is_refused) {
  const TemporaryFolder folder(
      TemporaryFolder::Files{{"ids.jsonl", "{\"input_ids\": [1, 2], \"labels\": [-100, -100]}\n"}});
  DataRequest request;
  request.data.dataset = {(folder.path() / "ids.jsonl").string()};
  expect_contains(tokenizing_error(request), "all labels are -100");
}

TEST(TokenizedData, bad_input_is_named) {
  const TemporaryFolder folder(TemporaryFolder::Files{
      {"broken.jsonl", alpaca(5) + "{\"instruction\": \n"},
      {"roles.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}]}\n"},
      {"a.jsonl", alpaca(5)},
      {"latin.jsonl", "{\"instruction\": \"q\", \"output\": \"a\"}\n{\"instruction\": \"\xE9\", \"output\": \"a\"}\n"},
      {"latin.txt", "one\ntw\xF3\n"},
      {"tools.jsonl",
       "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"content\": \"y\"}], "
       "\"tools\": \"[{\"}\n"}});
  DataRequest request = request_for(folder, {"broken.jsonl"});
  request.data.preprocessing_num_workers = 3;
  expect_contains(tokenizing_error(request), "broken.jsonl:6: not valid JSON");
  request.data.dataset = {"roles.jsonl"};
  const std::string error = tokenizing_error(request);
  expect_contains(error, "the data gives no samples");
  expect_contains(error, "roles.jsonl:1: turn 1 should be");
  request.data.dataset = {"tools.jsonl"};
  expect_contains(tokenizing_error(request), "tools.jsonl:1: tools: not valid JSON");
  request.data.dataset = {"latin.jsonl"};
  expect_contains(tokenizing_error(request), "latin.jsonl:2: ");
  expect_contains(tokenizing_error(request), "UTF-8");
  request.data.dataset = {"latin.txt"};
  request.data.kind = SampleKind::kDocument;
  expect_contains(tokenizing_error(request), "latin.txt:2: byte 2 of the line is not valid UTF-8");
  request.data.kind = SampleKind::kConversation;
  request.data.dataset = {"a.jsonl"};
  request.data.chat.name = "vicunna";
  expect_contains(tokenizing_error(request), "did you mean vicuna");
  request.data.chat.name.reset();
  expect_contains(tokenizing_error(request), "the tokenizer has no chat template of its own. Set template");
  request.tokenizer.reset();
  expect_contains(tokenizing_error(request), "there is no tokenizer");
  request = request_for(folder, {"a.jsonl"});
  request.data.kind = SampleKind::kPreference;
  expect_contains(tokenizing_error(request), "\"ranking\": true");
  request.data.packing = Packing::kPlain;
  expect_contains(tokenizing_error(request), "packing is not for preference pairs");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 6);
}

TEST(TokenizedData, without_a_name_the_tokenizers_own_template_is_used) {
  const std::string chat =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}";
  const TemporaryFolder folder(TemporaryFolder::Files{{"a.jsonl", alpaca(2)}, {"text.txt", "one\n"}});
  const TemporaryFolder model(TemporaryFolder::Files{{"chat_template.jinja", chat}});
  DataRequest request = request_for(folder, {"a.jsonl"});
  request.tokenizer_folder = model.path();
  request.data.chat.name.reset();
  request.cache_folder = folder.path() / "cache";
  const auto caches = [&] {
    return std::distance(fs::directory_iterator(request.cache_folder), fs::directory_iterator());
  };
  EXPECT_EQ(texts(*load_tokenized_data(request).train),
            (std::vector<std::string>{"<system>S</s><user>q0</s><assistant>a0</s>",
                                      "<system>S</s><user>q1.</s><assistant>a1</s>"}));
  request.data.chat.name = "tokenizer";
  load_tokenized_data(request);
  EXPECT_EQ(caches(), 1);
  request.data.chat.options.thinking = Thinking::kOff;
  load_tokenized_data(request);
  EXPECT_EQ(caches(), 2);
  model.write("chat_template.jinja", "!" + chat);
  EXPECT_EQ(texts(*load_tokenized_data(request).train)[0], "!<system>S</s><user>q0</s><assistant>a0</s>");
  EXPECT_EQ(caches(), 3);

  // A record that the template refuses is named; documents have no turns, so that no template is looked at.
  model.write("chat_template.jinja", "{% if messages | length == 3 %}{{ raise_exception('three') }}{% endif %}" + chat);
  expect_contains(tokenizing_error(request), "a.jsonl:1: ");
  expect_contains(tokenizing_error(request), "three");
  model.write("chat_template.jinja", "{% broken");
  request.data.kind = SampleKind::kDocument;
  request.data.dataset = {"text.txt"};
  request.data.packing = Packing::kNone;
  EXPECT_EQ(texts(*load_tokenized_data(request).train)[0], "one<|eos|>");
}

TEST(TokenizedData, another_encoder_may_take_the_place_of_a_template) {
  class Shout : public TurnEncoder {
   public:
    std::vector<EncodedTurn> turns(const Conversation& c, bool) const override {
      return {{{1}, std::vector<int32_t>(c.responses[0].content.size(), 2)}};
    }
    EncodedTurn answer(const Conversation&, size_t) const override { return {}; }
    const TemplateTokens& tokens() const override { return tokens_; }
    bool efficient_eos() const override { return false; }
    std::string description() const override { return "shout"; }

   private:
    TemplateTokens tokens_;
  };
  const TemporaryFolder folder(TemporaryFolder::Files{{"a.jsonl", alpaca(1)}});
  DataRequest request = request_for(folder, {"a.jsonl"});
  request.data.chat.name.reset();
  request.turns = std::make_shared<Shout>();
  EXPECT_EQ(load_tokenized_data(request).train->sample(0).row.ids, (std::vector<int32_t>{1, 2, 2}));
}

std::vector<std::string> streamed(const OpenStream& open, int64_t epoch) {
  std::vector<std::string> result;
  const auto stream = open(epoch);
  while (const auto sample = stream->next()) result.push_back(sample_text(*sample));
  return result;
}

TEST(StreamedData, every_record_once_in_an_order_of_the_epoch) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"a.jsonl", alpaca(50)}, {"b.jsonl", alpaca(30, "b")}});
  DataRequest request = request_for(folder, {"a.jsonl", "b.jsonl"});
  auto expected = texts(*load_tokenized_data(request).train);
  request.data.buffer_size = 1;
  EXPECT_EQ(streamed(open_streamed_data(request).train, 0), expected);
  request.data.buffer_size = 16;
  const OpenStream open = open_streamed_data(request).train;
  auto first = streamed(open, 0), second = streamed(open, 1);
  EXPECT_EQ(first, streamed(open, 0));
  EXPECT_NE(first, second);
  for (auto* order : {&expected, &first, &second}) std::ranges::sort(*order);
  EXPECT_EQ(first, expected);
  EXPECT_EQ(second, expected);
}

TEST(StreamedData, skipping_is_the_same_as_taking) {
  const TemporaryFolder folder(
      TemporaryFolder::Files{{"a.jsonl", alpaca(30) + "{\"instruction\": \"no answer\"}\n" + alpaca(5, "z")}});
  for (const bool packing : {false, true}) {
    DataRequest request = request_for(folder, {"a.jsonl"});
    request.data.packing = packing ? Packing::kNeat : Packing::kNone;
    request.data.cutoff_len = 80;
    request.data.preprocessing_batch_size = 10;
    const OpenStream open = open_streamed_data(request).train;
    const auto all = streamed(open, 0);
    const auto stream = open(0);
    for (size_t i = 0; i < all.size(); ++i) {
      if (i % 3 == 0) {
        ASSERT_TRUE(stream->skip());
      } else {
        ASSERT_EQ(sample_text(*stream->next()), all[i]);
      }
    }
    EXPECT_FALSE(stream->skip());
  }
}

TEST(StreamedData, the_first_records_are_held_out) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"a.jsonl", alpaca(20)}});
  DataRequest request = request_for(folder, {"a.jsonl"});
  const auto all = texts(*load_tokenized_data(request).train);
  request.data.val_size = 3;
  const StreamedData data = open_streamed_data(request);
  EXPECT_EQ(texts(*data.validation), std::vector<std::string>(all.begin(), all.begin() + 3));
  for (const int64_t epoch : {0, 1}) {
    auto train = streamed(data.train, epoch);
    std::ranges::sort(train);
    auto rest = std::vector<std::string>(all.begin() + 3, all.end());
    std::ranges::sort(rest);
    EXPECT_EQ(train, rest);
  }
}

TEST(StreamedData, bad_records_are_named) {
  const TemporaryFolder folder(
      TemporaryFolder::Files{{"a.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}]}\n"},
                             {"b.jsonl", alpaca(3) + "{\n"}});
  DataRequest request = request_for(folder, {"a.jsonl"});
  request.data.val_size = 1;
  expect_contains(testing::error_of<DataError>([&] { open_streamed_data(request); }), "a.jsonl:1: turn 1 should be");
  request = request_for(folder, {"b.jsonl"});
  const OpenStream open = open_streamed_data(request).train;
  expect_contains(testing::error_of<DataError>([&] { streamed(open, 0); }), "b.jsonl:4: ");
}

TEST(StreamedData, what_a_stream_cannot_do_is_refused) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"a.jsonl", alpaca(3)}});
  const auto error = [&](const std::function<void(SftSettings&)>& change) -> std::string {
    DataRequest request = request_for(folder, {"a.jsonl"});
    change(request.data);
    try {
      open_streamed_data(request);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  };
  expect_contains(error([](auto& data) { data.max_samples = 3; }), "max_samples");
  expect_contains(error([](auto& data) { data.val_size = 0.1; }), "val_size");
  expect_contains(error([](auto& data) { data.tokenized_path = "x"; }), "tokenized_path");
}

}  // namespace
}  // namespace megalith::data
