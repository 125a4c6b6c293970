#include "megalith/data/gpt/pretrain_datasets.h"

#include <gtest/gtest.h>

#include "tests/data/data_support.h"

namespace megalith::data {
namespace {

class PretrainData : public ::testing::Test {
 protected:
  PretrainData() {
    write_pair(set_, TokenType::kUint16, counting_documents({9, 9, 9, 9, 9, 9, 9, 9, 9, 9}));
    request_ = {.data = {.sources = {.all = Blend{{set_}}, .split = "8,2,0"}},
                .seq_length = 4,
                .samples = {5, 2, 0},
                .tokens = {.vocab_size = 10, .eod_id = 0}};
  }
  template <typename E>
  std::string refused() {
    return message_of<E>([&] { make_pretrain_datasets(request_); });
  }

  TempFolder temp_;
  std::string set_ = temp_ / "set";
  PretrainDataRequest request_;
};

TEST_F(PretrainData, IndicesLieBesideTheData) {
  const PretrainDatasets datasets = make_pretrain_datasets(request_);
  EXPECT_EQ(datasets.train->size(), 17);  // (72 - 1) / 4
  EXPECT_EQ(datasets.valid->size(), 4);
  EXPECT_EQ(datasets.test, nullptr);
  EXPECT_TRUE(std::filesystem::exists(set_ + "/cache/GPTDataset_indices"));
  EXPECT_EQ(make_pretrain_datasets(request_).train->sample(3), datasets.train->sample(3));
}

TEST_F(PretrainData, ANewSeedIsANewOrder) {
  const auto first = make_pretrain_datasets(request_).train;
  request_.seed = 1;
  const auto second = make_pretrain_datasets(request_).train;
  bool same = true;
  for (int64_t i = 0; i < first->size(); ++i) same = same && first->sample(i) == second->sample(i);
  EXPECT_FALSE(same);
}

TEST_F(PretrainData, TheDefaultSplit) {
  request_.data.sources.split = DataSources().split;
  request_.samples = {5, 0, 0};
  const PretrainDatasets datasets = make_pretrain_datasets(request_);
  EXPECT_EQ(datasets.train->size(), 22);  // all ten sequences
  EXPECT_EQ(datasets.valid, nullptr);     // none of ten, and none is asked for
}

TEST_F(PretrainData, ASplitWithoutSequencesIsRefusedWhenSamplesAreAskedFor) {
  request_.data.sources.split = "969, 30, 1";
  expect_contains(refused<DataError>(), "set has 10 sequences, of which none falls to valid (split \"969, 30, 1\")");
}

TEST_F(PretrainData, AnotherVocabularyIsNoticed) {
  request_.tokens.vocab_size = 5;
  const std::string text = refused<DataError>();
  expect_contains(text, "set.bin: byte ");
  expect_contains(text, "ids go from 0 to 4: the file was made with another tokenizer");
}

TEST_F(PretrainData, AnEmptySetIsRefused) {
  write_pair(set_, TokenType::kUint16, {});
  expect_contains(refused<DataError>(), "set has 0 sequences");
  write_pair(set_, TokenType::kUint16, {{}, {{}}, {{}}});
  request_.data.sources.split = "1";
  expect_contains(refused<DataError>(), "hold no token");
}

TEST_F(PretrainData, SettingsThatCannotBe) {
  request_.seed = -1;
  expect_contains(refused<ConfigError>(), "seed is -1");
  request_.seed = int64_t{1} << 32;
  expect_contains(refused<ConfigError>(), "seed is 4294967296");
  request_.seed = 0;
  request_.seq_length = 0;
  expect_contains(refused<ConfigError>(), "seq_length is 0");
  request_.seq_length = 4;
  request_.samples[1] = -3;
  expect_contains(refused<ConfigError>(), "-3 valid samples are requested");
  request_.samples[1] = 2;
  request_.data.sources.mock = true;
  expect_contains(refused<ConfigError>(), "2 sources of pre-training data are given");
  request_.data.sources = {.by_split = {Blend{{set_, set_}, std::vector<double>{1, 2}}}};
  request_.samples[0].reset();
  expect_contains(refused<ConfigError>(), "the number of train samples is not given");
}

TEST_F(PretrainData, AMemberTooSmallForASampleIsNamed) {
  write_pair(temp_ / "tiny", TokenType::kUint16, {{{1, 2}}});
  request_.data.sources = {.by_split = {Blend{{set_, set_, temp_ / "tiny"}}}};
  request_.samples[0].reset();
  expect_contains(refused<DataError>(), "tiny has fewer tokens for train than one sample of 5 takes");
}

TEST_F(PretrainData, MissingFilesAreNamed) {
  request_.data.sources.all = Blend{{temp_ / "gone"}};
  expect_contains(refused<DataError>(), "gone.idx");
}

TEST(PretrainTokens, OfATokenizer) {
  const PretrainTokens tokens = pretrain_tokens(tokenizer::Tokenizer::bytes(), "bytes");
  EXPECT_EQ(tokens.vocab_size, 259);
  EXPECT_EQ(tokens.eod_id, 257);
  EXPECT_EQ(tokens.pad_id, 258);
  EXPECT_NE(tokens.identity, pretrain_tokens(tokenizer::Tokenizer::bytes(), "other").identity);
}

}  // namespace
}  // namespace megalith::data
