// `megalith tokenize`: converts lines of text or conversations to lines of token ids, and back. It is a filter: one
// line of output per line of input, so that another program can talk to it through pipes. Hence output is buffered only
// while input is at hand, and is always written before a read that may block.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/json_words.h"
#include "megalith/cli/command.h"
#include "megalith/config/parser.h"
#include "megalith/tokenizer/chat/chat_template.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::cli {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// The text of --help; docs/tokenizers.md has examples.
constexpr const char* kTokenizeUsage =
    R"(megalith tokenize --tokenizer DIR < lines: text to token ids, one line at a time

Each line of stdin is a JSON string ("Hello"), each line of stdout a JSON array of its ids ([9707]). DIR is a model
folder with tokenizer.json, or vocab.json and merges.txt, or tokenizer.model.

  --decode               the reverse: arrays of ids to strings
  --add_special_tokens   add the special tokens that the tokenizer is configured to add (BOS, for example)
  --skip_special_tokens  with --decode: leave special tokens out of the text

  --chat                 conversations: each line is a list of messages, or an object with messages and, optionally,
                         tools, documents and chat_template_kwargs. Each answer is an object with the text rendered by
                         the folder's chat template, its ids, and assistant_mask: 1 for the tokens that are trained
  --add_generation_prompt      end with the opening of the assistant's answer
  --chat_template NAME         one of several templates: default, tool_use, rag, …
  --chat_template_kwargs JSON  more variables for the template: '{"enable_thinking": false}'
)";

// The command's own options. The parser keeps pointers to the members.
struct TokenizeFlags {
  std::optional<std::string> tokenizer;
  bool decode = false;
  bool add_special_tokens = false;
  bool skip_special_tokens = false;
  bool chat = false;
  bool add_generation_prompt = false;
  std::optional<std::string> chat_template, chat_template_kwargs;
  bool help = false;

  // The help texts here appear in error messages; --help prints the usage above instead.
  std::vector<config::CommandOption> options() {
    return {{"tokenizer", "folder with the tokenizer's files", &tokenizer},
            {"decode", "ids to text", &decode},
            {"add_special_tokens", "add the tokenizer's own special tokens", &add_special_tokens},
            {"skip_special_tokens", "leave special tokens out of decoded text", &skip_special_tokens},
            {"chat", "conversations through the chat template", &chat},
            {"add_generation_prompt", "end with the opening of the assistant's answer", &add_generation_prompt},
            {"chat_template", "which of several templates", &chat_template},
            {"chat_template_kwargs", "more variables for the template, as a JSON object", &chat_template_kwargs},
            {"help", "print this", &help}};
  }

  // Options that would have no effect are refused rather than ignored.
  void check() const {
    megalith::check<ConfigError>(tokenizer.has_value(),
                                 "--tokenizer is missing: the folder of a model, with its tokenizer.json");
    megalith::check<ConfigError>(!(decode && add_special_tokens),
                                 "--add_special_tokens is for text to ids; leave it out with --decode");
    megalith::check<ConfigError>(decode || !skip_special_tokens, "--skip_special_tokens needs --decode");
    megalith::check<ConfigError>(!chat || (!decode && !add_special_tokens),
                                 "--chat goes with neither --decode nor --add_special_tokens: the template writes all "
                                 "special tokens itself");
    megalith::check<ConfigError>(chat || (!add_generation_prompt && !chat_template && !chat_template_kwargs),
                                 "--add_generation_prompt, --chat_template and --chat_template_kwargs need --chat");
  }

  // Parsed once, before any line is read, so that a mistake shows up at once.
  tokenizer::ChatOptions chat_options() const {
    tokenizer::ChatOptions result{.add_generation_prompt = add_generation_prompt, .template_name = chat_template};
    if (chat_template_kwargs) {
      result.kwargs = ordered_json::parse(*chat_template_kwargs, nullptr, false);
      megalith::check<ConfigError>(
          result.kwargs.is_object(),
          "chat_template_kwargs is {}; a JSON object is expected: '{{\"enable_thinking\": false}}'",
          *chat_template_kwargs);
    }
    return result;
  }
};

