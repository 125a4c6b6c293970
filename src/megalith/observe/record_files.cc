#include "megalith/observe/record_files.h"

#include <nlohmann/json.hpp>

#include "megalith/observe/units.h"
#include "megalith/optim/histograms.h"
#include "megalith/train/samples/text_samples.h"

namespace megalith::observe {

namespace {

using Json = nlohmann::ordered_json;

Json json_of_sample(const train::TrainedSample& sample) {
  Json spans = Json::array();
  for (const train::TextSpan& span : sample.spans) spans.push_back({span.text, span.in_loss});
  return {{"spans", std::move(spans)},
          {"tokens", sample.tokens},
          {"loss_tokens", sample.loss_tokens},
          {"padding", sample.padding},
          {"left_out", sample.left_out}};
}

Json json_of_side(const optim::BinCounts& side) {
  Json json = Json::array();
  if (side.counts.empty()) return json;
  json.push_back(side.first);
  for (const int64_t count : side.counts) json.push_back(count);
  return json;
}

Json json_of_part(const std::string& part, const optim::Histogram& histogram) {
  return {{"part", part},
          {"zeros", histogram.zeros},
          {"non_finite", histogram.non_finite},
          {"negative", json_of_side(histogram.negative)},
          {"positive", json_of_side(histogram.positive)}};
}

}  // namespace

void SamplesFileCallback::on_train_begin(train::TrainerEvent& event) {
  if (!event.state.is_world_process_zero) return;
  io::make_folders(folder_);
  file_.emplace(folder_ / "samples.jsonl", event.state.global_step);
}

// Decoded texts are UTF-8; anything else would be replaced rather than end the run.
void SamplesFileCallback::on_samples(train::TrainerEvent& event) {
  if (!file_) return;
  Json generated = Json::array(), trained = Json::array();
  for (const train::GeneratedText& text : event.samples->generated)
    generated.push_back({{"prompt", text.prompt}, {"text", text.text}, {"ended", text.ended}});
  for (const train::TrainedSample& sample : event.samples->trained) trained.push_back(json_of_sample(sample));
  const Json line{{"step", event.state.global_step},
                  {"time", seconds_since_1970()},
                  {"generated", std::move(generated)},
                  {"trained", std::move(trained)}};
  file_->append(line.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void HistogramsFileCallback::on_train_begin(train::TrainerEvent& event) {
  if (!event.state.is_world_process_zero) return;
  io::make_folders(folder_);
  file_.emplace(folder_ / "histograms.jsonl", event.state.global_step);
}

void HistogramsFileCallback::on_histograms(train::TrainerEvent& event) {
  if (!file_) return;
  Json weights = Json::array(), gradients = Json::array();
  for (const optim::PartHistograms& part : event.histograms->parts) {
    weights.push_back(json_of_part(part.name, part.weights));
    gradients.push_back(json_of_part(part.name, part.gradients));
  }
  const Json line{{"step", event.state.global_step},
                  {"time", seconds_since_1970()},
                  {"weights", std::move(weights)},
                  {"gradients", std::move(gradients)}};
  file_->append(line.dump());
}

}  // namespace megalith::observe
