// Writes a trained model as the files of a Hugging Face tokenizer: tokenizer.json, tokenizer_config.json,
// special_tokens_map.json and, for chat, generation_config.json. Special tokens have the first ids, in the order given;
// the first of them ends and pads texts.
#include <algorithm>

#include "megalith/tokenizer/training/bpe_style_internal.h"

namespace megalith::tokenizer {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTurnBegin = "<|im_start|>";
constexpr const char* kTurnEnd = "<|im_end|>";

// ChatML. What the assistant writes is marked, so that other trainers find it, too.
constexpr const char* kChatTemplate = R"({%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
            {{- message['content'] + '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'] + '<|im_end|>' }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";

bool has(const TrainedBpe& model, std::string_view token) {
  return std::ranges::find(model.special_tokens, token) != model.special_tokens.end();
}

// The flags that transformers writes for special tokens.
Json added_token(const std::string& content) {
  return {{"content", content}, {"single_word", false}, {"lstrip", false},
          {"rstrip", false},    {"normalized", false},  {"special", true}};
}

// Written by hand: an ordered JSON object searches all its keys for each new one, which is quadratic.
std::string model_json(const TrainedBpe& model) {
  std::string text =
      R"({"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,)"
      R"("fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{)";
  for (size_t id = 0; id < model.tokens.size(); ++id)
    text += (id > 0 ? ",\n" : "\n") + Json(model.tokens[id]).dump() + ":" + std::to_string(id);
  text += "},\n\"merges\":[";
  for (size_t i = 0; i < model.merges.size(); ++i) {
    const auto& [a, b] = model.merges[i];
    text += (i > 0 ? ",\n[" : "\n[") + Json(model.tokens[static_cast<size_t>(a)]).dump() + "," +
            Json(model.tokens[static_cast<size_t>(b)]).dump() + "]";
  }
  return text + "]}";
}

// Members in the order of files that tokenizers writes.
std::string tokenizer_json(const TrainedBpe& model) {
  Json added = Json::array();
  for (size_t id = 0; id < model.special_tokens.size(); ++id) {
    Json token{{"id", id}};
    token.update(added_token(model.special_tokens[id]));
    added.push_back(std::move(token));
  }
  // trim_offsets concerns offsets that Megalith does not keep; tokenizers refuses a file without it.
  const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  std::string text = "{\"version\":\"1.0\",\n\"truncation\":null,\n\"padding\":null,\n";
  const auto add = [&](const char* name, const Json& value) { text += Json(name).dump() + ":" + value.dump() + ",\n"; };
  add("added_tokens", added);
  add("normalizer", normalizer_json(model.kind));
  add("pre_tokenizer", pre_tokenizer_json(model.kind));
  add("post_processor", bytes);
  add("decoder", bytes);
  return text + "\"model\":" + model_json(model) + "}\n";
}

// transformers finds the class, the special tokens and the chat template here.
std::string config_json(const TrainedBpe& model) {
  const std::string& end = model.special_tokens[0];
  Json config{{"add_prefix_space", false}, {"added_tokens_decoder", Json::object()}};
  for (size_t id = 0; id < model.special_tokens.size(); ++id)
    config["added_tokens_decoder"][std::to_string(id)] = added_token(model.special_tokens[id]);
  config["bos_token"] = nullptr;
  config["clean_up_tokenization_spaces"] = false;
  config["eos_token"] = end;
  config["pad_token"] = end;
  config["unk_token"] = nullptr;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (has(model, kTurnBegin) && has(model, kTurnEnd)) config["chat_template"] = kChatTemplate;
  return config.dump(2) + "\n";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> tokenizer_files(const TrainedBpe& model) {
  const std::string& end = model.special_tokens[0];
  Json names{{"eos_token", end}, {"pad_token", end}, {"additional_special_tokens", Json::array()}};
  for (size_t i = 1; i < model.special_tokens.size(); ++i)
    names["additional_special_tokens"].push_back(model.special_tokens[i]);
  std::vector<std::pair<std::string, std::string>> files{{"tokenizer.json", tokenizer_json(model)},
                                                         {"tokenizer_config.json", config_json(model)},
                                                         {"special_tokens_map.json", names.dump(2) + "\n"}};
  const auto turn_end = std::ranges::find(model.special_tokens, kTurnEnd);
  if (turn_end != model.special_tokens.end() && turn_end != model.special_tokens.begin()) {
    // A chat model stops at the end of its turn, or at the end of a document.
    const Json generation{{"eos_token_id", {0, turn_end - model.special_tokens.begin()}}, {"pad_token_id", 0}};
    files.emplace_back("generation_config.json", generation.dump(2) + "\n");
  }
  return files;
}

}  // namespace megalith::tokenizer
