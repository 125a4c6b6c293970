// Adapters that train biases: peft's "lora_only", of which query and value are two thirds of a fused bias, and "all".
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>

#include "megalith/hf/safetensors_file.h"
#include "megalith/model/adapter.h"
#include "tests/support/close.h"
#include "tests/support/temp_folder.h"
#include "tests/train/resume_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAdapterFile = "adapter_model.safetensors";

// A file of peft's in tests/data/peft, and its base.
struct BiasCase {
  const char* adapter;
  const char* model;
  const char* trained;  // a bias
};
constexpr std::array kBiasCases{
    BiasCase{"qwen2_biases", "qwen2", "base_model.model.model.layers.2.self_attn.q_proj.base_layer.bias"},
    BiasCase{"gpt2_biases", "gpt2", "base_model.model.transformer.h.1.ln_1.bias"}};

TrainerCase bias_case(const BiasCase& which, const fs::path& out, int64_t steps) {
  TrainerCase how{.name = which.adapter};
  how.args = resume_arguments(out, steps, 1);
  how.args.run.finetuning_type = config::FinetuningType::kLora;
  how.args.lora.adapter_name_or_path = {fmt::format("tests/data/peft/{}", which.adapter)};
  how.args.optimizer.weight_decay = 0.1;  // biases do not decay
  return how;
}

// A bias of keys without rotation adds the same to all scores of a query: its gradient is zero but for rounding, which
// Adam makes as large as any other.
at::Tensor without_key_bias(const std::string& name, const at::Tensor& tensor) {
  if (!name.ends_with("c_attn.base_layer.bias")) return tensor;
  const auto parts = tensor.chunk(3);
  return at::cat({parts[0], parts[2]});
}

void expect_close_files(const fs::path& actual, const fs::path& expected, const std::string& what) {
  const hf::SafetensorsFile found(actual / kAdapterFile), wanted(expected / kAdapterFile);
  ASSERT_EQ(found.tensors().size(), wanted.tensors().size());
  for (const hf::TensorInfo& tensor : wanted.tensors())
    expect_close(without_key_bias(tensor.name, found.tensor(tensor.name)),
                 without_key_bias(tensor.name, wanted.tensor(tensor.name)), what + ": " + tensor.name, 2e-4, 1e-6);
}

TEST(BiasAdapter, TrainsTheSameInEveryLayout) {
  for (const BiasCase& which : kBiasCases) {
    const TempFolder one;
    run_resumable(bias_case(which, one.path(), 3), {.model = which.model});
    // It has learned, and the file has the tensors of the one that it began with.
    const fs::path from = fs::path("tests/data/peft") / which.adapter;
    const hf::SafetensorsFile first(from / kAdapterFile), last(one / "checkpoint-3" / kAdapterFile);
    EXPECT_GT((last.tensor(which.trained) - first.tensor(which.trained)).abs().max().item<double>(), 1e-4);
    for (const hf::TensorInfo& tensor : first.tensors())
      EXPECT_TRUE(last.find(tensor.name) || tensor.name.find("ln_f.") != std::string::npos)
          << tensor.name;  // has copies
    for (const auto& [tp, pp, dp] : {std::array{2, 1, 1}, {1, 2, 1}, {2, 1, 2}}) {
      const TempFolder other;
      TrainerCase how = bias_case(which, other.path(), 3);
      how.tp = tp, how.pp = pp, how.dp = dp;
      how.args.parallel.sequence_parallel = dp > 1;
      how.args.batch.gradient_accumulation_steps = pp;
      how.args.batch.micro_batch_size = 8 / dp / pp;
      how.args.optimizer.use_distributed_optimizer = how.args.ddp.overlap_grad_reduce = dp > 1;
      run_resumable(how, {.model = which.model});
      expect_close_files(other / "checkpoint-3", one / "checkpoint-3",
                         fmt::format("{} tp {} pp {} dp {}", which.adapter, tp, pp, dp));
    }
  }
}

TEST(BiasAdapter, ContinuesBitForBitAndInAnotherLayout) {
  for (const BiasCase& which : kBiasCases) {
    const TempFolder whole, rest, split;
    run_resumable(bias_case(which, whole.path(), 3), {.model = which.model});
    run_resumable(bias_case(which, rest.path(), 3), {.model = which.model, .checkpoint = whole / "checkpoint-1"});
    expect_same_tensors(rest / "checkpoint-3", whole / "checkpoint-3", /*with_rng=*/true);
    TrainerCase how = bias_case(which, split.path(), 3);
    how.tp = 2;
    run_resumable(how, {.model = which.model, .checkpoint = whole / "checkpoint-1"});
    expect_close_files(split / "checkpoint-3", whole / "checkpoint-3", fmt::format("{} on tp 2", which.adapter));
  }
}

// Only q and v of layers 0 and 2 are targets: the bias of k, in the same parameter, keeps its bits.
TEST(BiasAdapter, LeavesOtherBiasesAlone) {
  const TempFolder out;
  TrainerCase how = bias_case(kBiasCases[0], out.path(), 2);
  how.args.precision.bf16 = true;
  run_resumable(how, {.model = "qwen2", .ended = [&](train::Trainer& trainer) {
                        const model::WithMergedAdapter merged(trainer.models());
                        model::save_pretrained(trainer.models(), out / "merged", {.dtype = at::kFloat});
                      }});
  const hf::SafetensorsFile merged(out / "merged" / "model.safetensors"),
      base(golden_folder("qwen2") / "model.safetensors");
  const hf::SafetensorsFile adapter(out / "checkpoint-2" / kAdapterFile);
  for (const char* layer : {"0", "1", "2"})
    for (const char* module : {"q_proj", "k_proj", "v_proj"}) {
      const std::string name = fmt::format("model.layers.{}.self_attn.{}.bias", layer, module);
      const bool trained = *layer != '1' && *module != 'k';
      EXPECT_EQ(merged.tensor(name).equal(base.tensor(name).to(at::kBFloat16).to(at::kFloat)), !trained) << name;
      const std::string in_adapter =
          fmt::format("base_model.model.model.layers.{}.self_attn.{}.base_layer.bias", layer, module);
      ASSERT_EQ(adapter.find(in_adapter) != nullptr, trained) << name;
      if (!trained) continue;
      EXPECT_TRUE(merged.tensor(name).equal(adapter.tensor(in_adapter).to(at::kFloat))) << name;
    }
}

}  // namespace
}  // namespace megalith::testing
