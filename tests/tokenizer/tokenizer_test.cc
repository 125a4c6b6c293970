// Whole tokenizers from their folders: names and ids, special tokens from the files beside, texts there and back, many
// threads, and words of a megabyte.
#include "megalith/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/tokenizer/text/utf8.h"
#include "tests/support/golden.h"
#include "tests/support/tokenizers.h"

namespace megalith::tokenizer {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

Tokenizer open(const std::string& name) { return Tokenizer::from_folder(testing::tokenizer_folder(name)); }

std::string random_text(std::mt19937& random, size_t characters) {
  std::string text;
  while (characters-- > 0) {
    char32_t code = 0;
    switch (random() % 4) {
      case 0:
        code = random() % 0x80;
        break;
      case 1:
        code = random() % 0x3000;
        break;
      case 2:
        code = random() % 0x110000;
        break;
      default:
        code = U' ';
        break;
    }
    if (code < 0xD800 || code > 0xDFFF) append_utf8(text, code);
  }
  return text;
}

TEST(Tokenizer, RandomTextSurvivesThereAndBack) {
  std::mt19937 random(5);
  for (const char* name : {"gpt2", "deepseek_v3"}) {  // without a normalizer nothing is lost
    const Tokenizer tokenizer = open(name);
    for (int i = 0; i < 300; ++i) {
      const std::string text = random_text(random, 1 + random() % 60);
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << name << ": " << json(text).dump();
    }
  }
}

TEST(Tokenizer, NamesAndIds) {
  const Tokenizer tokenizer = open("qwen3");
  EXPECT_EQ(tokenizer.vocab_size(), 151669);
  EXPECT_EQ(tokenizer.id_end(), 151669);
  EXPECT_EQ(tokenizer.id_of("<|im_start|>"), 151644);
  EXPECT_EQ(tokenizer.token_of(151644), "<|im_start|>");
  EXPECT_EQ(tokenizer.id_of("Ġthe"), tokenizer.encode(" the").at(0));
  EXPECT_EQ(tokenizer.id_of("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.token_of(-1), std::nullopt);
  EXPECT_EQ(tokenizer.token_of(151669), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(151645));
  EXPECT_FALSE(tokenizer.is_special(0));
  EXPECT_FALSE(tokenizer.is_special(-5));
}

TEST(Tokenizer, SpecialIdsComeFromTheFilesBeside) {
  EXPECT_EQ(open("qwen3").bos_id(), std::nullopt);
  EXPECT_EQ(open("qwen3").eos_id(), 151645);
  EXPECT_EQ(open("qwen3").pad_id(), 151643);
  EXPECT_EQ(open("gpt2").bos_id(), 50256);
  EXPECT_EQ(open("deepseek_v3").bos_id(), 0);
  EXPECT_EQ(open("deepseek_v3").eos_id(), 1);
  EXPECT_EQ(open("deepseek_v3").stop_ids(), (Ids{1}));
}

constexpr const char* kSmall =
    R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<s>": 2, "</s>": 3}, "merges": []}})";

TEST(Tokenizer, ConfigFilesAddTokens) {
  const testing::TemporaryFolder folder(
      {{"tokenizer.json", kSmall},
       {"tokenizer_config.json",
        R"({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": true}, "pad_token": "[PAD]",
          "added_tokens_decoder": {"9": {"content": "<x>", "special": true}}, "additional_special_tokens": ["<y>"]})"},
       {"special_tokens_map.json", R"({"unk_token": "a"})"},
       {"generation_config.json", R"({"eos_token_id": [1, 3], "bos_token_id": 7})"}});
  const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
  EXPECT_EQ(tokenizer.bos_id(), 2);  // the tokenizer's own file goes first
  EXPECT_EQ(tokenizer.eos_id(), 3);
  EXPECT_EQ(tokenizer.pad_id(), 10);  // was not in the vocabulary
  EXPECT_EQ(tokenizer.unk_id(), 0);
  EXPECT_EQ(tokenizer.stop_ids(), (Ids{1, 3}));
  EXPECT_EQ(tokenizer.id_of("<x>"), 9);
  EXPECT_EQ(tokenizer.id_of("<y>"), 11);
  EXPECT_EQ(tokenizer.vocab_size(), 7);
  EXPECT_EQ(tokenizer.id_end(), 12);
  EXPECT_EQ(tokenizer.encode("<s>b </s><x>"), (Ids{2, 1, 3, 9}));
  EXPECT_EQ(tokenizer.decode(Ids{2, 1, 9, 4, 5, 99, -1}, {.skip_special_tokens = true}), "b");
}

TEST(Tokenizer, GenerationConfigNamesWhatNobodyElseDoes) {
  const testing::TemporaryFolder folder(
      {{"tokenizer.json", kSmall}, {"generation_config.json", R"({"eos_token_id": [3, 1], "pad_token_id": 0})"}});
  const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
  EXPECT_EQ(tokenizer.eos_id(), 3);
  EXPECT_EQ(tokenizer.pad_id(), 0);
  EXPECT_EQ(tokenizer.stop_ids(), (Ids{1, 3}));
}

// The same tokenizer from the two files of the time before tokenizer.json.
void compare_with_old_files(const std::string& name) {
  const json document = json::parse(std::ifstream(testing::tokenizer_folder(name) / "tokenizer.json"));
  std::string merges = "#version: 0.2\n";
  for (const json& merge : document.at("model").at("merges"))
    merges += (merge.is_string() ? merge.get<std::string>()
                                 : merge[0].get<std::string>() + " " + merge[1].get<std::string>()) +
              "\n";
  json added;
  for (const json& token : document.at("added_tokens")) added[token.at("content").get<std::string>()] = token.at("id");
  const testing::TemporaryFolder folder({{"vocab.json", document.at("model").at("vocab").dump()},
                                         {"merges.txt", merges},
                                         {"added_tokens.json", added.dump()}});
  std::filesystem::copy_file(testing::tokenizer_folder(name) / "tokenizer_config.json",
                             folder.path() / "tokenizer_config.json");
  const Tokenizer expected = open(name), old = Tokenizer::from_folder(folder.path());
  EXPECT_EQ(old.vocab_size(), expected.vocab_size());
  const json strings = testing::golden_json("hf/tokenizer/strings.json").at("strings");
  for (const json& text : strings)
    EXPECT_EQ(old.encode(text.get<std::string>()), expected.encode(text.get<std::string>()))
        << name << ": " << text.dump();
}

TEST(Tokenizer, VocabAndMergesOfGpt2) { compare_with_old_files("gpt2"); }
TEST(Tokenizer, VocabAndMergesOfQwen2) { compare_with_old_files("qwen2_5"); }

TEST(Tokenizer, BytesNeedNoFiles) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  EXPECT_EQ(tokenizer.vocab_size(), 259);
  EXPECT_EQ(tokenizer.encode("aé"), (Ids{97, 0xC3, 0xA9}));
  EXPECT_EQ(tokenizer.encode("a<|eos|>", {.add_special_tokens = true}), (Ids{256, 97, 257}));
  EXPECT_EQ(tokenizer.encode("<|eos|>", {.special_tokens_in_text = false}).size(), 7u);
  // Plain from byte 7 to 15: the middle one of three.
  const Ids around = tokenizer.encode("<|eos|>a<|eos|><|eos|>", {.plain_begin = 7, .plain_end = 15});
  EXPECT_EQ(around.size(), 1u + 1u + 7u + 1u);
  EXPECT_EQ(around.front(), 257);
  EXPECT_EQ(around.back(), 257);
  EXPECT_EQ(tokenizer.decode(Ids{256, 97, 0xC3, 0xA9, 0xFF}), "<|bos|>aé\uFFFD");
  EXPECT_EQ(tokenizer.decode(Ids{256, 97}, {.skip_special_tokens = true}), "a");
  EXPECT_EQ(tokenizer.bos_id(), 256);
  EXPECT_EQ(tokenizer.eos_id(), 257);
  EXPECT_EQ(tokenizer.pad_id(), 258);
  EXPECT_EQ(tokenizer.id_of("<0x41>"), 0x41);
}

