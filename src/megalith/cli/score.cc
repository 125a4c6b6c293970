// `megalith score`: computes losses (and logits) of given tokens, in any layout.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/cli/model_command.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/inference/score.h"
#include "megalith/inference/stage_passes.h"

namespace megalith::cli {

namespace {

// The text of --help. Shapes: b sequences, s tokens, v vocabulary.
constexpr const char* kScoreUsage =
    R"(megalith score --model MODEL --input batch.safetensors --output out.safetensors [options]

Reads input_ids [b, s] and, if present, attention_mask and labels [b, s] (unshifted, -100 ignored; without labels every
token that the mask keeps is one). Writes token_losses [b, s] (entry t is the loss of the label at t+1), loss (their
mean over labeled tokens) and, with --logits, logits [b, s, v].

  --model MODEL                        folder, or a hub name that has been downloaded
  --logits                             write the logits, too
  --per_device_eval_batch_size N       sequences at a time (default 8)
  --nproc N --tp N --pp N --cp N --ep N …
                                       ranks and how they share the model, as in `megalith train`; replicas share the
                                       sequences
  --bf16 | --fp16                      number format (default fp32)
  --json                               print {"loss", "num_label_tokens", "perplexity"}
)";

// Returns an undefined tensor if the file has none of that name; any integer type is accepted.
at::Tensor integers(const hf::SafetensorsFile& file, const std::string& name) {
  if (!file.find(name)) return {};
  const at::Tensor tensor = file.tensor(name);
  check<DataError>(tensor.dim() == 2 && at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true),
                   "{}: {} must be integers of shape [sequences, tokens]", file.path().string(), name);
  return tensor.to(at::kLong);
}

// The file is read before ranks start, so a bad one costs no loading.
inference::ScoreBatch read_batch(const std::string& path) {
  const hf::SafetensorsFile file(path);
  inference::ScoreBatch batch{integers(file, "input_ids"), integers(file, "attention_mask"), integers(file, "labels")};
  check<DataError>(batch.input_ids.defined(), "{} holds no input_ids; it must be [sequences, tokens]", path);
  for (const auto& [name, tensor] :
       {std::pair("attention_mask", batch.attention_mask), std::pair("labels", batch.labels)})
    check<DataError>(!tensor.defined() || tensor.sizes() == batch.input_ids.sizes(),
                     "{}: {} has another shape than input_ids", path, name);
  return batch;
}

}  // namespace

int run_score(Words words) {
  ModelCommand command;
  std::optional<std::string> input, output;
  bool logits = false, json = false;
  const bool ready = command.parse(words,
                                   {{"input", "safetensors file with input_ids, attention_mask, labels", &input},
                                    {"output", "safetensors file to write", &output},
                                    {"logits", "write the logits, too", &logits},
                                    {"json", "print a JSON object", &json}},
                                   kScoreUsage);
  if (!ready) return kDone;
  // A file and not stdout: logits of one batch may have gigabytes.
  check<ConfigError>(input && output, "score needs --input FILE and --output FILE");
  const inference::ScoreBatch batch = read_batch(*input);
  inference::check_token_ids(batch.input_ids, command.model());
  return command.run([&](model::VirtualModels& models) {
    // Every rank computes its sequences, and the file is written by all of them together.
    const int64_t rows = command.args().batch.eval_micro_batch_size.value_or(8);
    const auto total = inference::score_to_file(models, batch, *output, {.rows = rows, .logits = logits});
    if (models.context().rank() != 0) return;
    if (json) {
      fmt::print("{}\n", nlohmann::ordered_json{{"loss", total.loss},
                                                {"num_label_tokens", total.num_label_tokens},
                                                {"perplexity", std::exp(total.loss)}}
                             .dump());
    } else {
      fmt::print("loss {:.6f} over {} tokens, perplexity {:.4f}\n", total.loss, total.num_label_tokens,
                 std::exp(total.loss));
    }
  });
}

}  // namespace megalith::cli
