// convert, score and generate as a person meets them: processes, ranks, files.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/program_support.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string golden(const std::string& name) { return (golden_dir() / "hf" / name).string(); }
double golden_loss(const std::string& name) {
  return golden_json("hf/" + name + "/golden.json").at("loss").get<double>();
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ScoreCommand, OneRankAndTwoSayTheSame) {
  const TempFolder temp;
  const std::string input = golden("llama") + "/golden.safetensors";
  for (const std::vector<std::string>& layout : {std::vector<std::string>{},
                                                 {"--nproc", "2", "--tp", "2", "--sequence_parallel"},
                                                 {"--nproc", "2"},
                                                 {"--nproc", "2", "--pp", "2"},
                                                 {"--nproc", "2", "--pp", "2", "--vpp", "2"},
                                                 {"--nproc", "2", "--cp", "2", "--cp_comm_type", "a2a"}}) {
    std::vector<std::string> words{
        "score",  "--model",  golden("llama"), "--input", input, "--output", (temp / "out.safetensors").string(),
        "--json", "--logits", "--use_cpu"};
    words.insert(words.end(), layout.begin(), layout.end());
    const auto result = megalith(words);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json line = json::parse(result.out);
    EXPECT_NEAR(line.at("loss").get<double>(), golden_loss("llama"), 1e-4);
    EXPECT_EQ(line.at("num_label_tokens").get<int>(), 43);
    EXPECT_GT(fs::file_size(temp / "out.safetensors"), 2 * 32 * 512 * 4);
  }
}

TEST(ScoreCommand, BadInputIsNamed) {
  const TempFolder temp;
  const std::string out = (temp / "out.safetensors").string();
  expect_refused(megalith({"score"}), "--model");
  expect_refused(megalith({"score", "--model", golden("llama")}), "--input");
  expect_refused(megalith({"score", "--model", golden("llama"), "--input", "/nowhere.safetensors", "--output", out}),
                 "/nowhere.safetensors");
  expect_refused(megalith({"score", "--model", golden("llama"), "--input", golden("llama") + "/model.safetensors",
                           "--output", out}),
                 "input_ids");
  expect_refused(megalith({"score", "--model", temp.path().string(), "--input", "x", "--output", out}), "config.json");
  expect_refused(megalith({"score", "--model", "some-org/no-such-model", "--input", "x", "--output", out}),
                 "hf download some-org/no-such-model");
  expect_refused(megalith({"score", "--model", golden("llama"), "--input", golden("llama") + "/golden.safetensors",
                           "--output", out, "--nproc", "3", "--tp", "3", "--use_cpu"}),
                 "3");
  EXPECT_FALSE(fs::exists(out));
}

// A tokenizer with letters, so that text goes in and comes out.
void write_letters_tokenizer(const fs::path& folder) {
  json vocab;
  for (char c = 'a'; c <= 'z'; ++c) vocab[std::string(1, c)] = c - 'a';
  for (int id = 26; id < 512; ++id) vocab["<" + std::to_string(id) + ">"] = id;
  const json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  std::ofstream(folder / "tokenizer.json")
      << json{{"version", "1.0"},
              {"added_tokens", json::array()},
              {"normalizer", nullptr},
              {"pre_tokenizer", byte_level},
              {"post_processor", nullptr},
              {"decoder", byte_level},
              {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}}
             .dump();
}

TEST(GenerateCommand, StreamsTextAndEveryLayoutAgrees) {
  const TempFolder temp;
  const fs::path model = temp / "model";
  ASSERT_EQ(megalith({"convert", "--checkpoint_path", golden("llama"), "--output_path", model.string()}).exit_code, 0);
  write_letters_tokenizer(model);
  const std::vector<std::string> words{"generate", "--model",   model.string(),     "--prompt",
                                       "hello",    "--use_cpu", "--max_new_tokens", "8"};
  const auto one = megalith(words);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_GT(one.out.size(), 8U);
  auto more = words;
  more.insert(more.end(), {"--nproc", "2", "--tp", "2"});
  const auto two = megalith(more);
  ASSERT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(two.out, one.out);
  more.push_back("--json");
  const json line = json::parse(megalith(more).out);
  EXPECT_EQ(line.at("prompt").get<std::string>(), "hello");
  EXPECT_EQ(line.at("text").get<std::string>() + "\n", one.out);
  EXPECT_EQ(line.at("ids").size(), 8U);
}

