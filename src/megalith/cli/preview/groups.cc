// `megalith preview groups`: shows every process group of a layout and how the data-parallel sizes follow. Layouts of
// millions of ranks are shown, too: the table asks for single groups only, and JSON is appended to a string directly.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "megalith/base/error.h"
#include "megalith/cli/preview/preview_internal.h"
#include "megalith/config/derive.h"
#include "megalith/layout/rank_grid.h"

namespace megalith::cli {

namespace {

using layout::GroupKind;
using layout::RankGrid;

// The first part is the usage line; "Parallel layout" is the topic of options that --help adds.
constexpr PreviewUsage kPreviewGroupsUsage{
    "megalith preview groups --world-size N [--tp N] [--pp N] [--cp N] [--ep N] [--etp N] [--json]\n\n"
    "The process groups of a layout: how many of each kind, which ranks, what for; DP and EDP.",
    "Parallel layout"};

// Says in short what a group is used for.
const char* purpose(GroupKind kind) {
  // The words of the column "used for"; they must stay within its width.
  switch (kind) {
    case GroupKind::kDpCp:
      return "dense gradients, optimizer shards, mean loss";
    case GroupKind::kIntraDpCp:
      return "dp_cp within one optimizer instance";
    case GroupKind::kDp:
      return "who reads which samples";
    case GroupKind::kCp:
      return "attention over one sequence, its loss and token count";
    case GroupKind::kTpPp:
      return "one copy of the dense model";
    case GroupKind::kTp:
      return "layer collectives, vocabulary loss, batch broadcast";
    case GroupKind::kPp:
      return "activations and gradients between stages";
    case GroupKind::kEmbedding:
      return "tied word embeddings: gradient sum";
    case GroupKind::kPositionEmbedding:
      return "position embeddings: gradient sum";
    case GroupKind::kTpDpCp:
      return "all ranks of one stage";
    case GroupKind::kTpDp:
      return "tp_dp_cp at one place of the sequence";
    case GroupKind::kTpCp:
      return "all tokens of one sample: router statistics";
    case GroupKind::kEp:
      return "tokens to their experts: all-to-all";
    case GroupKind::kEtp:
      return "collectives inside an expert";
    case GroupKind::kTpEp:
      return "all experts of a layer: all-gather of tokens";
    case GroupKind::kTpEpPp:
      return "one copy of the experts";
    case GroupKind::kEdp:
      return "expert gradients, optimizer shards";
    case GroupKind::kIntraEdp:
      return "edp within one optimizer instance";
    case GroupKind::kInterEdp:
      return "the same optimizer shard in every instance";
    case GroupKind::kIntraDistOpt:
      return "all ranks of one optimizer instance";
    default:
      return "one level of hierarchical cp";
  }
}

// Returns the grid of the options, with --order if given; that option is for this preview only.
layout::GridShape requested_shape(const config::TrainingArguments& args, int world_size,
                                  const std::optional<std::string>& order) {
  layout::GridShape shape = config::grid_shape(args, world_size);
  check<ConfigError>(!order || !args.parallel.use_tp_pp_dp_mapping,
                     "order {} and use_tp_pp_dp_mapping both say how ranks are numbered; keep one of them",
                     order.value_or(""));
  if (order) shape.order = *order;
  return shape;
}

// Returns the groups to show: all, or the one that a rank is in (none if it is in no group, as with `embedding`).
std::vector<std::vector<int>> chosen_groups(const RankGrid& grid, GroupKind kind, const std::optional<int>& rank) {
  if (!rank) return grid.groups(kind);
  std::vector<int> group = grid.group_of(kind, *rank);
  if (group.empty()) return {};
  return {std::move(group)};
}

// Written by hand, because a tree of JSON objects is slow for a million numbers.
void append_json(std::string& text, const std::vector<std::vector<int>>& groups) {
  text += '[';
  for (const std::vector<int>& group : groups) {
    text += '[';
    for (const int member : group) {
      const fmt::format_int digits(member);
      text.append(digits.data(), digits.size());
      text += ',';
    }
    text.back() = ']';  // no group is empty
    text += ',';
  }
  if (groups.empty())
    text += ']';
  else
    text.back() = ']';
}

// One kind per line, so that a reader of a large layout can search it with line tools.
std::string groups_json(const RankGrid& grid, const std::optional<int>& rank) {
  const layout::GridShape& shape = grid.shape();
  std::string text = fmt::format(
      R"({{"world_size":{},"tp":{},"pp":{},"cp":{},"ep":{},"etp":{},"dp":{},"edp":{},"order":"{}",)", shape.world_size,
      shape.tp, shape.pp, shape.cp, shape.ep, grid.etp(), grid.dp(), grid.edp(), shape.order);
  // Optional sizes appear only where they are given, as in the golden files.
  if (shape.vpp) text += fmt::format(R"("vpp":{},)", *shape.vpp);
  if (shape.num_distributed_optimizer_instances > 1)
    text += fmt::format(R"("instances":{},)", shape.num_distributed_optimizer_instances);
  if (!shape.hierarchical_cp.empty()) text += fmt::format(R"("hcp":[{}],)", fmt::join(shape.hierarchical_cp, ","));
  if (rank) text += fmt::format(R"("rank":{},)", *rank);
  text += "\n\"groups\":{";
  for (const GroupKind kind : grid.kinds()) {
    text += fmt::format("\n\"{}\":", layout::name(kind));
    append_json(text, chosen_groups(grid, kind, rank));
    text += ',';
  }
  text.back() = '}';
  return text + "}\n";
}

// Shows the two equations of a layout with their numbers: for dense layers and for experts.
std::string sizes_text(const RankGrid& grid) {
  const layout::GridShape& s = grid.shape();
  const int n = s.world_size, etp = grid.etp();
  std::string text = fmt::format("{} ranks, order {} (fastest first)\n", n, s.order);
  text += fmt::format("  dense:  N = TP*CP*PP*DP   = {}*{}*{}*{} = {}, so DP  = {}/({}*{}*{}) = {}\n", s.tp, s.cp, s.pp,
                      grid.dp(), n, n, s.tp, s.cp, s.pp, grid.dp());
  text += fmt::format("  expert: N = ETP*EP*PP*EDP = {}*{}*{}*{} = {}, so EDP = {}/({}*{}*{}) = {}\n", etp, s.ep, s.pp,
                      grid.edp(), n, n, etp, s.ep, s.pp, grid.edp());
  if (s.vpp) text += fmt::format("  vpp {}: no groups of its own\n", *s.vpp);
  if (s.num_distributed_optimizer_instances > 1)
    text += fmt::format("  {} optimizer instances: intra_* groups lie within one, inter_edp joins them\n",
                        s.num_distributed_optimizer_instances);
  return text;
}

// Explains why the widely printed formula N = TP*PP*CP*EP*DP does not hold.
std::string why_not_one_product(const RankGrid& grid) {
  const layout::GridShape& s = grid.shape();
  const int stage_ranks = s.world_size / s.pp;
  const double divided = static_cast<double>(grid.dp()) / s.ep;
  // The wrong formula gives a familiar number in this one case, which is why it is so widely believed.
  const bool is_edp = s.cp == 1 && grid.etp() == s.tp;
  std::string text = fmt::format(
      "\nWhy not N = TP*PP*CP*EP*DP? The experts have no ranks of their own. They are carved out of the ranks of the "
      "dense grid:\n  ETP*EP*EDP = TP*CP*DP in each pipeline stage, here {}*{}*{} = {}*{}*{} = {} ranks.\n",
      grid.etp(), s.ep, grid.edp(), s.tp, s.cp, grid.dp(), stage_ranks);
  text +=
      fmt::format("Dividing by EP as well gives {}/({}*{}*{}*{}) = {:g}, which is not DP = {}{}.\n", s.world_size, s.tp,
                  s.pp, s.cp, s.ep, divided, grid.dp(), is_edp ? " (it is EDP, only because CP = 1 and ETP = TP)" : "");
  text += fmt::format("Samples are divided over DP = {}; gradients and optimizer state of the experts over EDP = {}.\n",
                      grid.dp(), grid.edp());
  return text;
}

// Returns the first groups, as many as fit on a line.
std::string some_groups(const RankGrid& grid, GroupKind kind) {
  constexpr size_t kLineLength = 40;
  // Asks for one group at a time: a layout of a million ranks has as many tp groups.
  const int count = grid.group_count(kind);
  std::string text;
  for (int index = 0; index < count; ++index) {
    if (text.size() > kLineLength) return text + " …";
    std::vector<int> group = grid.group(kind, index);
    std::ranges::sort(group);
    text += fmt::format("{}[{}]", index == 0 ? "" : " ", in_ranges(group));
  }
  return text;
}

// The size is that of the first group; groups of one kind are equally large.
std::string all_groups_table(const RankGrid& grid) {
  std::string text = fmt::format("\n{:<18} {:>6} {:>6}  {:<54} {}\n", "kind", "groups", "size", "used for", "ranks");
  for (const GroupKind kind : grid.kinds())
    text += fmt::format("{:<18} {:>6} {:>6}  {:<54} {}\n", layout::name(kind), grid.group_count(kind),
                        grid.group(kind, 0).size(), purpose(kind), some_groups(grid, kind));
  return text;
}

// The position of the rank within each group is its rank in that group's collectives.
std::string rank_table(const RankGrid& grid, int rank) {
  // Runs of consecutive ranks that are shown before the middle is left out.
  constexpr size_t kRuns = 8;
  std::string text =
      fmt::format("\nrank {}\n{:<18} {:>6} {:>6}  {:<54} {}\n", rank, "kind", "place", "size", "used for", "ranks");
  for (const GroupKind kind : grid.kinds()) {
    std::vector<int> group = grid.group_of(kind, rank);
    std::ranges::sort(group);
    const auto place = grid.group_rank(kind, rank);
    text += fmt::format("{:<18} {:>6} {:>6}  {:<54} {}\n", layout::name(kind), place ? fmt::format("{}", *place) : "-",
                        group.size(), purpose(kind),
                        place ? fmt::format("[{}]", in_ranges(group, kRuns)) : "(not a member)");
  }
  return text;
}

// Returns --rank if it is a rank of the layout.
std::optional<int> checked_rank(const std::optional<int64_t>& rank, int world_size) {
  if (!rank) return std::nullopt;
  check<ConfigError>(*rank >= 0 && *rank < world_size, "rank is {}; with world_size {} it must be from 0 to {}", *rank,
                     world_size, world_size - 1);
  return static_cast<int>(*rank);
}

}  // namespace

int preview_groups(Words words) {
  std::optional<int64_t> world_size, given_rank;
  std::optional<std::string> order;
  const auto input =
      read_preview(kPreviewGroupsUsage, words,
                   {{"world_size", "number of ranks", &world_size},
                    {"order", "axes from fastest to slowest varying with the rank (default tp-cp-ep-dp-pp)", &order},
                    {"rank", "show the groups of this rank only", &given_rank}});
  if (!input) return kDone;
  const RankGrid grid(requested_shape(input->args, checked_world_size(world_size), order));
  const std::optional<int> rank = checked_rank(given_rank, grid.world_size());
  if (input->json) {
    write_stdout(groups_json(grid, rank));
    return kDone;
  }
  std::string text = sizes_text(grid) + (rank ? rank_table(grid, *rank) : all_groups_table(grid));
  // Without experts the two equations are one, and the question does not arise.
  if (grid.shape().ep > 1) text += why_not_one_product(grid);
  write_stdout(text);
  return kDone;
}

}  // namespace megalith::cli
