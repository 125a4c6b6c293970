// Training against Hugging Face's trainer (tests/data/tokenizer/make_bpe.py), and what is written.
#include "megalith/tokenizer/training/bpe_trainer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/tokenizer/chat/chat_template.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/tokenizers.h"

namespace megalith::tokenizer {
namespace {

using nlohmann::json;
using testing::expect_error;
using testing::TemporaryFolder;

json expected_training() {
  std::ifstream file("tests/data/tokenizer/trained_bpe.json");  // tests run in the root of the tree
  check(file.good(), "tests/data/tokenizer/trained_bpe.json cannot be read");
  return json::parse(file);
}

// The corpus of make_bpe.py; the tree's own golden files, for the expectation was made from them.
std::vector<std::string> corpus() {
  const auto read = [](const char* name) {
    return json::parse(std::ifstream(std::string("tests/data/golden/hf/") + name));
  };
  auto texts = read("tokenizer/strings.json").at("strings").get<std::vector<std::string>>();
  for (const json& chat : read("chat/messages.json"))
    for (const json& message : chat.at("messages"))
      if (message.at("content").is_string() && !message.at("content").get<std::string>().empty())
        texts.push_back(message.at("content"));
  return texts;
}

void write_files(const TrainedBpe& model, const TemporaryFolder& folder) {
  for (const auto& [name, content] : tokenizer_files(model)) folder.write(name, content);
}

TEST(BpeTrainer, MergesAreThoseOfHuggingFacesTrainer) {
  const auto texts = corpus();
  for (const json& c : expected_training().at("cases")) {
    SCOPED_TRACE(c.at("style").get<std::string>() + " " + c.at("vocab_size").dump());
    const auto kind = c.at("style") == "gpt2" ? PreTokenization::kGpt2 : PreTokenization::kQwen2;
    WordCounter words(kind, 2);
    words.add(texts);
    const TrainedBpe model =
        train_bpe(words, {.vocab_size = c.at("vocab_size"), .min_frequency = c.at("min_frequency")});
    EXPECT_EQ(model.tokens, c.at("tokens").get<std::vector<std::string>>());
    ASSERT_EQ(model.merges.size(), c.at("merges").size());
    for (size_t i = 0; i < model.merges.size(); ++i) {
      EXPECT_EQ(model.tokens[static_cast<size_t>(model.merges[i].first)], c.at("merges")[i][0]) << i;
      EXPECT_EQ(model.tokens[static_cast<size_t>(model.merges[i].second)], c.at("merges")[i][1]) << i;
    }
    const TemporaryFolder folder;
    write_files(model, folder);
    const auto tokenizer = Tokenizer::from_folder(folder.path());
    for (size_t i = 0; i < c.at("ids").size(); ++i)
      EXPECT_EQ(tokenizer.encode(texts[i]), c.at("ids")[i].get<std::vector<int32_t>>()) << texts[i];
  }
}

TEST(BpeTrainer, ThreadsAndOrderDoNotMatter) {
  auto texts = corpus();
  WordCounter one(PreTokenization::kQwen2, 1), many(PreTokenization::kQwen2, 5);
  one.add(texts);
  std::ranges::reverse(texts);
  many.add(std::span(texts).first(10));
  many.add(std::span(texts).subspan(10));
  EXPECT_EQ(one.words(), many.words());
  EXPECT_EQ(one.bytes(), many.bytes());
  EXPECT_EQ(tokenizer_files(train_bpe(one, {.vocab_size = 600})),
            tokenizer_files(train_bpe(many, {.vocab_size = 600})));
}

TEST(BpeTrainer, TheFolderIsComplete) {
  WordCounter words(PreTokenization::kQwen2, 1);
  words.add(corpus());
  const TemporaryFolder folder;
  write_files(train_bpe(words, {.vocab_size = 400}), folder);
  const auto tokenizer = Tokenizer::from_folder(folder.path());
  EXPECT_EQ(tokenizer.vocab_size(), 400);
  EXPECT_EQ(tokenizer.eos_id(), 0);
  EXPECT_EQ(tokenizer.pad_id(), 0);
  EXPECT_EQ(tokenizer.bos_id(), std::nullopt);
  EXPECT_EQ(tokenizer.stop_ids(), (std::vector<int32_t>{0, 2}));
  for (const std::string& text : corpus()) EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)).empty(), text.empty());

  const auto chat = ChatTemplate::from_folder(folder.path());
  const Conversation hi{Json::parse(R"([{"role":"user","content":"Hi"},{"role":"assistant","content":"Yo"}])"), Json(),
                        Json()};
  const ChatEncoding encoded = chat.apply(hi, tokenizer);
  EXPECT_EQ(encoded.text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n");
  std::vector<int32_t> trained;
  for (size_t i = 0; i < encoded.ids.size(); ++i)
    if (encoded.assistant_mask[i] != 0) trained.push_back(encoded.ids[i]);
  EXPECT_EQ(tokenizer.decode(trained), "Yo<|im_end|>");
  EXPECT_EQ(chat.render(hi, {.add_generation_prompt = true}), encoded.text + "<|im_start|>assistant\n");
}

