// `megalith doctor`: reports what this machine has and lacks; with --nproc N, checks whether N ranks can work together;
// with --measure, times them for the planner. The first needs no ranks and never fails: each finding carries its own
// advice.
#include <ATen/Context.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/statvfs.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/cli/byte_size.h"
#include "megalith/cli/command.h"
#include "megalith/cli/doctor/measure.h"
#include "megalith/cli/doctor/self_check.h"
#include "megalith/comm/world.h"
#include "megalith/config/derive.h"
#include "megalith/config/help_and_yaml.h"
#include "megalith/config/validate.h"
#include "megalith/io/file_io.h"
#include "megalith/parallel/gpu_count.h"
#include "megalith/run/launch_flags.h"
#include "megalith/run/rank_main.h"
#include "megalith/run/resolve/runtime_settings.h"

namespace megalith::cli {

namespace {

// One line of the report.
struct Finding {
  std::string topic, value;
  std::string advice;  // remedy if something is missing; empty if all is well
};

// Returns a line of /proc/meminfo, which is in kilobytes, as GiB.
double memory_gib(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  for (std::string key, line; file >> key && std::getline(file, line);)
    if (key == name + ":") return std::stod(line) / (1 << 20);
  return 0;
}

// Returns the network interfaces that are up: NCCL_SOCKET_IFNAME takes one of these names.
std::string interfaces() {
  std::set<std::string> names;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "unknown";
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next)
    if ((i->ifa_flags & IFF_UP) != 0) names.insert(i->ifa_name);
  freeifaddrs(list);
  return fmt::format("{}", fmt::join(names, ", "));
}

// Returns the space that a user without privileges may use; 0 if the file system does not say.
double free_disk_gib(const char* path) {
  struct statvfs status {};
  return statvfs(path, &status) == 0
             ? static_cast<double>(status.f_bavail) * static_cast<double>(status.f_frsize) / (1 << 30)
             : 0;
}

// Distinguishes a CPU build on a machine with GPUs, one without, and a CUDA build that sees no GPU: the advice differs.
Finding cuda_finding() {
  if (!comm::nccl_available()) {
    const auto gpus = parallel::usable_gpus(parallel::gpu_device_folder(), env_exact("CUDA_VISIBLE_DEVICES"));
    if (gpus)
      return {"CUDA", fmt::format("this build is for the CPU; the machine has {}, which it cannot use", *gpus),
              "run `make build` again: it builds for GPUs, or says what is missing (nvcc, a CUDA libtorch)"};
    return {"CUDA", "this build is for the CPU",
            "for GPUs run `make build` on a machine with an NVIDIA GPU and the CUDA toolkit"};
  }
  const auto devices = at::hasCUDA() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount()) : 0;
  if (devices == 0) return {"CUDA", "no GPU is visible", "check nvidia-smi, the driver and CUDA_VISIBLE_DEVICES"};
  return {"CUDA", fmt::format("{} GPU{}", devices, devices == 1 ? "" : "s"), ""};
}

// Looks at this process's machine only, and starts nothing.
std::vector<Finding> examine() {
  const double free_gib = memory_gib("MemAvailable");
  std::vector<Finding> findings;
  findings.push_back({"megalith", MEGALITH_VERSION, ""});
  findings.push_back({"libtorch", TORCH_VERSION, ""});
  findings.push_back(
      {"CPU", fmt::format("{} cores, {}", std::thread::hardware_concurrency(), at::get_cpu_capability()), ""});
  findings.push_back({"memory", fmt::format("{:.1f} GiB, {:.1f} free", memory_gib("MemTotal"), free_gib),
                      free_gib < 1 ? "less than 1 GiB is free: training will not fit" : ""});
  const double disk_gib = free_disk_gib(".");
  findings.push_back({"disk", fmt::format("{:.1f} GiB free in this folder", disk_gib),
                      disk_gib < 1 ? "less than 1 GiB is free: choose another output_dir" : ""});
  findings.push_back(cuda_finding());
  findings.push_back({"backends", comm::nccl_available() ? "gloo, nccl" : "gloo", ""});
  findings.push_back({"network", interfaces(), ""});
  const comm::Rendezvous rendezvous = comm::rendezvous_from_env();
  findings.push_back({"launcher",
                      rendezvous.alone()
                          ? rendezvous.source
                          : fmt::format("{}: rank {} of {}, store at {}:{}", rendezvous.source, rendezvous.rank,
                                        rendezvous.world_size, rendezvous.master_addr, rendezvous.master_port),
                      ""});
  return findings;
}

