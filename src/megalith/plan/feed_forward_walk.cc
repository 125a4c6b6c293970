// The feed-forward part of a layer, and the layer: nn/mlp.cc, nn/moe, model/transformer_block.cc.
#include <cmath>

#include "megalith/plan/layer_walk_internal.h"

namespace megalith::plan {

LayerWalk::LayerWalk(const RunShape& run, const LayerSizes& sizes, int64_t layer, MemoryWalk& walk, bool bottom)
    : WalkBase(sizes, walk),
      run_(run),
      experts_(run.model->is_moe(layer)),
      delta_(run.model->is_delta_net(layer)),
      ring_(run.grid.cp > 1),
      feeds_again_(experts_ ? run.options.recompute.moe : run.options.recompute.mlp),
      again_(run.options.recompute),
      updates_(sizes.updates_of(layer)),
      bottom_(bottom) {}

void LayerWalk::forward(bool keep) {
  attention_forward(keep);
  if (bottom_ && keep) w_.give(z_.stream());  // its input: nobody needs it any more
  norm_forward(keep);
  feed_forward(keep && !feeds_again_);
  end_branch(keep);
  if (!keep) w_.give(z_.stream());  // between the branches
}

void LayerWalk::backward(const Borders& borders) {
  if (again_.norms && (experts_ || keeps_input(updates_.up))) w_.take(z_.stream());
  if (z_.dropout > 0) w_.take(z_.stream());
  if (feeds_again_) {
    feed_forward(/*keep=*/true);
    w_.take(z_.stream());  // the residual's gradient, for itself
  }
  feed_backward();
  if (feeds_again_) w_.give(2 * z_.stream());
  if (z_.dropout > 0) w_.give(z_.stream() + z_.s * z_.h);
  norm_backward(!borders.grad_held, true);
  attention_backward();
  if (bottom_)
    w_.give(z_.stream());  // the stream's gradient ends here
  else
    norm_backward(true, !borders.input_held);
}

// The branch's result is on the stream; dropout makes a new one of it.
void LayerWalk::end_branch(bool keep) {
  if (z_.dropout > 0) {
    w_.take(z_.stream());
    if (keep) w_.take(z_.s * z_.h);
    w_.give(z_.stream());
  }
  if (!keep || again_.norms) w_.give(z_.stream());  // what the norm gave
}

void LayerWalk::feed_forward(bool keep) {
  if (experts_)
    moe_forward(keep);
  else
    mlp_forward(keep, z_.width);
}

void LayerWalk::feed_backward() {
  if (experts_)
    moe_backward();
  else
    mlp_backward(z_.width);
}

void LayerWalk::mlp_forward(bool keep, double width) {
  const double b = z_.t * z_.bytes;
  column_forward(z_.h, up_of(width));
  update_forward(updates_.up, z_.t, z_.stream(), keep);
  if (keep && !experts_ && !keeps_input(updates_.up) && !again_.norms) w_.give(z_.stream());
  w_.take(b * width);
  row_forward();
  update_forward(updates_.down, z_.t, b * width, keep);
  if (!keep || remakes_activation() || !keeps_input(updates_.down)) w_.give(b * width);
  if (!keep) w_.give(b * up_of(width));
}

bool LayerWalk::remakes_activation() const {
  return again_.mlp_activation || (!run_.model->gated_mlp && !z_.machinery.cuda);
}

void LayerWalk::mlp_backward(double width) {
  const double b = z_.t * z_.bytes, up = up_of(width);
  const bool remakes = remakes_activation(), reads = keeps_input(updates_.down);
  row_backward(width, width * z_.h, !remakes && reads, remakes && reads ? b * width : 0, updates_.down);
  w_.take(b * up);
  w_.give(b * width);
  if (remakes)
    leftover_ += b * up;  // the function that computes the activation again holds it
  else
    w_.give(b * up);
  column_backward(z_.h, up, up * z_.h, updates_.up);
}

// What the router keeps: scores over all experts, and the choice.
double LayerWalk::kept_by_routing() const {
  const nn::RouterShape& router = run_.model->moe->router;
  const auto experts = static_cast<double>(router.experts), choices = static_cast<double>(router.topk);
  const bool widened = router.dtype && *router.dtype != run_.options.dtype;
  const double scores = 4 * ((router.pre_softmax || router.score == nn::ScoreFunction::kSigmoid ? 1 : 0) +
                             (router.losses.empty() ? 0 : 1));
  return z_.s * (experts * scores + choices * 20 + (widened ? z_.h * (*router.dtype == at::kDouble ? 8 : 4) : 0));
}

void LayerWalk::routing_forward(bool keep) {
  w_.take(kept_by_routing());
  w_.touch(z_.s * static_cast<double>(run_.model->moe->router.experts) * 16, Use::kWorkspace);
  if (!keep) w_.give(kept_by_routing());
}

void LayerWalk::routing_backward() {
  const nn::RouterShape& router = run_.model->moe->router;
  const double wide = router.dtype && *router.dtype != run_.options.dtype ? 4 : z_.bytes;
  w_.touch(z_.s * (static_cast<double>(router.experts) * 12 + z_.h * (wide + (wide == z_.bytes ? 0 : z_.bytes))),
           Use::kWorkspace);
  w_.give(kept_by_routing());
}

namespace {

// The experts of a layer on a rank, and the rows that reach them when all are equally busy.
struct ExpertSizes {
  double rows;           // tokens' copies: sent, and received
  double width, up;      // of an expert on this rank
  bool travels, sorted;  // rows go to other ranks; come for several experts
  bool gathers;          // all tokens come, in place of those that are needed
  bool local;            // rows are made again in backward, and weighed before the projection down (nn::LocalRows)
  double members;

