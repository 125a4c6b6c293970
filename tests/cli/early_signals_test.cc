// Signals while a run tokenizes and while it loads weights: it ends at once, as the signal would end any program, and
// leaves nothing that looks complete. The input is large enough that the phase lasts for seconds; the signal follows
// the line that says that the phase has begun.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/program_support.h"
#include "tests/support/golden.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using std::chrono::seconds;
using Words = std::vector<std::string>;

void write_rows(const fs::path& file, int rows) {
  std::string ids;
  for (int i = 0; i < 100; ++i) ids += (i == 0 ? "" : ",") + std::to_string(i * 13 % 60 + 2);
  const std::string row = "{\"input_ids\":[" + ids + "]}\n";
  std::ofstream stream(file);
  for (int i = 0; i < rows; ++i) stream << row;
}

// A model of 1.3 GB whose weights are all 0: the file is a hole after its header, and takes no room on disk.
void write_large_model(const fs::path& folder) {
  constexpr int64_t kHidden = 1024, kMlp = 4096, kLayers = 20, kVocabulary = 512;
  fs::create_directory(folder);
  std::ofstream(folder / "config.json") << ordered_json{{"architectures", {"LlamaForCausalLM"}},
                                                        {"model_type", "llama"},
                                                        {"vocab_size", kVocabulary},
                                                        {"hidden_size", kHidden},
                                                        {"intermediate_size", kMlp},
                                                        {"num_hidden_layers", kLayers},
                                                        {"num_attention_heads", 16},
                                                        {"num_key_value_heads", 16},
                                                        {"max_position_embeddings", 512},
                                                        {"rms_norm_eps", 1e-6},
                                                        {"rope_theta", 10000.0},
                                                        {"hidden_act", "silu"},
                                                        {"tie_word_embeddings", false}};
  ordered_json header;
  int64_t bytes = 0;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    int64_t end = bytes + 4;
    for (const int64_t size : shape) end = bytes + (end - bytes) * size;
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {bytes, end}}};
    bytes = end;
  };
  add("model.embed_tokens.weight", {kVocabulary, kHidden});
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
      add(prefix + "self_attn." + name + ".weight", {kHidden, kHidden});
    for (const char* name : {"gate_proj", "up_proj"}) add(prefix + "mlp." + name + ".weight", {kMlp, kHidden});
    add(prefix + "mlp.down_proj.weight", {kHidden, kMlp});
    for (const char* name : {"input_layernorm", "post_attention_layernorm"}) add(prefix + name + ".weight", {kHidden});
  }
  add("model.norm.weight", {kHidden});
  add("lm_head.weight", {kVocabulary, kHidden});
  const std::string text = header.dump();
  const auto length = static_cast<uint64_t>(text.size());
  std::ofstream(folder / "model.safetensors", std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), sizeof length) << text;
  fs::resize_file(folder / "model.safetensors", sizeof length + length + static_cast<uint64_t>(bytes));
}

class EarlySignal : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Sends the signal once the run has printed `begun`; returns how it ended.
  ProcessResult interrupted(int signal, const std::string& begun, const fs::path& model, const Words& more) const {
    Words words{MEGALITH_PROGRAM,
                "train",
                "--stage=pt",
                "--finetuning_type=lora",
                "--use_cpu",
                "--model_name_or_path=" + model.string(),
                "--dataset=" + path("rows.jsonl"),
                "--output_dir=" + path("out"),
                "--per_device_train_batch_size=1",
                "--cutoff_len=128",
                "--preprocessing_num_workers=1",
                "--overwrite_output_dir",
                "--max_steps=100000"};
    words.insert(words.end(), more.begin(), more.end());
    // A line as soon as a task begins, and another every 10 ms.
    Subprocess run(words, {{"XDG_CACHE_HOME", path("cache")}, {"MEGALITH_PROGRESS_MS", "10"}});
    EXPECT_TRUE(run.wait_for_text(begun, seconds(120))) << run.so_far().err;
    const auto start = std::chrono::steady_clock::now();
    run.signal(signal);
    ProcessResult result = run.finish(seconds(120));
    // 2 s on a machine that has nothing else to do.
    EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(15));
    EXPECT_EQ(result.exit_code, 128 + signal) << result.err;
    EXPECT_EQ(result.left_behind, 0);
    expect_contains(result.err, "before the first step; there was nothing to save");
    EXPECT_EQ(result.err.find("\nmodel  "), std::string::npos) << "the phase was over: " << result.err;
    return result;
  }

  // Whatever has the name that a complete result would have: not a lock, and not what is still being written.
  std::vector<std::string> complete_in(const fs::path& folder) const {
    std::vector<std::string> names;
    if (!fs::exists(folder)) return names;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.find(".tmp") == std::string::npos && !name.ends_with(".lock")) names.push_back(name);
    }
    return names;
  }

  TempFolder folder_;
};

TEST_F(EarlySignal, EndsARunThatTokenizes) {
  write_rows(folder_ / "rows.jsonl", 150'000);
  const fs::path model = golden_dir() / "hf" / "llama";
  for (const auto& [signal, ranks] : {std::pair<int, Words>{SIGTERM, {}}, {SIGINT, {"--nproc=2"}}}) {
    interrupted(signal, "tokenizing: ", model, ranks);
    EXPECT_EQ(complete_in(folder_ / "cache" / "megalith" / "tokens"), Words{});
    EXPECT_EQ(complete_in(folder_ / "out"), Words{"log"});
  }
}

TEST_F(EarlySignal, EndsARunThatLoadsWeights) {
  write_rows(folder_ / "rows.jsonl", 100);
  write_large_model(folder_ / "model");
  for (const auto& [signal, ranks] : {std::pair<int, Words>{SIGTERM, {}}, {SIGINT, {"--nproc=2", "--tp=2"}}}) {
    interrupted(signal, "loading weights: ", folder_ / "model", ranks);
    EXPECT_EQ(complete_in(folder_ / "out"), Words{"log"});
  }
}

}  // namespace
}  // namespace megalith::testing
