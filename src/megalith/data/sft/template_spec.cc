// The table of named templates. Every space and newline is part of a model's training format: the texts must not be
// tidied. Families share a function that fills in what they have in common.
#include "megalith/data/sft/template_spec.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::data {
namespace {

// Texts that several templates share. A user's text ends with the header of the answer, so that the answer itself
// begins with the first token that the model has to predict.
constexpr std::string_view kChatmlSystem = "<|im_start|>system\n{{content}}<|im_end|>\n";
constexpr std::string_view kChatmlUser = "<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n";
constexpr std::string_view kChatmlAssistant = "{{content}}<|im_end|>\n";
constexpr std::string_view kQwenObservation =
    "<|im_start|>user\n<tool_response>\n{{content}}\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
constexpr std::string_view kDeepseekUser = "<｜User｜>{{content}}<｜Assistant｜>";
constexpr std::string_view kContentEos = "{{content}}{{eos}}";
constexpr std::string_view kContent = "{{content}}";

// ChatML with Qwen's tool format. Tool results come as a user's turn.
TemplateSpec qwen_like(std::string_view name) {
  return {.name = name,
          .system = kChatmlSystem,
          .user = kChatmlUser,
          .assistant = kChatmlAssistant,
          .observation = kQwenObservation,
          .eos = "<|im_end|>",
          .tools = ToolFormat::kQwen};
}

// Qwen 2.5; Qwen 3 has no default system text.
TemplateSpec qwen() {
  TemplateSpec spec = qwen_like("qwen");
  spec.default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
  return spec;
}

// Qwen 2 and 2.5 with vision.
TemplateSpec qwen2_vl() {
  TemplateSpec spec = qwen_like("qwen2_vl");
  spec.default_system = "You are a helpful assistant.";
  return spec;
}

// The same template for a model that writes its thoughts before the answer.
TemplateSpec reasoning(TemplateSpec spec) {
  spec.reasoning = true;
  return spec;
}

// The format itself, with tool results under a role of their own.
TemplateSpec chatml() {
  return {.name = "chatml",
          .system = kChatmlSystem,
          .user = kChatmlUser,
          .assistant = kChatmlAssistant,
          .observation = "<|im_start|>tool\n{{content}}<|im_end|>\n<|im_start|>assistant\n",
          .eos = "<|im_end|>",
          .stops = {"<|im_start|>"}};
}

// Answers end with <|eot_id|>, documents with <|end_of_text|>: two different tokens.
TemplateSpec llama3() {
  return {.name = "llama3",
          .prefix = "{{bos}}",
          .system = "<|start_header_id|>system<|end_header_id|>\n\n{{content}}<|eot_id|>",
          .user =
              "<|start_header_id|>user<|end_header_id|>\n\n{{content}}<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n",
          .assistant = "{{content}}<|eot_id|>",
          .observation =
              "<|start_header_id|>ipython<|end_header_id|>\n\n{{content}}<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n",
          .eos = "<|eot_id|>",
          .stops = {"<|eom_id|>"},
          .document_end = "<|end_of_text|>"};
}

// Turns are marked by single tokens, and only answers end with eos.
TemplateSpec deepseek(std::string_view name) {
  return {.name = name,
          .prefix = "{{bos}}",
          .system = kContent,
          .user = kDeepseekUser,
          .assistant = kContentEos,
          .observation = kDeepseekUser};
}

// The system text precedes the first user's text, inside [INST].
TemplateSpec mistral_like(std::string_view name, std::string_view user, std::string_view assistant,
                          std::string_view observation) {
  return {.name = name,
          .prefix = "{{bos}}",
          .system = "{{content}}\n\n",
          .user = user,
          .assistant = assistant,
          .observation = observation,
          .system_in_user = true};
}

// Answers have no end token: the role token of the next turn ends them (efficient_eos).
TemplateSpec glm4_like(std::string_view name) {
  return {.name = name,
          .prefix = "[gMASK]<sop>",
          .system = "<|system|>\n{{content}}",
          .user = "<|user|>\n{{content}}<|assistant|>",
          .assistant = "\n{{content}}",
          .observation = "<|observation|>\n{{content}}<|assistant|>",
          .stops = {"<|user|>", "<|observation|>"},
          .efficient_eos = true};
}

// bos and eos mark every turn, and thoughts have marks of their own.
TemplateSpec seed_oss() {
  constexpr std::string_view user = "{{bos}}user\n{{content}}{{eos}}{{bos}}assistant\n";
  return {.name = "seed_oss",
          .system = "{{bos}}system\n{{content}}{{eos}}",
          .user = user,
          .assistant = kContentEos,
          .observation = user,
          .reasoning = true,
          .thought_open = "<seed:think>",
          .thought_close = "</seed:think>"};
}

// Templates that only put texts around system, user and assistant.
TemplateSpec plain(std::string_view name, std::string_view system, std::string_view user, std::string_view assistant,
                   std::string_view default_system = {}) {
  return {.name = name,
          .system = system,
          .user = user,
          .assistant = assistant,
          .observation = user,
          .default_system = default_system};
}

// [INST] carries the system text inside the first user's turn; every turn begins with bos.
TemplateSpec llama2() {
  TemplateSpec spec =
      plain("llama2", "<<SYS>>\n{{content}}\n<</SYS>>\n\n", "{{bos}}[INST] {{content}} [/INST]", kContentEos);
  spec.system_in_user = true;
  return spec;
}

TemplateSpec breeze() {
  TemplateSpec spec = plain("breeze", kContent, "[INST] {{content}} [/INST] ", kContent);
  spec.prefix = "{{bos}}";
  spec.efficient_eos = true;
  return spec;
}

// All templates, sorted by name.
std::vector<TemplateSpec> make_specs() {
  return {
      plain("alpaca", kContent, "### Instruction:\n{{content}}\n\n### Response:\n", "{{content}}{{eos}}\n\n",
            "Below is an instruction that describes a task. Write a response that appropriately completes the "
            "request.\n\n"),
      breeze(),
      chatml(),
      deepseek("deepseek3"),
      reasoning(deepseek("deepseekr1")),
      plain("default", "System: {{content}}{{eos}}\n", "Human: {{content}}{{eos}}\nAssistant:", "{{content}}{{eos}}\n"),
      plain("empty", kContent, kContent, kContent),
      glm4_like("glm4"),
      reasoning(glm4_like("glm4_moe")),
      llama2(),
      llama3(),
      mistral_like("ministral", "[INST]{{content}}[/INST]", kContentEos,
                   "[TOOL_RESULTS]{\"content\": {{content}}}[/TOOL_RESULTS]"),
      mistral_like("mistral", "[INST] {{content}}[/INST]", " {{content}}{{eos}}",
                   "[TOOL_RESULTS] {\"content\": {{content}}}[/TOOL_RESULTS]"),
      qwen(),
      qwen2_vl(),
      reasoning(qwen_like("qwen3")),
      qwen_like("qwen3_nothink"),
      reasoning(qwen_like("qwen3_omni")),
      qwen_like("qwen3_omni_nothink"),
      reasoning(qwen_like("qwen3_vl")),
      qwen_like("qwen3_vl_nothink"),
      seed_oss(),
      plain("vicuna", kContent, "USER: {{content}} ASSISTANT:", kContentEos,
            "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
            "detailed, and polite answers to the user's questions."),
  };
}

}  // namespace

std::span<const TemplateSpec> template_specs() {
  static const std::vector<TemplateSpec> specs = make_specs();
  return specs;
}

// Linear: the table is short, and looked into once per run.
const TemplateSpec& find_template(std::string_view name) {
  const auto specs = template_specs();
  const auto spec_of_name = std::ranges::find(specs, name, &TemplateSpec::name);
  if (spec_of_name != specs.end()) return *spec_of_name;
  std::vector<std::string> names;
  for (const TemplateSpec& spec : specs) names.emplace_back(spec.name);
  const auto near = nearest(name, names);
  throw ConfigError(
      fmt::format("template \"{}\" is not known{}. Known templates: {}. Leave template out to use the "
                  "tokenizer's own chat template",
                  name, near.empty() ? "" : fmt::format("; did you mean {}?", list_in_words(near)),
                  list_in_words(names, names.size())));
}

}  // namespace megalith::data
