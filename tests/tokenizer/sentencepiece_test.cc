// tokenizer.model files against the SentencePiece package (tests/data/tokenizer/sentencepiece.json, written by
// make_sentencepiece.py there).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/tokenizer/tokenizer.h"
#include "tests/support/expect.h"
#include "tests/support/tokenizers.h"

namespace megalith::tokenizer {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

json golden_pieces() {
  std::ifstream file("tests/data/tokenizer/sentencepiece.json");
  return json::parse(file);
}

// A model folder that has nothing but tokenizer.model and, when it is not empty, tokenizer_config.json.
class ModelFolder {
 public:
  explicit ModelFolder(const std::string& name, const std::string& config = "") {
    std::filesystem::copy_file("tests/data/tokenizer/" + name + ".model", folder_.path() / "tokenizer.model");
    if (!config.empty()) folder_.write("tokenizer_config.json", config);
  }
  Tokenizer open() const { return Tokenizer::from_folder(folder_.path()); }

 private:
  testing::TemporaryFolder folder_;
};

#ifdef MEGALITH_SENTENCEPIECE

TEST(SentencePiece, IdsAndTextsAreThoseOfThePackage) {
  const json data = golden_pieces();
  const auto strings = data.at("strings").get<std::vector<std::string>>();
  for (const auto& [name, expected] : data.at("models").items()) {
    const Tokenizer tokenizer = ModelFolder(name).open();
    EXPECT_EQ(tokenizer.vocab_size(), expected.at("size").get<int>());
    for (size_t i = 0; i < strings.size(); ++i) {
      SCOPED_TRACE(name + ": " + json(strings[i]).dump());
      const Ids ids = expected.at("ids")[i].get<Ids>();
      // The package does not look for control tokens in the text.
      EXPECT_EQ(tokenizer.encode(strings[i], {.special_tokens_in_text = false}), ids);
      if (std::ranges::count(ids, *tokenizer.unk_id()) > 0) continue;  // it decodes them to a sign of its own
      EXPECT_EQ(tokenizer.decode(ids), expected.at("decoded")[i].get<std::string>());
    }
  }
}

TEST(SentencePiece, ControlTokensAreFoundInTextAndShown) {
  const Tokenizer tokenizer = ModelFolder("bpe").open();
  const Ids hello = tokenizer.encode("Hello");
  Ids expected{*tokenizer.bos_id()};
  expected.insert(expected.end(), hello.begin(), hello.end());
  expected.push_back(*tokenizer.eos_id());
  EXPECT_EQ(tokenizer.encode("<s>Hello</s>"), expected);
  EXPECT_EQ(tokenizer.decode(expected), "<s> Hello</s>");
  EXPECT_EQ(tokenizer.decode(expected, {.skip_special_tokens = true}), "Hello");
  EXPECT_EQ(tokenizer.token_of(*tokenizer.bos_id()), "<s>");
  EXPECT_EQ(tokenizer.id_of("no such piece"), std::nullopt);
}

TEST(SentencePiece, TheConfigSaysWhatIsPutAround) {
  EXPECT_EQ(ModelFolder("bpe").open().encode("", {.add_special_tokens = true}), (Ids{1}));
  EXPECT_EQ(ModelFolder("bpe", R"({"add_bos_token": false, "add_eos_token": true})").open().encode("", {true}),
            (Ids{2}));
  EXPECT_EQ(ModelFolder("unigram", R"({"tokenizer_class": "T5Tokenizer"})").open().encode("", {true}), (Ids{2}));
  EXPECT_EQ(ModelFolder("unigram").open().pad_id(), 3);
}

TEST(SentencePiece, StreamsGiveWhatDecodeGives) {
  const Tokenizer tokenizer = ModelFolder("bpe").open();
  for (const char* text : {"Hello world, 漢字 😀!", "a  b", "<s> x</s> y", "é漢"}) {
    const Ids ids = tokenizer.encode(text);
    Tokenizer::StreamDecoder stream(tokenizer);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.push(id);
    EXPECT_EQ(streamed + stream.finish(), tokenizer.decode(ids)) << text;
  }
}

TEST(SentencePiece, ABrokenModelIsNamed) {
  const testing::TemporaryFolder folder(testing::TemporaryFolder::Files{{"tokenizer.model", "this is not a model"}});
  try {
    Tokenizer::from_folder(folder.path());
    FAIL() << "accepted";
  } catch (const DataError& error) {
    testing::expect_contains(error.what(), "tokenizer.model is not a SentencePiece model");
  }
}

#else

TEST(SentencePiece, ABuildWithoutItSaysSo) {
  try {
    ModelFolder("bpe").open();
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    testing::expect_contains(error.what(), "this build has no SentencePiece");
  }
}

#endif

}  // namespace
}  // namespace megalith::tokenizer
