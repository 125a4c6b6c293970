// Tables as data for training: the same samples as the JSON lines with the same content, however they are read.
#include <gtest/gtest.h>

#include <fstream>

#include "megalith/base/error.h"
#include "megalith/data/sft/sft_settings.h"
#include "megalith/data/sft/tokenized_data.h"
#include "tests/data/table/table_support.h"
#include "tests/support/expect.h"
#include "tests/support/tokenizers.h"

namespace megalith::data {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_contains;
using testing::TemporaryFolder;

// Bytes as tokens, and the files of tests/data/tables by their names.
DataRequest table_request(const std::vector<std::string>& names) {
  DataRequest request;
  request.data.dataset = names;
  request.data.dataset_dir = table_file("");
  request.data.chat.name = "vicuna";
  request.tokenizer = tokenizer::Tokenizer::bytes();
  return request;
}

std::vector<Sample> training_samples(const DataRequest& request) {
  const TokenizedData data = load_tokenized_data(request);
  std::vector<Sample> samples;
  for (int64_t i = 0; i < data.train->size(); ++i) samples.push_back(data.train->sample(i));
  return samples;
}

// The samples of an epoch of a stream, from sample number `position` on: how a run continues from a checkpoint.
std::vector<Sample> streamed_samples(DataRequest request, int64_t position) {
  request.data.buffer_size = 16;
  const auto stream = open_streamed_data(request).train(/*epoch=*/1);
  for (int64_t i = 0; i < position; ++i) EXPECT_TRUE(stream->skip());
  std::vector<Sample> samples;
  while (auto sample = stream->next()) samples.push_back(*std::move(sample));
  return samples;
}

// Parquet and Arrow files, if this build reads them.
std::vector<std::string> of_this_build(std::vector<std::string> names) {
#ifndef MEGALITH_ARROW
  std::erase_if(names, [](const std::string& name) { return name.ends_with(".parquet") || name.ends_with(".arrow"); });
#endif
  return names;
}

TEST(TableData, SamplesAreThoseOfJsonLines) {
  const std::vector<Sample> alpaca = training_samples(table_request({"alpaca.jsonl"}));
  ASSERT_EQ(alpaca.size(), 60U);
  for (const std::string& name : of_this_build({"alpaca.csv", "alpaca.tsv", "alpaca.parquet"}))
    EXPECT_EQ(training_samples(table_request({name})), alpaca) << name;
  const std::vector<Sample> chats = training_samples(table_request({"chats.jsonl"}));
  ASSERT_EQ(chats.size(), 60U);
  for (const std::string& name : of_this_build({"chats.parquet", "chats.arrow"}))
    EXPECT_EQ(training_samples(table_request({name})), chats) << name;
}

TEST(TableData, PairsAndDocumentsAreThoseOfJsonLines) {
  for (const std::string& name : of_this_build({"pairs.parquet"})) {
    DataRequest request = table_request({name}), lines = table_request({"pairs.jsonl"});
    request.data.kind = lines.data.kind = SampleKind::kPreference;
    EXPECT_EQ(training_samples(request), training_samples(lines));
  }
  for (const std::string& name : of_this_build({"codec_zstd.parquet"})) {
    DataRequest request = table_request({name}), lines = table_request({"codec.jsonl"});
    request.data.kind = lines.data.kind = SampleKind::kDocument;
    EXPECT_EQ(training_samples(request), training_samples(lines));
  }
}

// Mixed, drawn at random, packed, held out, on many threads, and through a cache.
TEST(TableData, OptionsActAlike) {
  for (const std::string& name : of_this_build({"alpaca.csv", "alpaca.parquet"})) {
    const TemporaryFolder folder;
    const auto samples = [&](const std::string& file) {
      folder.write("dataset_info.json", fmt::format(R"({{"some": {{"file_name": "{0}", "num_samples": 45}},
                                                         "all": {{"file_name": "{0}"}}}})",
                                                    fs::absolute(table_file(file)).string()));
      DataRequest request = table_request({"some", "all"});
      request.data.dataset_dir = folder.path().string();
      request.data.mix_strategy = config::MixStrategy::kInterleaveOver;
      request.data.packing = Packing::kNeat;
      request.data.cutoff_len = 150;
      request.data.val_size = 0.1;
      request.data.preprocessing_batch_size = 32;
      request.data.preprocessing_num_workers = 4;
      request.cache_folder = folder.path() / "cache";
      return training_samples(request);
    };
    EXPECT_EQ(samples(name), samples("alpaca.jsonl")) << name;
  }
}

