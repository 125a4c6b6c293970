// Completion scripts in the shells themselves, and the manual page in groff.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "tests/cli/program_support.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

// The script of a shell, and a folder for it to look into.
class CompletionCase {
 public:
  explicit CompletionCase(const std::string& shell) : script_(folder_.path() / ("megalith." + shell)) {
    std::ofstream(script_) << megalith({"completion", shell}).out;
    fs::create_directories(folder_.path() / "runs" / "first");
    std::ofstream(folder_.path() / "runs" / "options.yaml") << "stage: sft\n";
  }
  std::string in_folder(const std::string& name) const { return (folder_.path() / name).string(); }
  const fs::path& script() const { return script_; }

 private:
  TempFolder folder_;
  fs::path script_;
};

std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) lines.insert(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

bool has_program(const std::string& name) { return run_process({"bash", "-c", "command -v " + name}).exit_code == 0; }

using Offer = std::set<std::string>;

// The lines that every shell has to complete alike, with what it must offer.
template <typename Complete>
void expect_completes(const CompletionCase& with, const Complete& complete) {
  EXPECT_EQ(complete({"tr"}), Offer({"train"}));
  EXPECT_EQ(complete({"data", ""}), Offer({"tokenize", "inspect", "verify", "merge", "train-tokenizer"}));
  EXPECT_EQ(complete({"preview", "me"}), Offer({"memory"}));
  EXPECT_EQ(complete({"completion", ""}), Offer({"bash", "zsh", "fish"}));
  EXPECT_EQ(complete({"train", "--tensor_model"}), Offer({"--tensor_model_parallel_size"}));
  EXPECT_EQ(complete({"train", "--dry"}), Offer({"--dry_run"}));
  EXPECT_EQ(complete({"train", "--stage", ""}), Offer({"pt", "sft", "dpo", "kto", "rm", "cls"}));
  EXPECT_EQ(complete({"convert", "--res"}), Offer({"--reshard"}));
  EXPECT_EQ(complete({"convert", "--bf"}), Offer({"--bf16"}));
  EXPECT_EQ(complete({"dashboard", "--stat"}), Offer({"--static"}));
  EXPECT_EQ(complete({"tokenize", "--tensor_model"}), Offer{});                      // not an option of that command
  EXPECT_EQ(complete({"train", "--hf_hub_tok"}), Offer{});                           // accepted, but without effect
  EXPECT_EQ(complete({"train", "--learning_rate", with.in_folder("ru")}), Offer{});  // a number
}

TEST(ShellCompletion, Bash) {
  const CompletionCase with("bash");
  const auto complete = [&](const std::vector<std::string>& words) {
    std::vector<std::string> command{"bash", "-c",
                                     "source \"$1\"; shift; COMP_WORDS=(megalith \"$@\"); COMP_CWORD=$#; _megalith;"
                                     " printf '%s\\n' \"${COMPREPLY[@]}\"",
                                     "-", with.script().string()};
    command.insert(command.end(), words.begin(), words.end());
    const auto result = run_process(command);
    EXPECT_EQ(result.err, "");
    return lines_of(result.out);
  };
  expect_completes(with, complete);
  EXPECT_EQ(complete({"train", "--tensor-model"}), Offer({"--tensor-model-parallel-size"}));  // Megatron's spelling
  EXPECT_EQ(complete({"train", "--stage", "=", "s"}), Offer({"sft"}));                        // --stage=s
  EXPECT_EQ(complete({"train", with.in_folder("runs/")}),
            Offer({with.in_folder("runs/first"), with.in_folder("runs/options.yaml")}));
  EXPECT_EQ(complete({"train", "--output_dir", with.in_folder("runs/")}), Offer({with.in_folder("runs/first")}));
}

// The functions of zsh's completion system that the script calls, which print what they would offer.
constexpr const char* kZshStubs = R"(
compdef() { }
_describe() {
  while [[ $1 == -* ]]; do [[ $1 == -t ]] && shift; shift; done
  shift
  for list in "$@"; do
    [[ $list == -- ]] && continue
    for entry in ${(P)list}; do [[ ${entry%%:*} == $PREFIX* ]] && print -r -- "${entry%%:*}"; done
  done
}
compadd() { shift; for entry in "$@"; do [[ $entry == $PREFIX* ]] && print -r -- $entry; done }
_files() { print -r -- "files $*" }
compset() { PREFIX=${PREFIX#*=} }
source "$1"; shift
words=(megalith "$@"); CURRENT=$#words; PREFIX=$words[-1]
_megalith
)";

TEST(ShellCompletion, Zsh) {
  if (!has_program("zsh")) GTEST_SKIP() << "zsh is not installed";
  const CompletionCase with("zsh");
  const auto complete = [&](const std::vector<std::string>& words) {
    std::vector<std::string> command{"zsh", "-f", "-c", kZshStubs, "-", with.script().string()};
    command.insert(command.end(), words.begin(), words.end());
    const auto result = run_process(command);
    EXPECT_EQ(result.err, "");
    return lines_of(result.out);
  };
  expect_completes(with, complete);
  EXPECT_EQ(complete({"train", "--tensor-model"}), Offer({"--tensor-model-parallel-size"}));
  EXPECT_EQ(complete({"train", "--stage=s"}), Offer({"sft"}));
  EXPECT_EQ(complete({"train", "--output_dir", ""}), Offer({"files -/"}));
}

TEST(ShellCompletion, Fish) {
  if (!has_program("fish")) GTEST_SKIP() << "fish is not installed";
  const CompletionCase with("fish");
  const auto complete = [&](const std::vector<std::string>& words) {
    std::string line = "megalith";
    for (const std::string& word : words) line += " " + word;
    // A name and its help text are separated by a tab.
    const auto result = run_process({"fish", "--no-config", "-c",
                                     "source $argv[1]; complete -C $argv[2] | string replace -r '\\t.*' ''",
                                     with.script().string(), line});
    EXPECT_EQ(result.err, "");
    return lines_of(result.out);
  };
  expect_completes(with, complete);
  EXPECT_EQ(complete({"train", "--output_dir", with.in_folder("ru")}), Offer({with.in_folder("runs/")}));
}

TEST(ShellCompletion, OtherShellsAreRefused) {
  expect_refused(megalith({"completion", "tcsh"}), "bash, zsh or fish; \"tcsh\" is given");
  expect_refused(megalith({"completion"}), "bash, zsh or fish; nothing is given");
}

TEST(ManPage, NamesEveryCommandAndOption) {
  const auto page = megalith({"man"});
  ASSERT_EQ(page.exit_code, 0) << page.err;
  for (const char* part : {".SS megalith init\n", ".SS megalith data tokenize\n", "\\-\\-tensor_model_parallel_size",
                           ".SH EXIT STATUS", "\\-\\-static"})
    expect_contains(page.out, part);
  EXPECT_TRUE(std::ranges::all_of(page.out, [](char c) { return static_cast<uint8_t>(c) < 0x80; }));
  expect_refused(megalith({"man", "train"}), "takes no words");
}

TEST(ManPage, GroffHasNoWarnings) {
  if (!has_program("groff")) GTEST_SKIP() << "groff is not installed";
  const TempFolder folder;
  std::ofstream(folder.path() / "megalith.1") << megalith({"man"}).out;
  const auto result = run_process({"groff", "-man", "-ww", "-Tutf8", (folder.path() / "megalith.1").string()});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  expect_contains(result.out, "The fastest layouts of a model on 64 GPUs");
}

}  // namespace
}  // namespace megalith::testing
