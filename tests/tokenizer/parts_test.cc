// Every kind of component against the results of Hugging Face's tokenizers for the same strings
// (tests/data/tokenizer/parts.json, written by make_parts.py there).
#include <gtest/gtest.h>

#include <fstream>

#include "megalith/base/error.h"
#include "megalith/tokenizer/steps/decoder_internal.h"
#include "megalith/tokenizer/steps/normalizer_internal.h"
#include "megalith/tokenizer/steps/pre_tokenizer_internal.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::tokenizer {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

const json& parts() {
  static const json document = [] {
    std::ifstream file("tests/data/tokenizer/parts.json");  // tests run in the root of the tree
    check(file.good(), "tests/data/tokenizer/parts.json cannot be read");
    return json::parse(file);
  }();
  return document;
}

std::vector<std::string> strings() { return parts().at("strings").get<std::vector<std::string>>(); }

std::string trace(const json& config, const std::string& text) { return config.dump() + " of " + json(text).dump(); }

TEST(TokenizerParts, Normalizers) {
  const auto texts = strings();
  for (const json& c : parts().at("normalizers")) {
    const auto normalizer = read_normalizer(JsonNode(c.at("config"), "parts.json"));
    for (size_t i = 0; i < texts.size(); ++i) {
      std::string text = texts[i];
      normalizer->apply(text);
      EXPECT_EQ(text, c.at("texts")[i].get<std::string>()) << trace(c.at("config"), texts[i]);
    }
  }
}

std::vector<std::string> cut(const PreTokenizer& pre_tokenizer, const std::string& text) {
  Pieces pieces;
  pieces.reset(text, true);
  pre_tokenizer.apply(pieces);
  std::vector<std::string> result;
  for (const Span& span : pieces.spans()) result.emplace_back(pieces.view(span));
  return result;
}

TEST(TokenizerParts, PreTokenizers) {
  const auto texts = strings();
  for (const json& c : parts().at("pre_tokenizers")) {
    const auto pre_tokenizer = read_pre_tokenizer(JsonNode(c.at("config"), "parts.json"));
    for (size_t i = 0; i < c.at("pieces").size(); ++i)  // the file has every other string
      EXPECT_EQ(cut(*pre_tokenizer, texts[2 * i]), c.at("pieces")[i].get<std::vector<std::string>>())
          << trace(c.at("config"), texts[2 * i]);
  }
}

TEST(TokenizerParts, Decoders) {
  for (const json& c : parts().at("decoders")) {
    const auto decoder = read_decoder(JsonNode(c.at("config"), "parts.json"));
    for (const json& list : c.at("cases")) {
      auto tokens = list.at("tokens").get<std::vector<std::string>>();
      decoder->apply(tokens);
      std::string text;
      for (const std::string& token : tokens) text += token;
      EXPECT_EQ(text, list.at("text").get<std::string>())
          << c.at("config").dump() << " of " << list.at("tokens").dump();
    }
  }
}

Tokenizer assemble(const json& c) {
  json document = c.at("parts");
  document["version"] = "1.0";
  document["model"] = parts().at("models").at(c.at("model").get<std::string>());
  return Tokenizer::from_json(document.dump());
}

TEST(TokenizerParts, WholeTokenizers) {
  const auto texts = strings();
  for (const json& c : parts().at("cases")) {
    const std::string name = c.at("model").get<std::string>() + " " + c.at("parts").dump();
    const Tokenizer tokenizer = assemble(c);
    for (size_t i = 0; i < texts.size(); ++i) {
      SCOPED_TRACE(name + " of " + json(texts[i]).dump());
      const Ids ids = c.at("ids")[i].get<Ids>();
      EXPECT_EQ(tokenizer.encode(texts[i]), ids);
      EXPECT_EQ(tokenizer.decode(ids), c.at("decoded")[i].get<std::string>());
      EXPECT_EQ(tokenizer.decode(ids, {.skip_special_tokens = true}), c.at("skipped")[i].get<std::string>());
    }
    for (size_t i = 0; i < c.at("special").size(); ++i)
      EXPECT_EQ(tokenizer.encode(texts[i], {.add_special_tokens = true}), c.at("special")[i].get<Ids>()) << name;
    for (size_t i = 0; i < c.at("as_text").size(); ++i)
      EXPECT_EQ(tokenizer.encode(texts[i], {.special_tokens_in_text = false}), c.at("as_text")[i].get<Ids>())
          << name << " of " << json(texts[i]).dump();
  }
}

TEST(TokenizerParts, StreamsGiveWhatDecodeGives) {
  for (const json& c : parts().at("cases")) {
    const Tokenizer tokenizer = assemble(c);
    for (const json& entry : c.at("ids")) {
      const Ids ids = entry.get<Ids>();
      Tokenizer::StreamDecoder stream(tokenizer);
      std::string text;
      for (const int32_t id : ids) text += stream.push(id);
      text += stream.finish();
      EXPECT_EQ(text, tokenizer.decode(ids)) << c.at("model") << " " << c.at("parts").dump() << " of " << entry.dump();
    }
  }
}

}  // namespace
}  // namespace megalith::tokenizer
