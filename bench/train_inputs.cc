// Makes a small model folder and data of random token ids, so that our program and the peers' scripts train on the
// same.
#include "bench/train_inputs.h"

#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/support/subprocess.h"

namespace megalith::bench {
namespace {

using nlohmann::json;

// The same shapes as in the peers' script.
struct Shape {
  int width, layers, heads, kv_heads, mlp;
};
const std::map<std::string, Shape> kShapes{{"d256", {256, 4, 4, 2, 704}}, {"d512", {512, 8, 8, 4, 1408}}};

// Both families tie the embedding to the head.
json model_config(const std::string& arch, const Shape& z) {
  if (arch == "gpt2")
    return {{"model_type", "gpt2"},       {"architectures", {"GPT2LMHeadModel"}},
            {"vocab_size", kVocab},       {"n_embd", z.width},
            {"n_layer", z.layers},        {"n_head", z.heads},
            {"n_positions", 1024},        {"activation_function", "gelu_new"},
            {"layer_norm_epsilon", 1e-5}, {"resid_pdrop", 0.0},
            {"embd_pdrop", 0.0},          {"attn_pdrop", 0.0},
            {"tie_word_embeddings", true}};
  return {{"model_type", "llama"},          {"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", kVocab},           {"hidden_size", z.width},
          {"intermediate_size", z.mlp},     {"num_hidden_layers", z.layers},
          {"num_attention_heads", z.heads}, {"num_key_value_heads", z.kv_heads},
          {"head_dim", z.width / z.heads},  {"max_position_embeddings", 1024},
          {"rms_norm_eps", 1e-5},           {"rope_theta", 1e4},
          {"hidden_act", "silu"},           {"tie_word_embeddings", true}};
}

}  // namespace

std::array<int, 5> train_shape(const std::string& shape) {
  if (!kShapes.contains(shape)) throw std::invalid_argument("--shape is d256 or d512");
  const Shape& z = kShapes.at(shape);
  return {z.width, z.layers, z.heads, z.kv_heads, z.mlp};
}

void write_train_inputs(const std::string& arch, const std::string& shape, const testing::TempFolder& folder) {
  std::filesystem::create_directory(folder / "model");
  std::ofstream(folder / "model" / "config.json") << model_config(arch, kShapes.at(shape)).dump();
  std::ofstream data(folder / "data.jsonl");
  // Knuth's 64-bit linear congruential generator: the same data in every run.
  uint64_t random = 1;
  for (int row = 0; row < 4 * kBatch; ++row) {
    json ids = json::array();
    for (int t = 0; t <= kLength; ++t) {
      random = random * 6364136223846793005ULL + 1442695040888963407ULL;
      ids.push_back((random >> 33U) % kVocab);
    }
    data << json{{"input_ids", ids}}.dump() << "\n";
  }
}

std::vector<std::string> train_command(const std::string& program, int steps, const testing::TempFolder& folder) {
  return {program,
          "train",
          "--use_cpu",
          "--train_from_scratch",
          "--finetuning_type=full",
          "--model_name_or_path=" + (folder / "model").string(),
          "--dataset=" + (folder / "data.jsonl").string(),
          "--output_dir=" + (folder / "out").string(),
          fmt::format("--cutoff_len={}", kLength),
          fmt::format("--max_steps={}", steps),
          fmt::format("--num_train_epochs={}", steps),
          "--learning_rate=1e-4",
          "--lr_scheduler_type=constant",
          "--adam_beta2=0.95",
          "--weight_decay=0.1",
          "--max_grad_norm=1.0",
          "--logging_steps=1",
          "--save_strategy=no"};
}

// Times from exec to the moment when `text` appears on the output, and to the end of the process.
TimeTo time_to(const std::string& text, const std::vector<std::string>& command) {
  const auto start = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  testing::Subprocess program(command);
  const bool arrived = program.wait_for_text(text, std::chrono::minutes(3));
  TimeTo times{passed(), 0};
  const testing::ProcessResult result = program.finish(std::chrono::minutes(2));
  times.end = passed();
  if (!arrived || result.exit_code != 0)
    throw std::runtime_error(fmt::format("{} failed with exit code {}:\n{}", command[0], result.exit_code, result.err));
  return times;
}

}  // namespace megalith::bench
