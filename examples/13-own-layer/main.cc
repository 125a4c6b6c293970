// A custom layer, written with the library's parallel linear layers, and a family that uses it. The library provides
// layouts, optimizer, checkpoints, LoRA, imports and exports.
//   example_own_layer --nproc=4 --tp=2 --pp=2 --model_name_or_path=examples/13-own-layer --dataset=data.jsonl …
//
// The layer is a gated short convolution in place of attention (h hidden, k tokens that the convolution sees):
//
//   y ─► in ─► b | c | x      out(c · convolution(b · x))
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "megalith/model/auto_model.h"
#include "megalith/model/part_kind.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/ops/attention/delta_rule.h"
#include "megalith/run/load_model.h"
#include "megalith/run/rank_main.h"
#include "megalith/run/run.h"
#include "megalith/run/run_words.h"

namespace {

using namespace megalith;

struct ConvSizes {
  int64_t hidden = 0, kernel = 0, attention_every = 0;
};

class ShortConv : public nn::BlockPart {
 public:
  ShortConv(const nn::ParameterScope& scope, const ConvSizes& s, const nn::TensorParallel& tp)
      : in_(scope, "in", s.hidden, {{"b", s.hidden}, {"c", s.hidden}, {"x", s.hidden}}, false, kInit, tp),
        out_(scope, "out", s.hidden, s.hidden, false, kInit, tp) {
    const auto [first, channels] = tp.share(s.hidden);  // this rank's rows of the [h, k] of the model
    nn::ParameterSpec conv{.name = "conv.weight", .init = nn::Init::normal(0.5), .split_over_tp = tp.size() > 1};
    conv.parts = {{"conv.weight", {s.hidden, s.kernel}, {first, 0}, {channels, s.kernel}}};
    conv_ = &scope.add(std::move(conv), {channels, s.kernel});
  }
  at::Tensor forward(const at::Tensor& y, const at::Tensor& residual, const nn::LayerInput& input) const override {
    const auto bcx = in_.forward(y).chunk(3, 1);  // [t, h/tp] each
    return out_.forward(bcx[1] * ops::causal_conv(bcx[0] * bcx[2], conv_->value, input.layout), residual);
  }

 private:
  static constexpr nn::Init kInit{nn::Init::Kind::kNormal, 0.02};
  nn::ColumnParallelLinear in_;
  nn::RowParallelLinear out_;
  nn::Parameter* conv_;
};

// Tells the library what it has to know about the layer.
struct ShortConvKind : model::PartKind {
  explicit ShortConvKind(const ConvSizes& given) : sizes(given) {}
  std::unique_ptr<nn::BlockPart> make(const nn::ParameterScope& scope, const model::PartSite& site) const override {
    return std::make_unique<ShortConv>(scope, sizes, site.tp);
  }
  model::PartFacts facts() const override {
    return {.random = false, .whole_sequences = "a short convolution reads the tokens before each", .host_work = ""};
  }
  ConvSizes sizes;
};

model::ModelConfig read_config(const io::JsonFields& json) {
  model::ModelConfig c = model::family("llama").read(json);
  c.extras = ConvSizes{c.hidden_size, json.positive<int64_t>("conv_kernel"), json.positive<int64_t>("attention_every")};
  return c;
}

std::unique_ptr<model::PartKind> mixer(const model::ModelConfig& config, int64_t layer) {
  const auto& sizes = std::any_cast<const ConvSizes&>(config.extras);
  if ((layer + 1) % sizes.attention_every == 0) return nullptr;  // the library's attention
  return std::make_unique<ShortConvKind>(sizes);
}

// A llama except that most layers mix tokens by convolution.
std::shared_ptr<const model::Family> own_family() {
  auto family = std::make_shared<model::Family>(model::family("llama"));
  family->model_type = "shortconv";
  family->read = read_config;
  family->attention = mixer;
  const std::string theirs = "model.layers.{}.conv.", ours = "layers.{}.attention.";  // {}: the number of a layer
  auto& rules = family->names.rules;
  rules.push_back({theirs + "in_proj.weight", {ours + "b.weight", ours + "c.weight", ours + "x.weight"}});
  rules.push_back({theirs + "conv.weight", {ours + "conv.weight"}, false, /*channelwise=*/true});
  rules.push_back({theirs + "out_proj.weight", {ours + "out.weight"}});
  return family;
}

void train_own_layer(const run::RunPlan& plan, parallel::ParallelContext& context) {
  const std::filesystem::path& out = plan.settings.output.folder;
  model::VirtualModels models = run::load_model(plan.model, plan.settings.model, context);
  run::RunData data = run::open_run_data(plan.data);
  train::Trainer trainer(models, plan.settings.trainer, {.train_data = std::move(data.train)});
  const double trained = trainer.train().training_loss;
  trainer.save_model(out);  // config.json and tensors under the family's names
  model::VirtualModels again =
      model::AutoModel::with_weights(plan.model.config, out, run::settings_on(plan.settings.model, context.device()), context);
  train::Trainer judge(again, plan.settings.trainer, {.eval_data = std::move(data.eval)});
  const double loss = judge.evaluate().find("eval_loss").value();
  if (context.rank() == 0) fmt::print("mean loss {:.8f}; read back and held out: {:.8f}\n", trained, loss);
}

int run_example(const std::vector<std::string>& arguments) {
  run::RunWords words;
  if (!words.read(config::Dialect::kTrain, arguments, "example_own_layer")) return run::kDone;
  run::RunRequest request = words.request();
  request.own.family = own_family();
  const run::RunPlan plan = run::resolve(request);
  return words.launch().run([&] {
    return run::run_as_rank(plan.settings.runtime, [&](auto& context) { train_own_layer(plan, context); });
  });
}

}  // namespace

int main(int argc, char** argv) {
  return run::run_program([&] { return run_example({argv + 1, argv + argc}); });
}
