// Measures encoding, decoding and loading against Hugging Face's tokenizers on the same texts. Prints one JSON line per
// case.
//
//   tokenizer_bench [--tokenizer FOLDER]… [--text FILE]… [--runs N] [--threads N] [--python PROGRAM]
//
// Without --tokenizer the real tokenizers of the tests are used; without --text, this repository's documentation, its
// sources, the golden strings in many scripts, and one word of a megabyte. The programs alternate, results are medians,
// and the ids of both must be the same. The peer needs a Python with `tokenizers` (0.22 or newer); without it, only our
// own numbers are printed, without a ratio.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/tokenizer/tokenizer.h"
#include "tests/support/subprocess.h"
#include "tests/support/tokenizers.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Documents of one kind, in memory and as a file.
struct Text {
  std::string name;
  std::vector<std::string> documents;
  fs::path file;  // for the peer
  size_t bytes = 0;
};

// The words of the command line.
struct Settings {
  std::vector<fs::path> tokenizers;
  std::vector<fs::path> texts;
  int runs = 5;
  int threads = 1;
  std::string python = "python3";
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

// Returns the files below a folder of the repository as documents.
std::vector<std::string> files_below(const fs::path& folder, const std::vector<std::string>& extensions) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && std::ranges::count(extensions, entry.path().extension().string()) > 0)
      paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<std::string> documents;
  for (const auto& path : paths) documents.push_back(read_all(path));
  return documents;
}

// Returns the golden strings in random order, in documents of forty.
std::vector<std::string> many_scripts() {
  const auto file = nlohmann::json::parse(read_all(MEGALITH_SOURCE_DIR "/tests/data/golden/hf/tokenizer/strings.json"));
  const auto strings = file.at("strings").get<std::vector<std::string>>();
  std::mt19937 random(1);
  std::vector<std::string> documents(500);
  for (std::string& document : documents)
    for (int i = 0; i < 40; ++i) document += strings[random() % strings.size()] + "\n";
  for (std::string& document : documents) std::erase(document, '\0');
  return documents;
}

// The worst case of byte-pair encoding: a naive merge loop is quadratic in the length of a word.
std::vector<std::string> one_long_word() {
  std::mt19937 random(1);
  std::string word;
  while (word.size() < size_t{1} << 20) word += static_cast<char>('a' + random() % 26);
  return {word};
}

std::vector<Text> make_texts(const Settings& settings, const testing::TemporaryFolder& folder) {
  std::vector<Text> texts;
  const fs::path root = MEGALITH_SOURCE_DIR;
  if (settings.texts.empty()) {
    texts = {{"prose", files_below(root / "docs", {".md"})},
             {"code", files_below(root / "src", {".cc", ".h"})},
             {"many scripts", many_scripts()},
             {"one word of 1 MiB", one_long_word()}};
  }
  for (const auto& path : settings.texts) {
    std::istringstream lines(read_all(path));
    Text text{path.filename().string()};
    for (std::string line; std::getline(lines, line);) text.documents.push_back(line);
    texts.push_back(std::move(text));
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    std::string all;
    for (const std::string& document : texts[i].documents) {
      texts[i].bytes += document.size();
      // Documents are separated by a zero byte; many_scripts() has removed those of the golden strings.
      if (!all.empty()) all += '\0';
      all += document;
    }
    folder.write(fmt::format("text{}", i), all);
    texts[i].file = folder.path() / fmt::format("text{}", i);
  }
  return texts;
}

// A polynomial hash modulo 2^32; the peer computes the same.
uint32_t checksum(const std::vector<std::vector<int32_t>>& ids) {
  uint32_t sum = 0;
  for (const auto& document : ids)
    for (const int32_t id : document) sum = sum * 31 + static_cast<uint32_t>(id);
  return sum;
}

// Returns the peer's line, or null when it cannot run.
json run_peer(const Settings& settings, const fs::path& tokenizer, const std::vector<Text>& texts) {
  std::vector<std::string> command{settings.python, TOKENIZER_SCRIPT, tokenizer.string(),
                                   std::to_string(settings.threads)};
  for (const Text& text : texts) command.push_back(text.file.string());
  const auto result = testing::run_process(command, {}, std::chrono::seconds(600));
  return result.exit_code == 0 ? json::parse(result.out) : json();
}

