#include "megalith/run/samples/text_prompts.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/io/file_io.h"

namespace megalith::run {

namespace {

using nlohmann::ordered_json;

constexpr size_t kOwnPrompts = 3;                         // beginnings of samples, if no file names prompts
constexpr uint64_t kMostPromptBytes = uint64_t{1} << 24;  // the largest file of prompts

// A line that begins like JSON must be JSON, so that a missing quote is not taken for a text.
train::Prompt prompt_of(const std::string& line, const std::string& place, const TextTools& tools) {
  if (!line.starts_with('"') && !line.starts_with('[')) return encode_prompt(*tools.tokenizer, line);
  const ordered_json value = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  check<DataError>(value.is_string() || (value.is_array() && !value.empty()),
                   "{}: a line that begins with \" or [ is a JSON string or a JSON list of messages, and this one is "
                   "neither",
                   place);
  if (value.is_string()) return encode_prompt(*tools.tokenizer, value.get<std::string>());
  check<ConfigError>(tokenizer::ChatTemplate::is_in(tools.folder),
                     "{}: a list of messages needs a chat template, and {} has none; write the prompt as a text", place,
                     tools.folder.string());
  return encode_chat(*tools.tokenizer, tokenizer::ChatTemplate::from_folder(tools.folder), value);
}

}  // namespace

std::vector<int64_t> encode_prompt(const tokenizer::Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.encode(text, {.add_special_tokens = true});
  // A model cannot start from nothing.
  if (ids.empty() && tokenizer.bos_id()) return {*tokenizer.bos_id()};
  return {ids.begin(), ids.end()};
}

std::vector<int64_t> encode_chat(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate& chat,
                                 const ordered_json& given) {
  const ordered_json said{{"role", "user"}, {"content", given}};
  const std::string text =
      chat.render({given.is_array() ? given : ordered_json::array({said}), {}, {}}, {.add_generation_prompt = true});
  const auto ids = tokenizer.encode(text);  // the template writes the special tokens itself
  return {ids.begin(), ids.end()};
}

std::vector<train::Prompt> read_prompts(const std::filesystem::path& file, const TextTools& tools) {
  check<ConfigError>(std::filesystem::is_regular_file(file),
                     "generate_samples_prompts {} is not a file; give a file with one prompt per line", file.string());
  std::vector<train::Prompt> prompts;
  size_t number = 0;
  for (const std::string& line : split(io::read_text_file(file, kMostPromptBytes), '\n')) {
    ++number;
    const std::string text = line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
    if (text.empty()) continue;
    prompts.push_back(prompt_of(text, fmt::format("{}, line {}", file.string(), number), tools));
    check<DataError>(!prompts.back().empty(), "{}, line {}: the prompt has no tokens", file.string(), number);
  }
  check<DataError>(!prompts.empty(), "generate_samples_prompts {} holds no prompt; write one per line", file.string());
  return prompts;
}

void check_samples(const SampleSettings& settings, const TextTools& tools) {
  if (settings.every == 0) return;
  check<ConfigError>(
      tools.tokenizer.has_value(),
      "generate_samples_every writes texts, but this run has no tokenizer that turns ids into text; give "
      "one, or leave the option out");
  if (!settings.prompts.empty()) read_prompts(settings.prompts, tools);
}

std::shared_ptr<const train::TextSampler> make_text_sampler(const SampleSettings& settings, const TextTools& tools,
                                                            const data::Dataset* dataset) {
  if (settings.every == 0) return nullptr;
  check_samples(settings, tools);
  std::vector<train::Prompt> prompts;
  if (!settings.prompts.empty())
    prompts = read_prompts(settings.prompts, tools);
  else if (dataset != nullptr)
    prompts = train::prompts_from(*dataset, kOwnPrompts);
  check<ConfigError>(!prompts.empty(),
                     "generate_samples_every has no prompts: the samples of this run cannot be read by number, or are "
                     "empty. Name a file of prompts (generate_samples_prompts)");
  return std::make_shared<train::TextSampler>(train::TextSampler::Settings{settings.every, settings.max_new_tokens},
                                              *tools.tokenizer, std::move(prompts));
}

}  // namespace megalith::run
