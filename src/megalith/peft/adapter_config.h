// AdapterConfig: the description of an adapter, adapter_config.json of Hugging Face's peft. Only LoRA is supported.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megalith/io/json_text.h"
#include "megalith/peft/name_pattern.h"

namespace megalith::peft {

// The files of an adapter's folder.
inline constexpr const char* kConfigName = "adapter_config.json";
inline constexpr const char* kWeightsStem = "adapter_model";  // .safetensors
inline constexpr const char* kStartStem = "adapter_init";     // .safetensors, with PrincipalStart only

// Biases of the model that are trained and written beside the updates.
enum class TrainedBiases {
  kNone,
  kTargets,  // "lora_only": those of modules that have an update
  kAll,      // those of norms and of modules without an update, too
};

// An adapter that starts as the principal singular parts of its weights (PiSSA, Meng et al., 2024): W = W' + s·B0·A0,
// where A0 and B0 hold the largest `rank` singular values, and the model below the adapter has W'. A and B train from
// A0 and B0 on, so files that hold them alone belong to W', not to W.
struct PrincipalStart {
  // Power iterations of a randomized SVD (Halko et al., 2011); -1 = the exact SVD.
  int iterations = -1;
  bool operator==(const PrincipalStart&) const = default;
};

// The update of a weight W [o, i] is s·B·A with B [o, rank] and A [rank, i]; targets.h says which weights have one, and
// with what rank and s.
struct AdapterConfig {
  // LLaMA-Factory's defaults; its alpha is twice the rank.
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  bool use_rslora = false;                   // rank-stabilized: divide alpha by the root of the rank
  bool use_dora = false;                     // weight-decomposed: rows of W + s·B·A have trained norms (low_rank.h)
  std::optional<PrincipalStart> pissa;       // std::nullopt: A is random and B zero at the start
  std::vector<std::string> target_modules;   // names of modules, or their ends: "q_proj"; "all-linear" for all
  std::vector<std::string> modules_to_save;  // trained and written as a whole: "embed_tokens"
  // Further choices that files may make; a new adapter has none of them.
  TrainedBiases biases = TrainedBiases::kNone;
  std::optional<NamePattern> target_pattern;   // for whole names of modules, instead of target_modules
  std::vector<std::string> target_parameters;  // tensors by their names in transformers 5, or their ends
  std::vector<std::string> exclude_modules;    // never targets: names of modules, or their ends
  std::optional<NamePattern> exclude_pattern;  // the same for whole names, instead of exclude_modules
  std::vector<int64_t> layers_to_transform;    // only these layers have targets; empty = all
  std::vector<NamePattern> layers_pattern;     // words before the number of a layer; empty = any
  // Ranks and alphas of some targets; the first pattern that matches counts.
  std::vector<std::pair<NamePattern, int64_t>> rank_pattern;
  std::vector<std::pair<NamePattern, double>> alpha_pattern;
  bool on_mtp = true;            // multi-token-prediction layers are targets, too; otherwise they are frozen
  bool stacked_experts = false;  // the file keeps the factors of a layer's experts in one tensor, as peft writes them
  // Kept for files; they do not change the computation.
  bool scores_sequences = false;           // task_type of a new adapter is SEQ_CLS, not CAUSAL_LM
  std::string base_model;                  // base_model_name_or_path
  std::shared_ptr<const io::Json> source;  // the JSON that it was read from; nullptr for a new adapter

  // Returns s of W + s·B·A: alpha/r, or alpha/√r with use_rslora; without arguments, that of targets which no pattern
  // matches.
  double scale() const { return scale(rank, alpha); }
  double scale(int64_t r, double a) const;
};

// Reads adapter_config.json. Throws DataError for a folder without one and for fields of the wrong type; ConfigError
// for methods other than LoRA, for variants that are not supported (layer_replication, …), naming all of them, and for
// regular expressions that are not understood.
AdapterConfig read_adapter_config(const std::filesystem::path& folder);
// Returns the configuration of A and B joined with their start, [A; A0] and [B, -B0]: an adapter of twice the rank and
// of the same scale, relative to the weights before the start.
AdapterConfig without_start(AdapterConfig config);
// Returns the text of the file: the JSON that the configuration was read from, updated, or a new one with peft's
// defaults. written_config (written_config.h) comes before it.
std::string to_json(const AdapterConfig& config);

}  // namespace megalith::peft
