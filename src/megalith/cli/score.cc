// `megalith score`: computes losses (and logits) of given tokens, in any layout.
#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/cli/model_command.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/inference/score.h"
#include "megalith/inference/stage_passes.h"
#include "megalith/model/families/value_head.h"

namespace megalith::cli {

namespace {

// The text of --help. Shapes: b sequences, s tokens, v vocabulary.
constexpr const char* kScoreUsage =
    R"(megalith score --model MODEL --input batch.safetensors --output out.safetensors [options]

Reads input_ids [b, s] and, if present, attention_mask and labels [b, s] (unshifted, -100 ignored; without labels every
token that the mask keeps is one). Writes token_losses [b, s] (entry t is the loss of the label at t+1), loss (their
mean over labeled tokens) and, with --logits, logits [b, s, v].

For a model that scores sequences (…ForSequenceClassification: a reward model, a classifier) it reads input_ids and, if
present, attention_mask, writes logits [b, labels], the scores of each sequence, and prints them. With --stage rm, a
language model or adapter beside which LLaMA-Factory has written a value head is such a model.

For a model that sees, the file may hold pixel_values [patches, numbers] with image_grid_thw [images, 3] and
pixel_values_videos with video_grid_thw [videos, 3] and second_per_grid_ts [videos], as processors of transformers
return them, in the order in which the rows use them. The ids have a placeholder for each row of the tower. Positions
follow from ids and grids, unless the file has position_ids [3, b, s]. Without labels, placeholders have none. For one
that hears, input_features [sounds, mel bins, frames] with feature_attention_mask [sounds, frames], or with
audio_feature_lengths [sounds].

  --model MODEL                        folder, or a hub name that has been downloaded
  --logits                             write the logits, too
  --per_device_eval_batch_size N       sequences at a time (default 8)
  --nproc N --tp N --pp N --cp N --ep N …
                                       ranks and how they share the model, as in `megalith train`; replicas share the
                                       sequences
  --bf16 | --fp16                      number format (default fp32)
  --json                               print {"loss", "num_label_tokens", "perplexity"}, or {"logits"}
)";

// Fields of a batch file. Each returns an undefined tensor if the file has none of that name.
class BatchFile {
 public:
  explicit BatchFile(const std::string& path) : file_(path) {}

  at::Tensor any(const std::string& name) const { return file_.find(name) ? file_.tensor(name) : at::Tensor(); }
  // Any integer type is accepted.
  at::Tensor integers(const std::string& name, int64_t dims, const char* shape) const {
    const at::Tensor tensor = any(name);
    if (!tensor.defined()) return tensor;
    check<DataError>(tensor.dim() == dims && at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true),
                     "{}: {} must be integers of shape {}", path(), name, shape);
    return tensor.to(at::kLong);
  }
  at::Tensor tokens(const std::string& name) const { return integers(name, 2, "[sequences, tokens]"); }
  at::Tensor grids(const std::string& name) const {
    const at::Tensor grids = integers(name, 2, "[media, 3]: time, height and width in patches");
    check<DataError>(!grids.defined() || grids.size(1) == 3, "{}: {} has rows of {} numbers; it must have 3", path(),
                     name, grids.defined() ? grids.size(1) : 0);
    return grids;
  }
  at::Tensor numbers(const std::string& name) const {
    const at::Tensor tensor = any(name);
    check<DataError>(!tensor.defined() || at::isFloatingType(tensor.scalar_type()),
                     "{}: {} must be floating-point numbers", path(), name);
    return tensor;
  }
  std::string path() const { return file_.path().string(); }

 private:
  const hf::SafetensorsFile file_;
};

// Returns the frames of each sound; undefined if the file says nothing about them.
at::Tensor sound_lengths(const BatchFile& file) {
  const at::Tensor lengths = file.integers("audio_feature_lengths", 1, "[sounds]");
  if (lengths.defined()) return lengths;
  const at::Tensor mask = file.integers("feature_attention_mask", 2, "[sounds, frames]");
  return mask.defined() ? mask.ne(0).sum(1) : mask;
}

