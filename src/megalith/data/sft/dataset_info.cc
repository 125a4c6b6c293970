// Resolving `--dataset`: names in dataset_info.json first, then paths. Nothing is downloaded and no script is run; an
// entry that needs either is refused with the command that fetches its files.
#include "megalith/data/sft/dataset_info.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/data/sft/record_file.h"
#include "megalith/io/json_reader.h"

namespace megalith::data {
namespace {

namespace fs = std::filesystem;
using io::Json;

// Copies the strings of an object to the members that the table lists; members without a key become empty.
template <typename T>
T read_names(const io::JsonFields& fields, std::initializer_list<std::pair<const char*, std::string T::*>> table) {
  T result;
  for (const auto& [key, member] : table) result.*member = fields.optional<std::string>(key).value_or("");
  return result;
}

Columns read_columns(const io::JsonFields& fields) {
  return read_names<Columns>(fields, {{"prompt", &Columns::prompt},
                                      {"query", &Columns::query},
                                      {"response", &Columns::response},
                                      {"messages", &Columns::messages},
                                      {"history", &Columns::history},
                                      {"system", &Columns::system},
                                      {"tools", &Columns::tools},
                                      {"chosen", &Columns::chosen},
                                      {"rejected", &Columns::rejected},
                                      {"images", &Columns::images},
                                      {"videos", &Columns::videos},
                                      {"audios", &Columns::audios},
                                      {"kto_tag", &Columns::kto_tag},
                                      {"margin", &Columns::margin},
                                      {"label", &Columns::label}});
}

// "tags": {"role_tag": "role", …}; roles that are not listed do not occur in the dataset.
Tags read_tags(const io::JsonFields& fields) {
  return read_names<Tags>(fields, {{"role_tag", &Tags::role},
                                   {"content_tag", &Tags::content},
                                   {"user_tag", &Tags::user},
                                   {"assistant_tag", &Tags::assistant},
                                   {"observation_tag", &Tags::observation},
                                   {"function_tag", &Tags::function},
                                   {"system_tag", &Tags::system}});
}

// The other formats of Formatting are only inferred from columns; LLaMA-Factory has no names for them.
Formatting read_formatting(const io::JsonFields& fields) {
  const std::string name = fields.optional<std::string>("formatting").value_or("alpaca");
  if (name == "alpaca") return Formatting::kAlpaca;
  if (name == "sharegpt") return Formatting::kSharegpt;
  if (name == "openai") return Formatting::kOpenai;
  fields.refuse("formatting", "be alpaca, sharegpt or openai");
}

// Returns the names of an object's members, in their order.
std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

// Returns a file, or all visible files of a folder sorted by name, which must be of one type.
std::vector<fs::path> files_of(const fs::path& path, const std::string& name) {
  check<ConfigError>(fs::exists(path), "dataset {}: {} does not exist; check file_name and dataset_dir", name,
                     path.string());
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.is_regular_file() && !entry.path().filename().string().starts_with('.')) files.push_back(entry.path());
  check<ConfigError>(!files.empty(), "dataset {}: the folder {} has no files", name, path.string());
  // The order of a directory is arbitrary, and the order of records must not be.
  std::ranges::sort(files);
  for (const fs::path& file : files)
    check<DataError>(record_format(file) == record_format(files.front()),
                     "dataset {}: {} and {} are of different types; a dataset's folder holds files of one type", name,
                     files.front().string(), file.string());
  return files;
}

// Throws if the entry refers to a hub, a script or cloud storage instead of local files.
void refuse_remote(const std::string& name, const io::JsonFields& entry, const fs::path& dataset_dir) {
  const std::string info = (dataset_dir / "dataset_info.json").string(), target = (dataset_dir / name).string();
  const auto refuse = [&](const char* hub, const std::string& command) {
    throw ConfigError(
        fmt::format("dataset {} is on {}, and Megalith does not download data. Run `{}`, then give that folder or "
                    "set \"file_name\" in {}",
                    name, hub, command, info));
  };
  if (const auto id = entry.optional<std::string>("hf_hub_url"))
    refuse("the Hugging Face hub", fmt::format("hf download --repo-type dataset {} --local-dir {}", *id, target));
  if (const auto id = entry.optional<std::string>("ms_hub_url"))
    refuse("ModelScope", fmt::format("modelscope download --dataset {} --local_dir {}", *id, target));
  for (const char* key : {"om_hub_url", "script_url", "cloud_file_name"})
    check<ConfigError>(
        !entry.has(key),
        "dataset {} is given by \"{}\", and Megalith does not download data or run scripts. Get its files as .jsonl"
        " and set \"file_name\" in {}",
        name, key, info);
}

// A dataset with an entry: the entry says how to read it.
DatasetDescription from_entry(const std::string& name, const Json& entry, const fs::path& dataset_dir) {
  const std::string place = fmt::format("{}: \"{}\"", (dataset_dir / "dataset_info.json").string(), name);
  check<DataError>(entry.is_object(), "{} is {}; it must be an object", place, io::json_in_words(entry));
  DatasetDescription result = read_dataset_entry(entry, place);
  const io::JsonFile file(entry, place);
  const io::JsonFields fields = file.fields();
  // A local file wins, even if the entry also names a hub.
  if (!fields.has("file_name")) refuse_remote(name, fields, dataset_dir);
  result.name = name;
  result.files = files_of(dataset_dir / fields.required<std::string>("file_name"), name);
  return result;
}

// A dataset without an entry: the first record of the first file that has one decides.
DatasetDescription from_path(const std::string& name, const fs::path& path) {
  const std::vector<fs::path> files = files_of(path, name);
  for (const fs::path& file : files) {
    RecordScanner scanner(file);
    std::string text;
    RecordPlace place;
    if (!scanner.next(text, place)) continue;  // an empty file among others is allowed
    DatasetDescription result = infer_format(parse_record(text, scanner.format(), file, place.line),
                                             fmt::format("{}:{}", file.string(), place.line));
    result.name = name;
    result.files = files;
    return result;
  }
  throw DataError(fmt::format("dataset {}: {} has no records", name, path.string()));
}

}  // namespace