// Advice follows its finding after an arrow, or as a field of the same object.
int print_findings(bool json) {
  const auto findings = examine();
  if (json) {
    nlohmann::ordered_json object;
    for (const Finding& finding : findings) {
      object[finding.topic] = {{"value", finding.value}};
      if (!finding.advice.empty()) object[finding.topic]["advice"] = finding.advice;
    }
    fmt::print("{}\n", object.dump());
    return kDone;
  }
  for (const Finding& finding : findings) {
    fmt::print("{:<10} {}\n", finding.topic, finding.value);
    if (!finding.advice.empty()) fmt::print("{:<10} → {}\n", "", finding.advice);
  }
  fmt::print(
      "\nmegalith doctor --nproc 4 --tp 2 … checks that ranks on this machine can work together in that layout, and how"
      " fast.\n");
  return kDone;
}

// All ranks measure; the first writes. The file is replaced atomically.
void write_measured(parallel::ParallelContext& context, const std::optional<std::string>& output) {
  const std::string yaml = plan::to_yaml(measure_machine(context));
  if (context.rank() != 0) return;
  if (output)
    io::replace_text_file(*output, yaml);
  else
    fmt::print("{}", yaml);
}

// Returns output_dir if the user gave it; its default is meant for runs.
std::optional<std::filesystem::path> chosen_folder(const config::ParseResult& parsed) {
  const bool given =
      std::ranges::any_of(parsed.report.uses, [](const config::OptionUse& use) { return use.name == "output_dir"; });
  return given ? parsed.args.save.output_dir : std::nullopt;
}

// Returns the size of large messages; std::nullopt for the default of the device.
std::optional<int64_t> message_bytes(const std::optional<std::string>& size) {
  if (!size) return std::nullopt;
  // More would measure the allocator and not the links.
  constexpr uint64_t kLargest = uint64_t{16} << 30;
  const uint64_t bytes = parse_byte_size("size", *size);
  check<ConfigError>(bytes <= kLargest, "size is \"{}\"; a message of the self-check has at most 16GiB", *size);
  return static_cast<int64_t>(bytes);
}

// Refuses options that belong to the other mode: the self-check or --measure.
void check_doctor_settings(bool measure, const std::optional<std::string>& output,
                           const std::optional<std::string>& size, bool json) {
  check<ConfigError>(measure || !output, "--output is the cluster file of --measure; give both, or neither");
  check<ConfigError>(!measure || !size, "--measure chooses its sizes itself; leave out --size");
  check<ConfigError>(!measure || !json, "--measure writes YAML; leave out --json");
}

}  // namespace

// Three modes in one command: findings without ranks, a self-check with them, and --measure with or without.
int run_doctor(Words words) {
  run::LaunchFlags launch;
  bool json = false, help = false, measure = false;
  std::optional<std::string> output, size;
  auto own = launch.options();
  own.push_back({"size", "of large messages: 64MiB, 1GB, … (64MiB on GPUs, 4MiB on the CPU)", &size});
  own.push_back({"measure", "time products, attention, memory and links, and write a cluster file for plan", &measure});
  own.push_back({"output", "with measure: the file (stdout)", &output});
  own.push_back({"json", "print one JSON object", &json});
  own.push_back({"help", "print this text", &help});
  const auto parsed = config::parse_arguments(config::Dialect::kTrain, words, own);
  if (help) {
    fmt::print(
        "megalith doctor [--json]\n"
        "megalith doctor --nproc N [--tp N --pp N --cp N --ep N …] [--size SIZE] [--output_dir DIR] [--json]\n"
        "megalith doctor --measure [--nproc N] [--output cluster.yaml]\n\n"
        "What this machine has and lacks; with several ranks (--nproc, torchrun, srun, mpirun) whether they work "
        "together"
        " in that layout: every\noperation of every group, the gradient norm, a save and a load (in output_dir, or a"
        " folder for temporary files), and how fast the links are.\n\n{}",
        config::help_text(config::Dialect::kTrain, "parallel", own));
    return kDone;
  }
  parsed.report.check_not_refused();
  check_doctor_settings(measure, output, size, json);
  SelfCheckOptions check_options{.json = json, .bytes = message_bytes(size), .folder = chosen_folder(parsed)};
  // Without ranks there is nothing to check but the machine itself.
  if (!measure && !launch.nproc && comm::rendezvous_from_env().alone()) return print_findings(json);
  launch.check(parsed.args.comm);
  config::validate(parsed.args, {.world_size = launch.world().size, .needs_inputs = false});
  const parallel::RuntimeSettings runtime = run::runtime_settings(parsed.args, launch.world());
  return launch.run([&] {
    bool ok = true;
    const int code = run::run_as_rank(runtime, [&](parallel::ParallelContext& context) {
      if (measure)
        write_measured(context, output);
      else
        ok = print_self_check(context, check_options);
    });
    // A layout that computes wrong results is a failure of the command, although nothing was thrown.
    return code == kDone && !ok ? kFailed : code;
  });
}

}  // namespace megalith::cli
