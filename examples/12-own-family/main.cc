// A custom model family: how its config.json is read, and the names of its tensors in files. The library provides
// layers, layouts, training, checkpoints and exports.
//
//   example_own_family --model_name_or_path=examples/12-own-family --dataset=data.jsonl --output_dir=out
//     --finetuning_type=full --max_steps=60
//
// A nano model has a squared ReLU in place of the gated SiLU, one matrix for the embedding and the head, and every
// other layer sees only the last few tokens.
#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/config/validate.h"
#include "megalith/model/auto_model.h"
#include "megalith/model/families/family.h"
#include "megalith/run/resolve/inputs.h"
#include "megalith/run/run_context.h"
#include "megalith/run/run_data.h"
#include "megalith/train/trainer.h"

namespace {

using namespace megalith;

model::ModelConfig read_nano(const io::JsonFields& json) {
  model::ModelConfig c;
  c.hidden_size = json.positive<int64_t>("dim");
  c.num_layers = json.positive<int64_t>("layers");
  c.num_heads = c.num_kv_heads = json.positive<int64_t>("heads");
  if (c.hidden_size % c.num_heads != 0) json.refuse("heads", "divide dim");
  c.head_dim = c.hidden_size / c.num_heads;
  c.mlp_width = 4 * c.hidden_size;
  c.gated_mlp = false;
  c.activation = ops::Activation::kSquaredRelu;
  c.vocab_size = json.positive<int64_t>("vocab_size");  // keep this name: exports update it when the vocabulary grows
  c.tied_embeddings = true;
  c.max_positions = json.positive<int64_t>("context");
  c.rope = ops::RopeSettings{.rotary_dim = c.head_dim};
  for (int64_t layer = 0; layer < c.num_layers; ++layer)
    c.windows.push_back(layer % 2 == 0 ? json.positive<int64_t>("window") : 0);
  return c;
}

// Names in files and our names; {} is the number of a layer. A tensor without a rule is an error that names it.
hf::NameMap nano_names() {
  return {.rules = {{"tokens", {"embedding.weight"}},
                    {"blocks.{}.norm1", {"layers.{}.attention_norm.weight"}},
                    {"blocks.{}.qkv",
                     {"layers.{}.attention.q.weight", "layers.{}.attention.k.weight", "layers.{}.attention.v.weight"}},
                    {"blocks.{}.out", {"layers.{}.attention.o.weight"}},
                    {"blocks.{}.norm2", {"layers.{}.mlp_norm.weight"}},
                    {"blocks.{}.up", {"layers.{}.mlp.up.weight"}},
                    {"blocks.{}.down", {"layers.{}.mlp.down.weight"}},
                    {"norm", {"final_norm.weight"}}},
          .ignored = {},
          .optional_prefix = ""};
}

// Prints each logged loss on the first rank.
class PrintLoss : public train::TrainerCallback {
  void on_log(train::TrainerEvent& event) override {
    const auto loss = event.metrics.find("loss");
    if (loss && event.state.is_world_process_zero) fmt::print("step {}: loss {:.4f}\n", event.state.global_step, *loss);
  }
};

void train_own_family(const std::vector<std::string>& words) {
  const auto run = run::initialize_megatron(words, {.dialect = config::Dialect::kTrain, .allow_no_cuda = true});
  const config::TrainingArguments& args = run->args();
  config::validate(args);  // a run needs a model, data and a length
  parallel::ParallelContext& context = run->context();
  const std::string folder = args.source.model_name_or_path.value(), out = args.save.output_dir.value();

  const auto nano = std::make_shared<const model::Family>(
      model::Family{.model_type = "nano", .architecture = "NanoForCausalLM", .read = read_nano, .names = nano_names()});
  const model::ModelConfig config = model::read_model_config(folder, nano);
  const model::ModelSettings settings = run::settings_on(run->settings().model, context.device());
  model::VirtualModels models = model::AutoModel::from_config(config, settings, context);

  const auto data = [&] {
    return run::open_run_data(run::data_plan(args, {.vocabulary = {.size = config.vocab_size}}));
  };
  train::TrainerSetup setup{.train_data = std::move(data().train)};
  setup.callbacks.push_back(std::make_unique<PrintLoss>());
  train::Trainer trainer(models, run->settings().trainer, std::move(setup));
  trainer.train();
  trainer.save_model(out);  // config.json and tensors under the family's names

  model::VirtualModels again = model::AutoModel::with_weights(config, out, settings, context);
  train::Trainer judge(again, run->settings().trainer, {.eval_data = data().eval});
  const double loss = judge.evaluate().find("eval_loss").value();
  if (context.rank() == 0) fmt::print("read back from {}: loss {:.4f} on held-out samples\n", out, loss);
}

}  // namespace

int main(int argc, char** argv) try {
  train_own_family({argv + 1, argv + argc});
  run::shutdown_megatron();
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return dynamic_cast<const ConfigError*>(&error) != nullptr ? 2 : 1;
}
