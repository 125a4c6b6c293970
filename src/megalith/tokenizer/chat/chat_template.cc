// Finds the template files of a folder, prepares the variables of a template as transformers does, and maps what the
// assistant writes from the text to tokens.
#include "megalith/tokenizer/chat/chat_template.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/tokenizer/text/json_node_internal.h"

namespace megalith::tokenizer {

namespace {

namespace fs = std::filesystem;

// The names that transformers gives to template files and to the template without a name.
constexpr const char* kFile = "chat_template.jinja";
constexpr const char* kFolder = "additional_chat_templates";
constexpr const char* kDefault = "default";

// One template: its name ("default", "tool_use", …), its place for messages, and its text.
struct NamedSource {
  std::string name, where, source;
};

std::vector<NamedSource> sources_of_files(const fs::path& folder) {
  std::vector<NamedSource> sources;
  for (const fs::path& file : ChatTemplate::files_in(folder)) {
    const bool is_default = file == folder / kFile;
    sources.push_back({is_default ? kDefault : file.stem().string(), file.string(), read_file(file)});
  }
  return sources;
}

// One text, or a list of {"name": …, "template": …}.
std::vector<NamedSource> sources_of_config(const JsonNode& config) {
  const auto node = config.find("chat_template");
  if (!node) return {};
  const auto where = [&](const std::string& name) { return fmt::format("{} ({})", node->where(), name); };
  if (!node->is_array()) return {{kDefault, node->where(), node->string()}};
  std::vector<NamedSource> sources;
  for (size_t i = 0; i < node->array_size(); ++i) {
    const std::string name = node->at(i).at("name").string();
    sources.push_back({name, where(name), node->at(i).at("template").string()});
  }
  return sources;
}

// Reads special tokens by their names ("bos_token") as texts; those of earlier files win.
void read_special_texts(const JsonNode& config, Json& texts) {
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const auto node = config.find(name);
    if (!node || texts.contains(name)) continue;
    texts[name] = node->is_string() ? node->string() : node->at("content").string();
  }
}

// Calls use(root) if the file exists; throws for one that is not an object.
void with_json_file(const fs::path& path, const auto& use) {
  if (!fs::exists(path)) return;
  const nlohmann::json document = parse_json(read_file(path), path.string());
  const JsonNode root(document, path.string());
  if (!root.is_object()) root.fail("is not an object");
  use(root);
}

// Provides a message's reasoning under both names that templates read, no matter under which it was given.
Json with_reasoning(const Json& message) {
  for (const char* field : {"reasoning_content", "thinking", "reasoning"}) {
    const auto found = message.find(field);
    if (found == message.end() || found->is_null()) continue;
    Json result = Json::object();
    // Set first, so that the message's own "thinking" overwrites it below.
    result["thinking"] = *found;
    // A field of the message itself keeps its value and comes in its own order.
    for (const auto& [key, value] : message.items()) result[key] = value;
    result["reasoning_content"] = *found;
    return result;
  }
  return message;
}

// Returns the messages with their reasoning under both names.
Json checked_messages(const Json& messages) {
  check<DataError>(messages.is_array(), "the messages are a {}; a list of objects is expected", messages.type_name());
  Json result = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    check<DataError>(messages[i].is_object(), "message {} is a {}; an object with role and content is expected", i,
                     messages[i].type_name());
    result.push_back(with_reasoning(messages[i]));
  }
  return result;
}

void check_list(const Json& list, std::string_view name) {
  check<DataError>(list.is_null() || list.is_array(), "{} is a {}; a list of objects is expected", name,
                   list.type_name());
  for (size_t i = 0; list.is_array() && i < list.size(); ++i)
    check<DataError>(list[i].is_object(), "{}[{}] is a {}; an object is expected", name, i, list[i].type_name());
}

}  // namespace

std::vector<fs::path> ChatTemplate::files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  if (fs::exists(folder / kFile)) files.push_back(folder / kFile);
  if (!fs::is_directory(folder / kFolder)) return files;
  for (const auto& entry : fs::directory_iterator(folder / kFolder))
    if (entry.path().extension() == ".jinja") files.push_back(entry.path());
  // The order must not depend on the file system.
  std::ranges::sort(files);
  return files;
}

bool ChatTemplate::is_in(const fs::path& folder) {
  bool found = !files_in(folder).empty();
  with_json_file(folder / "tokenizer_config.json",
                 [&](const JsonNode& config) { found = found || config.find("chat_template").has_value(); });
  return found;
}

