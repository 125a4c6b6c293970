#include "tests/nccl/memory_run.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/nccl/made_once.h"

namespace megalith::testing {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kMemoryRow = 2048, kMemoryVocab = 8192;

}  // namespace

fs::path memory_model() {
  return made_once("model-memory", [](const fs::path& folder) {
    std::ofstream(folder / "config.json") << json{
        {"model_type", "llama"},
        {"vocab_size", kMemoryVocab},
        {"hidden_size", 1024},
        {"intermediate_size", 4096},
        {"num_hidden_layers", 8},
        {"num_attention_heads", 16},
        {"num_key_value_heads", 16},
        {"head_dim", 64},
        {"max_position_embeddings", kMemoryRow},
        {"rms_norm_eps", 1e-5},
        {"hidden_act", "silu"},
        {"rope_theta", 1e4},
        {"tie_word_embeddings", false}}.dump();
    std::mt19937 random(3);
    std::ofstream data(folder / "data.jsonl");
    for (int row = 0; row < 16; ++row) {
      json ids = json::array();
      for (int token = 0; token < kMemoryRow; ++token) ids.push_back(random() % kMemoryVocab);
      data << json{{"input_ids", std::move(ids)}}.dump() << "\n";
    }
  });
}

Words memory_layout() {
  return {"--tp=2",
          "--sequence_parallel",
          "--bf16",
          "--finetuning_type=full",
          fmt::format("--cutoff_len={}", kMemoryRow),
          "--per_device_train_batch_size=8",
          "--gradient_accumulation_steps=1"};
}

Words memory_command(Transport transport, const fs::path& output) {
  Words words{MEGALITH_PROGRAM,
              "train",
              "--train_from_scratch",
              "--model_name_or_path=" + memory_model().string(),
              "--dataset=" + (memory_model() / "data.jsonl").string(),
              "--output_dir=" + output.string(),
              "--max_steps=3",
              "--num_train_epochs=100",
              "--logging_steps=1",
              "--save_strategy=no",
              "--ddp_timeout=60"};
  for (const Words& more : {memory_layout(), transport_words(transport, 2)})
    words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace megalith::testing
