// Measures images per second on one core, from the bytes of a JPEG or PNG file to rows of patches, against Pillow and
// torchvision. Prints one JSON line per case.
//
//   image_bench [--runs N] [--images N]
//
// Images are those of the tests, each many times. Both sides decode, shrink to image_max_pixels, resize as Qwen2-VL's
// processor, normalise and cut into patches; the sums of their rows must agree. The programs alternate, results are
// medians. The peer needs a Python (MEGALITH_PYTHON) with Pillow and torchvision; without it, only our own numbers are
// printed, without a ratio.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <vector>

#include "bench/options.h"
#include "bench/peer_process.h"
#include "megalith/io/file_io.h"
#include "megalith/media/decode.h"
#include "megalith/media/image_processor.h"

namespace megalith {
namespace {

using nlohmann::ordered_json;

// One pass: images per second, and the mean of all numbers in the rows.
struct Result {
  double per_second = 0;
  double mean = 0;
};

Result process(const std::string& bytes, const media::ImageProcessor& processor, int images) {
  std::vector<float> rows;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < images; ++i) {
    media::Image image = media::decode_image(bytes, "bench");
    const media::PatchGrid grid = processor.grid({image.width, image.height}, "bench");
    rows.resize(static_cast<size_t>(processor.patches(grid) * processor.row_width()));
    processor.patch_rows(processor.pre_resize(std::move(image), "bench"), rows.data(), "bench");
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  double sum = 0;
  for (const float value : rows) sum += value;
  return {images / seconds, sum / static_cast<double>(rows.size())};
}

void run(int runs, int images) {
  const media::ImageProcessor processor(media::ImageProcessorSettings{});
  std::unique_ptr<bench::PeerProcess> peer;
  try {
    peer = std::make_unique<bench::PeerProcess>(std::vector<std::string>{bench::peer_python(), PEER_SCRIPT});
    peer->ask("ready");
  } catch (const std::exception&) {
    peer.reset();
  }
  for (const char* file : {"photo_320x240.jpg", "large_1400x1000.jpg", "square_112x112.png"}) {
    const std::string path = fmt::format("{}/tests/data/golden/hf/vision/images/{}", MEGALITH_SOURCE_DIR, file);
    const std::string bytes = io::read_text_file(path, 1 << 30);
    std::vector<double> ours, theirs;
    Result result = process(bytes, processor, 1);  // warm
    nlohmann::json answer;
    if (peer) answer = peer->ask(fmt::format("{} 1", path));
    for (int i = 0; i < runs; ++i) {
      result = process(bytes, processor, images);
      ours.push_back(result.per_second);
      if (!peer) continue;
      answer = peer->ask(fmt::format("{} {}", path, images));
      theirs.push_back(answer.at("per_second").get<double>());
    }
    ordered_json line{{"bench", "images to patch rows"}, {"file", file}, {"images_per_s", bench::median(ours)}};
    if (peer) {
      line["peer_images_per_s"] = bench::median(theirs);
      line["ratio"] = bench::median(ours) / bench::median(theirs);
      line["same_rows"] = std::abs(result.mean - answer.at("mean").get<double>()) < 1e-4;
    }
    fmt::print("{}\n", line.dump());
  }
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  int runs = 5, images = 50;
  megalith::bench::read_options(argc, argv, {{"--runs", &runs}, {"--images", &images}});
  megalith::run(runs, images);
}
