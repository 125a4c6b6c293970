// DatasetDescription: a dataset that `--dataset` names: an entry of LLaMA-Factory's dataset_info.json, a file or a
// folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megalith/io/json_text.h"

namespace megalith::data {

// How the records of a dataset are laid out. The first, second and fourth are names in dataset_info.json; the others
// are inferred from columns.
enum class Formatting {
  kAlpaca,        // columns prompt, query, response
  kSharegpt,      // a list of turns in the column `messages`
  kMessages,      // the same, with tool calls in OpenAI's format
  kOpenai,        // like kMessages, plus the system texts that LLaMA-Factory adds ("detailed thinking off")
  kPairs,         // prompt, chosen, rejected as texts or lists of turns
  kPretokenized,  // input_ids and labels; chosen_input_ids … for pairs
};

// Names of the columns; empty if a dataset has no such column. The defaults are Alpaca's, and `conversations` for lists
// of turns.
struct Columns {
  std::string prompt = "instruction";
  std::string query = "input";
  std::string response = "output";
  std::string messages = "conversations";
  std::string history, system, tools, chosen, rejected, images, videos, audios;
  std::string kto_tag;  // true or false: whether the answer is desirable (stage kto)
  std::string margin;   // by how much the reward of the chosen answer is to be larger (stage rm)
  std::string label;    // class, classes or number of the text (stage cls)
  bool operator==(const Columns&) const = default;
};

// Names of the keys and roles inside turns; empty if there is none. The defaults are ShareGPT's.
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

// Returns the names of OpenAI's messages: role, content, user, assistant, tool, system.
Tags openai_tags();

// One dataset: its files and how to read them. Resolved once per run, before any record is read; every rank resolves it
// alike.
struct DatasetDescription {
  std::string name;  // as the user wrote it
  std::vector<std::filesystem::path> files;
  Formatting formatting = Formatting::kAlpaca;
  bool ranking = false;  // preference pairs
  Columns columns;
  Tags tags;
  std::optional<int64_t> num_samples;
  bool operator==(const DatasetDescription&) const = default;
};

// Reads an entry of dataset_info.json, without its files. If `columns` or `tags` is present, everything that it does
// not list is unset, even if it has a default. `place` names file and entry in messages. Throws a DataError.
DatasetDescription read_dataset_entry(const io::Json& entry, const std::string& place);

// Finds the datasets. Each name is an entry of dataset_dir/dataset_info.json or a path, as given or in dataset_dir. The
// format of a path is inferred from the columns of its first record. Throws a ConfigError for a name that is neither,
// with the nearest names, and for an entry that refers to a hub, with the command that downloads it. The result has one
// entry per name, in the order of the names, which numbers the datasets everywhere else.
std::vector<DatasetDescription> find_datasets(const std::vector<std::string>& names,
                                              const std::filesystem::path& dataset_dir);

// Infers the format of a file without an entry. Throws a DataError that lists the existing columns if it cannot. One
// record decides for the whole dataset; a later record with other columns is then an error, or skipped.
DatasetDescription infer_format(const io::Json& first_record, const std::string& place);

}  // namespace megalith::data
