// The file that init writes. The layout is the planner's; lengths and batch follow from the data; rates are those that
// are usual for the task. Each line gets the help text of its option, unless there is more to say.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/cli/init/init_internal.h"
#include "megalith/config/parser.h"
#include "megalith/plan/search.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/resolve.h"
#include "megalith/run/resolve/run_shape.h"
#include "megalith/tokenizer/chat/chat_template.h"

namespace megalith::cli {

namespace {

constexpr std::array kTasks{std::pair("pretrain", Task::kPretrain), std::pair("sft", Task::kSft),
                            std::pair("lora", Task::kLora),         std::pair("preference", Task::kPreference),
                            std::pair("kto", Task::kKto),           std::pair("reward", Task::kReward),
                            std::pair("classify", Task::kClassify)};

// Whether answers are compared with those of a reference model.
bool compares_answers(Task task) { return task == Task::kPreference || task == Task::kKto; }

config::Stage stage_of(Task task) {
  switch (task) {
    case Task::kPretrain:
      return config::Stage::kPretrain;
    case Task::kPreference:
      return config::Stage::kDpo;
    case Task::kKto:
      return config::Stage::kKto;
    case Task::kReward:
      return config::Stage::kReward;
    case Task::kClassify:
      return config::Stage::kClassify;
    case Task::kSft:
    case Task::kLora:
      break;
  }
  return config::Stage::kSft;
}

// Collects lines `name: value   # comment`, and remembers them as words for the parser.
class FileText {
 public:
  void section(const std::string& title) { text_ += fmt::format("\n# {}\n", title); }
  // Without a comment the option explains itself by its help text.
  void add(const std::string& name, const std::string& value, const std::string& comment = "") {
    constexpr size_t kCommentColumn = 44;
    const auto match = config::OptionTable::instance().find(name);
    const std::string why = comment.empty() && match ? match->option->help : comment;
    const std::string line = fmt::format("{}: {}", name, value);
    text_ +=
        why.empty() ? line + "\n" : fmt::format("{:<{}}# {}\n", line, std::max(kCommentColumn, line.size() + 2), why);
    // The parser gets a list as the words of a comma list.
    std::string word = value;
    std::erase_if(word, [](char c) { return c == '[' || c == ']' || c == '"'; });
    words_.push_back(fmt::format("--{}={}", name, word));
  }
  void note(const std::string& text) { text_ += "# " + text + "\n"; }
  const std::string& text() const { return text_; }
  const std::vector<std::string>& words() const { return words_; }

 private:
  std::string text_;
  std::vector<std::string> words_;
};

// A string of YAML, in quotes where it could be read as something else.
std::string quoted(const std::string& text) {
  const bool plain = !text.empty() &&
                     std::ranges::all_of(text,
                                         [](unsigned char c) {
                                           return std::isalnum(c) != 0 || c == '/' || c == '.' || c == '_' ||
                                                  c == '-' || c == ',' || c == '@' || c >= 0x80;
                                         }) &&
                     text.front() != '-' && text.front() != '@';
  if (plain) return text;
  std::string escaped;
  for (const char c : text) escaped += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return "\"" + escaped + "\"";
}

// Rounds up to a power of two.
int64_t power_of_two(double at_least) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(1.0, at_least))));
}

// Tokens per row. Documents are packed, so any length will do that leaves enough rows; a conversation should fit whole.
int64_t row_length(const InitRequest& request) {
  constexpr int64_t kMost = 4096, kLeast = 64, kFewestRows = 64;
  const int64_t positions = request.model.max_positions > 0 ? request.model.max_positions : kMost;
  const int64_t most = std::min(kMost, positions);
  if (request.task == Task::kPretrain) {
    const double tokens = request.data.tokens_per_record * static_cast<double>(request.data.records);
    const int64_t length = power_of_two(tokens / kFewestRows + 1) / 2;
    return std::min(most, std::max(kLeast, length));
  }
  return std::min(most, std::max(kLeast, power_of_two(static_cast<double>(request.data.longest_tokens))));
}

// Sequences per step: small enough that an epoch has steps to learn in, at least one per rank.
int64_t batch_size(const InitRequest& request, int64_t length) {
  constexpr double kStepsPerEpoch = 20;
  const double rows =
      request.task == Task::kPretrain
          ? request.data.tokens_per_record * static_cast<double>(request.data.records) / static_cast<double>(length)
          : static_cast<double>(request.data.records);
  const int64_t most = request.task == Task::kPretrain ? 256 : 32;
  const auto batch = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max(1.0, rows / kStepsPerEpoch))));
  // A power of two times the ranks can be shared by every layout.
  return request.machine.ranks * std::max<int64_t>(1, std::min(most, batch) / request.machine.ranks);
}

