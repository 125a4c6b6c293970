// pretrain() with custom data, model and loss: numbers that count up, a small Llama, and a focal loss, which emphasizes
// tokens that are still hard to predict.
//
//   example_own_loss --train-iters=50
//   example_own_loss --focal-gamma=0 --num-layers=4 --pipeline-model-parallel-size=2     (two ranks, with torchrun)
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/run/pretrain.h"
#include "megalith/run/resolve/model_from_options.h"
#include "megalith/run/resolve/model_settings.h"

namespace {

using namespace megalith;

constexpr int32_t kNumbers = 32;

// Sample i counts up from a number that follows from i.
class CountingData : public data::Dataset {
 public:
  CountingData(int64_t samples, int64_t length) : samples_(samples), length_(length) {}

  int64_t size() const override { return samples_; }

  data::Sample sample(int64_t index) const override {
    data::Sequence row;
    for (int64_t i = 0; i <= length_; ++i) row.ids.push_back(static_cast<int32_t>((index * 7 + i) % kNumbers));
    row.labels = row.ids;  // aligned with their tokens: the collator shifts them
    return {.row = std::move(row), .rejected = std::nullopt};
  }

 private:
  const int64_t samples_, length_;
};

run::ProvidedDatasets provide_datasets(run::RunContext& run, const data::PerSplit<int64_t>& samples) {
  const int64_t length = run.args().shape.seq_length.value();
  const auto make = [length](int64_t count) { return std::make_shared<CountingData>(count, length); };
  return {make(samples[0]), make(samples[1]), make(samples[2])};
}

// Called once for each chunk of this rank.
std::unique_ptr<model::GptModel> provide_model(run::RunContext& run, const run::ChunkRequest& request) {
  const auto config = run::model_from_options(run.args(), run.required_tokenizer().vocabulary());
  parallel::ParallelContext& context = run.context();
  return std::make_unique<model::GptModel>(config, run::model_options(run.args(), context.device()), request.place,
                                           context);
}

// Returns Σ (1 - p)^γ · (-log p), and reports the plain loss beside it in the log lines.
train::ForwardStep focal_step(double gamma) {
  return [gamma](const train::ForwardStepInput& step) -> train::ForwardStepResult {
    const auto focal = [gamma, &batch = step.batch](const at::Tensor& losses) -> train::LossResult {
      const at::Tensor hardness = (1 - (-losses.detach()).exp()).pow(gamma);
      return {.loss = (hardness * losses).sum(),
              .num_tokens = batch.loss_tokens,
              .report = {{"plain loss", losses.detach().sum(), static_cast<double>(batch.loss_tokens)}}};
    };
    return {.output = step.chunk.forward(step.input), .loss = focal};
  };
}

int pretrain_with_own_loss(std::span<const std::string> words) {
  std::optional<double> gamma;
  const auto run =
      run::initialize_megatron(words, {.extra_args = {{"focal_gamma", "how much easy tokens are left alone", &gamma}},
                                       .args_defaults = {{"num_layers", "2"},
                                                         {"hidden_size", "32"},
                                                         {"num_attention_heads", "4"},
                                                         {"seq_length", "16"},
                                                         {"max_position_embeddings", "16"},
                                                         {"position_embedding_type", "rope"},
                                                         {"normalization", "RMSNorm"},
                                                         {"swiglu", "true"},
                                                         {"add_bias_linear", "false"},
                                                         {"hidden_dropout", "0"},
                                                         {"attention_dropout", "0"},
                                                         {"vocab_size", std::to_string(kNumbers)},
                                                         {"micro_batch_size", "4"},
                                                         {"train_iters", "30"},
                                                         {"eval_iters", "1"},
                                                         {"log_interval", "10"},
                                                         {"lr", "0.01"}},
                                       .allow_no_cuda = true});
  const run::PretrainOutput output = run::pretrain(*run, {.datasets = provide_datasets,
                                                          .model = provide_model,
                                                          .forward_step = focal_step(gamma.value_or(2)),
                                                          .report_keys = {"plain loss"},
                                                          .perplexity = false});
  if (run->rank() != 0) return 0;
  for (const train::MetricList& line : output.state.log_history)
    if (const auto loss = line.find("plain loss"))
      fmt::print("step {:.0f}: plain loss {:.4f}\n", *line.find("step"), *loss);
  fmt::print("test: plain loss {:.4f}\n", output.test.find("test_plain loss").value_or(0));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    const int code = pretrain_with_own_loss(words);
    run::shutdown_megatron();
    return code;
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
