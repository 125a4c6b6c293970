// `megalith init`: writes a file of options that trains a model on the user's data, on this machine. At a terminal it
// asks for whatever is not given.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/cli/command.h"
#include "megalith/cli/init/init_internal.h"
#include "megalith/config/parser.h"
#include "megalith/hf/hub_cache.h"
#include "megalith/io/file_io.h"
#include "megalith/model/families/family.h"

namespace megalith::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kInitUsage = R"(megalith init --model MODEL --data FILES [options]

Writes a commented file of options for `megalith train`: it looks at the first rows of the data, at this machine and at
the model, and lets `megalith plan` choose a layout and a batch that fit. On a terminal it asks for what is not given.

  --model MODEL    folder with config.json (or that file), or a hub name that has been downloaded. Without weights the
                   model is trained from scratch
  --data FILES     files or folders, with commas between them: .jsonl, .json, .txt, .csv, .tsv, .parquet, .arrow
  --task TASK      pretrain, sft, lora, preference, kto, reward (a reward model on pairs) or classify (by a column
                   label); default: what the data is for
  --gpus N         GPUs, or processes on the CPU (default: all GPUs of this machine; 1 on the CPU)
  --gpu KIND       for another machine than this one: a100-80g, h100-80g, h200, b200, cpu, or a cluster file
  --output FILE    the file to write (default run.yaml)
  --overwrite      replace FILE if it is there
)";

// The command's own options.
struct InitFlags {
  std::optional<std::string> model, data, task, gpu, output;
  std::optional<int64_t> gpus;
  bool overwrite = false, help = false;

  std::vector<config::CommandOption> options() {
    return {{"model", "folder of the model, or a hub name that has been downloaded", &model},
            {"data", "files or folders, with commas between them", &data},
            {"task", "pretrain, sft, lora, preference, kto, reward or classify", &task},
            {"gpus", "GPUs, or processes on the CPU", &gpus},
            {"gpu", "a preset (a100-80g, h100-80g, h200, b200, cpu) or a cluster file", &gpu},
            {"output", "the file to write (run.yaml)", &output},
            {"overwrite", "replace the file", &overwrite},
            {"help", "print the usage", &help}};
  }
};

// Asks a person; an empty answer means the default.
std::string ask(const std::string& question, const std::string& fallback) {
  fmt::print(stderr, "{}{}: ", question, fallback.empty() ? "" : fmt::format(" [{}]", fallback));
  std::string answer;
  std::getline(std::cin, answer);
  check<ConfigError>(!std::cin.eof() || !answer.empty(), "the questions were not answered; nothing was written");
  const std::string given(trim(answer));
  return given.empty() ? fallback : given;
}

// Without a terminal there is nobody to ask.
std::string required_answer(const std::optional<std::string>& given, bool asks, const char* flag,
                            const std::string& question) {
  if (given) return *given;
  check<ConfigError>(asks, "--{} is missing; megalith init --help shows what to give", flag);
  std::string answer = ask(question, "");
  check<ConfigError>(!answer.empty(), "no {} was given; nothing was written", flag);
  return answer;
}

bool holds_weights(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") return true;
  return false;
}

void find_model(const std::string& given, InitRequest& request) {
  const fs::path path = given;
  request.model_name = path.filename() == "config.json" && fs::is_regular_file(path)
                           ? (path.has_parent_path() ? path.parent_path().string() : ".")
                           : given;
  request.model_folder =
      hf::find_model_folder(request.model_name, hf::HubEnvironment::from_process(), hf::ModelParts::kConfig);
  request.model = model::read_model_config(request.model_folder);
  request.has_weights = holds_weights(request.model_folder);
}

InitRequest request_of(const InitFlags& flags, bool asks) {
  InitRequest request;
  request.output = flags.output.value_or("run.yaml");
  check<ConfigError>(request.output.extension() == ".yaml" || request.output.extension() == ".yml",
                     "output is {}; megalith train reads files whose names end in .yaml", request.output.string());
  // Before any question: all answers would be lost.
  check<ConfigError>(flags.overwrite || !fs::exists(request.output),
                     "{} is there; choose another --output, or add --overwrite", request.output.string());
  find_model(required_answer(flags.model, asks, "model", "Model (a folder with config.json, or a hub name)"), request);
  request.data = look_at_data(
      split(required_answer(flags.data, asks, "data", "Data (files or folders, with commas between them)"), ','),
      request.model_folder);
  fmt::print(stderr, "data: {} {}, {}\n", request.data.records, request.data.records == 1 ? "record" : "records",
             request.data.in_words);
  const std::string usual(to_string(request.data.usual_task()));
  request.task = task_of(flags.task ? *flags.task
                         : asks     ? ask("Task (pretrain, sft, lora, preference, kto, reward, classify)", usual)
                                    : usual);
  request.machine = look_at_machine(flags.gpus, flags.gpu);
  if (asks && !flags.gpus) {
    const std::string answer = ask("GPUs, or processes on the CPU", fmt::format("{}", request.machine.ranks));
    const auto gpus = parse_int(answer);
    check<ConfigError>(gpus.has_value(), "\"{}\" is not a number of GPUs", answer);
    request.machine = look_at_machine(gpus, flags.gpu);
  }
  fmt::print(stderr, "machine: {}\n", request.machine.in_words);
  return request;
}

}  // namespace

int run_init(Words words) {
  InitFlags flags;
  const auto own = flags.options();
  const auto parsed = config::parse_arguments(config::Dialect::kTrain, words, own);
  if (flags.help) {
    write_stdout(kInitUsage);
    return kDone;
  }
  check<ConfigError>(parsed.report.uses.empty(),
                     "{} is an option of the run: write it into the file, or give it to"
                     " megalith train; megalith init --help shows what init takes",
                     parsed.report.uses.empty() ? "" : parsed.report.uses.front().given);
  const InitRequest request = request_of(flags, ::isatty(STDIN_FILENO) == 1);
  io::replace_text_file(request.output, run_file(request));
  const std::string ranks = request.machine.ranks > 1 ? fmt::format(" --nproc {}", request.machine.ranks) : "";
  fmt::print(stderr, "wrote {}; start with:\n", request.output.string());
  write_stdout(fmt::format("megalith train {}{}\n", request.output.string(), ranks));
  return kDone;
}

}  // namespace megalith::cli