// Whether a fiftieth of the data is enough to evaluate on: a sample for each rank, or some full rows of documents.
bool holds_out(const InitRequest& request, int64_t length) {
  constexpr double kShare = 0.02, kRows = 4;
  const double records = kShare * static_cast<double>(request.data.records);
  if (request.task != Task::kPretrain) return records >= std::max(1, request.machine.ranks);
  return records * request.data.tokens_per_record >= kRows * static_cast<double>(length) * request.machine.ranks;
}

config::TrainingArguments arguments_for(const InitRequest& request, int64_t length) {
  config::TrainingArguments args = config::default_arguments(config::Dialect::kTrain);
  args.run.stage = stage_of(request.task);
  args.run.finetuning_type =
      request.task == Task::kLora ? config::FinetuningType::kLora : config::FinetuningType::kFull;
  args.preference.precompute_ref_log_probs = compares_answers(request.task);
  args.precision.bf16 = request.machine.cluster.cuda;
  if (request.task == Task::kClassify && request.model.num_labels == 0 && request.data.labels) {
    args.scoring.num_labels = static_cast<int>(request.data.labels->num_labels);
    args.scoring.problem_type = request.data.labels->problem;
  }
  args.data.cutoff_len = static_cast<int>(length);
  return args;
}

// Throws if no layout fits, with what would.
plan::Candidate fastest_layout(const InitRequest& request, int64_t length, int64_t batch) {
  const config::TrainingArguments args = arguments_for(request, length);
  const bool scores = config::scores_sequences(args.run.stage);  // with a head in place of the one in the files
  plan::SearchRequest search =
      run::search_request(scores ? run::model_overrides(args).applied_to(request.model) : request.model, args);
  search.sequence_length = length;
  search.gpus = request.machine.ranks;
  search.global_batch = batch;
  search.cluster = request.machine.cluster;
  search.best = 1;
  plan::SearchResult result = plan::search_layouts(search);
  if (result.best.empty())
    throw ConfigError(fmt::format("{} {} does not fit on {}: {}{}",
                                  request.task == Task::kLora ? "LoRA with" : "training", request.model_name,
                                  request.machine.in_words, result.why_not,
                                  request.task == Task::kSft ? ". --task lora needs much less memory" : ""));
  return result.best.front();
}

void check_task(const InitRequest& request) {
  const bool wants_documents = request.task == Task::kPretrain,
             wants_pairs = request.task == Task::kPreference || request.task == Task::kReward,
             wants_verdicts = request.task == Task::kKto, wants_labels = request.task == Task::kClassify;
  const bool tokens = request.data.in_words.starts_with("tokens");
  // Tokens do not tell whether they were documents.
  check<ConfigError>((tokens || wants_labels || wants_documents == request.data.documents) &&
                         wants_pairs == request.data.pairs && wants_verdicts == request.data.verdicts &&
                         (!wants_labels || (request.data.labels && request.data.labels->num_labels > 0)),
                     "task {} does not suit the data, which holds {}; leave --task out, or give data with {}",
                     to_string(request.task), request.data.in_words,
                     wants_documents  ? "a column text"
                     : wants_pairs    ? "columns chosen and rejected"
                     : wants_verdicts ? "an answer and a column kto_tag"
                     : wants_labels   ? "a column label: a class from 0, a number, or a list with 0 or 1 for each class"
                                      : "conversations (messages, conversations, or instruction and output)");
  check<ConfigError>(request.has_weights || request.task == Task::kPretrain || request.task == Task::kSft,
                     "{} has no weights (*.safetensors): task {} starts from a trained model", request.model_name,
                     to_string(request.task));
}

void add_model_and_data(const InitRequest& request, int64_t length, FileText& file) {
  file.section("Model and data");
  file.add("model_name_or_path", quoted(request.model_name));
  if (!request.has_weights)
    file.add("train_from_scratch", "true", "the folder has no weights: they are drawn from the seed");
  file.add("dataset", quoted(fmt::format("{}", fmt::join(request.data.names, ","))),
           fmt::format("{} records: {}", request.data.records, request.data.in_words));
  file.add("cutoff_len", fmt::format("{}", length),
           request.task == Task::kPretrain
               ? "tokens per row; documents are packed into rows"
               : fmt::format("most tokens per sample; the longest seen has about {}", request.data.longest_tokens));
  const bool conversations = !request.data.documents && !request.data.in_words.starts_with("tokens");
  if (conversations && !tokenizer::ChatTemplate::is_in(request.model_folder))
    file.add("template", "default", "the tokenizer has no chat template; docs/fine-tuning-data.md lists the names");
  if (holds_out(request, length)) file.add("val_size", "0.02", "a fiftieth is held out for evaluation");
}

