// The usual mistake is an output_dir on a local disk of each machine: every rank writes happily, and the checkpoint is
// scattered. So rank 0 leaves a file with a random name, and the others look for it before any work is spent.
#include "megalith/train/saving/shared_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/io/file_io.h"

namespace megalith::train {

namespace fs = std::filesystem;

namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

// Random, so that a file of an earlier run is not mistaken for this one's.
std::string fresh_name() {
  std::random_device random;
  return fmt::format(".megalith-shared-{:08x}{:08x}", random(), random());
}

// Polls, because network file systems cache what they have listed.
bool appears(const fs::path& file, double patience) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience);
  std::error_code ignored;
  while (!fs::exists(file, ignored)) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

// Removes the file at the end of a scope, also after an exception.
struct Removed {
  fs::path file;
  ~Removed() {
    std::error_code ignored;
    fs::remove(file, ignored);
  }
};

}  // namespace

void check_shared_folder_of_ranks(const fs::path& folder, const comm::Group& ranks, bool looks, double patience) {
  const bool first = ranks.rank() == 0;
  const std::string name = first ? fresh_name() : "";
  std::string problem;
  Removed nonce{first ? folder / name : fs::path()};
  if (first) {
    try {
      io::make_folders(folder);
      io::write_text_file(nonce.file, name);
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  // One broadcast carries either the name of the file or, after "!", the reason why there is none.
  const std::string told = ranks.broadcast_bytes(problem.empty() ? name : "!" + problem, 0, "output_dir");
  check<ConfigError>(!told.starts_with('!'), "output_dir {} cannot be written: {}", folder.string(), told.substr(1));
  const bool missing = looks && !first && !appears(folder / told, patience);
  std::set<std::string> blind;
  for (const std::string& host : ranks.all_gather_bytes(missing ? host_name() : "", "output_dir"))
    if (!host.empty()) blind.insert(host);
  check<ConfigError>(
      blind.empty(),
      "output_dir {} is not the same folder on all machines: a file that rank 0 wrote is not visible on {}."
      " Use a folder on a file system that all machines share",
      folder.string(), list_in_words(std::vector<std::string>(blind.begin(), blind.end())));
}

void check_shared_folder(const fs::path& folder, comm::World& world, double patience) {
  const comm::Rendezvous& place = world.place();
  if (place.local_world_size == place.world_size) return;
  check_shared_folder_of_ranks(folder, world.world(), place.local_rank == 0, patience);
}

}  // namespace megalith::train