// A function call has a role of its own here; messages with "tool_calls" are converted to it.
Tags openai_tags() {
  return {.role = "role",
          .content = "content",
          .user = "user",
          .assistant = "assistant",
          .observation = "tool",
          .function = "function_call",
          .system = "system"};
}

// `columns` and `tags`, if present, replace the defaults as a whole, as in LLaMA-Factory: an entry that names only
// `messages` has no `response` column.
DatasetDescription read_dataset_entry(const Json& entry, const std::string& place) {
  const io::JsonFile file(entry, place);
  const io::JsonFields fields = file.fields();
  DatasetDescription result;
  result.formatting = read_formatting(fields);
  result.ranking = fields.optional<bool>("ranking").value_or(false);
  result.num_samples = fields.optional_positive<int64_t>("num_samples");
  if (fields.optional<std::string>("split").value_or("train") != "train")
    fields.refuse("split", "be train: local files have no other split");
  if (const auto columns = fields.optional_object("columns")) result.columns = read_columns(*columns);
  if (const auto tags = fields.optional_object("tags"))
    result.tags = read_tags(*tags);
  else if (result.formatting == Formatting::kOpenai)
    result.tags = openai_tags();
  return result;
}

// {"messages": […]} -> kMessages, {"instruction": …, "output": …} -> kAlpaca, {"text": …} -> kAlpaca with the text as
// its prompt, and so on; see the message at the end for all.
DatasetDescription infer_format(const Json& first_record, const std::string& place) {
  const auto has = [&](const char* column) { return first_record.contains(column); };
  // The order of the cases matters: records may have columns of several formats, and the most specific one wins.
  const auto when = [&](const char* column) { return has(column) ? std::string(column) : std::string(); };
  DatasetDescription result;
  result.columns = {.prompt = "", .query = "", .response = "", .messages = ""};  // no defaults: only what is there
  Columns& columns = result.columns;
  columns.system = when("system");
  columns.tools = when("tools");
  columns.images = when("images");
  columns.videos = when("videos");
  columns.audios = when("audios");
  columns.kto_tag = when("kto_tag");
  columns.margin = when("margin");
  columns.label = when("label");
  result.tags = openai_tags();
  if (has("input_ids") || has("chosen_input_ids")) {
    result.formatting = Formatting::kPretokenized;
    result.ranking = has("chosen_input_ids");
  } else if (has("chosen") && has("rejected")) {
    result.formatting = Formatting::kPairs;
    result.ranking = true;
    columns.chosen = "chosen";
    columns.rejected = "rejected";
    columns.messages = has("conversations") ? "conversations" : when("messages");
    columns.prompt = has("prompt") ? "prompt" : has("question") ? "question" : when("instruction");
    columns.query = when("input");
    if (columns.messages == "conversations") result.tags = Tags{};  // ShareGPT's names: from, value, human, gpt
  } else if (has("messages")) {
    result.formatting = Formatting::kMessages;
    columns.messages = "messages";
  } else if (has("conversations")) {
    result.formatting = Formatting::kSharegpt;
    columns.messages = "conversations";
    result.tags = Tags{};
  } else if (has("instruction")) {  // Alpaca
    columns.prompt = "instruction";
    columns.query = "input";
    columns.response = "output";
    columns.history = "history";
  } else if (has("prompt") && (has("response") || has("completion"))) {
    columns.prompt = "prompt";
    columns.response = has("response") ? "response" : "completion";
  } else if (has("text")) {  // documents for stage pt
    columns.prompt = "text";
  } else {
    throw DataError(fmt::format(
        "{}: the format cannot be told from the columns {}. Known are: messages; conversations; instruction, output; "
        "prompt, response; prompt, completion; chosen, rejected; input_ids, labels; text. Name others in an entry of "
        "dataset_info.json (\"columns\")",
        place, list_in_words(keys_of(first_record))));
  }
  return result;
}

std::vector<DatasetDescription> find_datasets(const std::vector<std::string>& names, const fs::path& dataset_dir) {
  const fs::path info_path = dataset_dir / "dataset_info.json";
  Json info = Json::object();
  if (fs::exists(info_path)) {
    info = io::read_json_file(info_path).root();
    check<DataError>(info.is_object(), "{}: it must be an object of named datasets", info_path.string());
  }
  std::vector<DatasetDescription> result;
  for (const std::string& name : names) {
    // An entry wins over a path of the same name.
    if (info.contains(name)) {
      result.push_back(from_entry(name, info.at(name), dataset_dir));
    } else if (fs::exists(name)) {
      result.push_back(from_path(name, name));
    } else if (fs::exists(dataset_dir / name)) {
      result.push_back(from_path(name, dataset_dir / name));
    } else {
      const std::vector<std::string> known = keys_of(info);
      // A typo in a name is the usual reason.
      const auto near = nearest(name, known);
      throw ConfigError(fmt::format("dataset \"{}\" is neither a path nor an entry of {}{}{}", name, info_path.string(),
                                    fs::exists(info_path)
                                        ? fmt::format(", which has {}", known.empty() ? "none" : list_in_words(known))
                                        : ", which does not exist (set dataset_dir)",
                                    near.empty() ? "" : fmt::format("; did you mean {}?", list_in_words(near))));
    }
  }
  return result;
}

}  // namespace megalith::data
