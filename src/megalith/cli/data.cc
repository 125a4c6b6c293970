// `megalith data TASK`: what training reads.
#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/cli/data_internal.h"
#include "megalith/cli/preview_internal.h"

namespace megalith::cli {

namespace {

struct Task {
  std::string name;
  const char* summary;
  int (*run)(Words words);
};

const std::vector<Task>& tasks() {
  static const std::vector<Task> table{
      {"train-tokenizer", "a byte-level BPE tokenizer from texts", data_train_tokenizer},
  };
  return table;
}

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const Task& task : tasks()) names.push_back(task.name);
  return names;
}

std::string list_of_tasks() {
  std::string text = "megalith data TASK [options]: makes what training reads\n\n";
  for (const Task& task : tasks()) text += fmt::format("  {:<16} {}\n", task.name, task.summary);
  return text + "\nmegalith data TASK --help   the options of a task\n";
}

}  // namespace

int run_data(Words words) {
  const std::vector<std::string> names = task_names();
  check<ConfigError>(!words.empty(), "megalith data needs a task: {}", list_in_words(names));
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    write_stdout(list_of_tasks());
    return kDone;
  }
  const auto task = std::ranges::find(tasks(), words[0], &Task::name);
  if (task == tasks().end()) {
    const std::vector<std::string> near = nearest(words[0], names, 1);
    throw ConfigError(fmt::format("\"{}\" is not a task of megalith data{}. Tasks: {}.", words[0],
                                  near.empty() ? "" : fmt::format("; did you mean {}?", near[0]),
                                  list_in_words(names)));
  }
  return task->run(words.subspan(1));
}

}  // namespace megalith::cli
