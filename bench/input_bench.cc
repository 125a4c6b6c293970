// Measures the tokens per second that the input pipeline delivers: sampler, mapped tokens, collator, and the prefetch
// thread. Prints one JSON line per case; the goal is at least 100000 on two cores.
//
//   input_bench [--samples N] [--steps N] [--length N]
//
// The first case is the loader alone on one thread, the second what arrives through the prefetch thread. The third
// reads, tokenizes and encodes JSON lines as a stream, with bytes as tokens to leave out the tokenizer's own work.
#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/data/batch_loader.h"
#include "megalith/data/random.h"
#include "megalith/data/sft/packing.h"
#include "megalith/data/sft/tokenized_data.h"
#include "megalith/data/token_table.h"
#include "megalith/io/prefetch.h"
#include "tests/support/temp_folder.h"

namespace megalith {
namespace {

using Clock = std::chrono::steady_clock;

// The words of the command line.
struct Settings {
  int64_t samples = 20'000;
  int64_t steps = 500;
  int64_t length = 2048;
};

// Makes samples of 50 to `length` tokens, or packed rows of them.
std::shared_ptr<const data::Dataset> make_dataset(const Settings& settings, bool packed,
                                                  const testing::TempFolder& folder) {
  data::RandomStream random(1);
  std::vector<data::Sequence> samples;
  for (int64_t i = 0; i < settings.samples; ++i) {
    const auto length = static_cast<size_t>(50 + random.below(static_cast<uint64_t>(settings.length - 50)));
    data::Sequence sample;
    for (size_t t = 0; t < length; ++t) sample.ids.push_back(static_cast<int32_t>(random.below(32'000)));
    sample.labels = sample.ids;
    samples.push_back(std::move(sample));
  }
  if (packed) samples = data::pack_samples(std::move(samples), settings.length, true, 0).rows;
  data::TokenTable table;
  for (const data::Sequence& sample : samples) table.append(sample);
  const std::filesystem::path target = folder / (packed ? "packed" : "plain");
  std::filesystem::create_directory(target);
  data::TokenFolderWriter writer(target);
  writer.append(table);
  writer.finish({});
  return data::open_token_folder(target).dataset;
}

// Counts all tokens of the batches and those that are not padding.
void report(const std::string& name, const std::function<std::optional<data::StepBatch>()>& next, int64_t steps) {
  int64_t tokens = 0, real = 0;
  const auto start = Clock::now();
  for (int64_t i = 0; i < steps; ++i) {
    const auto step = next();
    check(step.has_value(), "the data ended after {} steps", i);
    for (const data::MicroBatch& batch : step->microbatches) {
      tokens += batch.tokens();
      real += batch.real_tokens;
    }
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const nlohmann::ordered_json line{{"bench", "input"},
                                    {"case", name},
                                    {"steps", steps},
                                    {"tokens_per_second", static_cast<double>(tokens) / seconds},
                                    {"real_tokens_per_second", static_cast<double>(real) / seconds},
                                    {"efficiency", static_cast<double>(real) / static_cast<double>(tokens)}};
  fmt::print("{}\n", line.dump());
}

// The same dataset with padded rows and with packed ones, directly and through the prefetch thread.
void run_loaders(const Settings& settings, bool packed) {
  const testing::TempFolder folder;
  const auto dataset = make_dataset(settings, packed, folder);
  const data::Sampler sampler({.size = dataset->size()});
  const auto loader = [&] {
    return data::make_batch_loader(dataset, sampler, data::Collator({.length_multiple = packed ? 1 : 64}), [](int64_t) {
      return data::BatchShape{.micro_batch_size = 1, .num_microbatches = 4, .dp_size = 2, .dp_rank = 0};
    });
  };
  const std::string name = packed ? "packed" : "padded";
  const auto direct = loader();
  report(
      name, [&] { return direct->next(); }, settings.steps);
  const auto source = loader();
  io::Prefetcher<data::StepBatch> prefetched([&] { return source->next(); }, 4);
  report(
      name + ", prefetched", [&] { return prefetched.next(); }, settings.steps);
}

void run_stream(const Settings& settings) {
  const testing::TempFolder folder;
  std::ofstream file(folder / "data.jsonl");
  for (int64_t i = 0; i < settings.samples; ++i)
    file << fmt::format("{{\"instruction\": \"Question number {}?\", \"output\": \"{}\"}}\n", i, std::string(400, 'a'));
  file.close();
  data::DataRequest request;
  request.data.dataset = {(folder / "data.jsonl").string()};
  request.data.chat.name = "vicuna";
  request.tokenizer = tokenizer::Tokenizer::bytes();
  const auto loader =
      data::make_stream_loader(data::open_streamed_data(request).train, data::Collator({}), [](int64_t) {
        return data::BatchShape{.micro_batch_size = 4, .num_microbatches = 2, .dp_size = 1, .dp_rank = 0};
      });
  report(
      "stream", [&] { return loader->next(); }, settings.steps);
}

// Every word must be understood: a misspelled name would silently measure the default.
Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    int64_t* field = word == "--samples"  ? &settings.samples
                     : word == "--steps"  ? &settings.steps
                     : word == "--length" ? &settings.length
                                          : nullptr;
    const auto value = parse_int(argv[i + 1]);
    check<ConfigError>(field != nullptr && value && *value > 0, "{} {} is not understood", word, argv[i + 1]);
    *field = *value;
  }
  return settings;
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  try {
    const megalith::Settings settings = megalith::parse(argc, argv);
    megalith::run_loaders(settings, false);
    megalith::run_loaders(settings, true);
    megalith::run_stream(settings);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
