// Measures training steps of a model that sees on one GPU: `megalith train` against transformers, and how much faster
// the images of a step are decoded than the step consumes them.
//
//   sight_bench [--hf gpu_sight.py] [--cases frozen,trained] [--rows N] [--rounds N] [--config FILE] [--device cpu]
//               [--megalith PROGRAM]
//
// The model is Qwen2.5-VL-3B with random weights, or that of --config; a row is 8 JPEG images of 640 x 480 and text up
// to 4096 tokens, of which the answer is trained. `frozen` leaves tower and merger as they are, as the options do by
// default; `trained` trains everything. Precision is bf16 with fp32 main parameters (fp32 with --device cpu).
//
// Rounds alternate between our run, which decodes its images, and the peer's script, whose pixels and positions are
// ready on the device; it runs with the Python in MEGALITH_PYTHON. Prints one JSON line per case: medians over rounds
// of the medians over steps, and images decoded per second by one thread and by eight, as a collator does it.
#include <fmt/format.h>
// The header of libjpeg needs these.
#include <jpeglib.h>
#include <cstddef>
#include <cstdio>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <stdexcept>

#include "bench/options.h"
#include "bench/peer_process.h"
#include "megalith/io/file_io.h"
#include "megalith/io/parallel_for.h"
#include "megalith/media/decode.h"
#include "megalith/media/image_processor.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::bench {
namespace {

using nlohmann::json;
using testing::TempFolder;

constexpr int kImages = 8, kWidth = 640, kHeight = 480, kLength = 4096;  // a row: images of this size, and tokens
constexpr int kSteps = 14, kWarmUp = 4;
constexpr int kThreads = 8;

struct Settings {
  std::string hf, cases = "frozen,trained", config, device = "cuda", megalith = MEGALITH_PROGRAM;
  int rows = 1, rounds = 2;
};

// config.json of Qwen2.5-VL-3B-Instruct.
json qwen2_5_vl_3b() {
  const json vision{{"depth", 32},
                    {"hidden_act", "silu"},
                    {"hidden_size", 1280},
                    {"intermediate_size", 3420},
                    {"num_heads", 16},
                    {"in_chans", 3},
                    {"out_hidden_size", 2048},
                    {"patch_size", 14},
                    {"spatial_merge_size", 2},
                    {"spatial_patch_size", 14},
                    {"window_size", 112},
                    {"fullatt_block_indexes", {7, 15, 23, 31}},
                    {"tokens_per_second", 2},
                    {"temporal_patch_size", 2}};
  return {{"architectures", {"Qwen2_5_VLForConditionalGeneration"}},
          {"model_type", "qwen2_5_vl"},
          {"hidden_act", "silu"},
          {"hidden_size", 2048},
          {"initializer_range", 0.02},
          {"intermediate_size", 11008},
          {"max_position_embeddings", 128000},
          {"max_window_layers", 70},
          {"num_attention_heads", 16},
          {"num_hidden_layers", 36},
          {"num_key_value_heads", 2},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1e6},
          {"rope_scaling", {{"type", "mrope"}, {"mrope_section", {16, 24, 24}}}},
          {"sliding_window", 32768},
          {"use_sliding_window", false},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"},
          {"vocab_size", 151936},
          {"vision_config", vision}};
}

// Runs a command that has to succeed.
std::string run_checked(const std::vector<std::string>& words, std::chrono::milliseconds limit) {
  const auto result = testing::run_process(words, {}, limit);
  if (result.exit_code != 0) throw std::runtime_error(fmt::format("{} {} failed:\n{}", words[0], words[1], result.err));
  return result.out;
}