// Ids of holes in the vocabulary are rejected, too: decoding would drop them silently.
std::vector<int32_t> read_ids(const json& value, const tokenizer::Tokenizer& tokenizer) {
  check<DataError>(value.is_array(), "{} is given; an array of token ids is expected", value.type_name());
  std::vector<int32_t> ids;
  for (const json& id : value) {
    const bool known = id.is_number_integer() && id >= 0 && id < tokenizer.id_end() &&
                       tokenizer.token_of(id.get<int32_t>()).has_value();
    check<DataError>(known, "{} is not a token id; they are whole numbers from 0 to {}", id.dump(),
                     tokenizer.id_end() - 1);
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// Reads lines of stdin. Calls `before_wait` before every read, which may block. std::getline would hide when a read
// blocks, and that is the moment to write.
template <typename BeforeWait>
class LineReader {
 public:
  explicit LineReader(BeforeWait before_wait) : before_wait_(std::move(before_wait)) {}

  // Reads the next line without its end; returns false at the end of the input.
  bool next(std::string& line) {
    line.clear();
    // A line may span several reads, so its pieces are collected until the end of line turns up.
    for (;;) {
      const std::string_view rest = std::string_view(buffer_.data(), filled_).substr(at_);
      const size_t end = rest.find('\n');
      line += rest.substr(0, end);
      if (end != std::string_view::npos) {
        at_ += end + 1;
        return true;
      }
      // A last line without its end still counts.
      if (!fill()) return !line.empty();
    }
  }

 private:
  bool fill() {
    before_wait_();
    ssize_t count = 0;
    do count = ::read(STDIN_FILENO, buffer_.data(), buffer_.size());
    while (count < 0 && errno == EINTR);
    check<DataError>(count >= 0, "stdin cannot be read: {}", std::strerror(errno));
    at_ = 0;
    filled_ = static_cast<size_t>(count);
    return count > 0;
  }

  BeforeWait before_wait_;
  // The capacity of a Linux pipe: a larger buffer would not save a system call.
  std::array<char, 1 << 16> buffer_{};
  size_t at_ = 0, filled_ = 0;
};

// Encodes a conversation: a list of messages, or an object that has one.
std::string convert_chat(const std::string& line, const tokenizer::Tokenizer& tokenizer,
                         const tokenizer::ChatTemplate& chat, tokenizer::ChatOptions options) {
  const ordered_json value = ordered_json::parse(line);
  check<DataError>(value.is_array() || (value.is_object() && value.contains("messages")),
                   "{} is given; a list of messages, or an object with \"messages\", is expected",
                   value.is_object() ? "an object without \"messages\"" : value.type_name());
  tokenizer::Conversation conversation{value, {}, {}};
  if (value.is_object()) {
    const auto field = [&](const char* name) { return value.value(name, ordered_json()); };
    conversation = {field("messages"), field("tools"), field("documents")};
    // A line's own variables win over those of the command line.
    const ordered_json kwargs = field("chat_template_kwargs");
    check<DataError>(kwargs.is_null() || kwargs.is_object(), "chat_template_kwargs is {}; an object is expected",
                     kwargs.type_name());
    if (kwargs.is_object()) options.kwargs.update(kwargs);
  }
  const tokenizer::ChatEncoding encoded = chat.apply(conversation, tokenizer, options);
  return fmt::format("{{\"text\":{},\"ids\":[{}],\"assistant_mask\":[{}]}}", json(encoded.text).dump(),
                     fmt::join(encoded.ids, ","), fmt::join(encoded.assistant_mask, ","));
}

// Converts one line.
std::string convert(const std::string& line, const tokenizer::Tokenizer& tokenizer, const TokenizeFlags& flags) {
  const json value = json::parse(line);
  if (flags.decode) {
    const std::vector<int32_t> ids = read_ids(value, tokenizer);
    return json(tokenizer.decode(ids, {.skip_special_tokens = flags.skip_special_tokens})).dump();
  }
  check<DataError>(value.is_string(), "{} is given; a string is expected", value.type_name());
  const auto ids =
      tokenizer.encode(value.get_ref<const std::string&>(), {.add_special_tokens = flags.add_special_tokens});
  return fmt::format("[{}]", fmt::join(ids, ","));
}

}  // namespace

int run_tokenize(Words words) {
  TokenizeFlags flags;
  const auto options = flags.options();
  config::parse_arguments(config::Dialect::kTrain, words, options).report.check_not_refused();
  if (flags.help) {
    write_stdout(kTokenizeUsage);
    return kDone;
  }
  flags.check();
  const tokenizer::ChatOptions chat_options = flags.chat_options();
  const auto tokenizer = tokenizer::Tokenizer::from_folder(*flags.tokenizer);
  std::optional<tokenizer::ChatTemplate> chat;
  if (flags.chat) chat = tokenizer::ChatTemplate::from_folder(*flags.tokenizer);
  // Answers are written in blocks, but never held back while this waits for input: another program may wait for them.
  std::string line, output;
  const auto write = [&] {
    write_stdout(output);
    output.clear();
  };
  LineReader lines(write);
  for (size_t number = 1; lines.next(line); ++number) {
    try {
      output += chat ? convert_chat(line, tokenizer, *chat, chat_options) : convert(line, tokenizer, flags);
      output += '\n';
    } catch (const std::exception& error) {
      write();
      throw DataError(fmt::format("line {}: {}", number, without_exception_name(error.what())));
    }
  }
  write();
  return kDone;
}

}  // namespace megalith::cli
