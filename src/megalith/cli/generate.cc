// `megalith generate`: continues prompts and streams the text. All prompts are read and encoded before ranks start, so
// that mistakes in them cost no loading. Replicas share the texts; rank 0 prints them in the order of the prompts.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"
#include "megalith/base/terminal.h"
#include "megalith/cli/model_command.h"
#include "megalith/cli/prompt_media.h"
#include "megalith/inference/generate.h"
#include "megalith/inference/stage_passes.h"
#include "megalith/run/samples/text_prompts.h"
#include "megalith/tokenizer/chat/chat_template.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::cli {

namespace {

// The text of --help.
constexpr const char* kGenerateUsage = R"(megalith generate --model MODEL (--prompt TEXT | --input FILE) [options]

Continues a prompt and prints the text as it comes.

  --model MODEL          folder, or a hub name that has been downloaded
  --prompt TEXT          the text to continue
  --input FILE           one prompt per line, each a JSON string (or, with --ids, a JSON array of ids); - is stdin. With
                         images and sounds: {"prompt": …, "images": [FILE, …], "audios": [FILE, …]}
  --image FILE           an image (JPEG, PNG, WebP) that the prompt is about; repeat it for several. Each stands where
                         the prompt has <image>; without any <image>, all stand before the text. With --ids the prompt
                         has a placeholder id for each
  --audio FILE           a sound (WAV, FLAC, MP3, Ogg) for a model that hears, likewise; it stands where the prompt has
                         <audio>
  --chat                 a prompt is a user's message, or in FILE also a list of messages; uses the chat template
  --ids                  prompts and results are token ids; needs no tokenizer
  --max_new_tokens N     most tokens to generate (default 128)
  --temperature X        0 always takes the likeliest token (default)
  --top_k N, --top_p X   sample only from the N likeliest tokens; only from those that together have probability X
  --seed N               seed of the sampling; every text is a draw of its own, also for equal prompts
  --num_return_sequences N  texts per prompt (default 1); more than one needs a temperature
  --json                 one JSON object per text instead of a stream: {"prompt","text","ids"}, "images", "audios"
  --nproc N --tp N --pp N --ep N …   ranks and how they share the model, as in `megalith train`; replicas share the
                         texts
  --bf16 | --fp16        number format (default fp32)
)";

using nlohmann::ordered_json;

struct Prompt {
  ordered_json given;  // as it was written
  PromptFiles files{};
  std::vector<int64_t> ids{};
  inference::MediaInput media{};
};

// Reads {"prompt": …, "images": […], "audios": […]}: returns the files and leaves the prompt.
PromptFiles take_files(ordered_json& value, const std::string& where) {
  bool good = value.contains("prompt") && value.size() == 1 + value.count("images") + value.count("audios");
  const auto list = [&](const char* name) {
    const ordered_json files = value.value(name, ordered_json::array());
    good = good && files.is_array();
    for (const ordered_json& file : files) good = good && file.is_string();
    return good ? files.get<std::vector<std::string>>() : std::vector<std::string>{};
  };
  PromptFiles files{.images = list("images"), .sounds = list("audios")};
  check<DataError>(good, "{}: an object has \"prompt\", \"images\" and \"audios\", lists of files, and nothing else",
                   where);
  value = ordered_json(value["prompt"]);
  return files;
}

