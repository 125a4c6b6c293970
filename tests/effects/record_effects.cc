// Options about what a run records besides numbers: texts of the model, histograms of weights and gradients.
#include <fmt/format.h>

#include <fstream>

#include "megalith/optim/histograms.h"
#include "megalith/run/resolve/run_settings.h"
#include "tests/effects/effect.h"
#include "tests/effects/watched_run.h"
#include "tests/support/temp_folder.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

// Writes down when something was recorded, and how much.
class RecordCounter : public train::TrainerCallback {
 public:
  explicit RecordCounter(std::string& text) : text_(text) {}
  void on_samples(train::TrainerEvent& event) override {
    text_ += fmt::format("texts at step {}:", event.state.global_step);
    for (const train::GeneratedText& each : event.samples->generated)
      text_ += fmt::format(" {} bytes after {}", each.text.size(), each.prompt);
    text_ += "\n";
  }
  void on_histograms(train::TrainerEvent& event) override {
    text_ += fmt::format("{} histograms at step {}\n", event.histograms->parts.size(), event.state.global_step);
  }

 private:
  std::string& text_;
};

// The records of a run of two steps.
std::string records(const config::TrainingArguments& args) {
  TrainerCase how;
  how.args = args;
  std::string text;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    const auto dataset = dataset_of(random_sequences(16, 50, 1));
    train::TrainerSetup setup = r.setup(dataset);
    setup.callbacks.push_back(std::make_unique<RecordCounter>(text));
    setup.text_sampler = run::make_text_sampler(run::run_settings(r.args, {}).samples,
                                                {tokenizer::Tokenizer::bytes(), {}}, dataset.get());
    train::Trainer(r.models, r.settings(), std::move(setup)).train();
  });
  return text;
}

// A file that lives as long as the tests.
std::string prompt_file() {
  static const TempFolder folder;
  const std::filesystem::path file = folder / "prompts.txt";
  std::ofstream(file) << "Once upon a time\n";
  return file.string();
}

}  // namespace

Effects record_effects() {
  const Words every_step = small_run({"--generate_samples_every=1"});
  const Words short_texts{"--generate_samples_max_new_tokens=3"};
  return {
      {"generate_samples_every", small_run(), {}, {"--generate_samples_every=2"}, records},
      {"generate_samples_prompts", every_step, {}, {"--generate_samples_prompts=" + prompt_file()}, records},
      {"generate_samples_max_new_tokens", every_step, short_texts, {"--generate_samples_max_new_tokens=5"}, records},
      {"log_histograms_interval", small_run(), {}, {"--log_histograms_interval=2"}, records},
  };
}

}  // namespace megalith::testing
