#include "megalith/run/vocabulary/end_tokens.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tests/support/expect.h"
#include "tests/support/tokenizers.h"

namespace megalith::run {
namespace {

model::ModelConfig model_with(const io::Json& eos, int64_t vocab_size) {
  model::ModelConfig model;
  model.vocab_size = vocab_size;
  model.source = std::make_shared<io::Json>(io::Json{{"eos_token_id", eos}});
  return model;
}

TEST(EndTokens, MustBeInTheVocabulary) {
  const RunVocabulary vocabulary{.size = 512};
  EXPECT_TRUE(end_token_warnings(model_with(511, 512), vocabulary).empty());
  EXPECT_TRUE(end_token_warnings(model_with(nullptr, 512), vocabulary).empty());
  const auto warnings = end_token_warnings(model_with({1, 99999, -1}, 512), vocabulary);
  ASSERT_EQ(warnings.size(), 2u);
  testing::expect_contains(warnings[0], "is 99999, and the vocabulary has the ids 0 to 511");
  // Rows that the run adds count.
  EXPECT_TRUE(end_token_warnings(model_with(600, 512), RunVocabulary{.size = 640}).empty());
}

TEST(EndTokensOfTokenizers, AreThoseOfTheModel) {
  RunVocabulary vocabulary{.size = 151936};
  vocabulary.tokenizer = tokenizer::Tokenizer::from_folder(testing::tokenizer_folder("qwen3"));
  const int64_t own = vocabulary.tokenizer->eos_id().value();
  EXPECT_TRUE(end_token_warnings(model_with({1, own}, 151936), vocabulary).empty());
  const auto warnings = end_token_warnings(model_with(17, 151936), vocabulary);
  ASSERT_EQ(warnings.size(), 1u);
  testing::expect_contains(warnings[0], "is 17, and the tokenizer ends texts with");
}

}  // namespace
}  // namespace megalith::run
