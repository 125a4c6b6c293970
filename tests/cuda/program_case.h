// Runs of the program on a GPU: a small model with random weights, and what its metrics say.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {

struct LlamaShape {
  int width = 256, layers = 2, vocab = 512;
};

inline nlohmann::json llama_config(const LlamaShape& shape) {
  return {{"model_type", "llama"},
          {"vocab_size", shape.vocab},
          {"hidden_size", shape.width},
          {"intermediate_size", 2 * shape.width},
          {"num_hidden_layers", shape.layers},
          {"num_attention_heads", shape.width / 64},
          {"num_key_value_heads", shape.width / 64},
          {"max_position_embeddings", 4096},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"rope_theta", 1e4},
          {"tie_word_embeddings", false}};
}

// The same with 16 experts in each layer, 4 of them for a token.
inline nlohmann::json experts_config(const LlamaShape& shape) {
  nlohmann::json config = llama_config(shape);
  config.update({{"model_type", "qwen3_moe"},
                 {"head_dim", 64},
                 {"num_experts", 16},
                 {"num_experts_per_tok", 4},
                 {"moe_intermediate_size", 128},
                 {"norm_topk_prob", true},
                 {"router_aux_loss_coef", 0.01},
                 {"decoder_sparse_step", 1},
                 {"mlp_only_layers", nlohmann::json::array()}});
  return config;
}

// A folder with config.json and data, and where runs go.
class ProgramCase {
 public:
  // `lengths`: tokens of each sample.
  ProgramCase(const nlohmann::json& config, const std::vector<int>& lengths) {
    std::ofstream(folder_ / "config.json") << config.dump();
    std::mt19937 random(1);
    std::ofstream data(folder_ / "data.jsonl");
    for (const int length : lengths) {
      nlohmann::json ids = nlohmann::json::array();
      for (int i = 0; i < length; ++i) ids.push_back(random() % config.at("vocab_size").get<unsigned>());
      data << nlohmann::json{{"input_ids", std::move(ids)}}.dump() << '\n';
    }
  }

  // `more` wins over what every run here has.
  ProcessResult train(const std::string& output, const std::vector<std::string>& more,
                      std::map<std::string, std::string> env = {}) const {
    std::vector<std::string> words{MEGALITH_PROGRAM,
                                   "train",
                                   "--train_from_scratch",
                                   "--finetuning_type=full",
                                   "--bf16",
                                   "--save_strategy=no",
                                   "--logging_steps=1",
                                   "--num_train_epochs=1000",
                                   "--learning_rate=1e-3",
                                   "--model_name_or_path=" + folder_.path().string(),
                                   "--dataset=" + (folder_ / "data.jsonl").string(),
                                   "--output_dir=" + (folder_ / output).string()};
    words.insert(words.end(), more.begin(), more.end());
    env["XDG_CACHE_HOME"] = (folder_ / "cache").string();
    return run_process(words, env, std::chrono::seconds(110));
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Values of the lines that have it.
  std::vector<double> numbers(const std::string& output, const std::string& name) const {
    std::vector<double> found;
    std::ifstream file(folder_ / output / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (const auto parsed = nlohmann::json::parse(line); parsed.contains(name) && parsed.contains("loss"))
        found.push_back(parsed.at(name).get<double>());
    return found;
  }

 private:
  TempFolder folder_;
};

}  // namespace megalith::testing