  explicit ExpertSizes(const RunShape& run) {
    const nn::MoeShape& moe = *run.model->moe;
    const nn::RouterShape& router = moe.router;
    const double etp = run.grid.expert_tp();
    rows = run.shard_tokens() * static_cast<double>(router.topk) * etp;
    if (router.capacity_factor && (router.pad_to_capacity || *router.capacity_factor < 1))
      rows = static_cast<double>(router.experts) * etp *
             std::ceil(run.shard_tokens() * static_cast<double>(router.topk) / static_cast<double>(router.experts) *
                       *router.capacity_factor);
    width = static_cast<double>(moe.width) / etp;
    up = width * (run.model->gated_mlp ? 2 : 1);
    members = run.grid.ep * etp;
    travels = members > 1;
    sorted = router.experts / run.grid.ep > 1;
    gathers = run.options.moe.dispatcher == nn::MoeOptions::Dispatcher::kAllGather;
    local = run.machinery.cuda && !travels && !router.capacity_factor;
  }
  // Of the lists that say where each row comes from.
  double map_bytes() const { return 8 * rows * (!gathers && travels && sorted ? 4 : 2); }
};

}  // namespace

void LayerWalk::experts_forward(bool keep) {
  const ExpertSizes x(run_);
  const double rows = x.rows * z_.h * z_.bytes, b = x.rows * z_.bytes;
  const double all = x.members * z_.stream();
  if (x.gathers && x.travels) w_.take(all, Use::kCommunication);
  w_.take(rows);
  if (x.gathers && x.travels) w_.give(all, Use::kCommunication);
  if (!x.gathers && x.travels) {
    w_.touch(rows, Use::kCommunication);  // on arrival; what was sent goes
    if (x.sorted) w_.touch(rows);
  }
  w_.take(b * x.up);
  update_forward(updates_.experts_up, x.rows, rows, keep);
  w_.take(b * x.width);
  w_.take(rows);
  update_forward(updates_.experts_down, x.rows, b * x.width, keep);
  if (x.gathers) {
    w_.take(x.travels ? all : z_.stream(), Use::kCommunication);
    w_.take(z_.stream());
    if (x.travels) reduce_scatter(all);
    w_.touch(z_.stream());
    w_.give(x.travels ? all : z_.stream(), Use::kCommunication);
  } else {
    if (x.travels && x.sorted) w_.take(rows);
    if (x.travels) w_.take(rows, Use::kCommunication);
    if (x.travels && x.sorted) w_.give(rows);
    w_.take(z_.stream());
    if (x.travels) w_.give(rows, Use::kCommunication);
  }
  if (!keep) return w_.give(2 * rows + b * (x.up + x.width));
  if (x.local) w_.give(2 * rows);
  if (run_.options.moe.recompute_activation) w_.give(b * x.width);
  w_.take(x.map_bytes());
}

void LayerWalk::experts_backward() {
  const ExpertSizes x(run_);
  const double rows = x.rows * z_.h * z_.bytes, b = x.rows * z_.bytes;
  const bool again = run_.options.moe.recompute_activation;
  const double all = x.members * z_.stream();
  if (x.gathers && x.travels) w_.take(all, Use::kCommunication);
  w_.take(rows);
  if (!x.local) w_.give(rows);  // what the sum has kept
  if (x.gathers && x.travels) w_.give(all, Use::kCommunication);
  if (!x.gathers && x.travels) {
    w_.touch(rows, Use::kCommunication);
    if (x.sorted) w_.touch(rows);
  }
  if (again) w_.touch(b * x.width, Use::kWorkspace);
  weight_grad(x.width * z_.h);
  take_hidden_grad(updates_.experts_down, x.rows);
  w_.take(b * x.width);
  give_hidden(updates_.experts_down, x.rows, b * x.width);
  if (defer_)
    deferred_ += rows + (again ? 0 : b * x.width);
  else
    w_.give(rows + (again ? 0 : b * x.width));
  w_.take(b * x.up);
  w_.give(b * x.width);
  if (again)
    leftover_ += b * x.up;  // the function that computes the activation again holds it
  else
    w_.give(b * x.up);
  if (x.local && !defer_) w_.take(rows);
  weight_grad(x.up * z_.h);
  take_hidden_grad(updates_.experts_up, x.rows);
  w_.take(rows);
  give_hidden(updates_.experts_up, x.rows, rows);
  if (defer_)
    deferred_ += (x.local ? 0 : rows) + b * x.up;
  else
    w_.give(rows + b * x.up);
  if (!x.gathers && x.travels) {
    if (x.sorted) w_.touch(rows);
    w_.touch(rows, Use::kCommunication);
  }
  if (x.gathers && x.travels) w_.touch(all, Use::kCommunication);
  w_.take(z_.stream());
  w_.give(rows);
  leftover_ += x.map_bytes();
}

void LayerWalk::moe_forward(bool keep) {
  const double shared = static_cast<double>(run_.model->moe->shared_width) / z_.tp;
  routing_forward(keep);
  if (shared > 0) mlp_forward(keep && !run_.options.moe.recompute_shared, shared);
  experts_forward(keep);
  if (shared > 0) w_.give(z_.stream());  // the residual with the shared experts in it
  if (keep && !keeps_norm_output()) w_.give(z_.stream());
}

// The norm's output, which all of them read, goes with the last reader; their gradients become one.
void LayerWalk::moe_backward() {
  const double shared = static_cast<double>(run_.model->moe->shared_width) / z_.tp;
  experts_backward();
  if (shared > 0) {
    if (run_.options.moe.recompute_shared) {
      mlp_forward(/*keep=*/true, shared);
      w_.give(z_.stream());
    }
    mlp_backward(shared);
  }
  routing_backward();
  if (keeps_norm_output()) w_.give(z_.stream());
}

// A frozen router does not need it, and the experts' updates need the rows that were made of it.
bool LayerWalk::keeps_norm_output() const { return !z_.frozen || again_.norms || run_.model->moe->shared_width > 0; }

}  // namespace megalith::plan
