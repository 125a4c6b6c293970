// The split is a list of counts, one per global stage, and LayerSplit is its running sum. Three sources give counts: a
// layout string, counts for the first and last rank, or the balanced split, of which the even one is a special case.
// problems() (layer_split_problems.cc) has already rejected requests whose counts would not add up.
#include "megalith/layout/layer_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/layout/layer_split_internal.h"
#include "megalith/layout/problem_list_internal.h"

namespace megalith::layout {
namespace {

// Returns the virtual size of the split, from the layout if there is one.
std::optional<int> resolved_vpp(const SplitRequest& r) {
  if (r.vpp || !r.layout) return r.vpp;
  const int chunks = r.layout->num_stages() / r.pp;
  return chunks > 1 ? std::optional(chunks) : std::nullopt;
}

// Returns the layers of each rank over all its chunks when the first or the last rank has its own count.
std::vector<int> counts_by_rank(const SplitRequest& r) {
  const int rest = r.num_layers - r.first_rank_layers.value_or(0) - r.last_rank_layers.value_or(0);
  const int sharing = r.pp - (r.first_rank_layers ? 1 : 0) - (r.last_rank_layers ? 1 : 0);
  std::vector<int> counts(static_cast<size_t>(r.pp), sharing > 0 ? rest / sharing : 0);
  if (r.first_rank_layers) counts.front() = *r.first_rank_layers;
  if (r.last_rank_layers) counts.back() = *r.last_rank_layers;
  return counts;
}

// Returns the decoder layers of each global stage, for a request without problems.
std::vector<int> counts_by_stage(const SplitRequest& r) {
  if (r.layout) {
    std::vector<int> counts;
    for (const std::string& stage : r.layout->stages()) {
      counts.push_back(static_cast<int>(std::count(stage.begin(), stage.end(), kDecoderPart)));
    }
    return counts;
  }
  if (!r.first_rank_layers && !r.last_rank_layers) return balanced_counts(r);
  const int chunks = r.vpp.value_or(1);
  std::vector<int> counts;
  // Stage v * pp + rank: all ranks' first chunks come before their second ones.
  for (int v = 0; v < chunks; ++v) {
    for (int of_rank : counts_by_rank(r)) counts.push_back(of_rank / chunks);
  }
  return counts;
}

// Passes the request through, or throws with all its problems.
const SplitRequest& checked(const SplitRequest& request) {
  throw_if_any("impossible layer split", problems(request));
  return request;
}

}  // namespace

std::vector<int> balanced_counts(const SplitRequest& r) {
  const int units = r.num_layers + (r.account_for_embedding ? 1 : 0) + (r.account_for_loss ? 1 : 0);
  const int stages = r.pp * r.vpp.value_or(1);
  std::vector<int> counts(static_cast<size_t>(stages), units / stages);
  const int extra = units % stages;
  // Stages 1 … extra get one more as long as that leaves out the last, else all but the last. Neighboring global stages
  // are on different ranks, so ranks differ by at most one as well.
  const size_t first_extra = extra < stages - 1 ? 1 : 0;
  for (int& count : std::span(counts).subspan(first_extra, static_cast<size_t>(extra))) ++count;
  if (r.account_for_embedding) --counts.front();
  if (r.account_for_loss) --counts.back();
  return counts;
}

// {2, 2} with one mtp layer -> "Ett", "ttmL".
std::vector<std::string> types_of_counts(const std::vector<int>& counts, int mtp_layers) {
  std::vector<std::string> types;
  for (size_t s = 0; s < counts.size(); ++s) {
    std::string text = s == 0 ? std::string(1, kEmbeddingPart) : "";
    text.append(static_cast<size_t>(counts[s]), kDecoderPart);
    if (s + 1 == counts.size()) text.append(static_cast<size_t>(mtp_layers), kMtpPart).push_back(kLossPart);
    types.push_back(text);
  }
  return types;
}

std::vector<int> Stage::layers() const {
  std::vector<int> result(static_cast<size_t>(num_layers));
  std::iota(result.begin(), result.end(), offset);
  return result;
}

// The clamp keeps the invariant even if a count were wrong; the check below then reports it.
LayerSplit::LayerSplit(const SplitRequest& request)
    : num_layers_(checked(request).num_layers),
      pp_(request.pp),
      vpp_(resolved_vpp(request)),
      has_layout_(request.layout.has_value()) {
  const std::vector<int> counts = counts_by_stage(request);
  int next_layer = 0;
  for (int count : counts) {
    begins_.push_back(next_layer);
    next_layer = std::clamp(next_layer + count, next_layer, num_layers_);
  }
  types_ = has_layout_ ? request.layout->stages() : types_of_counts(counts, request.mtp_layers);
  check(static_cast<int>(counts.size()) == pp_ * chunks() && next_layer == num_layers_,
        "the split was planned for {} of {} layers on {} stages", next_layer, num_layers_, counts.size());
}

// Stage s is on rank s mod pp.
bool LayerSplit::mtp_standalone() const {
  for (size_t s = 0; s < types_.size(); ++s) {
    const bool on_last_rank = static_cast<int>(s) % pp_ == pp_ - 1;
    if (!on_last_rank && types_[s].find(kMtpPart) != std::string::npos) return true;
  }
  return false;
}

Stage LayerSplit::stage(int pp_rank, int vp_stage) const {
  check(pp_rank >= 0 && pp_rank < pp_ && vp_stage >= 0 && vp_stage < chunks(),
        "there is no stage (rank {}, chunk {}) in a split over {} ranks of {} chunks", pp_rank, vp_stage, pp_,
        chunks());
  const auto s = static_cast<size_t>(vp_stage) * static_cast<size_t>(pp_) + static_cast<size_t>(pp_rank);
  Stage result{pp_rank, vp_stage, begin_of(s), end_of(s) - begin_of(s), types_[s], {}};
  // All mtp layers are on one stage, so they are numbered from 0.
  result.mtp_layers.resize(static_cast<size_t>(std::count(result.types.begin(), result.types.end(), kMtpPart)));
  std::iota(result.mtp_layers.begin(), result.mtp_layers.end(), 0);
  return result;
}

// By rank and then by chunk, the order of the reference's golden files.
std::vector<Stage> LayerSplit::stages() const {
  std::vector<Stage> result;
  for (int p = 0; p < pp_; ++p) {
    for (int v = 0; v < chunks(); ++v) result.push_back(stage(p, v));
  }
  return result;
}

Stage LayerSplit::stage_of_layer(int layer) const {
  check(layer >= 0 && layer < num_layers_, "there is no layer {} in a model of {} layers", layer, num_layers_);
  // The last stage that begins at or before the layer; an empty stage begins where its successor does and precedes it.
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), layer);
  const int s = static_cast<int>(after - begins_.begin()) - 1;
  return stage(s % pp_, s / pp_);
}

PipelineLayout LayerSplit::to_layout() const { return PipelineLayout(types_); }

}  // namespace megalith::layout
