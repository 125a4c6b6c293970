// Measures loading a checkpoint of about 1 GB: seconds, and the peak memory that each of two tensor-parallel ranks,
// which are processes, holds beyond its own half of the weights. Prints one JSON line.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/allocator.h"
#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/io/json_reader.h"
#include "megalith/model/families/family.h"
#include "megalith/model/pretrained.h"
#include "tests/support/temp_folder.h"

namespace megalith {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

// 20 layers of about 12 million parameters and two vocabulary matrices, in fp32.
const ordered_json kConfig{{"model_type", "llama"},       {"hidden_size", 1024},      {"num_hidden_layers", 20},
                           {"num_attention_heads", 16},   {"num_key_value_heads", 8}, {"intermediate_size", 2816},
                           {"vocab_size", 16000},         {"rms_norm_eps", 1e-5},     {"max_position_embeddings", 2048},
                           {"hidden_act", "silu"},        {"dtype", "float32"},       {"rope_theta", 10000.0},
                           {"tie_word_embeddings", false}};

// Returns VmHWM, the peak resident memory, in bytes. Writing 5 to clear_refs resets it.
int64_t peak_resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return *parse_int(trim(split(line.substr(6), 'k')[0])) * 1024;
  return 0;
}

// Sent through a pipe as bytes, so it must stay trivially copyable.
struct Loaded {
  double seconds = 0;
  int64_t own_bytes = 0;   // parameters of this rank
  int64_t peak_bytes = 0;  // beyond what the process held before
};

// Runs one rank. Loading needs no collective, so a group whose other ranks never answer is enough.
Loaded load_as_rank(const fs::path& folder, int rank) {
  const auto worlds = comm::World::in_process(2);
  parallel::ParallelContext context(*worlds[static_cast<size_t>(rank)], layout::RankGrid({.world_size = 2, .tp = 2}));
  const auto config = model::read_model_config(folder);
  std::ofstream("/proc/self/clear_refs") << "5";
  const int64_t before = peak_resident();
  const auto start = std::chrono::steady_clock::now();
  const model::VirtualModels models(config, {}, {model::ChunkPlace::whole(config)}, context);
  model::load_weights(models, folder, config, 1);
  Loaded result{std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 0,
                peak_resident() - before};
  for (const nn::Parameter* p : models.parameters()) result.own_bytes += static_cast<int64_t>(p->value.nbytes());
  return result;
}

// A process per rank: peak memory is counted by process, and a later rank must not find the pages of an earlier one.
Loaded load_in_process(const fs::path& folder, int rank) {
  int ends[2];
  check(::pipe(ends) == 0, "no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    const Loaded result = load_as_rank(folder, rank);
    const bool told = ::write(ends[1], &result, sizeof result) == sizeof result;
    ::_exit(told ? 0 : 1);
  }
  ::close(ends[1]);
  Loaded result;
  check(::read(ends[0], &result, sizeof result) == sizeof result, "rank {} did not load", rank);
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return result;
}

void write_checkpoint(const fs::path& folder) {
  const pid_t child = ::fork();  // its memory is its own
  if (child == 0) {
    const auto worlds = comm::World::in_process(1);
    parallel::ParallelContext context(*worlds[0], layout::RankGrid(layout::GridShape{}));
    const auto config = model::read_model_config(io::parse_json_file(kConfig.dump(), "config.json"));
    const model::VirtualModels models(config, {}, {model::ChunkPlace::whole(config)}, context);
    models.initialize_parameters(3);
    // Several files, as large models have.
    model::save_pretrained(models, folder, {.max_shard_bytes = 300'000'000});
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  check(status == 0, "the checkpoint was not written");
}

}  // namespace
}  // namespace megalith

int main() {
  using namespace megalith;
  keep_freed_memory();
  at::set_num_threads(1);  // as each of two ranks on two cores has
  try {
    const testing::TempFolder temp;
    const fs::path folder = temp / "model";
    write_checkpoint(folder);
    int64_t total = 0;
    for (const auto& entry : fs::directory_iterator(folder)) total += static_cast<int64_t>(entry.file_size());
    ordered_json line{{"bench", "load"}, {"checkpoint_bytes", total}, {"ranks", ordered_json::array()}};
    // One after the other, so that they do not compete for the disk.
    for (const int rank : {0, 1}) {
      const Loaded loaded = load_in_process(folder, rank);
      line["ranks"].push_back(
          {{"seconds", loaded.seconds},
           {"own_bytes", loaded.own_bytes},
           {"peak_bytes", loaded.peak_bytes},
           {"peak_over_own", static_cast<double>(loaded.peak_bytes) / static_cast<double>(loaded.own_bytes)}});
    }
    fmt::print("{}\n", line.dump());
  } catch (const std::exception& error) {
    fmt::print(stderr, "load_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