TEST(GenerateCommand, ChatUsesTheTemplate) {
  const TempFolder temp;
  const fs::path model = temp / "model";
  ASSERT_EQ(megalith({"convert", "--checkpoint_path", golden("llama"), "--output_path", model.string()}).exit_code, 0);
  write_letters_tokenizer(model);
  const auto generate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "--model", model.string(), "--use_cpu", "--max_new_tokens", "4"});
    return megalith(more);
  };
  expect_refused(generate({"--chat", "--prompt", "hello"}), "no chat template");
  // A template that adds a word before what the last message says.
  std::ofstream(model / "chat_template.jinja")
      << "{% if add_generation_prompt %}oh{% endif %}{{ messages[-1].content }}";
  const auto plain = generate({"--prompt", "ohhello"});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(generate({"--chat", "--prompt", "hello"}).out, plain.out);
  std::ofstream(temp / "chats") << R"([{"role": "user", "content": "x"}, {"role": "user", "content": "hello"}])"
                                << "\n";
  EXPECT_EQ(generate({"--chat", "--input", (temp / "chats").string()}).out, plain.out);
  expect_refused(generate({"--chat", "--ids", "--prompt", "[1]"}), "leave out --ids");
}

TEST(GenerateCommand, IdsNeedNoTokenizer) {
  const auto result = megalith({"generate", "--model", golden("qwen3"), "--ids", "--prompt", "[5, 17, 3]", "--json",
                                "--max_new_tokens", "4", "--use_cpu"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out).at("ids").size(), 4U);
}

// Best of n: equal prompts get different texts, and the same ones again with the same seed.
TEST(GenerateCommand, EveryTextIsADrawOfItsOwn) {
  const TempFolder temp;
  std::ofstream(temp / "prompts") << "[5, 17, 3]\n[5, 17, 3]\n";
  const auto generate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "--model", golden("qwen3"), "--ids", "--max_new_tokens", "6", "--use_cpu"});
    return megalith(more);
  };
  const std::string input = (temp / "prompts").string();
  const auto lines = generate({"--input", input, "--temperature", "1.5"});
  ASSERT_EQ(lines.exit_code, 0) << lines.err;
  const size_t middle = lines.out.find('\n');
  const std::string first = lines.out.substr(0, middle + 1), second = lines.out.substr(middle + 1);
  EXPECT_NE(first, second);
  const auto texts = generate({"--prompt", "[5, 17, 3]", "--temperature", "1.5", "--num_return_sequences", "2"});
  EXPECT_EQ(texts.out, lines.out);
  EXPECT_EQ(generate({"--prompt", "[5, 17, 3]", "--temperature", "1.5"}).out, first);
  expect_refused(generate({"--prompt", "[5]", "--num_return_sequences", "2"}), "set --temperature");
}

TEST(GenerateCommand, BadInputIsNamed) {
  const std::vector<std::string> base{"generate", "--model", golden("qwen3"), "--use_cpu"};
  const auto with = [&base](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return megalith(more);
  };
  expect_refused(with({"--ids"}), "--prompt TEXT or --input FILE");
  expect_refused(with({"--ids", "--prompt", "[1, \"a\"]"}), "array of token ids");
  expect_refused(with({"--ids", "--prompt", "[1]", "--temperature", "-1"}), "temperature is -1");
  expect_refused(with({"--ids", "--prompt", "[1]", "--top_p", "x"}), "--top_p = x");
  expect_refused(with({"--ids", "--prompt", "[1]", "--pp", "3", "--nproc", "2"}), "3");
  expect_refused(with({"--prompt", "hello"}), "tokenizer");
  expect_refused(with({"--ids", "--prompt", "[100000]"}), "token id 100000");
}

TEST(ConvertCommand, AnUnchangedCopyIsBitIdentical) {
  const TempFolder temp;
  const auto result =
      megalith({"convert", "--checkpoint_path", golden("gpt2"), "--output_path", (temp / "copy").string(), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out).at("files").get<int>(), 1);
  EXPECT_EQ(bytes_of(temp / "copy/config.json").empty(), false);
  // Once more: the same bytes again.
  ASSERT_EQ(
      megalith({"convert", "--checkpoint_path", (temp / "copy").string(), "--output_path", (temp / "again").string()})
          .exit_code,
      0);
  EXPECT_EQ(bytes_of(temp / "copy/model.safetensors"), bytes_of(temp / "again/model.safetensors"));
}

