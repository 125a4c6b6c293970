// The checks run in an order in which each relies only on what was proved before: first the answers of every group,
// then what uses them (gradient norm, files), and timing last. Findings of single ranks are exchanged as JSON over the
// world group, so that all ranks return the same outcome and take the same branches.
#include "megalith/train/layout_check.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "megalith/base/error.h"
#include "megalith/parallel/group_check.h"
#include "megalith/parallel/layout_groups.h"
#include "megalith/train/faults/norm_check.h"
#include "megalith/train/saving/save_check.h"

namespace megalith::train {

using parallel::GroupUse;
using parallel::ParallelContext;

namespace {

using LayoutJson = nlohmann::json;

constexpr int kCheckRounds = 2;  // the second round finds leftovers of the first in buffers
// Large enough to be limited by bandwidth, small enough to keep the check within seconds.
constexpr int64_t kCudaBytes = int64_t{64} << 20, kCpuBytes = int64_t{4} << 20;

// "?" for a machine without a name: it only appears in the report.
std::string machine_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

// Runs the checks in order and collects the report.
class LayoutChecker {
 public:
  LayoutChecker(const ParallelContext& context, const LayoutCheckOptions& options)
      : context_(context), options_(options), world_(context.world().world()) {}

  LayoutReport run() {
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<GroupUse> uses = parallel::groups_of_run(context_.grid());
    report_.hosts = named("names of machines", [&] { return world_.all_gather_bytes(machine_name(), "self-check"); });
    check_groups(uses);
    if (report_.ok()) {
      check_norm();
      check_files();
      time_groups(uses);
      time_pairs();
    }
    report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(report_);
  }

 private:
  // Runs one check: announces it, and puts its name in front of the message of any exception.
  template <typename Work>
  std::invoke_result_t<Work> named(const std::string& name, const Work& work) {
    if (context_.rank() == 0) options_.progress(name);
    try {
      return work();
    } catch (const comm::PeerFailure&) {
      throw;
    } catch (const std::exception& error) {
      throw CommError(fmt::format("doctor, {}: {}", name, error.what()));
    }
  }

  // Gives every rank the problems of all ranks, without duplicates.
  void agree(CheckOutcome outcome, const std::vector<std::string>& own_problems) {
    for (const std::string& rank_problems : world_.all_gather_bytes(LayoutJson(own_problems).dump(), "self-check"))
      for (const auto& problem : LayoutJson::parse(rank_problems).get<std::vector<std::string>>())
        if (std::ranges::find(outcome.problems, problem) == outcome.problems.end()) outcome.problems.push_back(problem);
    report_.outcomes.push_back(std::move(outcome));
  }

  // Problems are exchanged only after all groups were checked, because the world group, which carries them, is one of
  // them.
  void check_groups(const std::vector<GroupUse>& uses) {
    std::vector<std::pair<CheckOutcome, std::vector<std::string>>> results;
    for (const GroupUse& use : uses) {
      auto& [outcome, own_problems] =
          results.emplace_back(CheckOutcome{.name = "group " + use.name()}, std::vector<std::string>());
      named(outcome.name, [&] {
        const auto group = use.group(context_);
        for (int round = 0; group && round < kCheckRounds; ++round) {
          const parallel::GroupCheck result = parallel::check_group(*group, context_.device(), round);
          outcome.operations += result.operations;
          for (const parallel::WrongAnswer& wrong : result.wrong) own_problems.push_back(wrong.in_words());
        }
      });
    }
    named("answers of all groups", [&] {
      for (auto& [outcome, own_problems] : results) agree(std::move(outcome), own_problems);
    });
  }

  // Two operations: with and without the distributed optimizer; likewise a save and a load below.
  void check_norm() {
    named("gradient norm", [&] { agree({.name = "gradient norm", .operations = 2}, check_gradient_norm(context_)); });
  }

  void check_files() {
    named("save and load", [&] {
      const SaveCheck result = check_save_and_load(context_, options_.folder, report_.hosts);
      report_.saved_in = result.folder.string();
      report_.saved_bytes = result.bytes;
      report_.save_seconds = result.save_seconds;
      report_.load_seconds = result.load_seconds;
      agree({.name = "save and load", .operations = 2}, result.problems);
    });
  }

  int64_t large_bytes() const { return options_.bytes.value_or(context_.device().is_cuda() ? kCudaBytes : kCpuBytes); }

  // Groups of one kind are timed at the same time, as they would run in training.
  void time_groups(const std::vector<GroupUse>& uses) {
    std::vector<LinkRow> own_rows;
    for (const GroupUse& use : uses)
      named("speed of group " + use.name(), [&] {
        const auto group = use.group(context_);
        for (const parallel::TimedOp op : use.operations) {
          if (!group) continue;
          const auto time = parallel::time_operation(*group, op, use.large ? large_bytes() : 0, context_.device());
          if (group->rank() == 0) own_rows.push_back({use.name(), use.purpose, group->ranks(), op, time});
        }
        world_.barrier("self-check timing");  // keeps one kind from disturbing the next
      });
    named("speed of all groups", [&] { gather_links(uses, own_rows); });
  }

  // A list rather than an object: sender and receiver are the same program.
  static LayoutJson as_json(const LinkRow& row) {
    return {row.group,          row.purpose,    row.ranks,       static_cast<int>(row.operation),
            row.time.latency_s, row.time.bytes, row.time.seconds};
  }
  static LinkRow from_json(const LayoutJson& row) {
    return {.group = row[0],
            .purpose = row[1],
            .ranks = row[2].get<std::vector<int>>(),
            .operation = static_cast<parallel::TimedOp>(row[3].get<int>()),
            .time = {.latency_s = row[4], .bytes = row[5], .seconds = row[6]}};
  }

  // Orders the rows by kind of group, then by operation, on every rank.
  void gather_links(const std::vector<GroupUse>& uses, const std::vector<LinkRow>& own_rows) {
    LayoutJson rows = LayoutJson::array();
    for (const LinkRow& row : own_rows) rows.push_back(as_json(row));
    std::vector<LinkRow> all;
    for (const std::string& rank_rows : world_.all_gather_bytes(rows.dump(), "self-check"))
      for (const LayoutJson& row : LayoutJson::parse(rank_rows)) all.push_back(from_json(row));
    for (const GroupUse& use : uses)
      for (const parallel::TimedOp op : use.operations)
        for (const LinkRow& row : all)
          if (row.group == use.name() && row.operation == op) report_.links.push_back(row);
  }

  // Every pair of ranks, in rounds in which each rank has one partner, so that pairs do not share links.
  void time_pairs() {
    if (world_.size() == 1) return;
    named("speed of pairs of ranks", [&] {
      report_.pairs =
          parallel::time_pairs(world_, parallel::pair_rounds(report_.hosts), large_bytes(), context_.device());
      report_.pair_summaries = parallel::summarize_pairs(report_.pairs, report_.hosts);
    });
  }

  const ParallelContext& context_;
  const LayoutCheckOptions& options_;
  const comm::Group world_;
  LayoutReport report_;
};

}  // namespace

bool LayoutReport::ok() const {
  return std::ranges::all_of(outcomes, [](const CheckOutcome& outcome) { return outcome.problems.empty(); });
}

std::vector<std::string> LayoutReport::problems() const {
  std::vector<std::string> all;
  for (const CheckOutcome& outcome : outcomes) all.insert(all.end(), outcome.problems.begin(), outcome.problems.end());
  return all;
}

LayoutReport check_layout(const ParallelContext& context, const LayoutCheckOptions& options) {
  return LayoutChecker(context, options).run();
}

}  // namespace megalith::train
