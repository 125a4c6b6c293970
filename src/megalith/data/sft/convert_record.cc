// One Converter per record turns any of the formats (dataset_info.h) into a Conversation. There are two kinds of
// problems: a record that does not form a conversation is skipped (LeftOut, caught in convert_record), as LLaMA-Factory
// does; a missing column or a wrong type means that the description does not fit the file, and is an error at once.
#include "megalith/data/sft/convert_record.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/data/sft/python_json.h"
#include "megalith/data/sft/tool_format.h"
#include "megalith/data/table/base64_internal.h"

namespace megalith::data {
namespace {

using io::Json;

// Thrown for a record that is skipped; not for a mistake in the file as a whole.
struct LeftOut {
  std::string problem;
};

// Only a boolean: LLaMA-Factory takes a record with any other value for one without a verdict.
bool verdict_of(const Json& value, const std::string& column, const std::string& place) {
  check<DataError>(value.is_boolean(), "{}: column \"{}\" is {}; it must be true (a desirable answer) or false", place,
                   column, io::json_in_words(value));
  return value.get<bool>();
}

// Reads one record. `place` is "file:line", for messages.
class Converter {
 public:
  Converter(const Json& record, const DatasetDescription& dataset, const std::string& place)
      : record_(record), dataset_(dataset), columns_(dataset.columns), tags_(dataset.tags), place_(place) {}

  Conversation convert() const {
    Conversation conversation = texts();
    conversation.images = media_in(columns_.images, "an image");
    conversation.videos = videos();
    conversation.sounds = media_in(columns_.audios, "a sound");
    if (const Json* verdict = find(columns_.kto_tag))
      conversation.desirable = verdict_of(*verdict, columns_.kto_tag, place_);
    return conversation;
  }

 private:
  Conversation texts() const {
    switch (dataset_.formatting) {
      case Formatting::kAlpaca:
        return alpaca();
      case Formatting::kSharegpt:
      case Formatting::kMessages:
      case Formatting::kOpenai:
        return turns_of(required(columns_.messages));
      case Formatting::kPairs:
        return pairs();
      case Formatting::kPretokenized:
        break;
    }
    throw InternalError("records with ids have no conversation");
  }

  // A medium: its path, or {"bytes": …, "path": …} as the package `datasets` stores it, where one of both may be null.
  MediaSource source_of(const Json& value, const std::string& what) const {
    if (value.is_string()) return {.file = value.get<std::string>()};
    check<DataError>(value.is_object() && (value.contains("bytes") || value.contains("path")),
                     "{}: {} is {}; it must be a path, or an object with \"bytes\" or \"path\"", place_, what,
                     io::json_in_words(value));
    const Json* bytes = member(value, "bytes");
    const Json* path = member(value, "path");
    MediaSource source;
    if (path != nullptr) source.file = text_of(*path, "\"path\" of " + what);
    if (bytes == nullptr) {
      check<DataError>(!source.file.empty(), "{}: {} has neither bytes nor a path", place_, what);
      return source;
    }
    std::optional<std::string> decoded;
    if (bytes->is_object() && bytes->contains("base64") && bytes->at("base64").is_string())
      decoded = decode_base64(bytes->at("base64").get_ref<const std::string&>());
    check<DataError>(decoded.has_value(),
                     "{}: \"bytes\" of {} is {}; it must be binary in a Parquet or Arrow file, or {{\"base64\": text}} "
                     "in JSON. Give a path instead",
                     place_, what, io::json_in_words(*bytes));
    source.held = std::make_shared<const std::string>(std::move(*decoded));
    return source;
  }

  // Returns a member that is not null; otherwise nullptr.
  static const Json* member(const Json& object, const char* name) {
    const auto value = object.find(name);
    return value == object.end() || value->is_null() ? nullptr : &*value;
  }

