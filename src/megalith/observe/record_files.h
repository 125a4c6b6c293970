// samples.jsonl: texts of the model and samples of its training data (generate_samples_every), one JSON object per
// line:
//
//   {"step":100,"time":1763230000.125,
//    "generated":[{"prompt":"Once","text":" upon a time","ended":false}],
//    "trained":[{"spans":[["User: Hi\n",false],["Hello!",true]],"tokens":12,"loss_tokens":5,"padding":4,"left_out":0}]}
//
// A span is a text and whether its tokens are in the loss; the other members are those of train::TextSamples.
//
// histograms.jsonl: how weights and gradients are distributed (log_histograms_interval), one JSON object per line:
//
//   {"step":100,"time":1763230000.125,
//    "weights":[{"part":"layers.0.attention","zeros":0,"non_finite":0,"negative":[-23,5,81,…],"positive":[-25,3,…]},…],
//    "gradients":[…]}
//
// The first number of a side is the bin of the second one, and the next numbers count the bins after it: bin i begins
// at the magnitude 2^e · (1 + q/4), e = floor(i / 4), q = i mod 4 (optim/histograms.h). A side without values is [].
#pragma once

#include <filesystem>
#include <optional>

#include "megalith/observe/records/step_lines.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// Keeps `<folder>/samples.jsonl` on world process zero; does nothing on other ranks. A resumed run continues the file.
class SamplesFileCallback : public train::TrainerCallback {
 public:
  explicit SamplesFileCallback(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void on_train_begin(train::TrainerEvent& event) override;
  void on_samples(train::TrainerEvent& event) override;

 private:
  std::filesystem::path folder_;
  std::optional<StepLines> file_;
};

// Keeps `<folder>/histograms.jsonl` on world process zero; does nothing on other ranks. A resumed run continues the
// file.
class HistogramsFileCallback : public train::TrainerCallback {
 public:
  explicit HistogramsFileCallback(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void on_train_begin(train::TrainerEvent& event) override;
  void on_histograms(train::TrainerEvent& event) override;

 private:
  std::filesystem::path folder_;
  std::optional<StepLines> file_;
};

}  // namespace megalith::observe
