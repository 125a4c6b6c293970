// Files that are broken, of the wrong type, or of a kind that is not supported: each is named, with the field.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/tokenizer/tokenizer.h"
#include "tests/support/expect.h"
#include "tests/support/tokenizers.h"

namespace megalith::tokenizer {
namespace {

using nlohmann::json;

json small() {
  return json::parse(R"({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
    "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
}

template <typename Open>
void expect_error(const Open& open, const std::string& part) {
  try {
    open();
    ADD_FAILURE() << "accepted; expected: " << part;
  } catch (const DataError& error) {
    testing::expect_contains(error.what(), part);
  }
}

void expect_file_refused(const json& document, const std::string& part) {
  expect_error([&] { Tokenizer::from_json(document.dump(), "some.json"); }, part);
}

// `small` with one value replaced.
json with(const char* pointer, const json& value) {
  json document = small();
  document[json::json_pointer(pointer)] = value;
  return document;
}

TEST(BadTokenizerJson, TheSmallOneIsGood) {
  const Tokenizer tokenizer = Tokenizer::from_json(small().dump());
  EXPECT_EQ(tokenizer.encode("abb"), (std::vector<int32_t>{2, 1}));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{2, 1}), "ab b");
}

TEST(BadTokenizerJson, NotJson) {
  for (const char* text : {"", "{", "nonsense", "{\"model\": }", "\xFF", "{\"a\": \"\xC3\"}"})
    expect_error([&] { Tokenizer::from_json(text, "some.json"); },
                 "some.json is not valid JSON: parse error at line 1");
  expect_file_refused(json::array(), "some.json");
  expect_file_refused(json(3), "some.json");
  expect_file_refused(json::object(), "some.json has no \"model\"");
  expect_file_refused(with("/version", "2.0"), "some.json: version is \"2.0\"");
}

TEST(BadTokenizerJson, WrongTypesAreNamedWithTheirField) {
  expect_file_refused(with("/model", 5), "some.json: model is number 5; an object is expected");
  expect_file_refused(with("/model/vocab", 5), "some.json: model.vocab");
  expect_file_refused(with("/model/merges", "a b"), "some.json: model.merges");
  expect_file_refused(with("/model/byte_fallback", "yes"),
                      "model.byte_fallback is string \"yes\"; true or false is expected");
  expect_file_refused(with("/model/unk_token", 1), "model.unk_token is number 1; a string is expected");
  expect_file_refused(with("/model/dropout", 0.1), "model.dropout is not 0");
  expect_file_refused(with("/added_tokens", 1), "added_tokens is number 1; an array is expected");
  expect_file_refused(with("/added_tokens", {{{"content", "x"}}}), "added_tokens[0] has no \"id\"");
  expect_file_refused(with("/added_tokens", {{{"content", "x"}, {"id", -1}}}), "added_tokens[0].id");
  expect_file_refused(with("/added_tokens", {{{"content", ""}, {"id", 3}}}),
                      "added_tokens[0]: an added token is empty");
  expect_file_refused(with("/pre_tokenizer", "Whitespace"),
                      "pre_tokenizer is string \"Whitespace\"; an object is expected");
}

TEST(BadTokenizerJson, UnknownTypesAreNamedWithTheKnownOnes) {
  expect_file_refused(with("/model/type", "Magic"),
                      "model.type is \"Magic\", a model that is not supported; supported: BPE");
  expect_file_refused(with("/normalizer", {{"type", "Magic"}}),
                      "normalizer.type is \"Magic\", a normalizer that is not supported");
  expect_file_refused(
      with("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Magic"}}}}}),
      "pre_tokenizer.pretokenizers[0].type is \"Magic\", a pre-tokenizer that is not supported; supported: ByteLevel");
  expect_file_refused(with("/post_processor", {{"type", "Magic"}}), "a post-processor that is not supported");
  expect_file_refused(with("/decoder", {{"type", "Magic"}}), "a decoder that is not supported");
  expect_file_refused(with("/pre_tokenizer", json::object()), "pre_tokenizer has no \"type\"");
  expect_file_refused(
      with("/pre_tokenizer", {{"type", "Split"}, {"behavior", "Sideways"}, {"pattern", {{"String", "a"}}}}),
      "pre_tokenizer.behavior is \"Sideways\"; allowed: Removed, Isolated, MergedWithPrevious");
  expect_file_refused(
      with("/pre_tokenizer", {{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Glob", "a"}}}}),
      "pre_tokenizer.pattern has neither \"String\" nor \"Regex\"");
  expect_file_refused(
      with("/pre_tokenizer", {{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "("}}}}),
      "some.json: pre_tokenizer.pattern.Regex");
  expect_file_refused(with("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}),
                      "a string of one character");
  expect_file_refused(with("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "*"}}), "is not base64");
  expect_file_refused(with("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "//////8="}}),
                      "is cut off");
}

TEST(BadTokenizerJson, SequencesInSequencesEnd) {
  json deep = {{"type", "Whitespace"}};
  for (int i = 0; i < 100; ++i) deep = {{"type", "Sequence"}, {"pretokenizers", {deep}}};
  expect_file_refused(with("/pre_tokenizer", deep), "levels deep");
}

TEST(BadTokenizerJson, IdsAndMerges) {
  expect_file_refused(with("/model/vocab", {{"a", 0}, {"b", 0}, {"ab", 2}}), "model.vocab gives id 0 to both");
  expect_file_refused(with("/model/vocab", {{"a", 0}, {"b", -1}}), "model.vocab has -1 for \"b\"");
  expect_file_refused(with("/model/vocab", {{"a", 0}, {"b", 1.5}}), "model.vocab has 1.5 for \"b\"");
  expect_file_refused(with("/model/vocab", {{"a", 0}, {"b", int64_t{1} << 40}}),
                      "model.vocab has id 1099511627776 for \"b\"");
  expect_file_refused(with("/model/vocab", {{"a", 0}, {"b", {1}}}), "model.vocab has an array for \"b\"");
  expect_file_refused(with("/model/merges", {"a b", "a x"}), "merge 1 (\"a\" and \"x\") names \"x\"");
  expect_file_refused(with("/model/merges", {"a b c"}), "model.merges[0] is \"a b c\"");
  expect_file_refused(with("/model/merges", json::parse(R"([["a"]])")), "model.merges[0] has 1 tokens");
  expect_file_refused(with("/model/merges", json::parse(R"([["a", 1]])")), "model.merges[0] has 1");
  expect_error(
      [] {
        Tokenizer::from_json(R"({"model": {"type": "BPE", "merges": [], "vocab": {"a": 0, "a": 1}}})", "some.json");
      },
      "model.vocab has \"a\" twice, with the ids 0 and 1");
  expect_file_refused(with("/added_tokens", {{{"content", "x"}, {"id", 1}}}),
                      "\"x\" has id 1, which is the id of \"b\"");
  expect_file_refused(with("/added_tokens", {{{"content", "x"}, {"id", 3}}, {{"content", "y"}, {"id", 3}}}),
                      "the added tokens \"x\" and \"y\" both have id 3");
  json same = with("/added_tokens", {{{"content", "X"}, {"id", 3}, {"normalized", true}},
                                     {{"content", "x"}, {"id", 4}, {"normalized", true}}});
  same["normalizer"] = {{"type", "Lowercase"}};
  expect_file_refused(same, "the added tokens 3 and 4 are both \"x\"");
}

TEST(BadTokenizerJson, Unigram) {
  const json one = json::parse(R"([["a", -1.0]])");
  const auto unigram = [](const json& vocab, const json& unk) {
    return with("/model", {{"type", "Unigram"}, {"vocab", vocab}, {"unk_id", unk}});
  };
  expect_file_refused(unigram(json::parse(R"([["a", -1.0], ["a", -2.0]])"), nullptr),
                      "model.vocab[1] is \"a\", which is already token 0");
  expect_file_refused(unigram(one, 1), "model.unk_id is number 1");
  expect_file_refused(unigram(json::parse(R"([["a"]])"), nullptr), "model.vocab[0] has 1 elements");
  expect_file_refused(unigram(json::parse(R"([["a", "b"]])"), nullptr),
                      "model.vocab[0][1] is string \"b\"; a number is expected");
  const Tokenizer tokenizer = Tokenizer::from_json(unigram(one, nullptr).dump(), "some.json");
  expect_error([&] { tokenizer.encode("ab"); }, "some.json: model: the text has \"b\"");
}

TEST(BadTokenizerJson, PostProcessors) {
  const auto with_template = [](const json& single, const json& tokens) {
    return with(
        "/post_processor",
        {{"type", "TemplateProcessing"}, {"single", single}, {"pair", json::array()}, {"special_tokens", tokens}});
  };
  const json a = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, s = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  expect_file_refused(with_template({s, a}, json::object()), "is \"<s>\", which special_tokens does not have");
  expect_file_refused(with_template(json::array({s}), {{"<s>", {{"ids", {0}}}}}), "post_processor.single has no");
  expect_file_refused(with_template({a, a}, json::object()), "is a second sequence");
  expect_file_refused(with_template({s, a}, {{"<s>", {{"ids", {9}}}}}), "adds token 9, but the vocabulary ends at 2");
}

TEST(BadTokenizerFolder, MissingFilesAreNamed) {
  expect_error([] { Tokenizer::from_folder("no/such/folder"); }, "no/such/folder is not a folder");
  const testing::TemporaryFolder empty;
  expect_error([&] { Tokenizer::from_folder(empty.path()); }, "has no tokenizer: neither tokenizer.json");
  const testing::TemporaryFolder half(testing::TemporaryFolder::Files{{"vocab.json", "{}"}});
  expect_error([&] { Tokenizer::from_folder(half.path()); }, "has no tokenizer");
}

TEST(BadTokenizerFolder, FilesBesideTheTokenizerAreChecked) {
  const auto refused = [](const char* name, const char* content, const std::string& part) {
    const testing::TemporaryFolder folder({{"tokenizer.json", small().dump()}, {name, content}});
    expect_error([&] { Tokenizer::from_folder(folder.path()); }, part);
  };
  refused("tokenizer_config.json", "{", "tokenizer_config.json is not valid JSON");
  refused("tokenizer_config.json", "[]", "tokenizer_config.json is not an object");
  refused("tokenizer_config.json", R"({"bos_token": 5})", "tokenizer_config.json: bos_token is number 5");
  refused("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "<x>"}}})", "not a token id");
  refused("tokenizer_config.json", R"({"added_tokens_decoder": {"1": {"content": "<x>"}}})",
          "which is the id of \"b\"");
  refused("special_tokens_map.json", R"({"eos_token": {"lstrip": false}})", "eos_token has no \"content\"");
  refused("generation_config.json", R"({"eos_token_id": "x"})", "generation_config.json: eos_token_id is string");
}

TEST(BadTokenizerFolder, BadMerges) {
  const testing::TemporaryFolder folder(
      {{"vocab.json", R"({"a": 0, "b": 1})"}, {"merges.txt", "#version: 0.2\na b c\n"}});
  expect_error([&] { Tokenizer::from_folder(folder.path()); }, "merges.txt: line 2 is \"a b c\"");
}

TEST(BadText, InvalidUtf8IsNamedWithItsPlace) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  expect_error([&] { tokenizer.encode("ab\xFF"); }, "byte 2 (of 3) is 0xFF");
  const std::vector<std::string> texts{"ok", "\xC3", "ok", "\x80"};
  expect_error([&] { tokenizer.encode_batch(texts, {}, 2); }, "byte 0 (of 1) is 0xC3");
}

}  // namespace
}  // namespace megalith::tokenizer
