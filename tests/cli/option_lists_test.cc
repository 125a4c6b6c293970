// Option lists that Megatron-LM and LLaMA-Factory publish with their examples, run as they stand on few ranks: every
// option of a list is here, with sizes that a test can afford. Lists of models alone get what any run needs.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/run_losses.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tokenizers.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

Words joined(const std::vector<Words>& lists) {
  Words all;
  for (const Words& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// Returns the options that the list of a model leaves to the caller.
Words run_words(const fs::path& folder) {
  return {"--mock-data",
          "--use-cpu",
          "--global-batch-size",
          "8",
          "--train-iters",
          "4",
          "--lr",
          "1e-3",
          "--eval-iters",
          "1",
          "--tokenizer-model",
          tokenizer_folder("qwen3").string(),
          "--log-interval",
          "1",
          "--save",
          (folder / "out").string()};
}

// Runs a list and reports its first and last loss. The result is a model that `score` reads.
void expect_trains(const Words& words, const fs::path& folder, const char* family) {
  const auto result = run_process(joined({{MEGALITH_PROGRAM}, words}),
                                  {{"XDG_CACHE_HOME", (folder / "cache").string()}}, std::chrono::seconds(200));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GT(report_losses(folder / "out", family), 0);
  std::ifstream config(folder / "out" / "config.json");
  EXPECT_EQ(nlohmann::json::parse(config).at("model_type"), family);
}

// The model lists say nothing about tokens that tests could afford: the vocabulary of a real tokenizer, narrow models.
const Words kSmallLatent{"--num-layers",   "4",  "--hidden-size",         "32", "--ffn-hidden-size",     "48",
                         "--kv-lora-rank", "16", "--num-attention-heads", "4",  "--kv-channels",         "8",
                         "--v-head-dim",   "8",  "--qk-head-dim",         "8",  "--qk-pos-emb-head-dim", "4",
                         "--seq-length",   "16"};

TEST(PublishedLists, DeepSeekV2Lite) {
  const TempFolder folder;
  const Words list{"--save-interval",
                   "100000",
                   "--attention-dropout",
                   "0.0",
                   "--hidden-dropout",
                   "0.0",
                   "--micro-batch-size",
                   "1",
                   "--bf16",
                   "--no-masked-softmax-fusion",
                   "--disable-bias-linear",
                   "--untie-embeddings-and-output-weights",
                   "--position-embedding-type",
                   "rope",
                   "--no-rope-fusion",
                   "--normalization",
                   "RMSNorm",
                   "--norm-epsilon",
                   "1e-6",
                   "--swiglu",
                   "--multi-latent-attention",
                   "--qk-layernorm",
                   "--num-experts",
                   "8",
                   "--moe-layer-freq",
                   "([0]+[1]*3)",
                   "--moe-ffn-hidden-size",
                   "16",
                   "--moe-grouped-gemm",
                   "--moe-router-score-function",
                   "softmax",
                   "--moe-router-topk",
                   "6",
                   "--moe-router-topk-scaling-factor",
                   "1.0",
                   "--moe-router-pre-softmax",
                   "--moe-shared-expert-intermediate-size",
                   "32",
                   "--moe-aux-loss-coeff",
                   "1e-3",
                   "--moe-token-dispatcher-type",
                   "alltoall",
                   "--moe-token-drop-policy",
                   "probs",
                   "--moe-router-load-balancing-type",
                   "seq_aux_loss",
                   "--max-position-embeddings",
                   "1024",
                   "--tokenizer-type",
                   "HuggingFaceTokenizer",
                   "--make-vocab-size-divisible-by",
                   "3200",
                   "--attention-softmax-in-fp32",
                   "--use-mcore-models",
                   "--rotary-percent",
                   "1.0",
                   "--rotary-base",
                   "10000",
                   "--rotary-scaling-factor",
                   "40",
                   "--mscale",
                   "0.707",
                   "--mscale-all-dim",
                   "0.707",
                   "--sequence-parallel"};
  expect_trains(joined({{"pretrain", "--nproc", "4", "--tensor-model-parallel-size", "2",
                         "--expert-model-parallel-size", "2", "--expert-tensor-parallel-size", "1"},
                        list,
                        kSmallLatent,
                        run_words(folder.path())}),
                folder.path(), "megatron_gpt");
}

TEST(PublishedLists, DeepSeekR1) {
  const TempFolder folder;
  const Words list{"--save-interval",
                   "100000",
                   "--micro-batch-size",
                   "1",
                   "--bf16",
                   "--no-masked-softmax-fusion",
                   "--disable-bias-linear",
                   "--untie-embeddings-and-output-weights",
                   "--position-embedding-type",
                   "rope",
                   "--no-rope-fusion",
                   "--normalization",
                   "RMSNorm",
                   "--swiglu",
                   "--multi-latent-attention",
                   "--q-lora-rank",
                   "16",
                   "--qk-layernorm",
                   "--num-experts",
                   "16",
                   "--moe-layer-freq",
                   "[0]*3+[1]*1",
                   "--moe-ffn-hidden-size",
                   "16",
                   "--moe-router-dtype",
                   "fp32",
                   "--moe-router-score-function",
                   "sigmoid",
                   "--moe-router-bias-update-rate",
                   "1e-3",
                   "--moe-router-enable-expert-bias",
                   "--moe-router-topk",
                   "8",
                   "--moe-router-num-groups",
                   "8",
                   "--moe-router-group-topk",
                   "4",
                   "--moe-router-pre-softmax",
                   "--moe-router-topk-scaling-factor",
                   "2.5",
                   "--moe-shared-expert-overlap",
                   "--moe-shared-expert-intermediate-size",
                   "16",
                   "--moe-aux-loss-coeff",
                   "1e-4",
                   "--moe-router-load-balancing-type",
                   "seq_aux_loss",
                   "--moe-token-dispatcher-type",
                   "alltoall",
                   "--moe-token-drop-policy",
                   "probs",
                   "--max-position-embeddings",
                   "163840",
                   "--tokenizer-type",
                   "HuggingFaceTokenizer",
                   "--make-vocab-size-divisible-by",
                   "1280",
                   "--use-mcore-models",
                   "--rotary-base",
                   "10000",
                   "--rotary-percent",
                   "1.0",
                   "--rotary-scaling-factor",
                   "40",
                   "--mscale",
                   "1.0",
                   "--mscale-all-dim",
                   "1.0",
                   "--recompute-activations",
                   "--moe-layer-recompute",
                   "--sequence-parallel"};
  expect_trains(joined({{"pretrain", "--nproc", "2", "--pipeline-model-parallel-size", "2"},
                        list,
                        kSmallLatent,
                        run_words(folder.path())}),
                folder.path(), "deepseek_v3");
}

const Words kSmallDense{"--num-layers",          "2", "--hidden-size",      "32", "--ffn-hidden-size", "64",
                        "--num-attention-heads", "4", "--num-query-groups", "2",  "--seq-length",      "16"};

TEST(PublishedLists, Qwen25) {
  const TempFolder folder;
  const Words list{"--save-interval",
                   "100000",
                   "--micro-batch-size",
                   "1",
                   "--bf16",
                   "--no-masked-softmax-fusion",
                   "--disable-bias-linear",
                   "--add-qkv-bias",
                   "--position-embedding-type",
                   "rope",
                   "--no-rope-fusion",
                   "--normalization",
                   "RMSNorm",
                   "--swiglu",
                   "--group-query-attention",
                   "--kv-channels",
                   "8",
                   "--max-position-embeddings",
                   "32768",
                   "--tokenizer-type",
                   "HuggingFaceTokenizer",
                   "--padded-vocab-size",
                   "152064",
                   "--make-vocab-size-divisible-by",
                   "1",
                   "--use-mcore-models",
                   "--rotary-percent",
                   "1.0",
                   "--rotary-base",
                   "1000000",
                   "--no-bias-swiglu-fusion",
                   "--untie-embeddings-and-output-weights"};
  expect_trains(joined({{"pretrain", "--nproc", "2", "--tensor-model-parallel-size", "2"},
                        list,
                        kSmallDense,
                        run_words(folder.path())}),
                folder.path(), "qwen2");
}

TEST(PublishedLists, Qwen3WithExperts) {
  const TempFolder folder;
  const Words list{"--save-interval",
                   "100000",
                   "--micro-batch-size",
                   "1",
                   "--bf16",
                   "--no-masked-softmax-fusion",
                   "--disable-bias-linear",
                   "--untie-embeddings-and-output-weights",
                   "--position-embedding-type",
                   "rope",
                   "--no-rope-fusion",
                   "--normalization",
                   "RMSNorm",
                   "--swiglu",
                   "--group-query-attention",
                   "--kv-channels",
                   "8",
                   "--qk-layernorm",
                   "--num-experts",
                   "16",
                   "--moe-ffn-hidden-size",
                   "16",
                   "--moe-router-topk",
                   "8",
                   "--moe-router-dtype",
                   "fp32",
                   "--moe-aux-loss-coeff",
                   "1e-3",
                   "--moe-token-dispatcher-type",
                   "alltoall",
                   "--moe-router-load-balancing-type",
                   "aux_loss",
                   "--max-position-embeddings",
                   "40960",
                   "--tokenizer-type",
                   "HuggingFaceTokenizer",
                   "--make-vocab-size-divisible-by",
                   "1187",
                   "--use-mcore-models",
                   "--rotary-percent",
                   "1.0",
                   "--rotary-base",
                   "1000000",
                   "--no-bias-swiglu-fusion",
                   "--sequence-parallel"};
  expect_trains(joined({{"pretrain", "--nproc", "2", "--expert-model-parallel-size", "2"},
                        list,
                        kSmallDense,
                        run_words(folder.path())}),
                folder.path(), "qwen3_moe");
}

// LayerNorm, half of a head rotates, squared ReLU, no biases.
TEST(PublishedLists, NemotronMini) {
  const TempFolder folder;
  const Words list{"--trust-remote-code",
                   "--save-interval",
                   "100000",
                   "--micro-batch-size",
                   "1",
                   "--bf16",
                   "--no-masked-softmax-fusion",
                   "--disable-bias-linear",
                   "--untie-embeddings-and-output-weights",
                   "--use-rotary-position-embeddings",
                   "--rotary-percent",
                   "0.5",
                   "--no-rope-fusion",
                   "--no-position-embedding",
                   "--normalization",
                   "LayerNorm",
                   "--apply-layernorm-1p",
                   "--squared-relu",
                   "--group-query-attention",
                   "--max-position-embeddings",
                   "4096",
                   "--tokenizer-type",
                   "HuggingFaceTokenizer",
                   "--make-vocab-size-divisible-by",
                   "1",
                   "--use-mcore-models",
                   "--rotary-base",
                   "10000"};
  expect_trains(joined({{"pretrain", "--nproc", "2", "--tensor-model-parallel-size", "2"},
                        list,
                        kSmallDense,
                        run_words(folder.path())}),
                folder.path(), "megatron_gpt");
}

// A SentencePiece model under a name of its own, and the folder of the run beside TensorBoard's.
TEST(PublishedLists, Mixtral) {
  const TempFolder folder;
  const fs::path model = "tests/data/tokenizer/bpe.model";
  {
    std::ofstream lines(folder / "text.jsonl");
    for (int i = 0; i < 400; ++i)
      lines << R"({"text": "to be or not to be, that is the question"})"
            << "\n";
  }
  fs::create_directory(folder / "tokens");
  fs::copy_file(model, folder / "tokens" / "tokenizer.model");
  const auto cut = run_process({MEGALITH_PROGRAM, "data", "tokenize", (folder / "text.jsonl").string(), "--tokenizer",
                                (folder / "tokens").string(), "--output", (folder / "text").string(), "--append_eod"});
  ASSERT_EQ(cut.exit_code, 0) << cut.err;
  const std::string out = (folder / "out").string();
  const Words list{"--use-mcore-models",
                   "--disable-bias-linear",
                   "--seq-length",
                   "16",
                   "--max-position-embeddings",
                   "32768",
                   "--num-layers",
                   "4",
                   "--hidden-size",
                   "32",
                   "--ffn-hidden-size",
                   "48",
                   "--num-attention-heads",
                   "4",
                   "--init-method-std",
                   "0.01",
                   "--attention-dropout",
                   "0.0",
                   "--hidden-dropout",
                   "0.0",
                   "--normalization",
                   "RMSNorm",
                   "--position-embedding-type",
                   "rope",
                   "--swiglu",
                   "--untie-embeddings-and-output-weights",
                   "--group-query-attention",
                   "--num-query-groups",
                   "2",
                   "--no-masked-softmax-fusion",
                   "--no-position-embedding",
                   "--rotary-base",
                   "1000000",
                   "--num-experts",
                   "4",
                   "--moe-router-topk",
                   "2",
                   "--moe-router-load-balancing-type",
                   "aux_loss",
                   "--moe-aux-loss-coeff",
                   "1e-2",
                   "--moe-grouped-gemm",
                   "--moe-token-dispatcher-type",
                   "alltoall",
                   "--overlap-param-gather",
                   "--overlap-grad-reduce",
                   "--tokenizer-type",
                   "Llama2Tokenizer",
                   "--tokenizer-model",
                   model.string(),
                   "--data-path",
                   (folder / "text_text_document").string(),
                   "--split",
                   "90,8,2",
                   "--micro-batch-size",
                   "1",
                   "--global-batch-size",
                   "8",
                   "--lr",
                   "1e-3",
                   "--train-iters",
                   "4",
                   "--lr-decay-iters",
                   "4",
                   "--lr-decay-style",
                   "cosine",
                   "--min-lr",
                   "1.0e-5",
                   "--weight-decay",
                   "0.1",
                   "--lr-warmup-iters",
                   "1",
                   "--clip-grad",
                   "1.0",
                   "--bf16",
                   "--tensor-model-parallel-size",
                   "1",
                   "--pipeline-model-parallel-size",
                   "2",
                   "--expert-model-parallel-size",
                   "2",
                   "--use-distributed-optimizer",
                   "--sequence-parallel",
                   "--log-interval",
                   "1",
                   "--save-interval",
                   "4",
                   "--eval-interval",
                   "4",
                   "--eval-iters",
                   "1",
                   "--save",
                   out,
                   "--load",
                   out,
                   "--tensorboard-dir",
                   out + "/tensorboard",
                   "--no-load-optim",
                   "--no-load-rng"};
  expect_trains(joined({{"pretrain", "--nproc", "4", "--use-cpu"}, list}), folder.path(), "mixtral");
  EXPECT_TRUE(fs::exists(folder / "out" / "tokenizer.model"));
}

// LLaMA-Factory's examples/megatron/qwen3_moe_full.yaml; paths and the learning rate are the test's.
TEST(PublishedLists, LlamaFactoryQwen3Moe) {
  const TempFolder folder;
  {
    std::ofstream data(folder / "alpaca_en_demo.jsonl");
    for (int i = 0; i < 40; ++i) {
      nlohmann::json ids = nlohmann::json::array();
      for (int t = 0; t < 6 + i % 5; ++t) ids.push_back((i * 7 + t * 13) % 60 + 2);
      data << nlohmann::json{{"input_ids", ids}, {"labels", ids}}.dump() << "\n";
    }
    std::ofstream(folder / "qwen3_moe_full.yaml") << R"(
model_name_or_path: Qwen/Qwen3-30B-A3B-Instruct-2507
do_train: true
stage: sft
finetuning_type: full
dataset: alpaca_en_demo
preprocessing_num_workers: 8
cutoff_len: 4096
template: qwen3_nothink
output_dir: saves/mca/qwen3_moe_full
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
num_train_epochs: 2
learning_rate: 3e-6
logging_steps: 1
save_steps: 100
lr_scheduler_type: constant
bf16: true
tensor_model_parallel_size: 1
sequence_parallel: false
pipeline_model_parallel_size: 4
bias_activation_fusion: true
apply_rope_fusion: true
use_distributed_optimizer: true
overlap_param_gather: true
overlap_grad_reduce: true
moe_grouped_gemm: true
moe_token_dispatcher_type: alltoall
expert_model_parallel_size: 2
recompute_granularity: full
)";
  }
  expect_trains({"train", (folder / "qwen3_moe_full.yaml").string(), "--nproc", "8", "--use_cpu",
                 "--model_name_or_path=" + (golden_dir() / "hf" / "qwen3_moe").string(),
                 "--dataset=" + (folder / "alpaca_en_demo.jsonl").string(), "--output_dir=" + (folder / "out").string(),
                 "--learning_rate=1e-3"},
                folder.path(), "qwen3_moe");
}

}  // namespace
}  // namespace megalith::testing
