#include "tests/support/mutations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

namespace megalith::testing {

namespace {

std::vector<std::string> seeds(const std::string& name) {
  std::vector<std::filesystem::path> paths;
  for (const auto& file :
       std::filesystem::directory_iterator(std::filesystem::path(MEGALITH_SOURCE_DIR) / "fuzz/corpus" / name))
    paths.push_back(file.path());
  std::ranges::sort(paths);
  std::vector<std::string> texts;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return texts;
}

void mutate(std::string& text, const std::vector<std::string>& others, std::mt19937& rng) {
  const char odd[] = {'\0', '\xff', '"', '%', '|', '(', ')',  '.',  '{',   '}',
                      '[',  ']',    ',', ':', '-', '9', '\\', '\n', '\xc3'};
  const auto place = [&] { return text.empty() ? 0 : rng() % text.size(); };
  switch (rng() % 6) {
    case 0:
      if (!text.empty()) text[place()] = static_cast<char>(rng());
      break;
    case 1:
      text.insert(place(), 1, odd[rng() % sizeof odd]);
      break;
    case 2:
      text.erase(place(), rng() % 8);
      break;
    case 3:
      text.resize(place());
      break;
    case 4: {  // repeat a part of itself
      const size_t at = place();
      text.insert(place(), text.substr(at, rng() % 32));
      break;
    }
    default: {  // the end of another one
      const std::string& other = others[rng() % others.size()];
      text.replace(place(), std::string::npos, other.substr(rng() % (other.size() + 1)));
    }
  }
}

}  // namespace

void run_mutations(const std::string& name, FuzzEntry entry) {
  const std::vector<std::string> corpus = seeds(name);
  ASSERT_GE(corpus.size(), 5U);
  for (const std::string& seed : corpus) EXPECT_NO_THROW(entry(seed)) << seed;
  std::mt19937 rng(1);
  for (int round = 0; round < 5'000; ++round) {
    std::string text = corpus[rng() % corpus.size()];
    for (auto left = 1 + rng() % 4; left > 0; --left) mutate(text, corpus, rng);
    ASSERT_NO_THROW(entry(text)) << text;
  }
}

}  // namespace megalith::testing