  // Images or sounds: one, or a list of them.
  std::vector<MediaSource> media_in(const std::string& column, const std::string& kind) const {
    const Json* value = find(column);
    if (value == nullptr) return {};
    const std::string what = kind + " in column \"" + column + "\"";
    if (!value->is_array()) return {source_of(*value, what)};
    std::vector<MediaSource> sources;
    for (const Json& medium : *value) sources.push_back(source_of(medium, what));
    return sources;
  }

  // A video file, or a list of videos, each of which is a file or a list of images.
  std::vector<std::vector<MediaSource>> videos() const {
    const Json* value = find(columns_.videos);
    if (value == nullptr) return {};
    const std::string what = "a video in column \"" + columns_.videos + "\"";
    std::vector<std::vector<MediaSource>> videos;
    const auto add = [&](const Json& video) {
      std::vector<MediaSource>& sources = videos.emplace_back();
      if (!video.is_array()) {
        sources.push_back(source_of(video, what));
        sources.back().frame = 0;
        return;
      }
      check<DataError>(!video.empty(), "{}: {} has no frames", place_, what);
      for (const Json& frame : video) sources.push_back(source_of(frame, "a frame of " + what));
    };
    if (value->is_array())
      for (const Json& video : *value) add(video);
    else
      add(*value);
    return videos;
  }

  // Returns the column's value; nullptr if the column has no name, is absent or is null.
  const Json* find(const std::string& column) const {
    if (column.empty()) return nullptr;
    const auto value = record_.find(column);
    return value == record_.end() || value->is_null() ? nullptr : &*value;
  }

  // Returns the column's value, or throws with the names of the existing columns.
  const Json& required(const std::string& column) const {
    const Json* value = find(column);
    if (value != nullptr) return *value;
    std::vector<std::string> names;
    for (const auto& [name, unused] : record_.items()) names.push_back(name);
    throw DataError(
        fmt::format("{}: column \"{}\" is missing (the record has {}); dataset {} needs it. Name the right one "
                    "under \"columns\" in dataset_info.json",
                    place_, column, names.empty() ? "none" : list_in_words(names), dataset_.name));
  }

  // `what` names the value in the message: "column \"output\"".
  std::string text_of(const Json& value, const std::string& what) const {
    check<DataError>(value.is_string(), "{}: {} is {}; it must be a text", place_, what, io::json_in_words(value));
    return value.get<std::string>();
  }

  // Returns the column's text; empty if it is absent.
  std::string text(const std::string& column) const {
    const Json* value = find(column);
    return value == nullptr ? std::string() : text_of(*value, "column \"" + column + "\"");
  }

  // Tools may be JSON text or JSON itself; the latter becomes the text that Python would print.
  std::string tools() const {
    const Json* value = find(columns_.tools);
    if (value == nullptr) return {};
    return value->is_string() ? value->get<std::string>() : python_json(*value);
  }

  // Alpaca's instruction and input, on separate lines.
  std::string joined_prompt() const {
    std::string prompt = text(columns_.prompt);
    const std::string query = text(columns_.query);
    if (!prompt.empty() && !query.empty()) prompt += '\n';
    return prompt + query;
  }

  Conversation alpaca() const {
    // One of its columns must exist; otherwise a wrong file would silently give only empty prompts. It may be null, as
    // an empty field of a CSV file is: an empty prompt, as in LLaMA-Factory.
    if (!record_.contains(columns_.prompt) && !record_.contains(columns_.query)) required(columns_.prompt);
    Conversation result{.system = text(columns_.system), .tools = tools()};
    if (const Json* history = find(columns_.history)) add_history(*history, result);
    result.prompt.push_back({Role::kUser, joined_prompt()});
    if (dataset_.ranking) {
      add_answer(columns_.chosen, result);
      add_answer(columns_.rejected, result);
    } else {
      add_answer(columns_.response, result);
    }
    return result;
  }

