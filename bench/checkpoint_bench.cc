// Measures saving and loading a checkpoint of 1 GB against safetensors and torch.distributed.checkpoint in Python, with
// the same bytes on the same disk, in turns (MEGALITH_PYTHON=none runs without a peer); the time that a background
// save, during a second of computation, costs the caller; and the memory that a save takes besides the state. Prints
// one JSON line per case.
//
//   checkpoint_bench [FOLDER] [ROUNDS]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/peer_process.h"
#include "megalith/base/allocator.h"
#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/checkpoint/saver.h"
#include "megalith/checkpoint/state_files.h"
#include "megalith/checkpoint/verify.h"
#include "megalith/comm/world.h"

namespace megalith {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int64_t kTensors = 64, kRows = 2048, kColumns = 2048;  // 16 MiB each
constexpr double kBytes = 4.0 * kTensors * kRows * kColumns;

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Returns the peak resident memory since the last reset, in bytes.
int64_t peak_resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return *parse_int(trim(split(line.substr(6), 'k')[0])) * 1024;
  return 0;
}
void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

// A state of 64 tensors, a second set to load into, and a saver.
class Bench {
 public:
  Bench(fs::path folder, const parallel::ParallelContext& context)
      : folder_(std::move(folder)), context_(context), saver_(context) {
    for (int64_t i = 0; i < kTensors; ++i) {
      state_.push_back(at::full({kRows, kColumns}, static_cast<double>(i)));
      into_.push_back(at::zeros({kRows, kColumns}));
    }
  }

  double save() {
    clear();
    return seconds_of([&] { saver_.save(request()); });
  }
  // Returns how long the caller waits: at the start, and before the update that follows some computation.
  double stall_in_background() {
    clear();
    const double at_start = seconds_of([&] { saver_.start(request()); });
    compute();
    const double before_update = seconds_of([&] { saver_.finish_copy(); });
    saver_.wait();
    return at_start + before_update;
  }
  // The files are in the page cache, since they were just written: this measures copies and checks, not the disk.
  double load(bool verified) {
    const double seconds = seconds_of([&] {
      const checkpoint::Manifest manifest = checkpoint::read_manifest(target());
      if (verified) check(checkpoint::verify(target(), context_).empty(), "the checkpoint is broken");
      const checkpoint::StateFiles files(target(), manifest, "model");
      for (int64_t i = 0; i < kTensors; ++i)
        files.read({name(i), {kRows, kColumns}, {0, 0}, into_[static_cast<size_t>(i)], 0});
    });
    for (int64_t i = 0; i < kTensors; ++i) {
      at::Tensor& tensor = into_[static_cast<size_t>(i)];
      check(tensor[-1][-1].item<double>() == static_cast<double>(i), "tensor {} came back wrong", i);
      tensor.zero_();
    }
    return seconds;
  }

 private:
  // Stands for forward and backward of a step of about a second.
  void compute() const {
    const auto start = std::chrono::steady_clock::now();
    at::Tensor x = at::ones({512, kRows});
    while (std::chrono::steady_clock::now() - start < std::chrono::seconds(1)) x = at::mm(x, state_[0]).mul_(1e-3);
  }
  static std::string name(int64_t i) { return fmt::format("tensor.{}", i); }
  fs::path target() const { return folder_ / "run" / "checkpoint-1"; }
  void clear() const { fs::remove_all(folder_ / "run"); }
  checkpoint::SaveRequest request() const {
    checkpoint::TensorFiles files{.stem = "model", .tensors = {}, .held = {}};
    for (int64_t i = 0; i < kTensors; ++i) {
      files.tensors.push_back({name(i), hf::Dtype::kF32, {kRows, kColumns}});
      files.held.push_back({name(i), {0, 0}, state_[static_cast<size_t>(i)], 0});
    }
    return {.folder = target(), .step = 1, .layout = {}, .tensors = {std::move(files)}};
  }

  const fs::path folder_;
  const parallel::ParallelContext& context_;
  checkpoint::Saver saver_;
  std::vector<at::Tensor> state_, into_;
};

// One line with the median and the bandwidth of each side.
void report(const char* what, const std::map<std::string, std::vector<double>>& seconds) {
  ordered_json line{{"bench", "checkpoint"}, {"case", what}, {"bytes", kBytes}};
  for (const auto& [who, times] : seconds)
    line[who] = {{"seconds", bench::median(times)}, {"gigabytes_per_second", kBytes / 1e9 / bench::median(times)}};
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

void run(const fs::path& folder, int rounds) {
  const auto worlds = comm::World::in_process(1);
  const parallel::ParallelContext context(*worlds[0], layout::RankGrid(layout::GridShape{}));
  Bench own(folder, context);
  std::unique_ptr<bench::PeerProcess> peer;
  if (bench::peer_python() != "none")
    peer = std::make_unique<bench::PeerProcess>(
        std::vector<std::string>{bench::peer_python(), PEER_SCRIPT, folder.string(), std::to_string(kTensors),
                                 std::to_string(kRows), std::to_string(kColumns)});
  // The peer times itself, so pipes and Python's start are not counted.
  const auto ask = [&](const char* what) { return peer->ask(what).at("seconds").get<double>(); };

  std::map<std::string, std::vector<double>> saves, loads, stalls;
  for (int round = 0; round <= rounds; ++round) {  // the first warms up
    const auto note = [&](std::vector<double>& times, double seconds) {
      if (round > 0) times.push_back(seconds);
    };
    const double save_seconds = own.save();
    note(saves["megalith"], save_seconds);
    note(loads["megalith"], own.load(false));
    note(loads["megalith, verified"], own.load(true));
    note(stalls["synchronous"], save_seconds);
    note(stalls["in the background"], own.stall_in_background());
    if (!peer) continue;
    for (const char* kind : {"safetensors", "dcp"}) {
      note(saves[kind], ask(fmt::format("save {}", kind).c_str()));
      note(loads[kind], ask(fmt::format("load {}", kind).c_str()));
    }
  }
  report("save", saves);
  report("load", loads);
  report("stall", stalls);
  // The peak is reset before the save, so that it shows only what the save adds.
  reset_peak();
  const int64_t before = peak_resident();
  own.save();
  fmt::print("{}\n", ordered_json{{"bench", "checkpoint"},
                                  {"case", "memory of a synchronous save"},
                                  {"state_bytes", kBytes},
                                  {"above_state", static_cast<double>(peak_resident() - before) / kBytes}}
                         .dump());
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  using namespace megalith;
  keep_freed_memory();
  at::set_num_threads(2);
  const fs::path parent = argc > 1 ? fs::path(argv[1]) : fs::temp_directory_path();
  const fs::path folder = parent / "megalith-checkpoint-bench";
  try {
    fs::create_directories(folder);
    run(folder, argc > 2 ? std::stoi(argv[2]) : 5);
    fs::remove_all(folder);
  } catch (const std::exception& error) {
    fmt::print(stderr, "checkpoint_bench: {}\n", error.what());
    fs::remove_all(folder);
    return 1;
  }
  return 0;
}
