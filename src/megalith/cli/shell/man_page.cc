// `megalith man`: the manual page, from the tables of commands and options. `cmake --install` puts it in man1.
#include <fmt/format.h>

#include <cstdint>

#include "megalith/base/error.h"
#include "megalith/cli/shell/command_shapes.h"
#include "megalith/config/value.h"

namespace megalith::cli {

namespace {

constexpr const char* kManExamples = R"(.SH EXAMPLES
Write a file of options for this machine, and train with it:
.PP
.nf
megalith init \-\-model models/qwen3 \-\-data chats.jsonl \-\-output run.yaml
megalith train run.yaml
.fi
.PP
The fastest layouts of a model on 64 GPUs, and the memory of a rank in one of them:
.PP
.nf
megalith plan \-\-model models/qwen3 \-\-gpus 64 \-\-gpu h100\-80g
megalith preview memory \-\-model models/qwen3 \-\-world\-size 64 \-\-tp 4
.fi
)";

constexpr const char* kManEnd = R"(.SH EXIT STATUS
.TP
.B 0
done; also a run that a signal ended in order, after it has saved
.TP
.B 1
failed at run time; a launcher may start it again
.TP
.B 2
bad input: one message, before work is spent
.TP
.B 16, 17
a result was rejected: it has to be computed on another device, or was found to be wrong
.SH ENVIRONMENT
.TP
.B MEGALITH_LOG_LEVEL
debug, info, warn or error: the least severe lines that are logged
.TP
.B XDG_CACHE_HOME
tokens are kept in its folder megalith (default ~/.cache)
.TP
.B CUDA_VISIBLE_DEVICES
GPUs that ranks may use
.SH SEE ALSO
The tutorials and pages in docs/, of which docs/options.md lists every option with its default.
)";

// groff reads a backslash as an escape, a dash as a hyphen, a dot or a quote at the begin of a line as a request, and
// bytes beyond ASCII in its own way: those are written by their numbers.
std::string roff(const std::string& text) {
  std::string out;
  uint32_t code = 0;  // number of the character whose bytes are being read
  int rest = 0;       // its bytes that are still to come
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (out.empty() && (c == '.' || c == '\'')) out += "\\&";
    if (byte >= 0xC0) {
      rest = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : 1;
      code = byte & (0x3F >> rest);
    } else if (byte >= 0x80) {
      code = code << 6 | (byte & 0x3F);
      if (--rest == 0) out += fmt::format("\\[u{:04X}]", code);
    } else {
      out += c == '\\' ? "\\e" : c == '-' ? "\\-" : c == '\n' ? " " : std::string(1, c);
    }
  }
  return out;
}

std::string option_entry(const OptionShape& option) {
  std::string names;
  for (const std::string& name : option.names)
    names += fmt::format("{}\\-\\-{}", names.empty() ? "" : ", ", roff(name));
  std::string value;
  if (!option.choices.empty() && option.value == Completes::kChoices)
    value = fmt::format(" \\fI{}\\fR", roff(fmt::format("{}", fmt::join(option.choices, "|"))));
  else if (option.value == Completes::kFile)
    value = " \\fIFILE\\fR";
  else if (option.value == Completes::kFolder)
    value = " \\fIFOLDER\\fR";
  else if (option.value == Completes::kNothing)
    value = " \\fIVALUE\\fR";
  return fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", names, value, roff(option.help));
}

std::string command_entries() {
  std::string text = ".SH COMMANDS\n";
  for (const CommandShape& shape : command_shapes()) {
    text +=
        fmt::format(".SS megalith {}\n{}\n", roff(fmt::format("{}", fmt::join(shape.path, " "))), roff(shape.summary));
    if (shape.run_options == RunOptions::kTrain || shape.run_options == RunOptions::kPretrain)
      text += ".PP\nIt also takes the options of runs, below.\n";
    for (const OptionShape& option : shape.own) text += option_entry(option);
  }
  return text;
}

// By topic, as docs/options.md has them; train and pretrain together.
std::string run_option_entries() {
  std::string text =
      ".SH OPTIONS OF RUNS\nWritten \\-\\-name value, \\-\\-name=value or name=value, with underscores or"
      " dashes, or as name: value in a YAML file that is the first word.\n";
  const auto& table = config::OptionTable::instance();
  std::vector<OptionShape> shapes = run_option_shapes(RunOptions::kTrain);
  for (OptionShape& shape : run_option_shapes(RunOptions::kPretrain)) shapes.push_back(std::move(shape));
  for (const std::string& topic : table.topics()) {
    std::string entries;
    for (const config::Option& option : table.options()) {
      if (option.topic != topic) continue;
      for (const OptionShape& shape : shapes)
        if (shape.names.front() == option.name) {
          entries += option_entry(shape);
          break;
        }
    }
    if (!entries.empty()) text += fmt::format(".SS {}\n{}", roff(topic), entries);
  }
  return text;
}

}  // namespace

int run_man(Words words) {
  if (words.size() == 1 && words[0] == "--help") {
    write_stdout("megalith man\n\nWrites the manual page: megalith man | man -l -\n");
    return kDone;
  }
  check<ConfigError>(words.empty(), "megalith man takes no words; read it with: megalith man | man -l -");
  std::string text = fmt::format(".TH MEGALITH 1 \"\" \"megalith {}\" \"User Commands\"\n.ad l\n", MEGALITH_VERSION);
  text += ".SH NAME\nmegalith \\- trains large language models in every parallel layout\n";
  text += ".SH SYNOPSIS\n.B megalith\n.I COMMAND\n[run.yaml] [options]\n";
  text +=
      ".SH DESCRIPTION\nTrains, evaluates, converts and plans language models, on one processor or on thousands of"
      " GPUs. `megalith init` writes a first file of options; `megalith COMMAND \\-\\-help` shows the options of a"
      " command.\n";
  write_stdout(text + command_entries() + run_option_entries() + kManExamples + kManEnd);
  return kDone;
}

}  // namespace megalith::cli