  // A missing answer is not an error here: incomplete() decides whether the kind of sample needs it.
  void add_answer(const std::string& column, Conversation& result) const {
    const Json* value = find(column);
    if (value != nullptr && value->is_string())
      result.responses.push_back({Role::kAssistant, value->get<std::string>()});
  }

  void add_history(const Json& history, Conversation& result) const {
    const std::string what = "column \"" + columns_.history + "\"";
    check<DataError>(history.is_array(), "{}: {} is {}; it must be a list of pairs", place_, what,
                     io::json_in_words(history));
    for (const Json& pair : history) {
      check<DataError>(pair.is_array() && pair.size() == 2, "{}: {} has {}; it must be a pair of texts", place_, what,
                       io::json_in_words(pair));
      result.prompt.push_back({Role::kUser, text_of(pair[0], what)});
      result.prompt.push_back({Role::kAssistant, text_of(pair[1], what)});
    }
  }

  // Returns a value of a turn. null counts as empty: OpenAI's messages with tool calls have no content.
  std::string tag_of(const Json& turn, const std::string& tag) const {
    check<DataError>(turn.is_object() && turn.contains(tag),
                     "{}: a turn is {}; it needs \"{}\" and \"{}\" (\"tags\" in "
                     "dataset_info.json name them)",
                     place_, io::json_in_words(turn), tags_.role, tags_.content);
    const Json& value = turn.at(tag);
    return value.is_null() ? std::string() : text_of(value, "\"" + tag + "\" of a turn");
  }

  // An empty tag means that the dataset has no such role, so it matches nothing.
  bool is_tag(const std::string& role, const std::string& tag) const { return !tag.empty() && role == tag; }

  Role role_of(const std::string& role) const {
    if (is_tag(role, tags_.user)) return Role::kUser;
    if (is_tag(role, tags_.assistant)) return Role::kAssistant;
    if (is_tag(role, tags_.observation)) return Role::kObservation;
    if (is_tag(role, tags_.function)) return Role::kFunction;
    throw LeftOut{fmt::format("the role {} is not one of the dataset's", io::in_quotes(role))};
  }

  // A turn with tool calls becomes a function message, whose content is the calls as JSON text.
  Message message_of(const Json& turn) const {
    const Role role = role_of(tag_of(turn, tags_.role));
    const bool answers = role == Role::kAssistant || role == Role::kFunction;
    const Json* calls = answers && openai_turns() && turn.contains("tool_calls") ? &turn.at("tool_calls") : nullptr;
    if (calls == nullptr || !calls->is_array() || calls->empty()) return {role, tag_of(turn, tags_.content)};
    Json functions = Json::array();
    for (const Json& call : *calls) {
      check<DataError>(call.is_object() && call.contains("function"), "{}: a tool call is {}; it needs \"function\"",
                       place_, io::json_in_words(call));
      functions.push_back(call.at("function"));
    }
    return {Role::kFunction, python_json(functions)};
  }

  // Whether turns may hold tool calls and several results in a row.
  bool openai_turns() const { return dataset_.formatting != Formatting::kSharegpt; }

  // Returns the turns of a list; a leading system turn is moved to `system`. Consecutive tool results in OpenAI's
  // format are joined into one turn, so that turns alternate.
  std::vector<Message> messages_of(const Json& list, std::string* system) const {
    check<DataError>(list.is_array(), "{}: {} must be a list of turns", place_, io::json_in_words(list));
    std::vector<Message> result;
    for (size_t i = 0; i < list.size(); ++i) {
      if (i == 0 && system != nullptr && is_tag(tag_of(list[i], tags_.role), tags_.system)) {
        *system = tag_of(list[i], tags_.content);
        continue;
      }
      Message message = message_of(list[i]);
      const bool continues_results = openai_turns() && message.role == Role::kObservation && !result.empty() &&
                                     result.back().role == Role::kObservation;
      if (continues_results)
        result.back().content += std::string(kResultSeparator) + message.content;
      else
        result.push_back(std::move(message));
    }
    return result;
  }