// Writes 640 x 480 pixels out of `from`, from (x, y) on, and then again from the other side where that is smaller.
void write_jpeg(const std::string& path, const media::Image& from, int64_t x, int64_t y) {
  jpeg_compress_struct jpeg;
  jpeg_error_mgr errors;
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) throw std::runtime_error("cannot write " + path);
  jpeg_stdio_dest(&jpeg, file);
  jpeg.image_width = kWidth;
  jpeg.image_height = kHeight;
  jpeg.input_components = 3;
  jpeg.in_color_space = JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 90, TRUE);
  jpeg_start_compress(&jpeg, TRUE);
  std::vector<uint8_t> row(3 * kWidth);
  for (int64_t line = 0; line < kHeight; ++line) {
    const uint8_t* source = from.row((y + line) % from.height);
    for (int64_t i = 0; i < kWidth; ++i) std::copy_n(source + 3 * ((x + i) % from.width), 3, row.data() + 3 * i);
    JSAMPROW pointer = row.data();
    jpeg_write_scanlines(&jpeg, &pointer, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::fclose(file);
}

// The model's folder, and four steps' worth of records with images of their own.
class Inputs {
 public:
  Inputs(const Settings& s, int64_t image_tokens) : model_(folder_ / "model"), data_(folder_ / "data.jsonl") {
    write_model(s);
    // A digit is a token. What is left to kLength holds the template's words; a row that were longer would be left out,
    // since its images must not be cut.
    const int64_t answer_length = kLength - kImages * (image_tokens + 2) - 128;
    if (answer_length < 1) throw std::runtime_error("the images leave no room for an answer");
    std::ofstream data(data_);
    std::mt19937 random(1);
    const media::Image photo =
        media::to_rgb(media::decode_image(io::read_text_file(kPhoto, 1 << 30), "the photo of the tests"));
    for (int record = 0; record < 4 * s.rows; ++record) {
      std::string question, answer;
      json images = json::array();
      for (int i = 0; i < kImages; ++i) {
        files_.push_back(folder_ / fmt::format("{}-{}.jpg", record, i));
        write_jpeg(files_.back(), photo, 7 * record, 11 * i);
        images.push_back(files_.back());
        question += "<image>";
      }
      for (int64_t i = 0; i < answer_length; ++i) answer += static_cast<char>('0' + random() % 10);
      const json turns{{{"role", "user"}, {"content", question + " what is it"}},
                       {{"role", "assistant"}, {"content", answer}}};
      data << json{{"messages", turns}, {"images", images}}.dump() << "\n";
    }
  }

  const std::string& model() const { return model_; }
  const std::string& data() const { return data_; }
  const std::vector<std::string>& files() const { return files_; }
  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  void write_model(const Settings& s) const {
    std::ofstream(folder_ / "texts.txt") << "what is it in this image 0 1 2 3 4 5 6 7 8 9\n";
    run_checked({s.megalith, "data", "train-tokenizer", folder_ / "texts.txt", "--vocab-size", "300", "--output",
                 model_, "--special_tokens",
                 "<|endoftext|>,<|im_start|>,<|im_end|>,<|vision_start|>,<|vision_end|>,<|image_pad|>,<|video_pad|>"},
                std::chrono::minutes(1));
    json config = s.config.empty() ? qwen2_5_vl_3b() : json::parse(io::read_text_file(s.config, 1 << 20));
    // Special tokens have the ids 0, 1, … in this order.
    config["vision_start_token_id"] = 3;
    config["vision_end_token_id"] = 4;
    config["image_token_id"] = 5;
    config["video_token_id"] = 6;
    std::ofstream(model_ + "/config.json") << config.dump();
    std::ofstream(model_ + "/preprocessor_config.json") << json{
        {"patch_size", 14},
        {"temporal_patch_size", 2},
        {"merge_size", 2},
        {"min_pixels", 3136},
        {"max_pixels", 12845056}}.dump();
  }

  inline static const std::string kPhoto =
      MEGALITH_SOURCE_DIR "/tests/data/golden/hf/vision/images/large_1400x1000.jpg";
  TempFolder folder_;
  std::string model_, data_;
  std::vector<std::string> files_;
};

struct Measured {
  double tokens_per_second = 0, peak_gib = 0;
};

Measured run_ours(const Settings& s, const Inputs& inputs, bool trained) {
  const std::string frozen = trained ? "false" : "true", output = inputs.path("out");
  run_checked({s.megalith,
               "train",
               "--train_from_scratch",
               "--finetuning_type=full",
               "--save_strategy=no",
               "--logging_steps=1",
               "--template=qwen2_vl",
               "--model_name_or_path=" + inputs.model(),
               "--dataset=" + inputs.data(),
               "--output_dir=" + output,
               "--overwrite_output_dir",
               s.device == "cpu" ? "--use_cpu" : "--bf16",
               "--cross_entropy_loss_fusion",
               fmt::format("--cutoff_len={}", kLength),
               fmt::format("--per_device_train_batch_size={}", s.rows),
               "--gradient_accumulation_steps=1",
               fmt::format("--max_steps={}", kSteps),
               "--learning_rate=1e-4",
               "--lr_scheduler_type=constant",
               "--adam_beta2=0.95",
               "--weight_decay=0.1",
               "--max_grad_norm=1.0",
               "--freeze_vision_tower=" + frozen,
               "--freeze_multi_modal_projector=" + frozen},
              std::chrono::minutes(5));
  std::vector<double> rates;
  Measured measured;
  std::ifstream lines(output + "/metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const json metrics = json::parse(line);
    if (!metrics.contains("tokens_per_second")) continue;
    measured.peak_gib = std::max(measured.peak_gib, metrics.value("memory", 0.0) / (1 << 30));
    if (metrics.at("step").get<int>() > kWarmUp) rates.push_back(metrics.at("tokens_per_second"));
  }
  measured.tokens_per_second = median(rates);
  return measured;
}

// Returns the line of the peer's script, or its error.
json run_peer(const Settings& s, const Inputs& inputs, const media::PatchGrid& grid, const std::string& parts) {
  const auto result = testing::run_process(
      {peer_python(), s.hf, inputs.model() + "/config.json", std::to_string(s.rows), std::to_string(kLength),
       std::to_string(kImages), std::to_string(grid.h), std::to_string(grid.w), parts, "--device", s.device},
      {}, std::chrono::minutes(5));
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    json found = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (found.is_object() && found.contains("forms")) return found;
  }
  return {{"error", result.err.substr(result.err.size() - std::min<size_t>(result.err.size(), 300))}};
}