TEST(TableData, StreamsContinueInTheMiddle) {
  for (const std::string& name : of_this_build({"alpaca.csv", "alpaca.parquet"}))
    for (const int64_t position : {0, 1, 23, 59, 60})
      EXPECT_EQ(streamed_samples(table_request({name}), position),
                streamed_samples(table_request({"alpaca.jsonl"}), position))
          << name << " from " << position;
  for (const std::string& name : of_this_build({"chats.parquet", "chats.arrow"}))
    EXPECT_EQ(streamed_samples(table_request({name}), 31), streamed_samples(table_request({"chats.jsonl"}), 31))
        << name;
}

// Shards of a dataset, and columns that have other names.
TEST(TableData, EntriesNameFoldersAndColumns) {
  const std::string rows = "question,reply\nq1,a1\nq2,\"a, 2\"\n", more = "reply,question\na3,q3\n";
  const TemporaryFolder folder(TemporaryFolder::Files{
      {"dataset_info.json",
       R"({"shards": {"file_name": "parts", "columns": {"prompt": "question", "response": "reply"}},
                                 "wrong": {"file_name": "parts"}})"}});
  fs::create_directory(folder.path() / "parts");
  folder.write("parts/1.csv", rows);
  folder.write("parts/2.csv", more);
  folder.write("lines.jsonl", R"({"prompt": "q1", "response": "a1"}
{"prompt": "q2", "response": "a, 2"}
{"prompt": "q3", "response": "a3"})");
  DataRequest request = table_request({"shards"});
  request.data.dataset_dir = folder.path().string();
  DataRequest lines = request;
  lines.data.dataset = {"lines.jsonl"};
  EXPECT_EQ(training_samples(request), training_samples(lines));
  request.data.dataset = {"wrong"};
  expect_contains(error_of<DataError>([&] { training_samples(request); }),
                  "parts/1.csv:2: column \"instruction\" is missing (the record has question and reply)");
  folder.write("parts/3.jsonl", "{}\n");
  expect_contains(error_of<DataError>([&] { training_samples(request); }), "are of different types");
}

// An empty prompt is a prompt; a record without an answer is left out with a warning.
TEST(TableData, EmptyFieldsAreMissing) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"d.csv", "instruction,input,output\n,,a1\nq2,,\nq3,i3,a3\n"},
                                                      {"d.jsonl", R"({"instruction": "", "input": "", "output": "a1"}
{"instruction": "q3", "input": "i3", "output": "a3"})"}});
  DataRequest request = table_request({"d.csv"});
  request.data.dataset_dir = folder.path().string();
  DataRequest lines = request;
  lines.data.dataset = {"d.jsonl"};
  EXPECT_EQ(training_samples(request), training_samples(lines));
  expect_contains(load_tokenized_data(request).report, "2 samples of 3 records");
}

// A column of another type is refused where it is used, with the row.
TEST(TableData, BadRowsAreNamed) {
  for (const std::string& name : of_this_build({"only_arrow.arrow"})) {
    DataRequest request = table_request({name});
    const TemporaryFolder folder(TemporaryFolder::Files{
        {"dataset_info.json",
         fmt::format(
             R"({{"bytes": {{"file_name": "{0}", "columns": {{"prompt": "bytes", "response": "view"}}}},
             "ids": {{"file_name": "{0}", "columns": {{"prompt": "view", "response": "day"}}}}}})",
             fs::absolute(table_file(name)).string())}});
    request.data.dataset_dir = folder.path().string();
    request.data.dataset = {"bytes"};
    expect_contains(error_of<DataError>([&] { training_samples(request); }),
                    "only_arrow.arrow:1: column \"bytes\" is {\"binary_bytes\":3} (an object); it must be a text");
    request.data.dataset = {"ids"};
    EXPECT_EQ(training_samples(request).size(), 1U);  // the second row has no answer
  }
}

#ifndef MEGALITH_ARROW
// Files of Arrow's are refused by name, with a way out; nothing else is.
TEST(TableData, ABuildWithoutArrowSaysSo) {
  const std::string error = error_of<ConfigError>([] { training_samples(table_request({"chats.parquet"})); });
  expect_contains(error, "chats.parquet: Parquet files are read with Arrow's libraries");
  expect_contains(error, "make setup");
  expect_contains(error, "Dataset.from_parquet(");
}
#endif

}  // namespace
}  // namespace megalith::data