  // Questions (user, observation) and answers (assistant, function) must alternate, starting with a question.
  static void check_alternation(const std::vector<Message>& messages) {
    for (size_t i = 0; i < messages.size(); ++i) {
      const Role role = messages[i].role;
      const bool asks = role == Role::kUser || role == Role::kObservation;
      if (asks != (i % 2 == 0))
        throw LeftOut{fmt::format("turn {} should be {}", i + 1,
                                  i % 2 == 0 ? "the user's or an observation" : "the assistant's or a function call")};
    }
  }

  // Changes the system text as LLaMA-Factory's "openai" converter does.
  static void add_thinking_switch(Conversation& conversation) {
    std::string& system = conversation.system;
    if (!conversation.tools.empty()) {
      if (!system.empty()) system += '\n';
    } else if (system.find("detailed thinking on") == std::string::npos &&
               system.find("detailed thinking off") == std::string::npos) {
      system += std::string(system.empty() ? "" : "\n") + "detailed thinking off";
    }
  }

  // ShareGPT and OpenAI: the last turn is the answer; with ranking, the answers are in columns of their own.
  Conversation turns_of(const Json& list) const {
    Conversation result{.system = text(columns_.system), .tools = tools()};
    result.prompt = messages_of(list, &result.system);
    // Tool results at the end, which have no answer, are dropped, as in LLaMA-Factory.
    if (openai_turns() && !result.prompt.empty() && result.prompt.back().role == Role::kObservation)
      result.prompt.pop_back();
    if (dataset_.formatting == Formatting::kOpenai) add_thinking_switch(result);
    check_alternation(result.prompt);
    if (dataset_.ranking) {
      const Json &chosen = required(columns_.chosen), &rejected = required(columns_.rejected);
      if (!chosen.is_object() || !rejected.is_object()) throw LeftOut{"chosen and rejected must be turns"};
      result.responses = {message_of(chosen), message_of(rejected)};
      return result;
    }
    if (result.prompt.size() % 2 != 0 || result.prompt.empty())
      throw LeftOut{fmt::format("{} turns; questions and answers come in pairs", result.prompt.size())};
    result.responses.push_back(std::move(result.prompt.back()));
    result.prompt.pop_back();
    return result;
  }

  // Returns the turns of chosen or rejected: a text, a turn, or a list of turns, the last of which is the answer.
  std::vector<Message> answer_of(const std::string& column, std::string* system) const {
    const Json& value = required(column);
    if (value.is_string()) return {{Role::kAssistant, value.get<std::string>()}};
    if (value.is_object()) return {message_of(value)};
    std::vector<Message> turns = messages_of(value, system);
    if (turns.empty()) throw LeftOut{"\"" + column + "\" has no turns"};
    return turns;
  }

  // Preference pairs without an entry in dataset_info.json: the prompt may be in `messages`, in `prompt`, or repeated
  // at the start of both answers.
  Conversation pairs() const {
    Conversation result{.system = text(columns_.system), .tools = tools()};
    const Json* prompt = find(columns_.prompt);
    if (!columns_.messages.empty())
      result.prompt = messages_of(required(columns_.messages), &result.system);
    else if (prompt != nullptr && prompt->is_array())
      result.prompt = messages_of(*prompt, &result.system);
    else if (prompt != nullptr)
      result.prompt.push_back({Role::kUser, joined_prompt()});
    const bool has_prompt = !result.prompt.empty();
    for (const std::string& column : {columns_.chosen, columns_.rejected}) {
      std::vector<Message> turns = answer_of(column, &result.system);
      result.responses.push_back(std::move(turns.back()));
      turns.pop_back();
      // A pair without a separate prompt repeats it in both lists; the one of `chosen` counts.
      if (!has_prompt && result.prompt.empty()) result.prompt = std::move(turns);
    }
    check_alternation(result.prompt);
    return result;
  }

