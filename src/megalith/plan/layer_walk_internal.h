// What the layers of nn/ and model/ hold in forward and backward, tensor by tensor: these functions follow that code
// line by line, and change with it. tests/plan measures the difference.
//
// Legend: t tokens of a micro-batch on a rank, s those of its share (s = t without sequence parallelism), h hidden.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "megalith/plan/adapter_sizes.h"
#include "megalith/plan/memory_walk.h"
#include "megalith/plan/run_shape.h"

namespace megalith::plan {

// Sizes on one rank, as numbers to multiply.
struct LayerSizes {
  explicit LayerSizes(const RunShape& run);

  double t, s, h;
  double bytes;  // of an element
  double tp, cp;
  bool split_tokens;                     // sequence parallelism
  double q, k, v, out;                   // columns of queries, keys, values and of what attention gives
  double heads;                          // query heads
  double projected;                      // columns of the fused projection of queries, keys and values
  double shared_kv;                      // columns of all keys, where fewer of their heads than ranks are exchanged
  double forward_scratch, grad_scratch;  // bytes, of the attention kernel
  double stats;                          // bytes of a norm's statistics, a token
  double width, up;                      // columns behind and before the MLP's activation
  double dropout;                        // at the end of each branch
  Machinery machinery;
  bool accumulates;  // several micro-batches: gradients are added to what is there
  bool frozen;       // adapters are trained, weights are not
  double adapter_dropout;
  std::vector<LayerUpdates> updates;  // by layer; empty: none

  const LayerUpdates& updates_of(int64_t layer) const;

  double stream() const { return s * h * bytes; }  // of a tensor of the residual stream
  double whole() const { return t * h * bytes; }   // of one of all tokens
};

// What both branches of a layer, the embedding and the head share.
class WalkBase {
 public:
  WalkBase(const LayerSizes& sizes, MemoryWalk& walk) : z_(sizes), w_(walk) {}

 protected:
  void all_reduce(double bytes);
  void reduce_scatter(double bytes_in);
  // The product that becomes a weight's gradient; straight into the buffer on a GPU and in fp32.
  void weight_grad(double elements);
  void trained_grad(double elements);  // the same of what is trained in any case
  // An update's part of a layer of so many rows: x Aᵀ comes, and stays for backward; with dropout `mask` bytes, too.
  void update_forward(const UpdateSize& update, double rows, double mask, bool keep);
  // Its gradient comes, both go.
  void take_hidden_grad(const UpdateSize& update, double rows);
  void give_hidden(const UpdateSize& update, double rows, double mask);
  // Whether the input of a linear layer is needed in backward.
  bool keeps_input(const UpdateSize& update) const { return !z_.frozen || update.any(); }
  // Column-parallel: [s, in] -> [t, out]; the input stays the caller's.
  void column_forward(double in, double out);
  // The gradient [t, out] and the kept input [s, in] go, the gradient [s, in] comes, where it is wanted.
  void column_backward(double in, double out, double weight, const UpdateSize& update = {}, bool wanted = true);
  // Row-parallel: [t, in] -> [s, h] on the residual stream.
  void row_forward();
  // The gradient of the stream stays (it is the residual's, too); the gradient [t, in] comes. The kept input goes
  // unless others hold it.
  void row_backward(double in, double weight, bool give_input, double made_again = 0, const UpdateSize& update = {});
  void norm_forward(bool keep);
  // The gradient of the norm's output and the stream's become one; what the norm kept goes.
  void norm_backward(bool give_stream_grad, bool give_input);

  const LayerSizes& z_;
  MemoryWalk& w_;
  bool defer_ = false;             // weight gradients wait for their own action (zero bubble)
  bool stream_grad_held_ = false;  // by one that waits
  double deferred_ = 0;            // bytes that those hold meanwhile
  double leftover_ = 0;            // bytes that live as long as the graph
};

// Which tensors at the borders of a graph somebody else holds on to.
struct Borders {
  bool grad_held = false;   // the gradient that backward starts from
  bool input_held = false;  // the input of the first layer
};

// One transformer layer.
class LayerWalk : private WalkBase {
 public:
  // `bottom`: nothing below it is trained, and its input needs no gradient.
  LayerWalk(const RunShape& run, const LayerSizes& sizes, int64_t layer, MemoryWalk& walk, bool bottom = false);

  // The input [s, h] is there, and stays; the output comes. `keep`: for backward.
  void forward(bool keep);
  // The gradient of the output is there; that of the input comes in its place, and all that was kept goes.
  void backward(const Borders& borders);

  void defer_weight_gradients(bool on) { defer_ = on; }
  double take_deferred() { return std::exchange(deferred_, 0); }
  double take_leftover() { return std::exchange(leftover_, 0); }

 private:
  void attention_forward(bool keep);
  void attention_backward();
  void self_attention_forward(bool keep);
  void self_attention_backward();
  void latent_forward(bool keep);
  void latent_backward();
  void core_forward(bool keep);  // q, k and v are there
  void core_backward();          // the gradient of the output is there; those of q, k and v come
  void ring_forward(bool keep);
  void ring_backward();
  void mlp_forward(bool keep, double width);
  void mlp_backward(double width);
  void routing_forward(bool keep);
  void routing_backward();
  void experts_forward(bool keep);
  void experts_backward();
  void feed_forward(bool keep);  // MLP or experts, on what the norm gives
  void feed_backward();
  void moe_forward(bool keep);
  void moe_backward();
  void end_branch(bool keep);
  double up_of(double width) const { return z_.up / z_.width * width; }
  double kept_by_core() const;  // beside the output
  double kept_by_routing() const;
  bool keeps_norm_output() const;  // by the router or the shared experts
  // The activation of an MLP is computed again for what reads it in backward.
  bool remakes_activation() const;

  const RunShape& run_;
  const bool experts_, delta_;
  const bool ring_;         // keys and values travel, or are gathered
  const bool feeds_again_;  // the feed-forward part is recomputed
  const model::RecomputePlan& again_;
  const LayerUpdates& updates_;
  const bool bottom_;
};

}  // namespace megalith::plan