void add_task(const InitRequest& request, FileText& file) {
  file.section("Task");
  file.add("stage", std::string(config::choice_name(stage_of(request.task))),
           request.task == Task::kPretrain     ? "next-token prediction on documents"
           : request.task == Task::kPreference ? "direct preference optimization"
           : request.task == Task::kKto        ? "Kahneman-Tversky optimization: answers with verdicts"
           : request.task == Task::kReward     ? "a reward model: chosen answers get more than rejected ones"
           : request.task == Task::kClassify   ? "labels of texts are learned"
                                               : "the answers of conversations are learned");
  file.add("do_train", "true");
  if (request.task == Task::kLora) {
    file.add("lora_rank", "16");
    file.add("lora_alpha", "32");
    file.add("lora_target", "all");
  }
  if (request.task == Task::kClassify && request.model.num_labels == 0) {
    file.add("num_labels", fmt::format("{}", request.data.labels->num_labels),
             "as many as the records have that were read");
    file.add("problem_type", std::string(config::choice_name(request.data.labels->problem)));
  }
  if (compares_answers(request.task)) {
    file.add("pref_beta", "0.1");
    file.add("precompute_ref_log_probs", "true", "the reference runs once, before training");
  }
}

// The lines of the planner, with comments.
void add_layout(const InitRequest& request, const plan::Candidate& candidate, FileText& file) {
  file.section(fmt::format("Layout: the fastest that fits on {}", request.machine.in_words));
  file.note(fmt::format("a rank needs {:.2f} of {:.2f} GiB; `megalith preview memory` shows the parts",
                        candidate.memory.peak() / plan::kGiB, request.machine.cluster.usable_bytes() / plan::kGiB));
  for (const std::string& line : split(plan::train_yaml(candidate), '\n')) {
    const size_t colon = line.find(": ");
    // Switches that are off are off by default, too.
    if (line.starts_with('#') || colon == std::string::npos || line.ends_with(": false")) continue;
    file.add(line.substr(0, colon), line.substr(colon + 2));
  }
}

void add_training(const InitRequest& request, int64_t length, int64_t batch, FileText& file) {
  file.section("Training");
  const char* rate = request.task == Task::kLora      ? "1.0e-4"
                     : compares_answers(request.task) ? "1.0e-6"
                     : request.has_weights            ? "1.0e-5"
                                                      : "3.0e-4";
  const bool once = request.task == Task::kPretrain || request.task == Task::kReward || compares_answers(request.task);
  file.add("num_train_epochs", once ? "1" : "3",
           fmt::format("passes over the data; a step has {} {}", batch, batch == 1 ? "sequence" : "sequences"));
  file.add("learning_rate", rate, "the first thing to try other values of");
  file.add("lr_scheduler_type", "cosine");
  file.add("warmup_ratio", "0.03");
  if (request.task == Task::kPretrain) file.add("weight_decay", "0.1");
  if (!compares_answers(request.task) && request.task != Task::kReward)
    file.add(
        "calculate_per_token_loss", "true",
        fmt::format("every {} counts the same, in every layout", request.task == Task::kClassify ? "text" : "token"));
  file.add("logging_steps", "1");
  if (holds_out(request, length)) file.add("eval_strategy", "epoch");
  file.add("save_strategy", "epoch", "checkpoints; the model itself is written at the end in any case");
  file.add("output_dir", quoted("out/" + request.output.stem().string()), "model, checkpoints, metrics and logs");
}

}  // namespace

Task task_of(const std::string& name) {
  const auto* found = std::ranges::find(kTasks, name, [](const auto& row) { return std::string(row.first); });
  check<ConfigError>(found != kTasks.end(),
                     "task is \"{}\"; it must be pretrain, sft, lora, preference, kto, reward or classify", name);
  return found->second;
}

std::string_view to_string(Task task) {
  return std::ranges::find(kTasks, task, [](const auto& row) { return row.second; })->first;
}

std::string run_file(const InitRequest& request) {
  check_task(request);
  const int64_t length = row_length(request);
  const int64_t batch = batch_size(request, length);
  const plan::Candidate candidate = fastest_layout(request, length, batch);
  FileText file;
  const std::string ranks = request.machine.ranks > 1 ? fmt::format(" --nproc {}", request.machine.ranks) : "";
  file.note(
      fmt::format("Written by `megalith init`. Start it with: megalith train {}{}", request.output.string(), ranks));
  file.note("docs/options.md and `megalith train --help` explain every option; options after the file win over it.");
  add_model_and_data(request, length, file);
  add_task(request, file);
  add_layout(request, candidate, file);
  add_training(request, length, batch, file);
  // The same checks as at the start of a run, except that the output folder may be in use now.
  const auto parsed = config::parse_arguments(config::Dialect::kTrain, file.words());
  run::resolve({.work = run::Work::kTrain,
                .options = parsed.args,
                .report = parsed.report,
                .world = {.size = request.machine.ranks},
                .begins_run = false});
  return file.text();
}

}  // namespace megalith::cli