  const Json& record_;
  const DatasetDescription& dataset_;
  const Columns& columns_;
  const Tags& tags_;
  const std::string& place_;
};

// Returns what the conversation lacks for a sample of this kind; empty if nothing.
std::string incomplete(const Conversation& conversation, SampleKind kind) {
  if (kind == SampleKind::kDocument) return conversation.prompt.empty() ? "no text" : "";
  if (conversation.prompt.size() % 2 == 0) return fmt::format("{} turns before the answer", conversation.prompt.size());
  const bool single = kind == SampleKind::kConversation || kind == SampleKind::kFeedback;
  if (single && conversation.responses.size() != 1) return "no answer, or more than one";
  if (kind == SampleKind::kFeedback && !conversation.desirable) return "no verdict on the answer (kto_tag)";
  if (kind == SampleKind::kLabelled && conversation.responses.empty() && conversation.prompt.size() != 1)
    return "several turns without an answer at the end";
  if (is_pair(kind) && conversation.responses.size() < 2) return "chosen or rejected is missing";
  for (const Message& response : conversation.responses)
    if (response.role == Role::kUser || response.role == Role::kObservation) return "an answer is not the assistant's";
  return "";
}

// Returns a column of ids or labels.
std::vector<int32_t> ids_of(const Json& record, const std::string& column, const std::string& place) {
  const auto list = record.find(column);
  check<DataError>(list != record.end() && list->is_array(), "{}: column \"{}\" must be a list of token ids", place,
                   column);
  std::vector<int32_t> ids;
  ids.reserve(list->size());
  for (const Json& value : *list) {
    constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
    // Negative numbers are allowed for labels (kIgnoredLabel); check_ids refuses others.
    const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= static_cast<uint64_t>(kMax)
                                                 : value.is_number_integer() && value.get<int64_t>() >= -kMax;
    check<DataError>(fits, "{}: column \"{}\" has {} at position {}; token ids are whole numbers", place, column,
                     io::json_in_words(value), ids.size());
    ids.push_back(value.get<int32_t>());
  }
  return ids;
}

// `prefix` is "", "chosen_" or "rejected_". Without labels every token is trained.
Sequence pretokenized_row(const Json& record, const std::string& prefix, const std::string& place) {
  Sequence row;
  row.ids = ids_of(record, prefix + "input_ids", place);
  row.labels = record.contains(prefix + "labels") ? ids_of(record, prefix + "labels", place) : row.ids;
  check<DataError>(row.labels.size() == row.ids.size(),
                   "{}: \"{}input_ids\" has {} values and \"{}labels\" {}; there must be one label per token", place,
                   prefix, row.ids.size(), prefix, row.labels.size());
  return row;
}

}  // namespace

ConvertedRecord convert_record(const Json& record, const DatasetDescription& dataset, SampleKind kind,
                               const std::string& place) {
  try {
    Conversation conversation = Converter(record, dataset, place).convert();
    if (std::string problem = incomplete(conversation, kind); !problem.empty()) return {std::nullopt, problem};
    return {std::move(conversation), {}};
  } catch (const LeftOut& left_out) {
    return {std::nullopt, left_out.problem};
  }
}

Sample pretokenized_sample(const Json& record, SampleKind kind, const std::string& place) {
  if (kind == SampleKind::kFeedback) {
    const auto verdict = record.find("kto_tag");
    check<DataError>(verdict != record.end(), "{}: column \"kto_tag\" is missing; stage kto needs a verdict", place);
    return {.row = pretokenized_row(record, "", place),
            .rejected = std::nullopt,
            .feedback = Feedback{verdict_of(*verdict, "kto_tag", place), {}}};
  }
  if (!is_pair(kind)) return {pretokenized_row(record, "", place), std::nullopt};
  return {pretokenized_row(record, "chosen_", place), pretokenized_row(record, "rejected_", place)};
}

}  // namespace megalith::data
