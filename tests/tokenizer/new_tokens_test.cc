// Tokens that are added to a tokenizer against transformers' add_tokens and save_pretrained for the same tokens
// (tests/data/tokenizer/new_tokens.json, written by make_new_tokens.py there).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/tokenizer/new_tokens.h"
#include "tests/support/tokenizers.h"

namespace megalith::tokenizer {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;
using testing::TemporaryFolder;

const json& cases() {
  static const json document = [] {
    std::ifstream file("tests/data/tokenizer/new_tokens.json");  // tests run in the root of the tree
    check(file.good(), "tests/data/tokenizer/new_tokens.json cannot be read");
    return json::parse(file);
  }();
  return document;
}

std::vector<NewToken> tokens_of(const json& c) {
  std::vector<NewToken> tokens;
  for (const json& token : c.at("tokens")) tokens.push_back({token.get<std::string>(), false});
  for (const json& token : c.at("special")) tokens.push_back({token.get<std::string>(), true});
  return tokens;
}

// The files of a folder with some of them replaced, as an export writes them.
TemporaryFolder::Files exported(TemporaryFolder::Files files, const GrownTokenizer& grown) {
  for (const auto& file : grown.files) files.emplace_back(file);
  return files;
}

void expect_as_in_transformers(const Tokenizer& tokenizer, const json& c) {
  EXPECT_EQ(tokenizer.vocab_size(), c.at("size").get<int>());
  for (size_t i = 0; i < c.at("texts").size(); ++i) {
    const auto text = c.at("texts")[i].get<std::string>();
    const Ids ids = tokenizer.encode(text);
    EXPECT_EQ(ids, c.at("ids")[i].get<Ids>()) << text;
    EXPECT_EQ(tokenizer.decode(ids), c.at("decoded")[i].get<std::string>()) << text;
    EXPECT_EQ(tokenizer.decode(ids, {.skip_special_tokens = true}), c.at("without_special")[i].get<std::string>())
        << text;
  }
}

TEST(NewTokens, AreThoseOfTransformers) {
  for (const auto& [name, c] : cases().items()) {
    SCOPED_TRACE(name);
    const TemporaryFolder::Files files{{"tokenizer.json", c.at("tokenizer").dump(2)}};
    const TemporaryFolder folder(files);
    const GrownTokenizer grown = add_tokens(folder.path(), tokens_of(c));
    expect_as_in_transformers(grown.tokenizer, c);
    const TemporaryFolder copy(exported(files, grown));
    expect_as_in_transformers(Tokenizer::from_folder(copy.path()), c);
    // The file differs in the list of added tokens alone.
    json document = json::parse(grown.files.at("tokenizer.json")), before = c.at("tokenizer");
    auto added = document.at("added_tokens").get<std::vector<json>>();
    std::ranges::sort(added, {}, [](const json& token) { return token.at("id").get<int>(); });
    EXPECT_EQ(json(added), c.at("added_tokens"));
    document.erase("added_tokens");
    before.erase("added_tokens");
    EXPECT_EQ(document, before);
  }
}

TEST(NewTokens, GetTheNextIds) {
  const json& c = cases().at("lower_case");  // 17 ids
  const TemporaryFolder folder({{"tokenizer.json", c.at("tokenizer").dump()}});
  const GrownTokenizer grown = add_tokens(folder.path(), {{"<b>", true}, {"star"}, {"<a>"}, {"<old>", true}});
  EXPECT_EQ(grown.new_ids, (Ids{17, 18}));
  EXPECT_EQ(grown.known, (std::vector<std::string>{"star", "<old>"}));
  EXPECT_TRUE(grown.tokenizer.is_special(17));
  EXPECT_FALSE(grown.tokenizer.is_special(18));
  EXPECT_FALSE(grown.tokenizer.is_special(*grown.tokenizer.id_of("<old>"))) << "keeps its flags";
  // Added again, nothing is new.
  const TemporaryFolder copy(exported({}, grown));
  const GrownTokenizer again = add_tokens(copy.path(), {{"<b>", true}, {"<a>"}});
  EXPECT_TRUE(again.new_ids.empty());
  EXPECT_TRUE(again.files.empty());
  EXPECT_EQ(again.tokenizer.id_end(), 19);
}

// The rest of the text stays as it is, whatever it looks like.
TEST(NewTokens, LeaveTheRestOfTheFileAlone) {
  const std::string model =
      R"("model": {"type": "WordLevel", "vocab": {"added_tokens": 0, "[]}\"": 1, "\\": 2}, "unk_token": "\\"})";
  const TemporaryFolder::Files without{{"tokenizer.json", "{" + model + "}"}};
  const TemporaryFolder::Files null{{"tokenizer.json", "{\"added_tokens\": null, " + model + "}"}};
  const TemporaryFolder::Files empty{{"tokenizer.json", "{\"added_tokens\": [ ],\n" + model + "}"}};
  for (const auto& files : {without, null, empty}) {
    const TemporaryFolder folder(files);
    const GrownTokenizer grown = add_tokens(folder.path(), {{"new \"one\""}, {"two", true}});
    EXPECT_EQ(grown.new_ids, (Ids{3, 4}));
    EXPECT_NE(grown.files.at("tokenizer.json").find(model), std::string::npos);
    const TemporaryFolder copy(exported(files, grown));
    EXPECT_EQ(Tokenizer::from_folder(copy.path()).id_of("new \"one\""), 3);
    EXPECT_TRUE(Tokenizer::from_folder(copy.path()).is_special(4));
  }
}

// Tokenizers without a tokenizer.json have their added tokens in tokenizer_config.json.
TEST(NewTokens, OfOlderFormats) {
  const TemporaryFolder::Files files{{"vocab.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})"},
                                     {"merges.txt", "#version: 0.2\na b\n"},
                                     {"tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})"}};
  const TemporaryFolder folder(files);
  const GrownTokenizer grown = add_tokens(folder.path(), {{"ba"}, {"<c>", true}});
  EXPECT_EQ(grown.tokenizer.encode("abba<c>"), (Ids{2, 4, 5}));
  EXPECT_EQ(grown.files.size(), 1U);
  const TemporaryFolder copy(exported(files, grown));
  const Tokenizer opened = Tokenizer::from_folder(copy.path());
  EXPECT_EQ(opened.encode("abba<c>"), (Ids{2, 4, 5}));
  EXPECT_EQ(opened.eos_id(), 3);
  EXPECT_TRUE(opened.is_special(5));
}

// Older versions of transformers prefer this list, where a file has it.
TEST(NewTokens, AlsoStandInTheDecoderList) {
  const json& c = cases().at("lower_case");
  const std::string config =
      R"({"model_max_length": 1000000000000000019884624838656, "added_tokens_decoder": {"16": {"content": "<old>"}}})";
  const TemporaryFolder folder({{"tokenizer.json", c.at("tokenizer").dump()}, {"tokenizer_config.json", config}});
  const GrownTokenizer grown = add_tokens(folder.path(), {{"<b>", true}});
  const json written = json::parse(grown.files.at("tokenizer_config.json"));
  EXPECT_EQ(written.at("added_tokens_decoder").size(), 2U);
  EXPECT_EQ(written.at("added_tokens_decoder").at("17").at("content"), "<b>");
  EXPECT_NE(grown.files.at("tokenizer_config.json").find("1000000000000000019884624838656"), std::string::npos);
}

}  // namespace
}  // namespace megalith::tokenizer
