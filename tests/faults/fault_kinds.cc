#include "tests/faults/fault_kinds.h"

#include <sys/mount.h>
#include <sys/resource.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <thread>

namespace megalith::testing {

namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

double draw(std::mt19937& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

std::function<void(FaultJob&, std::mt19937&)> signal_to(size_t rank, int number) {
  return [=](FaultJob& job, std::mt19937& random) {
    if (job.wait_for_steps(draw(random, 0, 1.5))) job.signal_rank(rank, number);
  };
}

const std::vector<std::string> kRestarts{"--max_restarts=3"};

// Stops and continues a rank, so that it has a quarter of the time, until it is said to be slow: however long a step
// takes on this machine.
void slow_down(FaultJob& job, std::mt19937&) {
  if (!job.wait_for_steps(0)) return;
  do {
    if (!job.signal_rank(1, SIGSTOP)) return;
    std::this_thread::sleep_for(milliseconds(120));
    job.signal_rank(1, SIGCONT);
  } while (!job.wait_for_text("rank 1 is slow", 0.04));
}

void limit_memory(FaultJob& job, std::mt19937& random) {
  if (!job.wait_for_steps(draw(random, 0, 0.5))) return;
  const auto ranks = job.ranks();
  if (ranks.size() < 2) return;
  const rlimit none{1 << 20, 1 << 20};
  ::prlimit(ranks[1], RLIMIT_AS, &none, nullptr);
}

// ---- Files ----------------------------------------------------------------------------------------------------------

constexpr const char* kNever = "\n(no such text)";

void flip_bit(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
  file.seekg(middle);
  const int byte = file.get();
  file.seekp(middle);
  file.put(static_cast<char>(byte ^ 4));
}

// Once there are two checkpoints, damages the newer one and kills a rank: what is started again has to take the older.
std::function<void(FaultJob&, std::mt19937&)> spoil_newest(std::function<void(const fs::path& file)> damage) {
  return [damage = std::move(damage)](FaultJob& job, std::mt19937&) {
    if (!job.wait_for_text("checkpoint-10: ")) return;
    job.signal_rank(1, SIGSTOP);  // no newer one comes in between
    damage(job.output() / "checkpoint-10" / "optimizer.safetensors");
    job.signal_rank(1, SIGKILL);
  };
}

void mount_small_disk(const fs::path& output) {
  fs::create_directories(output);
  if (::mount("none", output.c_str(), "tmpfs", 0, "size=16m") != 0)
    throw std::runtime_error(std::string("a file system cannot be mounted: ") + std::strerror(errno));
}

void unmount(const fs::path& output) { ::umount2(output.c_str(), MNT_DETACH); }

// Takes all space that is left, and gives it back when a save has failed.
void fill_disk(FaultJob& job, std::mt19937&) {
  if (!job.wait_for_steps(0)) return;
  const fs::path ballast = job.output() / "ballast";
  {
    std::ofstream file(ballast, std::ios::binary);
    const std::string block(1 << 12, 'x');
    while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
    }
  }
  job.wait_for_text("could not be saved");
  fs::remove(ballast);
}

}  // namespace

