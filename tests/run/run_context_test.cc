// initialize_megatron, what it makes, and its tokenizers.
#include "megalith/run/run_context.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <fstream>
#include <mutex>

#include "megalith/base/error.h"
#include "megalith/config/parser.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tokenizers.h"

namespace megalith::testing {
namespace {

using run::InitializeOptions;
using Words = std::vector<std::string>;

const Words kWords{"--num-layers=2", "--micro-batch-size=2", "--global-batch-size=8", "--vocab-size=100"};

std::string refusal_of(const Words& words, InitializeOptions options = {.allow_no_cuda = true}) {
  try {
    options.skip_mpu_initialization = true;
    run::initialize_megatron(words, std::move(options));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(RunContext, HoldsWhatMegatronKeepsInGlobals) {
  std::mutex mutex;
  std::vector<int> writers;
  run_ranks(4, [&](const Rank& r) {
    const auto tensorboard = [&](const std::filesystem::path& folder) -> run::ScalarWriter {
      const std::lock_guard lock(mutex);
      EXPECT_EQ(folder, "board");
      writers.push_back(r.rank);
      return [](std::string_view, double, int64_t) {};
    };
    const auto run = run::initialize_megatron(Words{"--num-layers=2", "--micro-batch-size=2", "--global-batch-size=8",
                                                    "--vocab-size=100", "--tp=2", "--tensorboard-dir=board"},
                                              {.allow_no_cuda = true, .tensorboard = tensorboard, .world = &r.world});
    EXPECT_EQ(run->rank(), r.rank);
    EXPECT_EQ(run->world_size(), 4);
    EXPECT_EQ(run->args().seeds.seed, 1234);
    EXPECT_EQ(run->microbatches().at(0).num_microbatches, 2);  // 8 / (2 · dp 2)
    EXPECT_EQ(run->required_tokenizer().tokens.vocab_size, 101);
    EXPECT_EQ(run->required_tokenizer().tokens.eod_id, 100);
    EXPECT_EQ(run->padded_vocab_size(), 256);
    EXPECT_EQ(static_cast<bool>(run->tensorboard()), r.rank == 3);
    EXPECT_EQ(run->context().tp().size(), 2);
    EXPECT_EQ(run->context().rng().is_initialized(), true);
  });
  EXPECT_EQ(writers, std::vector<int>{3});
}

TEST(RunContext, DefaultsOfAProgramGiveWayToWords) {
  const InitializeOptions options{.args_defaults = {{"seq_length", "77"}, {"global_batch_size", "16"}},
                                  .allow_no_cuda = true,
                                  .skip_mpu_initialization = true};
  const auto run = run::initialize_megatron(kWords, options);
  EXPECT_EQ(run->args().shape.seq_length, 77);
  EXPECT_EQ(run->args().batch.global_batch_size, 8);
  expect_contains(refusal_of(kWords, {.args_defaults = {{"seq_lenght", "1"}}, .allow_no_cuda = true}), "seq_lenght");
}

TEST(RunContext, ExtraAndUnknownWords) {
  std::optional<int64_t> rate;
  const Words words{"--num-layers=2", "--micro-batch-size=2", "--my-rate", "3", "--vocab-size=100"};
  expect_contains(refusal_of(words), "--my-rate");
  run::initialize_megatron(
      words, {.extra_args = {{"my_rate", "mine", &rate}}, .allow_no_cuda = true, .skip_mpu_initialization = true});
  EXPECT_EQ(rate, 3);
  EXPECT_EQ(refusal_of(words, {.ignore_unknown_args = true, .allow_no_cuda = true}), "");
}

TEST(RunContext, WithoutCudaItMustBeAllowed) {
  if (at::hasCUDA()) GTEST_SKIP() << "there is a CUDA device";
  expect_contains(refusal_of(kWords, {}), "requires CUDA");
  EXPECT_EQ(refusal_of({"--micro-batch-size=1", "--use-cpu"}, {}), "");
}

TEST(InitializeMegatron, RefusedOptionsStopAProgram) {
  expect_contains(refusal_of({"--micro-batch-size=1", "--pure-bf16"}), "--pure-bf16");
  config::TrainingArguments args;
  args.fusion.cuda_graph_impl = "transformer_engine";
  const auto start = [&] { run::initialize_megatron(args, {.allow_no_cuda = true, .skip_mpu_initialization = true}); };
  expect_error<ConfigError>(start, {"cuda_graph_impl = transformer_engine (set by the program)"});
  args.fusion = {};
  args.parallel = {.tp = 2};  // in a world of one rank
  expect_error<ConfigError>(start, {"world_size"});
}

TEST(InitializeMegatron, WordsFollowADialect) {
  const auto run = run::initialize_megatron(
      Words{}, {.dialect = config::Dialect::kTrain, .allow_no_cuda = true, .skip_mpu_initialization = true});
  EXPECT_EQ(run->args().seeds.seed, 42);
  EXPECT_EQ(run->args().dialect, config::Dialect::kTrain);
}

// This process, without a launcher: one rank.
TEST(InitializeMegatron, MakesGroupsOnceAndSeedsEveryTime) {
  const InitializeOptions options{.allow_no_cuda = true};
  EXPECT_FALSE(run::is_distribute_initialized());
  const auto first = run::initialize_megatron(kWords, options);
  EXPECT_TRUE(run::is_distribute_initialized());
  EXPECT_EQ(first->context().world().size(), 1);
  const at::Tensor drawn = at::rand({4}, first->context().rng().generator());
  const auto second = run::initialize_megatron(kWords, options);
  EXPECT_EQ(&second->context(), &first->context());
  EXPECT_TRUE(at::equal(at::rand({4}, second->context().rng().generator()), drawn));
  run::shutdown_megatron();
}

TEST(InitializeMegatron, StartsAgainAfterShutdown) {
  const InitializeOptions options{.allow_no_cuda = true};
  run::shutdown_megatron();  // nothing runs yet
  const auto first = run::initialize_megatron(kWords, options);
  run::shutdown_megatron();
  EXPECT_FALSE(run::is_distribute_initialized());
  EXPECT_FALSE(first->mpu_is_initialized());
  EXPECT_THROW(first->context(), InternalError);
  const auto again = run::initialize_megatron(kWords, options);
  EXPECT_TRUE(run::is_distribute_initialized());
  EXPECT_TRUE(again->context().rng().is_initialized());
  run::shutdown_megatron();
}

// Ranks that are threads have nothing to do with the process's connection.
TEST(InitializeMegatron, ThreadsShareNothing) {
  run_ranks(2, [&](const Rank& r) {
    const auto run = run::initialize_megatron(kWords, {.allow_no_cuda = true, .world = &r.world});
    EXPECT_EQ(run->context().dp().size(), 2);
    EXPECT_FALSE(run::is_distribute_initialized());
  });
}

TEST(RunContext, GroupsCanWait) {
  run_ranks(2, [&](const Rank& r) {
    const auto run =
        run::initialize_megatron(kWords, {.allow_no_cuda = true, .skip_mpu_initialization = true, .world = &r.world});
    EXPECT_FALSE(run->mpu_is_initialized());
    EXPECT_THROW(run->context(), InternalError);
    run->finish_mpu_init();
    EXPECT_EQ(run->context().dp().size(), 2);
  });
}

TEST(RunContext, EmbeddingGroupsAreChosenByTheCaller) {
  run_ranks(3, [&](const Rank& r) {
    const auto run = run::initialize_megatron(
        Words{"--num-layers=3", "--micro-batch-size=2", "--pp=3"},
        {.allow_no_cuda = true,
         .get_embedding_ranks =
             [](std::span<const int> pp) {
               return std::vector<int>{pp[0], pp[1]};
             },
         .get_position_embedding_ranks = [](std::span<const int> pp) { return std::vector<int>{pp[2]}; },
         .world = &r.world});
    EXPECT_EQ(run->context().place().in_embedding_group, r.rank < 2);
    EXPECT_EQ(run->context().place().in_position_embedding_group, r.rank == 2);
  });
}

TEST(RunTokenizer, FilesOfGpt2) {
  const TempFolder folder;
  std::ofstream(folder.path() / "vocab.json") << R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})";
  std::ofstream(folder.path() / "merges.txt") << "#version: 0.2\na b\n";
  const std::string vocab = (folder.path() / "vocab.json").string(), merges = (folder.path() / "merges.txt").string();
  const auto run =
      run::initialize_megatron(Words{"--micro-batch-size=1", "--vocab-file=" + vocab, "--merge-file=" + merges},
                               {.allow_no_cuda = true, .skip_mpu_initialization = true});
  EXPECT_EQ(run->required_tokenizer().tokens.eod_id, 3);
  EXPECT_EQ(run->required_tokenizer().vocabulary().size, 4);
  EXPECT_EQ(run->required_tokenizer().folder, folder.path());
  expect_contains(refusal_of({"--micro-batch-size=1", "--vocab-file=" + vocab}), "merge_file");
  expect_contains(refusal_of({"--micro-batch-size=1", "--vocab-file=" + merges, "--merge-file=" + merges}),
                  "vocab.json");
}

// Files as they are called, each given the name under which exports and transformers look for it.
TEST(RunTokenizer, FilesUnderOtherNames) {
  const TempFolder folder;
  std::ofstream(folder.path() / "gpt2-vocab.json") << R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})";
  std::ofstream(folder.path() / "gpt2-merges.txt") << "#version: 0.2\na b\n";
  std::ofstream(folder.path() / "ranks.json") << tiktoken_vocabulary({"ab"});
  const auto opened = [](const Words& words) {
    return *run::make_run_tokenizer(config::parse_arguments(config::Dialect::kPretrain, words).args);
  };
  const std::string at = folder.path().string() + "/";
  const auto gpt2 = opened({"--vocab-file=" + at + "gpt2-vocab.json", "--merge-file=" + at + "gpt2-merges.txt"});
  EXPECT_EQ(gpt2.tokenizer->encode("ab"), std::vector<int32_t>{2});
  EXPECT_EQ(gpt2.tokens.eod_id, 3);
  expect_contains(gpt2.tokens.identity, "gpt2-vocab.json");  // names of cached indices do not depend on the run
  for (const char* name : {"vocab.json", "merges.txt"}) EXPECT_TRUE(std::filesystem::exists(gpt2.folder / name));
  const auto pieces = opened({"--tokenizer-type=GPTSentencePieceTokenizer",
                              "--tokenizer-model=tests/data/tokenizer/bpe.model", "--vocab-extra-ids=100"});
  EXPECT_TRUE(std::filesystem::exists(pieces.folder / "tokenizer.model"));
  EXPECT_EQ(pieces.tokens.vocab_size, pieces.tokenizer->id_end() + 100);
  EXPECT_EQ(pieces.vocabulary().size, pieces.tokens.vocab_size);
  std::filesystem::path made;
  {
    const auto ranks = opened({"--tokenizer-type=TikTokenizer", "--tokenizer-model=" + at + "ranks.json"});
    EXPECT_EQ(ranks.tokenizer->encode("ab"), std::vector<int32_t>{1256});
    EXPECT_EQ(ranks.tokens.eod_id, 2);
    made = ranks.folder;
    EXPECT_TRUE(std::filesystem::exists(made / "tokenizer.json"));
  }
  EXPECT_FALSE(std::filesystem::exists(made));
}

TEST(RunTokenizer, WhatIsMissingIsNamed) {
  expect_contains(refusal_of({"--micro-batch-size=1", "--tokenizer-type=NullTokenizer"}), "vocab_size");
  expect_contains(refusal_of({"--micro-batch-size=1", "--tokenizer-type=HuggingFaceTokenizer"}), "tokenizer_model");
  expect_contains(refusal_of({"--micro-batch-size=1", "--tokenizer-type=BertWordPieceLowerCase"}), "GPT2BPETokenizer");
  expect_contains(refusal_of({"--micro-batch-size=1", "--tokenizer-type=Llama2Tokenizer", "--tokenizer-model=x.bin"}),
                  "tokenizer.model");
  expect_contains(refusal_of({"--micro-batch-size=1", "--tokenizer-model=/nonexistent"}), "/nonexistent");
  const auto run =
      run::initialize_megatron(Words{"--micro-batch-size=1"}, {.allow_no_cuda = true, .skip_mpu_initialization = true});
  EXPECT_FALSE(run->tokenizer());
  EXPECT_THROW(run->required_tokenizer(), ConfigError);
}

}  // namespace
}  // namespace megalith::testing