// Returns the lines of the input, or the one prompt of the command line with its files.
std::vector<Prompt> read_prompts(const std::optional<std::string>& prompt, const PromptFiles& files,
                                 const std::optional<std::string>& input, bool as_ids, bool as_chat) {
  check<ConfigError>(prompt.has_value() != input.has_value(), "give either --prompt TEXT or --input FILE");
  check<ConfigError>(!input || files.images.empty(),
                     "--image belongs to --prompt; in a file of prompts write {{\"prompt\": …, \"images\": [FILE]}}");
  check<ConfigError>(!input || files.sounds.empty(),
                     "--audio belongs to --prompt; in a file of prompts write {{\"prompt\": …, \"audios\": [FILE]}}");
  const char* const expected = as_ids    ? "a JSON array of token ids"
                               : as_chat ? "a JSON string or a JSON array of messages"
                                         : "a JSON string";
  // Checks the kind of value here, with the line, so that encoding cannot fail for its type.
  const auto check_prompt = [&](const ordered_json& value, const std::string& where) {
    bool good = as_ids ? value.is_array() : value.is_string() || (as_chat && value.is_array());
    if (as_ids && good)
      for (const auto& id : value) good = good && id.is_number_integer();
    check<DataError>(good, "{}: expected {}", where, expected);
  };
  const auto parse = [&](const std::string& text, const std::string& where) {
    Prompt result{.given = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false)};
    if (result.given.is_object()) result.files = take_files(result.given, where);
    check_prompt(result.given, where);
    return result;
  };
  // On the command line a text needs no JSON quotes.
  if (prompt) {
    Prompt one = as_ids ? parse(*prompt, "--prompt") : Prompt{.given = *prompt};
    one.files = files;
    return {std::move(one)};
  }
  std::ifstream file;
  if (*input != "-") {
    file.open(*input);
    check<DataError>(file.good(), "cannot read {}", *input);
  }
  std::istream& lines = *input == "-" ? std::cin : file;
  std::vector<Prompt> prompts;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number)
    if (!line.empty()) prompts.push_back(parse(line, fmt::format("{}, line {}", *input, number)));
  check<DataError>(!prompts.empty(), "{} holds no prompt", *input);
  return prompts;
}

// Flushes every piece: a reader watches the text as it comes.
void write_out(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Prints texts on rank 0: as a stream, or one JSON line at the end of each.
class Printer {
 public:
  // `prompts`, each continued by `copies` texts, the tokenizer, nullptr for ids alone, and `progress` outlive it.
  Printer(const std::vector<Prompt>& prompts, size_t copies, const tokenizer::Tokenizer* tokenizer, bool json,
          TaskProgress& progress)
      : prompts_(prompts), copies_(copies), tokenizer_(tokenizer), json_(json), progress_(progress) {
    begin();
  }

  void add(int64_t id) {
    ids_.push_back(id);
    tell(stream_ ? stream_->push(static_cast<int32_t>(id)) : fmt::format("{} ", id));
  }

  void end(size_t text) {
    // The decoder holds back bytes of an incomplete character; finish() returns the rest.
    if (stream_) tell(stream_->finish());
    if (json_) {
      ordered_json line{{"prompt", prompts_[text / copies_].given}};
      const PromptFiles& files = prompts_[text / copies_].files;
      if (!files.images.empty()) line["images"] = files.images;
      if (!files.sounds.empty()) line["audios"] = files.sounds;
      if (tokenizer_) line["text"] = text_;
      line["ids"] = ids_;
      progress_.without_line([&] { write_out(line.dump() + "\n"); });
    } else {
      write_out("\n");
    }
    begin();
  }

 private:
  void begin() {
    text_.clear();
    ids_.clear();
    if (tokenizer_) stream_.emplace(*tokenizer_, tokenizer::DecodeOptions{.skip_special_tokens = true});
  }

  void tell(const std::string& piece) {
    text_ += piece;
    if (!json_) write_out(piece);
  }

  const std::vector<Prompt>& prompts_;
  const size_t copies_;
  const tokenizer::Tokenizer* const tokenizer_;
  const bool json_;
  TaskProgress& progress_;
  // The current text.
  std::optional<tokenizer::Tokenizer::StreamDecoder> stream_;
  std::string text_;
  std::vector<int64_t> ids_;
};

}  // namespace

