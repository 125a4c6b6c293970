// WorkMeter: receives the work of a layer. A footprint calls it with sizes; the planner, which knows the speeds of a
// cluster, converts them to seconds.
#pragma once

#include <initializer_list>

namespace megalith::nn {

class PartFootprint;

// The products of queries with keys and of probabilities with values on one rank.
struct CoreWork {
  double q = 0, kv = 0, out = 0;  // columns of queries, of keys and values together, and of the result
  double heads = 0;
  double window = 0;  // tokens that a query sees; 0 means all before it
};

// Work of one micro-batch on one rank. Each call covers forward and backward: a product stands for itself and its two
// gradients.
class WorkMeter {
 public:
  virtual ~WorkMeter() = default;

  // [rows, in] times a weight [out, in].
  virtual void product(double rows, double out, double in) = 0;
  // A column-parallel product h -> up and a row-parallel product down -> h, with the collectives of tensor parallelism
  // around them.
  virtual void branch(double up, double down) = 0;
  // The collectives of such a branch alone, where nothing hides them.
  virtual void stream_collectives() = 0;
  // The products of `groups` experts, one after another or in one kernel; `rows` is the total over all groups.
  struct Weight {
    double out = 0, in = 0;
  };
  virtual void grouped_products(double groups, double rows, std::initializer_list<Weight> weights) = 0;
  virtual void core_attention(const CoreWork& work) = 0;
  // One memory-bound operation; bytes are read plus written.
  virtual void moves(double forward_bytes, double backward_bytes) = 0;
  // Operations so small that only their launch counts; `count` per direction.
  virtual void launches(double count) = 0;
  // Rows of so many bytes in total that travel to the ranks of their experts and back.
  virtual void expert_exchange(double bytes) = 0;
  // Columns of so many bytes in total, for which context-parallel ranks trade their tokens (or the other way round);
  // their gradients travel back in backward.
  virtual void head_exchange(double bytes) = 0;
  // A part nested in this one.
  virtual void part(const PartFootprint& inner) = 0;
};

}  // namespace megalith::nn
