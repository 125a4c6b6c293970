// A miniature of what a checkpoint does: sharded tensors of every number format, saved collectively and read back by
// another rank than the one that wrote them. The values are a formula of name and rank, so the reader can check them
// without communication.
#include "megalith/train/saving/save_check.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "megalith/base/error.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/checkpoint/saver.h"
#include "megalith/checkpoint/state_files.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/train/saving/shared_folder.h"

namespace megalith::train {

namespace fs = std::filesystem;

namespace {

using SaveClock = std::chrono::steady_clock;

constexpr const char* kCheckedStem = "state";
constexpr int64_t kCheckedRows = 37, kCheckedColumns = 1001;  // odd sizes: nothing is aligned by accident

// One tensor of the trial: a number format, and who holds it.
struct CheckedTensor {
  const char* name;
  at::ScalarType type;
  bool shared;  // all ranks hold all of it; otherwise each has kCheckedRows rows of its own
};

constexpr CheckedTensor kCheckedTensors[] = {{"weight", at::kBFloat16, false},
                                             {"exp_avg", at::kFloat, false},
                                             {"counts", at::kLong, false},
                                             {"random_state", at::kByte, false},
                                             {"norm", at::kFloat, true}};

// Returns the elements that `rank` holds: a pattern that no two ranks share. Values stay below 241, so that every
// format holds them exactly.
at::Tensor saved_by(const CheckedTensor& tensor, int rank) {
  const int64_t count = kCheckedRows * kCheckedColumns;
  const at::Tensor numbers = (at::arange(count, at::kLong) * 7 + (tensor.shared ? 0 : rank * 29)).remainder(241);
  return numbers.view({kCheckedRows, kCheckedColumns}).to(tensor.type);
}

// Shape of the whole tensor over all ranks.
std::vector<int64_t> checked_shape(const CheckedTensor& tensor, int world_size) {
  return {tensor.shared ? kCheckedRows : kCheckedRows * world_size, kCheckedColumns};
}

// Shared tensors are held by every rank as replicas, of which one is written.
checkpoint::SaveRequest checked_request(const parallel::ParallelContext& context, const fs::path& folder) {
  checkpoint::TensorFiles files{.stem = kCheckedStem};
  const int rank = context.rank();
  for (const CheckedTensor& tensor : kCheckedTensors) {
    files.tensors.push_back({tensor.name, hf::dtype_of(tensor.type), checked_shape(tensor, context.world().size())});
    files.held.push_back({tensor.name,
                          {tensor.shared ? 0 : rank * kCheckedRows, 0},
                          saved_by(tensor, rank).to(context.device()),
                          tensor.shared ? rank : 0});
  }
  return {.folder = folder,
          .step = 1,
          .layout = checkpoint::SavedLayout::of(context.grid().shape(), false),
          .tensors = {std::move(files)}};
}

// Describes the tensors that are not, bit for bit, what the next rank saved.
std::vector<std::string> differences_of_saved(const parallel::ParallelContext& context, const fs::path& folder) {
  const checkpoint::StateFiles files(folder, checkpoint::read_manifest(folder), kCheckedStem);
  const int world_size = context.world().size(), next = (context.rank() + 1) % world_size;
  std::vector<std::string> different;
  for (const CheckedTensor& tensor : kCheckedTensors) {
    const at::Tensor wanted = saved_by(tensor, next);
    const at::Tensor read = at::zeros(wanted.sizes(), wanted.options().device(context.device()));
    files.read({tensor.name, checked_shape(tensor, world_size), {tensor.shared ? 0 : next * kCheckedRows, 0}, read, 0});
    if (!read.cpu().equal(wanted))
      different.push_back(fmt::format("{} of rank {} differs from what was saved when rank {} reads it from {}",
                                      tensor.name, next, context.rank(), folder.string()));
  }
  return different;
}

// Returns a name for the check's own folder that no other check uses; drawn by rank 0 for all.
std::string fresh_folder_name(const comm::Group& world) {
  std::random_device random;
  return world.broadcast_bytes(fmt::format(".megalith-doctor-{:08x}{:08x}", random(), random()), 0, "save check");
}

// Returns the folder to use if none is given; chosen by rank 0 for all.
fs::path usual_folder(const comm::Group& world, const std::vector<std::string>& hosts) {
  const bool one_machine = std::ranges::all_of(hosts, [&](const std::string& host) { return host == hosts[0]; });
  const fs::path folder = one_machine ? fs::temp_directory_path() : fs::current_path();
  return world.broadcast_bytes(folder.string(), 0, "save check");
}

// Removes, on rank 0, what the check created: its own folder, and `folder` if that did not exist before.
class MadeFolders {
 public:
  MadeFolders(fs::path folder, fs::path own, bool owner) : folder_(std::move(folder)), own_(std::move(own)) {
    std::error_code ignored;
    removes_ = owner;
    removes_folder_ = owner && !fs::exists(folder_, ignored);
  }
  ~MadeFolders() {
    std::error_code ignored;
    if (removes_) fs::remove_all(own_, ignored);
    if (removes_folder_) fs::remove(folder_, ignored);  // remove() leaves a folder that is not empty
  }
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;

 private:
  fs::path folder_, own_;
  bool removes_ = false, removes_folder_ = false;
};

double seconds_until_now(SaveClock::time_point begin) {
  return std::chrono::duration<double>(SaveClock::now() - begin).count();
}

}  // namespace

SaveCheck check_save_and_load(const parallel::ParallelContext& context, const std::optional<fs::path>& folder,
                              const std::vector<std::string>& hosts) {
  const comm::Group world = context.world().world();
  const fs::path usual = usual_folder(world, hosts);
  SaveCheck result{.folder = folder.value_or(usual)};
  const fs::path own = result.folder / fresh_folder_name(world);
  const MadeFolders made(result.folder, own, context.rank() == 0);
  // Ranks of the same machine see a new file at once; a network file system may take a while.
  const double patience = hosts[static_cast<size_t>(context.rank())] == hosts[0] ? 0.5 : 10;
  try {
    check_shared_folder_of_ranks(own, world, /*looks=*/true, patience);
    const auto begin = SaveClock::now();
    result.bytes = checkpoint::Saver(context).save(checked_request(context, own / checkpoint::folder_name(1))).bytes;
    result.save_seconds = seconds_until_now(begin);
  } catch (const ConfigError& error) {  // thrown alike on all ranks
    result.problems.emplace_back(error.what());
    return result;
  } catch (const DataError& error) {  // thrown alike on all ranks
    result.problems.emplace_back(error.what());
    return result;
  }
  const auto begin = SaveClock::now();
  try {
    result.problems = differences_of_saved(context, own / checkpoint::folder_name(1));
  } catch (const DataError& error) {
    result.problems.push_back(fmt::format("rank {} cannot read what was saved: {}", context.rank(), error.what()));
  }
  result.load_seconds = seconds_until_now(begin);
  world.barrier("save check: all have read");
  return result;
}

}  // namespace megalith::train
