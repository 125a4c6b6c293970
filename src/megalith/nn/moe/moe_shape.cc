// Every invalid setting gives one message, so that a user mends a configuration in one go.
#include "megalith/nn/moe/moe_shape.h"

#include <fmt/format.h>

namespace megalith::nn {

namespace {

// Collects the messages of requirements that are not met.
class Problems {
 public:
  template <typename... Args>
  void need(bool ok, fmt::format_string<Args...> message, Args&&... args) {
    if (!ok) found_.push_back(fmt::format(message, std::forward<Args>(args)...));
  }
  std::vector<std::string> take() { return std::move(found_); }

 private:
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> problems(const RouterShape& r) {
  Problems p;
  p.need(r.experts > 0, "the number of experts is {}; it must be at least 1", r.experts);
  p.need(r.topk > 0 && r.topk <= r.experts, "a token chooses {} of {} experts; it can choose from 1 to all of them",
         r.topk, r.experts);
  p.need(!r.expert_bias || r.score == ScoreFunction::kSigmoid,
         "moe_router_enable_expert_bias is set, but a bias on the choice of experts requires sigmoid scores; use"
         " moe_router_score_function sigmoid, or turn the bias off");
  p.need(r.groups > 0 && r.experts % std::max<int64_t>(r.groups, 1) == 0,
         "{} experts cannot form {} groups of equal size; use a number of groups that divides them", r.experts,
         r.groups);
  p.need(r.group_topk > 0 && r.group_topk <= r.groups,
         "a token may use {} of {} groups of experts; moe_router_group_topk must be from 1 to the number of groups",
         r.group_topk, r.groups);
  // Only with a valid number of groups: otherwise this would divide by zero or report a consequence.
  if (r.groups > 0 && r.experts % r.groups == 0)
    p.need(
        r.group_topk * (r.experts / r.groups) >= r.topk,
        "{} groups of {} experts hold fewer than the {} that a token chooses; use more groups (moe_router_group_topk)",
        r.group_topk, r.experts / r.groups, r.topk);
  p.need(!r.pad_to_capacity || r.capacity_factor,
         "moe_pad_expert_input_to_capacity is set without moe_expert_capacity_factor, which defines the capacity; set"
         " both, or turn padding off");
  p.need(!r.capacity_factor || *r.capacity_factor > 0, "moe_expert_capacity_factor is {}; it must be positive",
         r.capacity_factor.value_or(1));
  p.need(!r.sinkhorn || (!r.capacity_factor && r.losses.empty()),
         "moe_router_load_balancing_type sinkhorn already balances the load: it cannot be combined with"
         " moe_expert_capacity_factor or a balancing loss; remove these or choose another type");
  p.need(r.jitter >= 0 && r.jitter < 1, "moe_input_jitter_eps is {}; it must be in [0, 1)", r.jitter);
  return p.take();
}

// The router's problems first, since those of the sizes may follow from them.
std::vector<std::string> problems(const MoeShape& shape, int ep, int etp) {
  std::vector<std::string> all = problems(shape.router);
  Problems p;
  p.need(shape.router.experts % ep == 0,
         "{} experts cannot be shared out over expert_model_parallel_size {}; use a size that divides them",
         shape.router.experts, ep);
  p.need(shape.width > 0 && shape.width % etp == 0,
         "experts of width {} cannot be split over expert_tensor_parallel_size {}; use a size that divides it",
         shape.width, etp);
  p.need(!shape.shared_gate || shape.shared_width > 0, "there is a gate for shared experts, but there are none");
  for (std::string& message : p.take()) all.push_back(std::move(message));
  return all;
}

}  // namespace megalith::nn