inference::MediaInput read_media(const BatchFile& file) {
  inference::MediaInput media{.pixels = file.numbers("pixel_values"),
                              .grids = file.grids("image_grid_thw"),
                              .video_pixels = file.numbers("pixel_values_videos"),
                              .video_grids = file.grids("video_grid_thw"),
                              .video_seconds = file.numbers("second_per_grid_ts"),
                              .coordinates = file.any("position_ids"),
                              .sounds = file.numbers("input_features"),
                              .sound_lengths = sound_lengths(file)};
  // Positions of plain text are ignored, as they always were: they follow from the mask.
  if (media.coordinates.defined() && media.coordinates.dim() != 3) media.coordinates = at::Tensor();
  return media;
}

// The file is read before ranks start, so a bad one costs no loading.
inference::ScoreBatch read_batch(const std::string& path) {
  const BatchFile file(path);
  inference::ScoreBatch batch{file.tokens("input_ids"), file.tokens("attention_mask"), file.tokens("labels"),
                              read_media(file)};
  check<DataError>(batch.input_ids.defined(), "{} holds no input_ids; it must be [sequences, tokens]", path);
  for (const auto& [name, tensor] :
       {std::pair("attention_mask", batch.attention_mask), std::pair("labels", batch.labels)})
    check<DataError>(!tensor.defined() || tensor.sizes() == batch.input_ids.sizes(),
                     "{}: {} has another shape than input_ids", path, name);
  return batch;
}

// One line per sequence, or a list per sequence.
void print_scores(const at::Tensor& scores, bool json) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (int64_t row = 0; row < scores.size(0); ++row) {
    const at::Tensor mine = scores[row].contiguous();
    const std::vector<float> numbers(mine.const_data_ptr<float>(), mine.const_data_ptr<float>() + mine.numel());
    if (json)
      all.push_back(numbers);
    else
      fmt::print("sequence {}: {:.6f}\n", row, fmt::join(numbers, " "));
  }
  if (json) fmt::print("{}\n", nlohmann::ordered_json{{"logits", all}}.dump());
}

void print_total(const inference::ScoreTotal& total, bool json) {
  if (json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"loss", total.loss},
                                              {"num_label_tokens", total.num_label_tokens},
                                              {"perplexity", std::exp(total.loss)}}
                           .dump());
  } else {
    fmt::print("loss {:.6f} over {} tokens, perplexity {:.4f}\n", total.loss, total.num_label_tokens,
               std::exp(total.loss));
  }
}

// A language model with a value head is one or the other, and only the stage tells which is wanted.
void mention_value_head(const ModelCommand& command) {
  std::vector<std::string> folders = command.args().lora.adapter_name_or_path;
  folders.push_back(command.model().folder.string());
  const auto found = std::ranges::find_if(folders, model::has_value_head);
  if (command.model().num_labels == 0 && found != folders.end())
    log_info("{} holds a value head, which --stage rm scores sequences with; these are the losses of tokens", *found);
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
  check<ConfigError>(command.model().num_labels == 0 || (!logits && !batch.labels.defined()),
                     "the model scores sequences, whose scores are its logits: leave out --logits, and labels in {}",
                     *input);
  mention_value_head(command);
  inference::check_token_ids(batch.input_ids, command.model());
  inference::place_media(batch.input_ids, batch.attention_mask, batch.media, command.model());
  command.keep_towers({.vision = batch.media.sees(), .audio = batch.media.hears()});
  return command.run([&](model::VirtualModels& models) {
    // Every rank computes its sequences, and the file is written by all of them together.
    const int64_t rows = command.args().batch.eval_micro_batch_size.value_or(8);
    const bool prints = models.context().rank() == 0;
    if (models.config().num_labels > 0) {
      const at::Tensor scores = inference::score_sequences_to_file(models, batch, *output, rows);
      if (prints) print_scores(scores, json);
      return;
    }
    const auto total = inference::score_to_file(models, batch, *output, {.rows = rows, .logits = logits});
    if (prints) print_total(total, json);
  });
}

}  // namespace megalith::cli
