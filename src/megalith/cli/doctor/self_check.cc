// Renders a train::LayoutReport. JSON has every group and pair; the table for people shows the slowest group of each
// kind, since groups of one kind do the same work and a step waits for the slowest.
#include "megalith/cli/doctor/self_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "megalith/base/text.h"
#include "megalith/observe/units.h"
#include "megalith/train/layout_check.h"

namespace megalith::cli {

namespace {

using nlohmann::ordered_json;
using parallel::PairSummary;
using train::LayoutReport;
using train::LinkRow;

constexpr double kGiga = 1e9;  // as nccl-tests counts
// A broken link makes every operation over it fail; twenty lines show the pattern.
constexpr size_t kShownProblems = 20;

// Returns "[0,1] [2,3] … (64 groups)".
std::string shown_groups(const std::vector<std::vector<int>>& groups, size_t limit) {
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min(limit, groups.size()); ++i)
    words.push_back(fmt::format("[{}]", fmt::join(groups[i], ",")));
  if (groups.size() > limit) words.push_back(fmt::format("… ({} groups)", groups.size()));
  return fmt::format("{}", fmt::join(words, " "));
}

// ---- JSON ----

// The fields that a report and a failure share.
ordered_json json_head(const parallel::ParallelContext& context, bool ok) {
  ordered_json json{{"world_size", context.world().size()},
                    {"backend", context.world().backend()},
                    {"device", context.device().str()},
                    {"ok", ok}};
  for (const auto kind : context.grid().kinds())
    json["groups"][std::string(layout::name(kind))] = context.grid().groups(kind);
  return json;
}

// Barriers move no bytes and have a latency only. "Bus" bandwidth counts what the wires carry, so that operations and
// group sizes are comparable: 2 (n-1)/n of the message for an all-reduce.
ordered_json json_of(const LinkRow& row) {
  ordered_json json{{"group", row.group},
                    {"purpose", row.purpose},
                    {"ranks", row.ranks},
                    {"operation", to_string(row.operation)},
                    {"latency_us", row.time.latency_s * 1e6}};
  if (row.time.bytes == 0) return json;
  json["bytes"] = row.time.bytes;
  json["microseconds"] = row.time.seconds * 1e6;
  json["algorithm_gb_per_s"] = row.time.algorithm_bandwidth() / kGiga;
  json["bus_gb_per_s"] = row.time.bus_bandwidth(row.operation, static_cast<int>(row.ranks.size())) / kGiga;
  return json;
}

ordered_json json_of(const parallel::PairSpeed& pair, const std::vector<std::string>& hosts) {
  return {{"ranks", pair.ranks},
          {"machines", {hosts.at(pair.ranks.first), hosts.at(pair.ranks.second)}},
          {"gb_per_s", pair.bytes_per_second / kGiga}};
}

ordered_json json_of(const PairSummary& summary, const std::vector<std::string>& hosts) {
  return {{"between_machines", summary.between_machines}, {"pairs", summary.pairs},
          {"median_gb_per_s", summary.median / kGiga},    {"slowest", json_of(summary.slowest, hosts)},
          {"share_of_median", summary.slowest_share()},   {"suspicious", summary.suspicious()}};
}

// Everything that was measured, group by group, for programs that compare machines.
ordered_json json_of(const LayoutReport& report, const parallel::ParallelContext& context) {
  ordered_json json = json_head(context, report.ok());
  json["machines"] = report.hosts;
  json["checks"] = ordered_json::array();
  for (const train::CheckOutcome& outcome : report.outcomes)
    json["checks"].push_back({{"name", outcome.name},
                              {"ok", outcome.problems.empty()},
                              {"operations", outcome.operations},
                              {"problems", outcome.problems}});
  json["links"] = ordered_json::array();
  for (const LinkRow& row : report.links) json["links"].push_back(json_of(row));
  json["pairs"] = ordered_json::array();
  for (const parallel::PairSpeed& pair : report.pairs) json["pairs"].push_back(json_of(pair, report.hosts));
  json["slowest_pairs"] = ordered_json::array();
  for (const PairSummary& summary : report.pair_summaries)
    json["slowest_pairs"].push_back(json_of(summary, report.hosts));
  json["checkpoint"] = {{"folder", report.saved_in},
                        {"bytes", report.saved_bytes},
                        {"save_seconds", report.save_seconds},
                        {"load_seconds", report.load_seconds}};
  json["seconds"] = report.seconds;
  return json;
}

// ---- For people ----

// At most eight groups of each kind, which is enough to see how ranks are numbered.
void print_layout(const parallel::ParallelContext& context) {
  const auto& grid = context.grid();
  const auto& shape = grid.shape();
  fmt::print("{} ranks over {} on {}: tp={} pp={} cp={} dp={}, experts: etp={} ep={} edp={}\n\n", grid.world_size(),
             context.world().backend(), context.device().str(), shape.tp, shape.pp, shape.cp, grid.dp(), grid.etp(),
             shape.ep, grid.edp());
  fmt::print("{:<20} {}\n", "group", "ranks");
  for (const auto kind : grid.kinds())
    fmt::print("{:<20} {}\n", layout::name(kind), shown_groups(grid.groups(kind), 8));
}

// Returns the slowest group of each kind and operation. Rows of one kind and operation are neighbors in `links`, so
// comparing with the last one is enough.
std::vector<LinkRow> slowest_of_each_kind(const std::vector<LinkRow>& links) {
  std::vector<LinkRow> slowest;
  const auto cost = [](const LinkRow& row) { return row.time.bytes > 0 ? row.time.seconds : row.time.latency_s; };
  for (const LinkRow& row : links) {
    if (slowest.empty() || slowest.back().group != row.group || slowest.back().operation != row.operation)
      slowest.push_back(row);
    else if (cost(row) > cost(slowest.back()))
      slowest.back() = row;
  }
  return slowest;
}

void print_links(const std::vector<LinkRow>& links) {
  if (links.empty()) return;
  fmt::print("\n{:<15} {:<24} {:<15} {:>10} {:>10} {:>10} {:>10} {:>10}  {}\n", "group", "for", "operation",
             "latency µs", "message", "time µs", "algo GB/s", "bus GB/s", "slowest group");
  for (const LinkRow& row : slowest_of_each_kind(links)) {
    const parallel::LinkTime& time = row.time;
    fmt::print("{:<15} {:<24} {:<15} {:>10.1f} ", row.group, row.purpose, to_string(row.operation),
               time.latency_s * 1e6);
    if (time.bytes > 0)
      fmt::print("{:>10} {:>10.0f} {:>10.2f} {:>10.2f}  ", observe::bytes_text(static_cast<double>(time.bytes)),
                 time.seconds * 1e6, time.algorithm_bandwidth() / kGiga,
                 time.bus_bandwidth(row.operation, static_cast<int>(row.ranks.size())) / kGiga);
    else
      fmt::print("{:>10} {:>10} {:>10} {:>10}  ", "", "", "", "");
    fmt::print("{}\n", shown_groups({row.ranks}, 1));
  }
}

// Names the slowest pair within and between machines: a bad cable or switch port shows as one slow pair.
void print_pairs(const LayoutReport& report) {
  for (const PairSummary& summary : report.pair_summaries) {
    const auto [a, b] = summary.slowest.ranks;
    fmt::print(
        "\n{} pairs of ranks {}: median {:.2f} GB/s each way. Slowest: rank {} ({}) and rank {} ({}) with {:.2f}"
        " GB/s, {:.0f} % of the median.\n",
        summary.pairs, summary.between_machines ? "between machines" : "inside machines", summary.median / kGiga, a,
        report.hosts.at(a), b, report.hosts.at(b), summary.slowest.bytes_per_second / kGiga,
        100 * summary.slowest_share());
    if (summary.suspicious())
      fmt::print("  → less than half of the median: test the link between these two, or leave one of them out\n");
  }
}

// If everything is right, one sentence says so; otherwise every check gets a line.
void print_report(const LayoutReport& report, const parallel::ParallelContext& context) {
  print_layout(context);
  fmt::print("\n");
  if (report.ok()) {
    fmt::print(
        "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast and send/recv are right in every group.\n");
    fmt::print("The gradient norm is right. A checkpoint of {} was saved in {:.2f} s and read in {:.2f} s, below {}.\n",
               observe::bytes_text(static_cast<double>(report.saved_bytes)), report.save_seconds, report.load_seconds,
               report.saved_in);
  } else {
    for (const train::CheckOutcome& outcome : report.outcomes)
      fmt::print("{:<20} {}\n", outcome.name,
                 outcome.problems.empty() ? "right" : fmt::format("FAILED ({} problems)", outcome.problems.size()));
  }
  print_links(report.links);
  print_pairs(report);
  fmt::print("\n{:.2f} s in all\n", report.seconds);
}

// On stderr, so that a table or JSON on stdout stays readable.
void print_problems(const LayoutReport& report) {
  for (const train::CheckOutcome& outcome : report.outcomes) {
    for (size_t i = 0; i < std::min(kShownProblems, outcome.problems.size()); ++i)
      fmt::print(stderr, "megalith: doctor, {}: {}\n", outcome.name, outcome.problems[i]);
    if (outcome.problems.size() > kShownProblems)
      fmt::print(stderr, "megalith: doctor, {}: … ({} problems)\n", outcome.name, outcome.problems.size());
  }
}

// Prints the reason why the check ended, for programs that read stdout.
void print_failure_object(const parallel::ParallelContext& context, const std::string& reason) {
  ordered_json json = json_head(context, /*ok=*/false);
  json["failed"] = reason;
  fmt::print("{}\n", json.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  std::fflush(stdout);
}

}  // namespace

bool print_self_check(const parallel::ParallelContext& context, const SelfCheckOptions& options) {
  const bool speaks = context.rank() == 0;
  train::LayoutCheckOptions checks{.bytes = options.bytes, .folder = options.folder};
  // check_layout() calls it on rank 0 only.
  checks.progress = [](const std::string& step) { fmt::print(stderr, "doctor: {}\n", step); };
  LayoutReport report;
  try {
    report = train::check_layout(context, checks);
    // A collective that times out ends the check; programs still get an object, and the caller the error.
  } catch (const std::exception& error) {
    if (speaks && options.json) print_failure_object(context, error.what());
    throw;
  }
  if (!speaks) return report.ok();
  if (options.json)
    fmt::print("{}\n", json_of(report, context).dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  else
    print_report(report, context);
  std::fflush(stdout);
  print_problems(report);
  return report.ok();
}

}  // namespace megalith::cli