std::vector<FaultKindCase> all_fault_kinds() {
  return {
      {.name = "kill_rank",
       .words = kRestarts,
       .strike = signal_to(1, SIGKILL),
       .told = {"rank 1 was killed by signal 9 (SIGKILL)", "restart 1 of 3", "running again", "goodput"}},
      {.name = "kill_rank_0",
       .words = kRestarts,
       .strike = signal_to(0, SIGKILL),
       .told = {"rank 0 was killed by signal 9 (SIGKILL)", "restart 1 of 3"}},
      {.name = "kill_launcher",
       .strike =
           [](FaultJob& job, std::mt19937& random) {
             if (job.wait_for_steps(draw(random, 0, 1))) job.launcher().signal(SIGKILL);
           },
       .exit_code = 128 + SIGKILL,
       .equal = false},
      // Nobody is left to start it again but a person.
      {.name = "kill_launcher_resume",
       .strike =
           [](FaultJob& job, std::mt19937& random) {
             if (job.wait_for_text("saved ") && !job.wait_for_text(kNever, draw(random, 0, 0.5)))
               job.launcher().signal(SIGKILL);
           },
       .exit_code = 128 + SIGKILL,
       .again = {"--resume_from_checkpoint=auto"}},
      {.name = "kill_in_background_save",
       .words = {"--max_restarts=3", "--async_save", "--save_steps=1", "--save_total_limit=2"},
       .strike = signal_to(1, SIGKILL),
       .told = {"rank 1 was killed by signal 9 (SIGKILL)", "restart 1 of 3"}},
      {.name = "truncated_shard",
       .words = kRestarts,
       .strike = spoil_newest([](const fs::path& file) { fs::resize_file(file, fs::file_size(file) / 2); }),
       .told = {"is broken:", "restart 1 of 3"}},
      {.name = "flipped_bit",
       .words = kRestarts,
       .strike = spoil_newest(flip_bit),
       .told = {"is broken:", "restart 1 of 3"}},
      {.name = "full_disk",
       .words = {"--save_total_limit=1"},
       .strike = fill_disk,
       .prepare = mount_small_disk,
       .clean_up = unmount,
       .told = {"could not be saved", "No space left on device", "training continues"}},
      {.name = "torchrun",
       .strike = signal_to(1, SIGKILL),
       .prepare =
           [](const fs::path&) {
             if (python_with_torch().empty()) throw std::runtime_error("MEGALITH_PYTHON names no Python with torch");
           },
       .told = {"goodput"},
       .launcher = FaultLauncher::kTorchrun},
      {.name = "stop_rank",
       .words = kRestarts,
       .hangs = true,
       .strike = signal_to(1, SIGSTOP),
       .told = {"rank 1 was stopped (SIGSTOP)", "restart 1 of 3"}},
      {.name = "segfault",
       .words = kRestarts,
       .strike = signal_to(1, SIGSEGV),
       .told = {"rank 1 was killed by signal 11 (SIGSEGV)", "restart 1 of 3"}},
      {.name = "exception",
       .words = kRestarts,
       .simulated = "exception",
       .told = {"rank 1: simulated: an uncaught exception", "restart 1 of 3"}},
      {.name = "data_stuck",
       .words = kRestarts,
       .hangs = true,
       .simulated = "data_stuck",
       .told = {"rank 1 hangs: loading data", "restart 1 of 3"}},
      {.name = "collective_stuck",
       .words = kRestarts,
       .hangs = true,
       .simulated = "collective_stuck",
       .told = {"rank 1", "simulated: nobody else comes", "restart 1 of 3"}},
      {.name = "kernel_stuck",
       .words = kRestarts,
       .hangs = true,
       .simulated = "kernel_stuck",
       .told = {"rank 1 hangs: ", "restart 1 of 3"}},
      {.name = "save_stuck",
       .words = kRestarts,
       .hangs = true,
       .simulated = "save_stuck",
       .told = {"rank 1 hangs: in a save", "restart 1 of 3"}},
      {.name = "slow_rank", .words = {"--log_straggler"}, .strike = slow_down, .told = {"rank 1 is slow"}},
      // With blocks of its own for every tensor a rank meets the limit in its next step, and not in some later one
      // or never, when all it needs lies in blocks that it holds already.
      {.name = "memory",
       .words = kRestarts,
       .env = {{"MALLOC_MMAP_THRESHOLD_", "4096"}},
       .strike = limit_memory,
       .told = {"rank 1", "restart 1 of 3"}},
      // The NaN goes with the process: the other device, after the restart, computes something else.
      {.name = "nan_loss",
       .words = kRestarts,
       .simulated = "nan_loss",
       .exit_code = 17,
       .told = {"rank 1", "micro-batch ", "found NaN in local forward loss calculation", "the rerun gives the same",
                "exit code 16", "restart 1 of 3", "a persistent error of node", "exit code 17", "not started again"},
       .equal = false},
      {.name = "gradient_bit",
       .words = kRestarts,
       .simulated = "gradient_bit",
       .exit_code = 17,
       .told = {"rank 1", "in the local gradients of bucket", "a transient error", "not started again"},
       .equal = false},
  };
}

FaultKindCase repeated_kills(int times) {
  return {.name = "repeated_kills",
          // So many steps that all of it happens before the end.
          .words = {"--max_restarts=" + std::to_string(times + 5), "--max_steps=" + std::to_string(40 + 20 * times)},
          .strike =
              [times](FaultJob& job, std::mt19937& random) {
                for (int i = 0; i < times; ++i) {
                  if (i > 0 && !job.wait_for_text("restart " + std::to_string(i) + " of ")) return;
                  // The set-up, a step or a save: whatever it is doing then.
                  if (job.wait_for_text(kNever, draw(random, 0.25, 0.7))) return;
                  job.signal_rank(random() % 2, SIGKILL);
                }
              },
          .told = {"was killed by signal 9", "restart " + std::to_string(times) + " of ", "goodput"},
          .own_reference = true,
          .limit = std::chrono::seconds(120 + 10 * times)};
}

}  // namespace megalith::testing
