// Explains why a SplitRequest has no split, and what to change. The checks follow the three ways to steer a split: a
// layout (check_layout*), counts for the outer ranks (check_outer_counts), or neither (check_even). Where the layers do
// not divide, the message offers the values of pp that work and the balanced split as a layout to paste.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "megalith/base/text.h"
#include "megalith/layout/layer_split_internal.h"

namespace megalith::layout {
namespace {

using Problems = std::vector<std::string>;

// A limit far above any machine; products of two sizes then fit in 64 bits.
constexpr int kMaxStages = 1 << 20;

// Later checks divide and multiply by these, so they come first.
void check_sizes(const SplitRequest& r, Problems& out) {
  const auto look = [&](const char* what, int value, int least) {
    if (value < least || value > kMaxStages) {
      out.push_back(fmt::format("{} is {}; it must be a whole number from {} to {}", what, value, least, kMaxStages));
    }
  };
  look("num_layers", r.num_layers, 1);
  look("pp", r.pp, 1);
  look("vpp", r.vpp.value_or(1), 1);
  look("mtp_num_layers", r.mtp_layers, 0);
  look("decoder_first_pipeline_num_layers", r.first_rank_layers.value_or(1), 1);
  look("decoder_last_pipeline_num_layers", r.last_rank_layers.value_or(1), 1);
  if (out.empty() && int64_t{r.pp} * r.vpp.value_or(1) > kMaxStages) {
    out.push_back(fmt::format("pp*vpp = {}*{} is more than {} stages", r.pp, *r.vpp, kMaxStages));
  }
}

// At most one way to steer the split may be used.
void check_one_way(const SplitRequest& r, Problems& out) {
  const bool counts = r.first_rank_layers || r.last_rank_layers;
  const bool flags = r.account_for_embedding || r.account_for_loss;
  if (r.layout && (counts || flags)) {
    out.push_back(
        fmt::format("pipeline_model_parallel_layout excludes {}: the layout already places every layer. "
                    "Give one of them",
                    counts ? "decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers"
                           : "account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split"));
  }
  if (counts && flags) {
    out.emplace_back(
        "decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers exclude "
        "account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split: both say how full "
        "the outer stages are. Give one of them");
  }
  if (r.vpp.value_or(1) > 1 && r.pp == 1) {
    out.push_back(
        fmt::format("vpp={} was given although pp is 1: virtual stages interleave the ranks of a pipeline. "
                    "Leave vpp out or use pp > 1",
                    *r.vpp));
  }
}

// Returns the values of pp for which the even split works, in words.
std::string dividing_pp(const SplitRequest& r, int units) {
  const int vpp = r.vpp.value_or(1);
  std::vector<int> fitting;
  for (int pp = vpp > 1 ? 2 : 1; pp <= units; ++pp) {
    if (units % (int64_t{pp} * vpp) == 0) fitting.push_back(pp);
  }
  return fitting.empty() ? "no pp divides that" : fmt::format("pp can be {}", list_in_words(fitting));
}

// The split without any steering: the layers (plus accounted parts) must divide over all stages, unless balancing is
// allowed.
void check_even(const SplitRequest& r, Problems& out) {
  // The embedding and the head count as one layer each where the user says so.
  const int flags = (r.account_for_embedding ? 1 : 0) + (r.account_for_loss ? 1 : 0);
  const int units = r.num_layers + flags;
  const int stages = r.pp * r.vpp.value_or(1);
  const bool enough = units >= stages;
  if (units % stages == 0 || (r.uneven == UnevenSplit::kBalance && enough)) return;
  std::string text =
      flags == 0 ? fmt::format("num_layers={}", r.num_layers)
                 : fmt::format("num_layers={} plus {} accounted embedding/loss = {}", r.num_layers, flags, units);
  if (units % r.pp != 0) {
    text += fmt::format(" does not divide over pp={} ({:.4g} per rank)", r.pp, static_cast<double>(units) / r.pp);
  } else {
    text += fmt::format(" gives {} layers per rank, which do not divide over vpp={}", units / r.pp, *r.vpp);
  }
  text +=
      fmt::format(". {}{}", r.vpp.value_or(1) > 1 ? fmt::format("With vpp={}, ", *r.vpp) : "", dividing_pp(r, units));
  if (enough) {
    const PipelineLayout balanced(types_of_counts(balanced_counts(r), r.mtp_layers));
    text += fmt::format("; or write the split out, as balanced as possible: pipeline_model_parallel_layout='{}'",
                        balanced.text());
  }
  out.push_back(text);
}

// "decoder_first_pipeline_num_layers=4 and decoder_last_pipeline_num_layers=4"
std::string outer_counts(const SplitRequest& r) {
  Problems parts;
  if (r.first_rank_layers) parts.push_back(fmt::format("decoder_first_pipeline_num_layers={}", *r.first_rank_layers));
  if (r.last_rank_layers) parts.push_back(fmt::format("decoder_last_pipeline_num_layers={}", *r.last_rank_layers));
  return list_in_words(parts);
}

// The counts of the outer ranks must divide over their chunks, and what they leave must divide over the other ranks.
void check_outer_counts(const SplitRequest& r, Problems& out) {
  const int chunks = r.vpp.value_or(1);
  const auto outer = [&](const char* what, const std::optional<int>& layers) {
    if (layers && *layers % chunks != 0) {
      out.push_back(fmt::format("{}={} does not divide over vpp={} chunks. Use {} or {}", what, *layers, chunks,
                                std::max(*layers / chunks, 1) * chunks, (*layers / chunks + 1) * chunks));
    }
  };
  outer("decoder_first_pipeline_num_layers", r.first_rank_layers);
  outer("decoder_last_pipeline_num_layers", r.last_rank_layers);
  // Layers and ranks that are left after the outer ranks have taken theirs.
  const int rest = r.num_layers - r.first_rank_layers.value_or(0) - r.last_rank_layers.value_or(0);
  const int sharing = r.pp - (r.first_rank_layers ? 1 : 0) - (r.last_rank_layers ? 1 : 0);
  if (sharing < 0) {
    out.push_back(
        fmt::format("{} with pp=1: the only rank holds all {} layers. Leave both out", outer_counts(r), r.num_layers));
  } else if (rest < 0) {
    out.push_back(fmt::format("{} are more than num_layers={}. Lower them", outer_counts(r), r.num_layers));
    // Either layers without a rank, or ranks without a layer.
  } else if ((rest > 0) != (sharing > 0)) {
    out.push_back(fmt::format("{} leave {} of {} layers for {} other ranks of pp={}. {}", outer_counts(r), rest,
                              r.num_layers, sharing, r.pp,
                              sharing == 0 ? "The counts must add up to num_layers" : "Lower them or pp"));
  } else if (sharing > 0 && rest % (sharing * chunks) != 0) {
    const bool by_rank = rest % sharing != 0;
    out.push_back(fmt::format(
        "{} leave {} layers for {} other ranks{}, which does not divide. Choose counts that leave "
        "a multiple of {}, e.g. {}",
        outer_counts(r), rest, sharing, by_rank || chunks == 1 ? "" : fmt::format(" of vpp={} chunks", chunks),
        sharing * chunks, std::max(rest / (sharing * chunks), 1) * sharing * chunks));
  }
}

// The parts, read over all stages, must be E t… m… L with the right counts.
void check_layout_order(const SplitRequest& r, Problems& out) {
  std::string all;
  for (const std::string& stage : r.layout->stages()) all += stage;
  if (all.empty() || all.front() != kEmbeddingPart) out.emplace_back("the layout does not begin with the embedding E");
  if (all.empty() || all.back() != kLossPart) out.emplace_back("the layout does not end with the loss L");
  // Missing parts are reported by the checks of the first and last part above.
  const auto only_once = [&](char part, const char* what) {
    const int n = r.layout->count(part);
    if (n > 1) out.push_back(fmt::format("the layout names the {} {} {} times; it must name it once", what, part, n));
  };
  only_once(kEmbeddingPart, "embedding");
  only_once(kLossPart, "loss");
  const auto same_count = [&](char part, const char* what, int expected) {
    const int n = r.layout->count(part);
    if (n == expected) return;
    out.push_back(fmt::format("the layout has {} '{}' but {} is {}; they must be equal", n, part, what, expected));
  };
  same_count(kDecoderPart, "num_layers", r.num_layers);
  same_count(kMtpPart, "mtp_num_layers", r.mtp_layers);
  const size_t first_mtp = all.find(kMtpPart);
  if (first_mtp != std::string::npos && all.find(kDecoderPart, first_mtp) != std::string::npos) {
    out.emplace_back("a decoder layer t follows an mtp layer m; mtp layers come after all decoder layers");
  }
}

// The mtp layers must all be on one stage, which is the last chunk of its rank.
void check_layout_mtp_place(const SplitRequest& r, Problems& out) {
  const std::vector<std::string>& stages = r.layout->stages();
  // Stage s is chunk s / pp of rank s % pp, so the last chunks are the last pp stages.
  int holding = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    if (stages[s].find(kMtpPart) == std::string::npos) continue;
    ++holding;
    if (static_cast<int>(s) + r.pp < r.layout->num_stages()) {
      out.push_back(
          fmt::format("the layout puts an mtp layer on stage {}, which is not the last chunk of pipeline rank "
                      "{}; use one of the last {} stages",
                      s, static_cast<int>(s) % r.pp, r.pp));
    }
  }
  if (holding > 1) out.push_back(fmt::format("the mtp layers are spread over {} stages; put all on one", holding));
}

void check_layout(const SplitRequest& r, Problems& out) {
  const int stages = r.layout->num_stages();
  if (stages % r.pp != 0) {
    out.push_back(
        fmt::format("the layout has {} stages, which is not a multiple of pp={}. Write {} or {} stages (an empty "
                    "one is allowed)",
                    stages, r.pp, std::max(stages / r.pp, 1) * r.pp, (stages / r.pp + 1) * r.pp));
  } else {
    if (r.vpp && *r.vpp != stages / r.pp) {
      out.push_back(
          fmt::format("the layout has {} stages, so vpp is {} with pp={}, but vpp={} was given. Leave vpp out", stages,
                      stages / r.pp, r.pp, *r.vpp));
    }
    if (r.pp == 1 && stages > 1) {
      out.push_back(
          fmt::format("the layout has {} stages although pp is 1. Use pp={} or a single stage", stages, stages));
    }
    check_layout_mtp_place(r, out);
  }
  // The order of parts can be checked whatever the number of stages is.
  check_layout_order(r, out);
}

}  // namespace

std::vector<std::string> problems(const SplitRequest& request) {
  Problems out;
  check_sizes(request, out);
  if (!out.empty()) return out;
  check_one_way(request, out);
  if (request.layout) {
    check_layout(request, out);
  } else if (request.first_rank_layers || request.last_rank_layers) {
    check_outer_counts(request, out);
  } else if (out.empty()) {
    check_even(request, out);
  }
  return out;
}

}  // namespace megalith::layout
