// Records to ids, labels and packed rows against LLaMA-Factory's own code (golden/hf/template).
#include <gtest/gtest.h>

#include <map>

#include "megalith/data/sft/convert_record.h"
#include "megalith/data/sft/encode.h"
#include "megalith/data/sft/packing.h"
#include "megalith/data/sft/template.h"
#include "tests/support/golden.h"
#include "tests/support/tokenizers.h"

namespace megalith::data {
namespace {

using nlohmann::json;

// Loaded once each: cases share them.
const tokenizer::Tokenizer& tokenizer_named(const std::string& name) {
  static std::map<std::string, tokenizer::Tokenizer> loaded;
  const auto found = loaded.find(name);
  if (found != loaded.end()) return found->second;
  return loaded.emplace(name, tokenizer::Tokenizer::from_folder(testing::tokenizer_folder(name))).first->second;
}

struct Case {
  json all;
  json options;
  tokenizer::Tokenizer tokenizer;
  Template chat;
  DatasetDescription dataset;
  EncodeSettings settings;

  explicit Case(const json& c)
      : all(c),
        options(c.at("options")),
        tokenizer(tokenizer_named(c.at("tokenizer"))),
        chat(c.at("template").get<std::string>(), tokenizer, template_options(c.at("options"))),
        dataset(read_dataset_entry(io::parse_json(c.at("dataset_info").dump(), "case"), "case")) {
    settings.cutoff = options.value("cutoff_len", 2048);
    settings.mask_history = options.value("mask_history", false);
    settings.train_on_prompt = options.value("train_on_prompt", false);
  }

  static TemplateOptions template_options(const json& options) {
    TemplateOptions result;
    if (options.contains("default_system")) result.default_system = options["default_system"].get<std::string>();
    if (options.contains("enable_thinking"))
      result.thinking = options["enable_thinking"].is_null()     ? Thinking::kUnset
                        : options["enable_thinking"].get<bool>() ? Thinking::kOn
                                                                 : Thinking::kOff;
    result.preserve_thinking = options.value("preserve_thinking", false);
    return result;
  }

  std::vector<Conversation> conversations(SampleKind kind) const {
    std::vector<Conversation> result;
    for (const json& record : all.at("records")) {
      auto converted = convert_record(io::parse_json(record.dump(), "record"), dataset, kind, "record");
      if (converted.conversation) result.push_back(*converted.conversation);
    }
    return result;
  }
};

json row_json(const Sequence& row, const std::string& prefix = "") {
  return {{prefix + "input_ids", row.ids}, {prefix + "labels", row.labels}};
}

json packed_json(const Sequence& row) {
  json result = row_json(row);
  std::vector<int> mask, positions;
  for (size_t piece = 0; piece < row.pieces.size(); ++piece)
    for (int i = 0; i < row.pieces[piece]; ++i) {
      mask.push_back(row.pieces_attend ? 1 : static_cast<int>(piece) + 1);
      positions.push_back(i);
    }
  mask.resize(row.ids.size(), row.pieces_attend ? 1 : 0);
  positions.resize(row.ids.size(), 0);
  result["attention_mask"] = mask;
  result["position_ids"] = positions;
  return result;
}

json sft_outputs(const Case& c) {
  std::vector<Sequence> samples;
  for (const Conversation& conversation : c.conversations(SampleKind::kConversation))
    samples.push_back(encode_conversation(conversation, c.chat, c.settings));
  json outputs = json::array();
  const bool neat = c.options.value("neat_packing", false);
  if (neat || c.options.value("packing", false)) {
    for (const Sequence& row : pack_samples(samples, c.settings.cutoff, neat, c.chat.tokens().pad).rows)
      outputs.push_back(packed_json(row));
  } else {
    for (const Sequence& row : samples) outputs.push_back(row_json(row));
  }
  return outputs;
}

json preference_outputs(const Case& c) {
  json outputs = json::array();
  for (const Conversation& conversation : c.conversations(SampleKind::kPreference)) {
    const Sample sample = encode_preference(conversation, c.chat, c.settings);
    json both = row_json(sample.row, "chosen_");
    both.update(row_json(*sample.rejected, "rejected_"));
    outputs.push_back(both);
  }
  return outputs;
}

json document_outputs(const Case& c) {
  json outputs = json::array();
  TemplateTokens tokens = c.chat.tokens();
  tokens.documents_get_bos = tokens.bos && adds_bos_token(testing::tokenizer_folder(c.all.at("tokenizer")));
  std::vector<Sequence> documents;
  for (const Conversation& conversation : c.conversations(SampleKind::kDocument)) {
    const std::string& text = conversation.prompt.front().content;
    documents.push_back(whole_document(text, c.tokenizer, tokens));
    if (!c.options.value("packing", true))
      outputs.push_back({{"input_ids", encode_document(text, c.tokenizer, tokens, c.settings.cutoff).ids}});
  }
  if (c.options.value("packing", true))
    for (const Sequence& row : pack_documents(documents, tokens, c.settings.cutoff))
      outputs.push_back({{"input_ids", row.ids}});
  return outputs;
}

json outputs_of(const json& golden) {
  const Case c(golden);
  EXPECT_EQ(c.tokenizer.token_of(c.chat.tokens().eos), golden.at("eos_token").get<std::string>());
  EXPECT_EQ(c.tokenizer.token_of(c.chat.tokens().pad), golden.at("pad_token").get<std::string>());
  const std::string stage = golden.at("stage");
  return stage == "sft" ? sft_outputs(c) : stage == "rm" ? preference_outputs(c) : document_outputs(c);
}

TEST(GoldenTemplate, template_cases_json) {
  for (const json& golden : testing::golden_json("hf/template/cases.json")) {
    const std::string name = golden.at("name");
    SCOPED_TRACE("case " + name);
    if (!std::filesystem::exists(testing::tokenizer_folder(golden.at("tokenizer")))) {
      testing::leave_out(name, "its tokenizer is not at hand");
      continue;
    }
    if (golden.contains("error") && !golden["error"].is_null()) {
      EXPECT_ANY_THROW(outputs_of(golden));
      continue;
    }
    const json outputs = outputs_of(golden);
    const json& expected = golden.at("outputs");
    ASSERT_EQ(outputs.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      for (const auto& [key, value] : expected[i].items()) EXPECT_EQ(outputs[i].at(key), value) << i << " " << key;
  }
}

}  // namespace
}  // namespace megalith::data
