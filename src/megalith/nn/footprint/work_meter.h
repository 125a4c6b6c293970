// WorkMeter: what a layer states about its time. A footprint calls it with sizes; the planner, which knows the speeds
// of a cluster, makes seconds of them.
#pragma once

#include <initializer_list>

namespace megalith::nn {

class PartFootprint;

// The product of queries with keys and of probabilities with values, on one rank.
struct CoreWork {
  double q = 0, kv = 0, out = 0;  // columns: of queries, of keys and values together, of the result
  double heads = 0;
  double window = 0;  // tokens that a query sees; 0 means all before it
};

// Work of one micro-batch on one rank, forward and backward at once: a product has two gradients.
class WorkMeter {
 public:
  virtual ~WorkMeter() = default;

  // [rows, in] times a weight [out, in].
  virtual void product(double rows, double out, double in) = 0;
  // A column-parallel product h -> up and a row-parallel one down -> h, with the collectives of tensor parallelism
  // around both.
  virtual void branch(double up, double down) = 0;
  // The collectives of such a branch alone, where nothing hides them.
  virtual void stream_collectives() = 0;
  // The products of `groups` experts one after the other, or in one kernel; `rows` are those of all groups.
  struct Weight {
    double out = 0, in = 0;
  };
  virtual void grouped_products(double groups, double rows, std::initializer_list<Weight> weights) = 0;
  virtual void core_attention(const CoreWork& work) = 0;
  // One operation that only moves memory, in bytes that are read and written.
  virtual void moves(double forward_bytes, double backward_bytes) = 0;
  // Operations too small to be anything but launches, in each direction.
  virtual void launches(double count) = 0;
  // Rows of so many bytes that go to the ranks of their experts and come back.
  virtual void expert_exchange(double bytes) = 0;
  // A layer inside this one.
  virtual void part(const PartFootprint& inner) = 0;
};

}  // namespace megalith::nn