TEST(ConvertCommand, DtypeShardsAndVocabulary) {
  const TempFolder temp;
  const auto result = megalith({"convert", "--checkpoint_path", golden("llama"), "--output_path",
                                (temp / "new").string(), "--bf16", "--max_shard_size", "50KB", "--vocab_size", "520"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json config = json::parse(bytes_of(temp / "new/config.json"));
  EXPECT_EQ(config.at("vocab_size").get<int>(), 520);
  EXPECT_EQ(config.at("dtype").get<std::string>(), "bfloat16");
  EXPECT_TRUE(fs::exists(temp / "new/model.safetensors.index.json"));
  // Old tokens score as before, up to bf16 and the new columns.
  const auto score =
      megalith({"score", "--model", (temp / "new").string(), "--input", golden("llama") + "/golden.safetensors",
                "--output", (temp / "out").string(), "--json", "--use_cpu"});
  ASSERT_EQ(score.exit_code, 0) << score.err;
  EXPECT_NEAR(json::parse(score.out).at("loss").get<double>(), golden_loss("llama"), 0.1);
}

// A model with a manifest is a checkpoint of its weights.
TEST(ConvertCommand, VerifiesAndReshards) {
  const TempFolder temp;
  const std::string first = (temp / "first").string(), second = (temp / "second").string();
  const auto verify = [](const std::string& folder) {
    return megalith({"convert", "--checkpoint_path", folder, "--verify", "--json"});
  };
  expect_refused(verify(golden("llama")), "manifest.json");
  ASSERT_EQ(megalith({"convert", "--checkpoint_path", golden("llama"), "--output_path", first}).exit_code, 0);
  const auto whole = verify(first);
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_TRUE(json::parse(whole.out).at("problems").empty());
  const auto resharded = megalith({"convert", "--checkpoint_path", first, "--output_path", second, "--reshard",
                                   "--max_shard_size", "100KB", "--json"});
  ASSERT_EQ(resharded.exit_code, 0) << resharded.err;
  EXPECT_GT(json::parse(resharded.out).at("files").get<int>(), 3);
  EXPECT_EQ(verify(second).exit_code, 0);
  const auto score = megalith({"score", "--model", second, "--input", golden("llama") + "/golden.safetensors",
                               "--output", (temp / "out").string(), "--json", "--use_cpu"});
  ASSERT_EQ(score.exit_code, 0) << score.err;
  EXPECT_NEAR(json::parse(score.out).at("loss").get<double>(), golden_loss("llama"), 1e-4);

  std::fstream(temp / "first/model.safetensors", std::ios::in | std::ios::out | std::ios::binary).seekp(5000).put('!');
  const auto broken = verify(first);
  EXPECT_EQ(broken.exit_code, 2);
  expect_contains(broken.err, "model.safetensors: bytes 0 to");
  EXPECT_EQ(json::parse(broken.out).at("problems").size(), 1U);
  expect_refused(megalith({"convert", "--checkpoint_path", first, "--output_path", second + "2", "--reshard"}),
                 "first is broken");
  expect_refused(megalith({"convert", "--checkpoint_path", first, "--output_path", second, "--adapter_path", "a"}),
                 "there is no adapter a");
}

double golden_adapter_loss(const std::string& name) {
  return golden_json("hf/lora/" + name + "/golden.json").at("loss").get<double>();
}

double score(const TempFolder& temp, const std::vector<std::string>& more) {
  std::vector<std::string> words{
      "score",  "--input",  golden("llama") + "/golden.safetensors", "--output", (temp / "out").string(),
      "--json", "--use_cpu"};
  words.insert(words.end(), more.begin(), more.end());
  const auto result = megalith(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? json::parse(result.out).at("loss").get<double>() : 0;
}

TEST(ScoreCommand, WithAnAdapter) {
  const TempFolder temp;
  const std::vector<std::string> words{"--model", golden("llama"), "--adapter_name_or_path", golden("lora/llama_r8")};
  EXPECT_NEAR(score(temp, words), golden_adapter_loss("llama_r8"), 1e-4);
  std::vector<std::string> two = words;
  for (const char* word : {"--nproc", "2", "--tp", "2"}) two.emplace_back(word);
  EXPECT_NEAR(score(temp, two), golden_adapter_loss("llama_r8"), 1e-4);
}

// Megatron-Core wrote the checkpoint at tp 2 and pp 2. Missing and contradicting options are named.
TEST(ConvertCommand, ReadsCheckpointsOfOtherPrograms) {
  const TempFolder temp;
  const std::string model = "tests/data/foreign/qwen2", ranks = "tests/data/foreign/qwen2_ranks";
  const std::string out = (temp / "out").string();
  const std::vector<std::string> convert{"convert", "--checkpoint_path", ranks, "--output_path", out};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), convert.begin(), convert.end());
    return megalith(more);
  };
  expect_refused(with({}), "config_path");
  expect_refused(
      with({"--config_path", golden("llama")}),
      "embedding.word_embeddings.weight: [32, 16] in each of 2 tensor-parallel ranks, [512 or more, 64] in the model");
  expect_refused(with({"--config_path", model, "--fp8_blocks"}), "is a checkpoint of another program");
  EXPECT_FALSE(fs::exists(out));
  const auto result = with({"--config_path", model});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(megalith({"convert", "--checkpoint_path", out, "--verify"}).exit_code, 0);
  expect_refused(megalith({"convert", "--checkpoint_path", model, "--config_path", model, "--output_path",
                           (temp / "no").string()}),
                 "config_path is for checkpoints");
}

