// Measures pre-training data: how fast a corpus is tokenized, indices are built and samples are read. Prints one JSON
// line per case.
//
//   data_bench [--tokenizer FOLDER] [--workers N] [--megabytes N] [--billions N]
//
// The corpus is this repository's documentation, repeated; the sample index is built over N billion tokens of made-up
// lengths. Results are checked before they are timed.
#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/data/corpus/tokenize_corpus.h"
#include "megalith/data/gpt/gpt_dataset.h"
#include "megalith/data/indexed/indexed_dataset.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tokenizers.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

// The words of the command line.
struct Settings {
  fs::path tokenizer = testing::tokenizer_folder("gpt2");
  int workers = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  int64_t megabytes = 100;
  int64_t billions = 1;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void print(const ordered_json& line) {
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

// Writes sections of the documentation as lines until there are enough; returns the number of lines.
int64_t write_corpus(const fs::path& path, int64_t megabytes) {
  std::vector<std::string> documents;
  for (const auto& entry : fs::directory_iterator(fs::path(MEGALITH_SOURCE_DIR) / "docs")) {
    std::ifstream file(entry.path());
    std::string section;
    for (std::string line; std::getline(file, line); section += line + "\n")
      if (line.starts_with("#") && !section.empty()) documents.push_back(std::exchange(section, ""));
    documents.push_back(section);
  }
  std::ofstream file(path);
  int64_t bytes = 0, lines = 0;
  for (; bytes < megabytes * 1'000'000; ++lines) {
    const std::string line = nlohmann::json{{"text", documents[static_cast<size_t>(lines) % documents.size()]}}.dump();
    file << line << '\n';
    bytes += static_cast<int64_t>(line.size()) + 1;
  }
  return lines;
}

// Includes reading, parsing, encoding and writing, as `megalith data tokenize` does them.
void bench_tokenize(const Settings& settings, const fs::path& folder) {
  const int64_t lines = write_corpus(folder / "corpus.jsonl", settings.megabytes);
  const auto tokenizer = tokenizer::Tokenizer::from_folder(settings.tokenizer);
  const auto start = Clock::now();
  data::StagedFiles files;
  const auto result = data::tokenize_corpus(tokenizer,
                                            {.inputs = {folder / "corpus.jsonl"},
                                             .output = folder / "corpus",
                                             .append_eod = true,
                                             .workers = settings.workers},
                                            files);
  files.commit();
  const double seconds = seconds_since(start);
  check(result.total.documents == lines, "{} documents of {} lines", result.total.documents, lines);
  print({{"bench", "data tokenize"},
         {"workers", settings.workers},
         {"input_mb", static_cast<double>(result.total.input_bytes) / 1e6},
         {"mb_s", static_cast<double>(result.total.input_bytes) / 1e6 / seconds},
         {"tokens_s", static_cast<double>(result.total.tokens) / seconds}});
}

// Samples are read in shuffled order from mapped files; 100 million tokens at most.
void bench_samples(const fs::path& folder, int64_t seq_length) {
  const auto source = std::make_shared<data::IndexedDataset>(folder / "corpus_text_document");
  const data::GptDataset dataset(source, {.end = source->sequence_count(), .seq_length = seq_length},
                                 {.eod_id = 50256});
  const int64_t count = std::min<int64_t>(dataset.size(), 100'000'000 / seq_length);
  int64_t tokens = 0;
  const auto start = Clock::now();
  for (int64_t i = 0; i < count; ++i) tokens += static_cast<int64_t>(dataset.sample(i).tokens.size());
  const double seconds = seconds_since(start);
  check(tokens == count * seq_length, "{} tokens in {} samples", tokens, count);
  print({{"bench", "GPT samples"},
         {"seq_length", seq_length},
         {"samples", count},
         {"samples_s", static_cast<double>(count) / seconds},
         {"tokens_s", static_cast<double>(tokens) / seconds}});
}

// A source of sequences that has lengths only: building an index reads no tokens.
class Lengths final : public data::SequenceSource {
 public:
  explicit Lengths(int64_t tokens) {
    std::mt19937 random(1);
    for (int64_t sum = 0; sum < tokens; sum += lengths_.back())
      lengths_.push_back(static_cast<int32_t>(random() % 2000));
  }
  const std::string& name() const override { return name_; }
  int64_t sequence_count() const override { return static_cast<int64_t>(lengths_.size()); }
  int64_t length(int64_t sequence) const override { return lengths_[static_cast<size_t>(sequence)]; }
  void read(int64_t, int64_t, std::span<int64_t>) const override { throw InternalError("there are no tokens"); }

 private:
  std::string name_ = "made-up lengths";
  std::vector<int32_t> lengths_;
};

// The index of a large corpus is built once per run configuration, on one rank, while all others wait.
void bench_index(const Settings& settings) {
  const Lengths source(settings.billions * 1'000'000'000);
  const auto start = Clock::now();
  const data::GptIndices indices =
      data::build_gpt_indices(source, {.end = source.sequence_count(), .seq_length = 2048});
  const double seconds = seconds_since(start);
  print({{"bench", "GPT indices"},
         {"tokens", settings.billions * 1'000'000'000},
         {"sequences", source.sequence_count()},
         {"samples", indices.shuffle.rows()},
         {"seconds", seconds}});
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  megalith::Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--tokenizer") settings.tokenizer = argv[i + 1];
    if (name == "--workers") settings.workers = std::max(1, std::atoi(argv[i + 1]));
    if (name == "--megabytes") settings.megabytes = std::max(1, std::atoi(argv[i + 1]));
    if (name == "--billions") settings.billions = std::max(1, std::atoi(argv[i + 1]));
  }
  const megalith::testing::TempFolder folder;
  megalith::bench_tokenize(settings, folder.path());
  for (const int64_t seq_length : {512, 4096, 32768}) megalith::bench_samples(folder.path(), seq_length);
  megalith::bench_index(settings);
}
