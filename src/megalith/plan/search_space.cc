// Nested loops over the sizes, outermost first: tp, cp, pp, then ep and etp for models with experts, then chunks. Each
// loop offers only sizes that divide what is left of the GPUs and of the model, so that little is built in vain. A size
// that the user gave replaces its loop.
#include "megalith/plan/search_space_internal.h"

#include <algorithm>

#include "megalith/model/block_parts.h"

namespace megalith::plan {

namespace {

// Bounds beyond which no run is sensible; they keep a search over thousands of GPUs short.
constexpr int kMaxTp = 16;
constexpr int kMaxPp = 64;
constexpr int kMaxCp = 64;
constexpr int kMaxChunks = 8;
constexpr int64_t kLeastCpTokens = 2048;  // per rank and sequence: a ring does not pay off with fewer

// Returns the divisors of `number` up to `limit`, in order.
std::vector<int> divisors(int64_t number, int limit) {
  std::vector<int> result;
  for (int i = 1; i <= std::min<int64_t>(number, limit); ++i)
    if (number % i == 0) result.push_back(i);
  return result;
}

// A size that the user gave stands for all sizes.
std::vector<int> given_or(const std::optional<int>& given, std::vector<int> otherwise) {
  return given ? std::vector<int>{*given} : std::move(otherwise);
}

class Space {
 public:
  explicit Space(const SearchRequest& request) : request_(request), model_(*request.model) {}

  std::vector<LayoutChoice> all() {
    const GivenLayout& given = request_.given;
    for (const int tp : given_or(given.tp, tp_sizes()))
      for (const int cp : given_or(given.cp, cp_sizes(tp)))
        for (const int pp : given_or(given.pp, pp_sizes(tp * cp)))
          if (request_.gpus % (tp * cp * pp) == 0) add_experts({.tp = tp, .cp = cp, .pp = pp});
    return std::move(choices_);
  }

 private:
  std::vector<int> tp_sizes() const {
    std::vector<int> sizes;
    // Tensor parallelism communicates in every layer: it should stay within a node.
    const int most = std::min(kMaxTp, std::max(8, request_.cluster.gpus_per_node));
    for (const int tp : divisors(request_.gpus, most))
      if (model::tensor_parallel_problems(model_, tp).empty()) sizes.push_back(tp);
    return sizes;
  }
  // Powers of two whose zigzag halves are equal and long enough, and which the model allows beside tp.
  std::vector<int> cp_sizes(int tp) const {
    std::vector<int> sizes{1};
    for (int cp = 2; cp <= kMaxCp && request_.sequence_length / cp >= kLeastCpTokens; cp *= 2)
      if (request_.gpus % cp == 0 && request_.sequence_length % (2 * cp) == 0 &&
          model::context_parallel_problems(model_, tp, cp).empty())
        sizes.push_back(cp);
    return sizes;
  }
  std::vector<int> pp_sizes(int others) const {
    if (request_.gpus % others != 0) return {};
    return divisors(request_.gpus / others, static_cast<int>(std::min<int64_t>(kMaxPp, model_.num_layers)));
  }

  // Experts divide the ranks of a stage in their own way: ep * etp * edp = tp * cp * dp. etp is 1 or tp, the two
  // useful cases.
  void add_experts(LayoutChoice choice) {
    if (!model_.moe) {
      choice.ep = 1;
      choice.etp = choice.tp;
      return add_chunks(choice);
    }
    const GivenLayout& given = request_.given;
    const int ranks = request_.gpus / choice.pp;
    for (const int ep : given_or(given.ep, divisors(model_.moe->router.experts, ranks)))
      for (const int etp : given_or(given.etp, choice.tp == 1 ? std::vector{1} : std::vector{1, choice.tp})) {
        if (ranks % (ep * etp) != 0 || model_.moe->width % etp != 0) continue;
        choice.ep = ep;
        choice.etp = etp;
        add_chunks(choice);
      }
  }

  void add_chunks(LayoutChoice choice) {
    std::vector<int> sizes{1};
    // Chunks are tried only where all of them get the same number of layers.
    for (int vpp = 2; vpp <= kMaxChunks && choice.pp > 1; ++vpp)
      if (model_.num_layers % (int64_t{choice.pp} * vpp) == 0) sizes.push_back(vpp);
    for (const int vpp : given_or(request_.given.vpp, sizes)) {
      choice.vpp = vpp;
      // Keeps only the leanest form; ways_of() expands those that turn out to be fast.
      const auto ways = ways_of(request_, choice);
      if (!ways.empty()) choices_.push_back(ways.front());
    }
  }

  const SearchRequest& request_;
  const model::ModelConfig& model_;
  std::vector<LayoutChoice> choices_;
};

}  // namespace

std::vector<LayoutChoice> ways_of(const SearchRequest& request, LayoutChoice sizes) {
  using enum RecomputeChoice;
  const auto kinds = request.given.recompute ? std::vector{kAsGiven} : std::vector{kNone, kSelective, kFull};
  std::vector<LayoutChoice> ways;
  for (const int micro : given_or(request.given.micro_batch, {1, 2, 4, 8})) {
    const int64_t together = int64_t{micro} * sizes.dp(request.gpus);
    if (request.global_batch % together != 0) continue;
    // The interleaved schedule needs a multiple of pp micro-batches.
    if (sizes.vpp > 1 && request.global_batch / together % sizes.pp != 0) continue;
    sizes.micro_batch = micro;
    for (const RecomputeChoice kind : kinds) {
      sizes.recompute = kind;
      ways.push_back(sizes);
    }
  }
  return ways;
}

std::vector<LayoutChoice> layout_choices(const SearchRequest& request) { return Space(request).all(); }

}  // namespace megalith::plan
