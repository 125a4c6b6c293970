#include "megalith/data/corpus/tokenize_corpus.h"

#include <gtest/gtest.h>

#include "tests/data/data_support.h"
#include "tests/support/tokenizers.h"

namespace megalith::data {
namespace {

using tokenizer::Tokenizer;

class TokenizeCorpus : public ::testing::Test {
 protected:
  TokenizeCorpusResult run(const std::string& text) {
    options_.inputs = {put_file(temp_ / "in.jsonl", text)};
    options_.output = temp_ / "out";
    StagedFiles files;
    TokenizeCorpusResult result = tokenize_corpus(Tokenizer::bytes(), options_, files);
    files.commit();
    return result;
  }
  std::string refused(const std::string& text) {
    const std::string message = message_of<DataError>([&] { run(text); });
    EXPECT_FALSE(std::filesystem::exists(temp_ / "out_text_document.idx"));
    EXPECT_FALSE(std::filesystem::exists(temp_ / "out_text_document.bin.tmp"));
    return message;
  }
  IndexedDataset output(const std::string& key = "text") {
    return IndexedDataset(temp_ / ("out_" + key + "_document"));
  }

  TempFolder temp_;
  TokenizeCorpusOptions options_;
};

TEST_F(TokenizeCorpus, DocumentsSequencesAndEod) {
  options_.append_eod = true;
  const auto result = run("{\"text\": \"ab\"}\n{\"text\": \"\"}\n{\"text\": [\"c\", \"\", \"de\"]}\n{\"text\": []}");
  EXPECT_EQ(result.total.documents, 4);
  EXPECT_EQ(result.total.tokens, 7);
  const IndexedDataset set = output();
  set.check();
  EXPECT_EQ(set.token_type(), TokenType::kUint16);
  ASSERT_EQ(set.sequence_count(), 3);
  EXPECT_EQ(read_sequence(set, 0), (std::vector<int64_t>{'a', 'b', 257}));
  EXPECT_EQ(read_sequence(set, 1), (std::vector<int64_t>{'c'}));
  EXPECT_EQ(read_sequence(set, 2), (std::vector<int64_t>{'d', 'e', 257}));
  const std::vector<int64_t> documents{0, 1, 1, 3, 3};
  for (size_t i = 0; i < documents.size(); ++i) EXPECT_EQ(set.index().documents[i], documents[i]);
}

TEST_F(TokenizeCorpus, TheResultDoesNotDependOnTheWorkers) {
  std::string text;
  for (int i = 0; i < 30'000; ++i)
    text += fmt::format("{{\"id\": {}, \"text\": \"{}\"}}\n", i, std::string(static_cast<size_t>(i % 100), 'x'));
  run(text);
  const std::string bin = file_bytes(temp_ / "out_text_document.bin"),
                    idx = file_bytes(temp_ / "out_text_document.idx");
  options_.workers = 5;
  EXPECT_EQ(run(text).total.documents, 30'000);
  EXPECT_TRUE(file_bytes(temp_ / "out_text_document.bin") == bin);
  EXPECT_TRUE(file_bytes(temp_ / "out_text_document.idx") == idx);
}

TEST_F(TokenizeCorpus, SeveralKeysAndInputs) {
  options_.json_keys = {"text", "title"};
  options_.output = temp_ / "out";
  options_.inputs = {put_file(temp_ / "1", "{\"text\": \"a\", \"title\": \"b\"}"),
                     put_file(temp_ / "2", "{\"title\": \"d\", \"text\": \"c\", \"more\": 1}\n")};
  StagedFiles files;
  tokenize_corpus(Tokenizer::bytes(), options_, files);
  files.commit();
  EXPECT_EQ(read_sequence(output(), 1), std::vector<int64_t>{'c'});
  EXPECT_EQ(read_sequence(output("title"), 1), std::vector<int64_t>{'d'});
}

TEST_F(TokenizeCorpus, BadLinesAreNamed) {
  const std::string good = "{\"text\": \"a\"}\n";
  const auto expect_refused = [&](const std::string& line, const std::string& part) {
    expect_contains(refused(good + good + line + "\n" + good), "in.jsonl line 3: " + part);
  };
  expect_refused("{\"text\": ", "not valid JSON");
  expect_refused("", "the line is empty");
  expect_refused("[1]", "[1] (a list) is given; every line must be a JSON object");
  expect_refused("{\"title\": \"a\"}", "there is no \"text\"");
  expect_refused("{\"text\": 5}", "\"text\" is 5 (an integer); it must be a string or a list of strings");
  expect_refused("{\"text\": [\"a\", null]}", "\"text\" is null");
  expect_refused("{\"text\": \"\xFF\"}", "byte 10 (0xff) is not valid UTF-8");
  expect_refused("{\"text\": \"\\ud800\"}", "not valid JSON");
}

TEST_F(TokenizeCorpus, TheFirstOfManyBadLinesIsNamed) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += i >= 150'000 ? "{\n" : "{\"text\": \"abc\"}\n";
  options_.workers = 4;
  expect_contains(refused(text), "line 150001: ");
}

TEST_F(TokenizeCorpus, BadLinesAreCountedOnRequest) {
  options_.skip_bad_lines = true;
  const auto result = run("{\n{\"text\": \"a\"}\n\n{\"text\": 1}\n{\"text\": \"b\"}\n");
  EXPECT_EQ(result.total.documents, 2);
  EXPECT_EQ(result.total.bad_lines, 3);
  ASSERT_EQ(result.bad_line_messages.size(), 3U);
  expect_contains(result.bad_line_messages[2], "in.jsonl line 4: ");
  EXPECT_EQ(output().document_count(), 2);
}

TEST_F(TokenizeCorpus, NoTokensAreRefused) {
  expect_contains(refused(""), "has no tokens: 0 documents and 0 bad lines were read from ");
  expect_contains(refused("{\"text\": \"\"}\n"), "has no tokens: 1 documents");
}

TEST_F(TokenizeCorpus, OptionsThatCannotBe) {
  const auto config_refused = [&] { return message_of<ConfigError>([&] { run("{\"text\": \"a\"}"); }); };
  options_.workers = 0;
  expect_contains(config_refused(), "workers is 0");
  options_.workers = 1;
  options_.json_keys = {"text", "text"};
  expect_contains(config_refused(), "json_keys has \"text\"");
  options_.json_keys = {"../text"};
  expect_contains(config_refused(), "json_keys has \"../text\"");
}

#if defined(MEGALITH_PCRE2) && defined(MEGALITH_UTF8PROC)
// Byte for byte what Megatron's preprocessing gives.
TEST(GoldenCorpus, corpus_jsonl) {
  const TempFolder temp;
  StagedFiles files;
  tokenize_corpus(Tokenizer::from_folder(testing::tokenizer_folder("gpt2")),
                  {.inputs = {kMegatronFolder + "/corpus.jsonl"},
                   .output = temp / "corpus",
                   .json_keys = {"text", "title"},
                   .append_eod = true,
                   .workers = 3},
                  files);
  files.commit();
  for (const char* name : {"corpus_text_document", "corpus_title_document"}) {
    const std::string theirs = kMegatronFolder + "/pairs/" + name;
    EXPECT_EQ(file_bytes(bin_path(temp / name)), file_bytes(bin_path(theirs))) << name;
    EXPECT_EQ(file_bytes(idx_path(temp / name)), file_bytes(idx_path(theirs))) << name;
  }
}
#endif

}  // namespace
}  // namespace megalith::data