TEST(ConvertCommand, WritesAndReadsBlocksInFp8) {
  const TempFolder temp;
  const std::string made = (temp / "fp8").string(), back = (temp / "back").string();
  const auto result =
      megalith({"convert", "--checkpoint_path", golden("llama"), "--fp8_blocks", "--output_path", made});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(bytes_of(temp / "fp8" / "config.json")).at("quantization_config").at("quant_method"), "fp8");
  EXPECT_LT(fs::file_size(temp / "fp8" / "model.safetensors"), fs::file_size(golden("llama") + "/model.safetensors"));
  ASSERT_EQ(megalith({"convert", "--checkpoint_path", made, "--output_path", back}).exit_code, 0);
  // Rounding to 3 bits of fraction changes a loss by little.
  EXPECT_NEAR(score(temp, {"--model", back}), golden_loss("llama"), 0.05);
  EXPECT_EQ(score(temp, {"--model", made}), score(temp, {"--model", back}));
}

TEST(ConvertCommand, MergesAnAdapter) {
  const TempFolder temp;
  for (const char* option : {"--adapter_path", "--merge-adapter"}) {
    const std::string merged = (temp / option).string();
    const auto result = megalith({"convert", "--checkpoint_path", golden("llama"), option, golden("lora/llama_rslora"),
                                  "--output_path", merged});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NEAR(score(temp, {"--model", merged}), golden_adapter_loss("llama_rslora"), 1e-4);
  }
  expect_refused(megalith({"convert", "--checkpoint_path", golden("llama"), "--adapter_path", golden("lora"),
                           "--output_path", (temp / "no").string()}),
                 "holds several adapters: gpt2_dora, llama_dora, llama_fused");
  expect_refused(megalith({"convert", "--checkpoint_path", golden("llama"), "--adapter_path", golden("lora/qwen3_r8"),
                           "--output_path", (temp / "no").string()}),
                 "does not fit the model");
  EXPECT_FALSE(fs::exists(temp / "no"));
}

// `score` merges all but the last and adds that; `convert` merges all. Names of adapters in one folder work for both.
TEST(ConvertCommand, MergesSeveralAdapters) {
  const TempFolder temp;
  const std::string merged = (temp / "merged").string(), both = "llama_rslora,llama_r8";
  const auto result = megalith({"convert", "--checkpoint_path", golden("llama"), "--adapter_path", both,
                                "--adapter_folder", golden("lora"), "--output_path", merged});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const double loss = score(temp, {"--model", golden("llama"), "--adapter_name_or_path",
                                   golden("lora/llama_rslora") + "," + golden("lora/llama_r8")});
  EXPECT_NEAR(score(temp, {"--model", merged}), loss, 1e-4);
  EXPECT_NEAR(
      score(temp, {"--model", golden("llama"), "--adapter_name_or_path", both, "--adapter_folder", golden("lora")}),
      loss, 1e-6);
  EXPECT_GT(std::abs(loss - golden_adapter_loss("llama_r8")), 1e-3);
  expect_refused(megalith({"convert", "--checkpoint_path", golden("llama"), "--adapter_path", "llama_r8,",
                           "--adapter_folder", golden("lora"), "--output_path", (temp / "no").string()}),
                 "give one folder, or several separated by commas");
  expect_refused(megalith({"convert", "--checkpoint_path", golden("llama"), "--adapter_path", "llama_r8,nowhere",
                           "--adapter_folder", golden("lora"), "--output_path", (temp / "no").string()}),
                 "there is no adapter nowhere");
  EXPECT_FALSE(fs::exists(temp / "no"));
}

TEST(ConvertCommand, BadInputIsNamedAndNothingIsLeft) {
  const TempFolder temp;
  const std::string out = (temp / "out").string();
  expect_refused(megalith({"convert"}), "--checkpoint_path");
  expect_refused(megalith({"convert", "--checkpoint_path", golden("llama"), "--output_path", out, "--bf16", "--fp16"}),
                 "exclude each other");
  expect_refused(
      megalith({"convert", "--checkpoint_path", golden("llama"), "--output_path", out, "--max_shard_size", "5XB"}),
      "max_shard_size");
  expect_refused(megalith({"convert", "--checkpoint_path", golden("llama"), "--output_path", out, "--vocab_size", "3"}),
                 "cannot shrink");
  expect_refused(megalith({"convert", "--checkpoint_path", golden("llama"), "--output_path", golden("llama")}),
                 "choose another folder");
  EXPECT_TRUE(fs::is_empty(temp.path()));
}

}  // namespace
}  // namespace megalith::testing
