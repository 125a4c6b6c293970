// The text is for a terminal of about 110 columns. Losses are not shown: they mean nothing among stand-ins.
#include "megalith/run/rehearsal/rehearsal_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ranges>

#include "megalith/observe/units.h"
#include "megalith/plan/search.h"

namespace megalith::run {

namespace {

using nlohmann::ordered_json;

// "12.3 ms", "1.234 s".
std::string seconds_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", 1e3 * seconds) : fmt::format("{:.3f} s", seconds);
}

// "+4.6 %"; empty if there is nothing to compare with.
std::string difference(double rehearsed, double planned) {
  return planned > 0 ? fmt::format("{:+.1f} %", 100 * (rehearsed / planned - 1)) : "";
}

std::string row(const std::string& name, const std::string& rehearsed, const std::string& planned,
                const std::string& apart = "") {
  std::string line = fmt::format("{:<26} {:>12} {:>12} {:>10}", name, rehearsed, planned, apart);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string time_row(const std::string& name, double rehearsed, double planned, bool compare = false) {
  return row(name, seconds_text(rehearsed), seconds_text(planned), compare ? difference(rehearsed, planned) : "");
}

// Returns the share of the time of a group's operations for which the rank did not wait. Messages travel in both
// directions at once. 0 if the rank waited longer than they last, as for data that the CPU moves itself.
double hidden_share(const RehearsalResult& result, const std::string& group, double exposed_s) {
  double collectives = 0, sends = 0, receives = 0;
  for (const RehearsedOps& ops : result.communication) {
    if (ops.group != group) continue;
    (ops.kind == comm::OpKind::kSend ? sends : ops.kind == comm::OpKind::kRecv ? receives : collectives) += ops.lasts_s;
  }
  const double lasts = collectives + std::max(sends, receives);
  return lasts > exposed_s ? 1 - exposed_s / lasts : 0;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

// One line per group and kind; the time waited is that of the whole group and stands in its first line.
std::string communication_text(const RehearsalResult& result) {
  if (result.communication.empty()) return "";
  std::string text = fmt::format("\n{:<16} {:<15} {:>10} {:>12} {:>11} {:>11} {:>8}\n", "communication", "of a step",
                                 "operations", "bytes", "lasts", "exposed", "hidden");
  std::string last;
  for (const RehearsedOps& ops : result.communication) {
    const auto wait = result.waits.find(ops.group);
    const bool first = ops.group != last;
    const bool waited = first && wait != result.waits.end();
    std::string line = fmt::format("  {:<14} {:<15} {:>10g} {:>12} {:>11} {:>11} {:>8}", first ? ops.group : "",
                                   comm::to_string(ops.kind), ops.operations, observe::bytes_text(ops.bytes),
                                   seconds_text(ops.lasts_s), waited ? seconds_text(wait->second.exposed) : "",
                                   waited ? percent(hidden_share(result, ops.group, wait->second.exposed)) : "");
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    last = ops.group;
  }
  return text;
}

std::string headline(const RehearsalRequest& request) {
  const layout::RankPlace& place = request.place;
  const plan::Candidate layout{.run = request.shape, .time = {}, .memory = {}};
  const plan::Cluster& cluster = request.choice.cluster;
  return fmt::format(
      "rank {} of {} (tp {}, pp {}, cp {}, dp {}) on {}: {}\nlinks of {}, {} per node; mean of {} step{}\n\n",
      request.rank, request.choice.world_size, place.tp_rank, place.pp_rank, place.cp_rank, place.dp_rank,
      request.device.str(), layout.text(), cluster.gpu, cluster.gpus_per_node, request.choice.steps,
      request.choice.steps == 1 ? "" : "s");
}

// Kinds of work by their names, and the costliest kernels, in seconds; only operators on the CPU.
ordered_json profile_json(const std::filesystem::path& file, const observe::ProfileRecord& record) {
  constexpr size_t kRows = 20;
  constexpr double kNano = 1e-9;
  const observe::DeviceProfile device = observe::profile_device(record.device);
  ordered_json json{{"file", file.string()},
                    {"device_s", kNano * static_cast<double>(device.window_ns)},
                    {"idle_s", kNano * static_cast<double>(device.idle_ns)},
                    {"exposed_s", kNano * static_cast<double>(device.exposed_ns)},
                    {"kinds_s", ordered_json::object()},
                    {"kernels", ordered_json::array()},
                    {"operators", ordered_json::array()}};
  for (size_t kind = 0; kind < observe::kWorkKinds; ++kind)
    if (device.busy_ns[kind] > 0)
      json["kinds_s"][observe::name(static_cast<observe::WorkKind>(kind))] =
          kNano * static_cast<double>(device.busy_ns[kind]);
  for (const observe::KernelCost& cost : device.kernels | std::views::take(kRows))
    json["kernels"].push_back(
        {{"name", cost.name}, {"calls", cost.calls}, {"seconds", kNano * static_cast<double>(cost.total_ns)}});
  for (const observe::OperatorCost& cost : observe::profile_host(record.host) | std::views::take(kRows))
    json["operators"].push_back(
        {{"name", cost.name}, {"calls", cost.calls}, {"own_s", kNano * static_cast<double>(cost.self_ns)}});
  return json;
}

}  // namespace

std::string rehearsal_text(const RehearsalRequest& request, const RehearsalResult& result) {
  const plan::StepTime& planned = result.planned;
  std::string text = headline(request);
  text += row("", "rehearsed", "planned");
  text += time_row("step", result.step_s, planned.total(), /*compare=*/true);
  text += time_row("  computation and update", result.compute_s(), planned.compute() + planned.optimizer);
  text += time_row("  exposed communication", result.exposed_s, planned.exposed());
  text += time_row("  pipeline bubble", result.bubble_s, planned.bubble);
  text +=
      row("peak memory", observe::bytes_text(result.peak_bytes()), observe::bytes_text(result.planned_memory.peak()),
          difference(result.peak_bytes(), result.planned_memory.peak()));
  // The rank's part of the step's useful work, if all others take as long, over the peak of the cluster's GPU.
  if (request.device.is_cuda() && planned.peak_flops > 0)
    text += row("MFU", percent(result.mfu()), percent(planned.mfu()));
  // The rehearsal lets all stages take as long as this one, and so does the plan beside it.
  if (result.planned_run_s > 1.005 * planned.total())
    text += fmt::format("another stage has more work than stage {}: a step of the run is planned to take {}\n",
                        request.place.pp_rank, seconds_text(result.planned_run_s));
  text += communication_text(result);
  if (!request.choice.trace.empty())
    text += fmt::format("\ntrace of the last step: {}\n", request.choice.trace.string());
  if (result.profile)
    text += fmt::format("\nprofile of one more step: {}\n{}", request.choice.profile.string(),
                        observe::text_of(*result.profile, /*steps=*/1, request.device.is_cuda()));
  // The plan is for the cluster's GPUs, so computation can be compared only on one of them.
  if (request.device.is_cuda() != request.choice.cluster.cuda)
    text +=
        fmt::format("\ncomputation was rehearsed on {} and planned for {}: compare communication and memory alone\n",
                    request.device.is_cuda() ? "a GPU" : "the CPU", request.choice.cluster.gpu);
  return text;
}

ordered_json rehearsal_json(const RehearsalRequest& request, const RehearsalResult& result) {
  const plan::StepTime& planned = result.planned;
  ordered_json json{{"rank", request.rank},
                    {"stage", request.place.pp_rank},
                    {"world_size", request.choice.world_size},
                    {"device", request.device.str()},
                    {"cluster", request.choice.cluster.gpu},
                    {"steps", request.choice.steps},
                    {"rehearsed",
                     {{"step_s", result.step_s},
                      {"compute_s", result.compute_s()},
                      {"exposed_s", result.exposed_s},
                      {"bubble_s", result.bubble_s},
                      {"mfu", result.mfu()},
                      {"making", result.making_bytes},
                      {"peak", result.peak_bytes()}}},
                    {"planned",
                     {{"step_s", planned.total()},
                      {"compute_s", planned.compute() + planned.optimizer},
                      {"exposed_s", planned.exposed()},
                      {"bubble_s", planned.bubble},
                      {"mfu", planned.mfu()},
                      {"run_step_s", result.planned_run_s},
                      {"making", result.planned_memory.making},
                      {"peak", result.planned_memory.peak()}}},
                    {"communication", ordered_json::array()},
                    {"waits", ordered_json::object()}};
  for (const RehearsedOps& ops : result.communication)
    json["communication"].push_back({{"group", ops.group},
                                     {"kind", comm::to_string(ops.kind)},
                                     {"operations", ops.operations},
                                     {"bytes", ops.bytes},
                                     {"lasts_s", ops.lasts_s}});
  for (const auto& [group, wait] : result.waits)
    json["waits"][group] = {{"exposed_s", wait.exposed}, {"for_peers_s", wait.for_peers}};
  if (result.profile) json["profile"] = profile_json(request.choice.profile, *result.profile);
  return json;
}

std::string rehearsal_line(const RehearsalResult& result) {
  return fmt::format("{} per step rehearsed, {} planned ({}); {} rehearsed, {} planned ({})",
                     seconds_text(result.step_s), seconds_text(result.planned.total()),
                     difference(result.step_s, result.planned.total()), observe::bytes_text(result.peak_bytes()),
                     observe::bytes_text(result.planned_memory.peak()),
                     difference(result.peak_bytes(), result.planned_memory.peak()));
}

}  // namespace megalith::run