TEST(StreamDecoder, CharactersAreNotCut) {
  Tokenizer::StreamDecoder stream(Tokenizer::bytes());
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xE6), "");
  EXPECT_EQ(stream.push(0xBC), "");
  EXPECT_EQ(stream.push(0xA2), "漢");
  EXPECT_EQ(stream.push(0xE6), "");
  EXPECT_EQ(stream.push('b'), "\uFFFDb");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.push('c'), "c");  // a new sequence
  EXPECT_EQ(stream.finish(), "");
}

TEST(Tokenizer, ManyThreadsGetTheSameIds) {
  const Tokenizer tokenizer = open("qwen3");
  std::mt19937 random(9);
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) texts.push_back(random_text(random, random() % 200));
  const auto expected = tokenizer.encode_batch(texts);
  for (const int threads : {2, 5, 300}) EXPECT_EQ(tokenizer.encode_batch(texts, {}, threads), expected);
  EXPECT_EQ(tokenizer.encode_batch({}, {}, 4).size(), 0u);
  EXPECT_THROW(tokenizer.encode_batch(texts, {}, 0), ConfigError);
}

// A megabyte without a blank; time that grows with the square of it would take hours.
TEST(Tokenizer, AWordOfAMegabyteTakesSeconds) {
  const Tokenizer tokenizer = open("deepseek_v3");
  std::mt19937 random(2);
  for (const std::string& alphabet : {std::string("a"), std::string("abcdefgh"), std::string(" "), std::string("\n "),
                                      std::string("0123456789"), std::string("!?"), std::string("<")}) {
    std::string text;
    while (text.size() < size_t{1} << 20) text += alphabet[random() % alphabet.size()];
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60)) << alphabet;
  }
}

}  // namespace
}  // namespace megalith::tokenizer