int run_generate(Words words) {
  ModelCommand command;
  std::optional<std::string> prompt, input;
  PromptFiles files;
  std::optional<int64_t> max_new_tokens, top_k, num_return_sequences;
  std::optional<double> temperature, top_p;
  bool as_ids = false, as_chat = false, json = false;
  // Greedy by default, so that two calls give the same text.
  const bool ready = command.parse(words,
                                   {{"prompt", "the text to continue", &prompt},
                                    {"input", "file with one prompt per line", &input},
                                    {"image", "image that the prompt is about; may be repeated", &files.images},
                                    {"audio", "sound that the prompt is about; may be repeated", &files.sounds},
                                    {"chat", "prompts go through the chat template", &as_chat},
                                    {"ids", "prompts and results are token ids", &as_ids},
                                    {"max_new_tokens", "most tokens to generate", &max_new_tokens},
                                    {"temperature", "0: greedy", &temperature},
                                    {"top_k", "only the k likeliest", &top_k},
                                    {"top_p", "only the likeliest that together have p", &top_p},
                                    {"num_return_sequences", "texts per prompt", &num_return_sequences},
                                    {"json", "one JSON object per text", &json}},
                                   kGenerateUsage);
  if (!ready) return kDone;
  inference::check_predicts(command.model());
  inference::SamplingOptions sampling{.temperature = temperature.value_or(0),
                                      .top_k = top_k.value_or(0),
                                      .top_p = top_p.value_or(1),
                                      .max_new_tokens = max_new_tokens.value_or(128),
                                      .stop_ids = {},
                                      .seed = static_cast<uint64_t>(command.args().seeds.seed)};
  sampling.validate();
  const int64_t texts = num_return_sequences.value_or(1);
  check<ConfigError>(texts > 0, "num_return_sequences is {}; it must be positive", texts);
  check<ConfigError>(texts == 1 || sampling.temperature > 0,
                     "num_return_sequences is {}, and temperature 0 gives the same text every time; set --temperature",
                     texts);
  check<ConfigError>(!(as_chat && as_ids), "--chat makes ids of messages; leave out --ids");
  std::optional<tokenizer::Tokenizer> tokenizer;
  std::optional<tokenizer::ChatTemplate> chat;
  if (as_chat) chat = tokenizer::ChatTemplate::from_folder(command.tokenizer_folder());
  if (!as_ids) {
    tokenizer = tokenizer::Tokenizer::from_folder(command.tokenizer_folder());
    // With --ids there is no tokenizer, so nothing stops generation but its length.
    sampling.stop_ids.assign(tokenizer->stop_ids().begin(), tokenizer->stop_ids().end());
  }
  std::vector<Prompt> prompts = read_prompts(prompt, files, input, as_ids, as_chat);
  std::optional<PromptMedia> reader;
  model::TowerChoice towers{.vision = false, .audio = false};
  for (Prompt& one : prompts) {
    ordered_json marked = one.given;
    if (!as_ids) mark_media(marked, one.files);
    one.ids = as_ids ? marked.get<std::vector<int64_t>>()
              : chat ? run::encode_chat(*tokenizer, *chat, marked)
                     : run::encode_prompt(*tokenizer, marked.get<std::string>());
    if (one.files.any()) {
      if (!reader) reader.emplace(command.model(), command.tokenizer_folder());
      one.media = reader->read(one.files, one.ids);
      towers.vision = towers.vision || one.media.sees();
      towers.audio = towers.audio || one.media.hears();
    }
    const at::Tensor ids = at::tensor(one.ids, at::kLong);
    inference::check_token_ids(ids, command.model());
    inference::place_media(ids.unsqueeze(0), {}, one.media, command.model());
  }
  command.keep_towers(towers);
  std::vector<inference::TextRequest> requests;
  for (const Prompt& one : prompts)
    for (int64_t text = 0; text < texts; ++text) requests.push_back({one.ids, requests.size(), one.media});
  command.keep_tokens_whole();
  return command.run([&](model::VirtualModels& models) {
    // A stream on a terminal shows by itself how far it is, and a live line would erase it.
    TaskProgress progress("generating", TaskProgress::Unit::kCount, std::ssize(requests) * sampling.max_new_tokens,
                          "tokens at most", models.context().rank() == 0 && (json || !stdout_is_terminal()));
    Printer printer(prompts, static_cast<size_t>(texts), tokenizer ? &*tokenizer : nullptr, json, progress);
    inference::generate_texts(models, requests, sampling,
                              {.on_token = [&](size_t, int64_t id) { printer.add(id); },
                               .on_end = [&](size_t text) { printer.end(text); },
                               .on_progress = [&](int64_t done, int64_t) { progress.set(done); }});
  });
}

}  // namespace megalith::cli