TEST(BpeTrainer, OtherSpecialTokensHaveNoChatTemplate) {
  WordCounter words(PreTokenization::kGpt2, 1);
  words.add(std::vector<std::string>{"a b a b"});
  const TemporaryFolder folder;
  write_files(train_bpe(words, {.vocab_size = 300, .special_tokens = {"<s>", "</s>"}}), folder);
  EXPECT_FALSE(ChatTemplate::is_in(folder.path()));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "generation_config.json"));
  EXPECT_EQ(Tokenizer::from_folder(folder.path()).id_of("</s>"), 1);
}

TEST(BpeTrainer, FilesAreReadLineByLine) {
  const TemporaryFolder folder({{"a.txt", "one two\n\ntwo"},
                                {"b.jsonl", "{\"text\":\"one\\ntwo\"}\n\n{\"text\":\"\"}\n"},
                                {"c.jsonl", "{\"body\":\"x\"}\n"}});
  WordCounter words(PreTokenization::kGpt2, 2);
  words.add_file(folder.path() / "a.txt");
  EXPECT_EQ(words.words(),
            (std::vector<std::pair<std::string, uint64_t>>{{"\n", 2}, {" two", 1}, {"one", 1}, {"two", 1}}));
  words.add_file(folder.path() / "b.jsonl");
  EXPECT_EQ(words.words(),
            (std::vector<std::pair<std::string, uint64_t>>{{"\n", 3}, {" two", 1}, {"one", 2}, {"two", 2}}));
  EXPECT_EQ(words.bytes(), 12U + 7U);
  words.add_file(folder.path() / "c.jsonl", "body");
  EXPECT_EQ(words.words().back().first, "x");
}

TEST(BpeTrainer, BadInputIsNamed) {
  const TemporaryFolder folder({{"bad.txt", "fine\n\xFF\n"},
                                {"bad.jsonl", "{\"text\":\"a\"}\n{\"text\":5}\n"},
                                {"no.jsonl", "[]"},
                                {"half.jsonl", "{\"te"}});
  WordCounter words(PreTokenization::kGpt2, 1);
  expect_error<DataError>([&] { words.add_file(folder.path() / "bad.txt"); }, {"bad.txt:2:", "not valid UTF-8"});
  expect_error<DataError>([&] { words.add_file(folder.path() / "bad.jsonl"); }, {"bad.jsonl:2:", "\"text\"", "number"});
  expect_error<DataError>([&] { words.add_file(folder.path() / "no.jsonl"); }, {"no.jsonl:1:", "array"});
  expect_error<DataError>([&] { words.add_file(folder.path() / "half.jsonl"); }, {"half.jsonl:1:"});
  expect_error<DataError>([&] { words.add_file(folder.path() / "none.txt"); }, {"none.txt", "cannot be opened"});
  expect_error<ConfigError>([&] { train_bpe(words, {.vocab_size = 100}); }, {"vocab_size is 100", "259"});
  expect_error<ConfigError>([&] { train_bpe(words, {.special_tokens = {"<s>", "<s>"}}); }, {"<s>", "twice"});
  expect_error<ConfigError>([&] { train_bpe(words, {.special_tokens = {}}); }, {"at least one"});
  expect_error<ConfigError>([&] { train_bpe(words, {.special_tokens = {"a"}}); }, {"stands for a byte"});
  expect_error<ConfigError>([&] { WordCounter none(PreTokenization::kGpt2, 0); }, {"0 threads"});
}

}  // namespace
}  // namespace megalith::tokenizer