// Images per second, from their files to rows of patches, with so many threads.
double images_per_second(const Inputs& inputs, const media::ImageProcessor& processor, int threads) {
  constexpr int kTimes = 256;
  const auto start = std::chrono::steady_clock::now();
  io::parallel_for(kTimes, threads, [&](int64_t i) {
    const std::string& file = inputs.files()[static_cast<size_t>(i) % inputs.files().size()];
    media::Image image = media::decode_image(io::read_text_file(file, 1 << 30), file);
    const media::PatchGrid grid = processor.grid({image.width, image.height}, file);
    std::vector<float> rows(static_cast<size_t>(processor.patches(grid) * processor.row_width()));
    processor.patch_rows(processor.pre_resize(std::move(image), file), rows.data(), file);
  });
  return kTimes / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run(const Settings& s, const Inputs& inputs, const media::ImageProcessor& processor, const std::string& parts) {
  const media::PatchGrid grid = processor.grid({kWidth, kHeight}, "bench");
  std::vector<double> ours, gib, theirs, their_gib;
  json line{{"bench", "sight"}, {"case", parts}, {"rows", s.rows}, {"image_tokens", processor.tokens(grid)}};
  for (int round = 0; round < s.rounds; ++round) {
    const Measured own = run_ours(s, inputs, parts == "trained");
    ours.push_back(own.tokens_per_second);
    gib.push_back(own.peak_gib);
    if (s.hf.empty()) continue;
    const json peer = run_peer(s, inputs, grid, parts);
    line["hf"] = peer;
    if (!peer.contains("tok_s") || !peer.at("tok_s").is_number()) continue;
    theirs.push_back(peer.at("tok_s"));
    their_gib.push_back(peer.at("peak_gib"));
  }
  const double consumed = median(ours) * kImages / kLength;
  const double decoded = images_per_second(inputs, processor, kThreads);
  line.update({{"tokens_per_second", median(ours)},
               {"peak_gib", median(gib)},
               {"images_per_second", consumed},
               {"decoded_per_second_1_thread", images_per_second(inputs, processor, 1)},
               {"decoded_per_second_8_threads", decoded},
               {"input_margin", decoded / consumed}});
  if (!theirs.empty())
    line.update({{"hf_tokens_per_second", median(theirs)},
                 {"hf_peak_gib", median(their_gib)},
                 {"hf_ratio", median(ours) / median(theirs)}});
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

}  // namespace
}  // namespace megalith::bench

int main(int argc, char** argv) try {
  megalith::bench::Settings s;
  megalith::bench::read_options(argc, argv,
                                {{"--hf", &s.hf},
                                 {"--cases", &s.cases},
                                 {"--rows", &s.rows},
                                 {"--rounds", &s.rounds},
                                 {"--config", &s.config},
                                 {"--device", &s.device},
                                 {"--megalith", &s.megalith}});
  const megalith::media::ImageProcessor processor(megalith::media::ImageProcessorSettings{});
  const auto grid = processor.grid({megalith::bench::kWidth, megalith::bench::kHeight}, "bench");
  const megalith::bench::Inputs inputs(s, processor.tokens(grid));
  for (const char* parts : {"frozen", "trained"})
    if (s.cases.find(parts) != std::string::npos) megalith::bench::run(s, inputs, processor, parts);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "sight_bench: {}\n", error.what());
  return 1;
}