// Seconds of each run.
struct Times {
  std::vector<double> encode, decode, peer_encode, peer_decode;
};

void print_case(const std::string& tokenizer, const Text& text, const Settings& settings, const Times& times,
                const json& peer) {
  const double megabytes = static_cast<double>(text.bytes) / 1e6;
  const auto line = [&](const char* what, const std::vector<double>& ours, const std::vector<double>& theirs) {
    nlohmann::ordered_json result{{"bench", fmt::format("tokenizer {}", what)},
                                  {"tokenizer", tokenizer},
                                  {"text", text.name},
                                  {"bytes", text.bytes},
                                  {"threads", settings.threads},
                                  {"runs", settings.runs},
                                  {"megalith_mb_s", megabytes / median(ours)}};
    if (theirs.empty()) {
      result["note"] = "no Python with tokenizers: no comparison";
    } else {
      result["tokenizers_mb_s"] = megabytes / median(theirs);
      result["ratio"] = median(theirs) / median(ours);
      result["tokenizers_version"] = peer.at("version");
    }
    fmt::print("{}\n", result.dump());
    std::fflush(stdout);
  };
  line("encode", times.encode, times.peer_encode);
  line("decode", times.decode, times.peer_decode);
}

// Both sides load, encode and decode once per run; the peer is a new process each time.
void run_tokenizer(const Settings& settings, const fs::path& folder, const std::vector<Text>& texts) {
  std::vector<double> loads, peer_loads;
  std::vector<Times> times(texts.size());
  json peer;
  for (int run = 0; run < settings.runs; ++run) {
    const auto start = std::chrono::steady_clock::now();
    const auto tokenizer = tokenizer::Tokenizer::from_folder(folder);
    loads.push_back(seconds_since(start));
    peer = run_peer(settings, folder, texts);
    if (!peer.is_null()) peer_loads.push_back(peer.at("load_s"));
    for (size_t i = 0; i < texts.size(); ++i) {
      tokenizer.encode_batch(texts[i].documents, {}, settings.threads);  // fills the cache, as the peer does
      const auto encode_start = std::chrono::steady_clock::now();
      const auto ids = tokenizer.encode_batch(texts[i].documents, {}, settings.threads);
      times[i].encode.push_back(seconds_since(encode_start));
      const auto decode_start = std::chrono::steady_clock::now();
      for (const auto& document : ids) tokenizer.decode(document);
      times[i].decode.push_back(seconds_since(decode_start));
      if (peer.is_null()) continue;
      const json& theirs = peer.at("texts")[i];
      times[i].peer_encode.push_back(theirs.at("encode_s"));
      times[i].peer_decode.push_back(theirs.at("decode_s"));
      check(checksum(ids) == theirs.at("checksum").get<uint32_t>(), "{}: other ids than the peer for {}",
            folder.string(), texts[i].name);
    }
  }
  const std::string name = folder.filename().string();
  nlohmann::ordered_json line{{"bench", "tokenizer load"}, {"tokenizer", name}, {"megalith_s", median(loads)}};
  if (!peer_loads.empty()) {
    line["tokenizers_s"] = median(peer_loads);
    line["ratio"] = median(peer_loads) / median(loads);
  }
  fmt::print("{}\n", line.dump());
  for (size_t i = 0; i < texts.size(); ++i) print_case(name, texts[i], settings, times[i], peer);
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  megalith::Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--tokenizer") settings.tokenizers.emplace_back(argv[i + 1]);
    if (name == "--text") settings.texts.emplace_back(argv[i + 1]);
    if (name == "--runs") settings.runs = std::max(1, std::atoi(argv[i + 1]));
    if (name == "--threads") settings.threads = std::max(1, std::atoi(argv[i + 1]));
    if (name == "--python") settings.python = argv[i + 1];
  }
  if (settings.tokenizers.empty())
    for (const auto& name : megalith::testing::tokenizer_names())
      settings.tokenizers.push_back(megalith::testing::tokenizer_folder(name));
  const megalith::testing::TemporaryFolder folder;
  const auto texts = megalith::make_texts(settings, folder);
  for (const auto& tokenizer : settings.tokenizers) megalith::run_tokenizer(settings, tokenizer, texts);
}