// Files of their own win over tokenizer_config.json, as in transformers.
ChatTemplate ChatTemplate::from_folder(const fs::path& folder) {
  check<DataError>(fs::is_directory(folder), "{} is not a folder; a chat template is part of a model's folder",
                   folder.string());
  ChatTemplate result;
  result.source_ = folder.string();
  std::vector<NamedSource> sources = sources_of_files(folder);
  with_json_file(folder / "tokenizer_config.json", [&](const JsonNode& config) {
    if (sources.empty()) sources = sources_of_config(config);
    read_special_texts(config, result.special_tokens_);
  });
  with_json_file(folder / "special_tokens_map.json",
                 [&](const JsonNode& config) { read_special_texts(config, result.special_tokens_); });
  check<DataError>(
      !sources.empty(),
      "{} has no chat template: neither {}, nor {}/*.jinja, nor chat_template in tokenizer_config.json. It "
      "may be a base model; to use it, add a template in one of these places.",
      folder.string(), kFile, kFolder);
  for (const NamedSource& source : sources)
    result.templates_.insert_or_assign(source.name, jinja::Template(source.source, source.where));
  return result;
}

ChatTemplate::ChatTemplate(std::string_view source, std::string name,
                           const std::map<std::string, std::string>& special_tokens)
    : source_(name) {
  templates_.emplace(kDefault, jinja::Template(source, std::move(name)));
  for (const auto& [token, text] : special_tokens) special_tokens_[token] = text;
}

std::vector<std::string> ChatTemplate::names() const {
  std::vector<std::string> result;
  for (const auto& [name, unused] : templates_) result.push_back(name);
  return result;
}

// As in transformers: tool_use if there are tools and such a template, else default.
const jinja::Template& ChatTemplate::choose(const Conversation& conversation, const ChatOptions& options) const {
  const auto find = [&](const std::string& name) {
    const auto found = templates_.find(name);
    return found == templates_.end() ? nullptr : &found->second;
  };
  const jinja::Template* chosen = nullptr;
  if (options.template_name) {
    chosen = find(*options.template_name);
    check<ConfigError>(chosen != nullptr, "{} has no chat template named \"{}\"; there are: {}", source_,
                       *options.template_name, list_in_words(names()));
    return *chosen;
  }
  if (!conversation.tools.is_null()) chosen = find("tool_use");
  if (chosen == nullptr) chosen = find(kDefault);
  check<ConfigError>(chosen != nullptr, "{} has several chat templates and no default; choose one of: {}", source_,
                     list_in_words(names()));
  return *chosen;
}

// kwargs may replace special tokens, but not messages, tools and documents.
jinja::Rendered ChatTemplate::render_with_blocks(const Conversation& conversation, const ChatOptions& options) const {
  check<ConfigError>(options.kwargs.is_object(), "the variables for the chat template are a {}; an object is expected",
                     options.kwargs.type_name());
  check_list(conversation.tools, "tools");
  check_list(conversation.documents, "documents");
  // Later assignments win: special tokens, then kwargs, then the conversation.
  Json variables = special_tokens_;
  for (const auto& [name, value] : options.kwargs.items()) variables[name] = value;
  variables["messages"] = checked_messages(conversation.messages);
  variables["tools"] = conversation.tools;
  variables["documents"] = conversation.documents;
  variables["add_generation_prompt"] = options.add_generation_prompt;
  return choose(conversation, options).render(variables, {.now = options.now});
}

std::string ChatTemplate::render(const Conversation& conversation, const ChatOptions& options) const {
  return render_with_blocks(conversation, options).text;
}

ChatEncoding ChatTemplate::apply(const Conversation& conversation, const Tokenizer& tokenizer,
                                 const ChatOptions& options) const {
  jinja::Rendered rendered = render_with_blocks(conversation, options);
  TokenizedText tokens = tokenizer.encode_with_starts(rendered.text);
  std::vector<uint8_t> mask(tokens.ids.size());
  const bool by_blocks = choose(conversation, options).marks_generation();
  // Returns where the text of token i ends; tokens that share a character begin at the same place.
  // Tokens of one character's bytes share a start, so the end is the next different start.
  const auto end_of = [&](size_t i) {
    const auto next = std::ranges::upper_bound(tokens.starts, tokens.starts[i]);
    return next == tokens.starts.end() ? rendered.text.size() : *next;
  };
  // transformers' rule for {% generation %}: every token that overlaps a block is the assistant's. For spans found by
  // this library, tokens that begin inside count, since a span may begin in the middle of a token of the prompt.
  if (by_blocks) {
    for (const auto& [begin, end] : rendered.generation)
      for (size_t i = 0; i < mask.size(); ++i)
        if (tokens.starts[i] < end && end_of(i) > begin) mask[i] = 1;
  } else {
    for (const AssistantSpan& span : assistant_spans(conversation, rendered.text, tokenizer, options))
      for (size_t i = 0; i < mask.size(); ++i)
        if (tokens.starts[i] >= span.begin && tokens.starts[i] < span.end) mask[i] = 1;
  }
  return {std::move(rendered.text), std::move(tokens.ids), std::move(mask)};
}

}  // namespace megalith::tokenizer
