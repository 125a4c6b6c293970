// What `--dataset` names: entries of LLaMA-Factory's dataset_info.json, or files and folders.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megalith/io/json_text.h"

namespace megalith::data {

enum class Formatting {
  kAlpaca,        // columns prompt, query, response
  kSharegpt,      // a list of turns in the column `messages`
  kMessages,      // the same, with tool calls as OpenAI writes them
  kOpenai,        // that, and the system texts that LLaMA-Factory adds to it ("detailed thinking off")
  kPairs,         // prompt, chosen, rejected as texts or lists of turns
  kPretokenized,  // input_ids and labels; chosen_input_ids … for pairs
};

// Which column holds what; an empty name: there is none.
struct Columns {
  std::string prompt = "instruction";
  std::string query = "input";
  std::string response = "output";
  std::string messages = "conversations";
  std::string history, system, tools, chosen, rejected;
  bool operator==(const Columns&) const = default;
};

// Names inside of turns; empty: there is none.
struct Tags {
  std::string role = "from";
  std::string content = "value";
  std::string user = "human";
  std::string assistant = "gpt";
  std::string observation = "observation";
  std::string function = "function_call";
  std::string system = "system";
  bool operator==(const Tags&) const = default;
};

// The names of OpenAI's messages: role, content, user, assistant, tool, system.
Tags openai_tags();

// One dataset: its files and how to read them.
struct DatasetDescription {
  std::string name;  // what the user wrote
  std::vector<std::filesystem::path> files;
  Formatting formatting = Formatting::kAlpaca;
  bool ranking = false;  // preference pairs
  Columns columns;
  Tags tags;
  std::optional<int64_t> num_samples;
  bool operator==(const DatasetDescription&) const = default;
};

// The entry of a dataset_info.json, without its files. If `columns` or `tags` is there, all that it does not list are
// unset, defaults included. `place` names file and entry in messages. Throws DataError.
DatasetDescription read_dataset_entry(const io::Json& entry, const std::string& place);

// Each name is an entry of dataset_dir/dataset_info.json or else a path: as given, or in dataset_dir. A path's format
// is told by the columns of its first record. Throws ConfigError for a name that is neither, with the nearest ones, and
// for an entry that names a hub, with the command that downloads it.
std::vector<DatasetDescription> find_datasets(const std::vector<std::string>& names,
                                              const std::filesystem::path& dataset_dir);

// The format of a file that has no entry. Throws DataError that names the columns that are there.
DatasetDescription infer_format(const io::Json& first_record, const std::string& place);

}  // namespace megalith::data
