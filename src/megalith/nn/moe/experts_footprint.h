// Memory and work of Experts and of their dispatchers (experts.cc, all_to_all_dispatch.cc, all_gather_dispatch.cc),
// assuming a perfectly balanced load.
#pragma once

#include "megalith/nn/footprint/part_footprint.h"
#include "megalith/nn/moe/moe_shape.h"

namespace megalith::nn {

// Counts dispatch, experts and combine; the router and the shared experts are counted by the layer.
class ExpertsFootprint : public PartFootprint {
 public:
  // Records the parameters. The RankSizes of `scope` outlive it.
  ExpertsFootprint(const FootprintScope& scope, const MoeShape& shape, const MoeOptions& options);

  void forward(LayerWalk& walk, bool keep) const override;
  void backward(LayerWalk& walk, bool wanted) const override;
  void work(WorkMeter& meter) const override;

 private:
  // Bytes of the index lists that map rows to tokens.
  double map_bytes() const { return 8 * rows_ * (!gathers_ && travels_ && sorted_ ? 4 : 2); }
  // Bytes of all rows [r, h], and of the tokens of all members, as all-gather dispatch holds them.
  double row_bytes() const { return rows_ * rank_.h * rank_.bytes; }
  double gathered_bytes() const { return members_ * rank_.stream(); }
  // Whether a product with such an update reads its input in backward.
  bool keeps_input(const UpdateSize& update) const;
  // Bytes of both factors of a product in fp8, rows and matrices [out, in]; 0 if it is not in fp8. (The emulation on a
  // CPU needs more.)
  double fp8_bytes(double out, double in) const;
  // Rows that arrive beside those that leave; another pass may run meanwhile.
  void exchange(LayerWalk& walk) const;

  const RankSizes& rank_;
  double experts_;     // number of experts on this rank
  double chosen_;      // rows that the router's choices give
  double rows_;        // rows sent and received: chosen_ after padding and dropping by capacity
  double width_, up_;  // columns of an expert on this rank, after and before its activation
  double members_;     // ranks that share the experts
  bool travels_;       // rows go to other ranks
  bool sorted_;        // rows for several experts arrive and are sorted
  bool gathers_;       // all tokens are gathered instead of sending only those that are needed
  bool reads_counts_;  // the host reads how many rows each member sends
  bool local_;         // rows are recomputed in backward, and weighted before the down projection (LocalRows)
  bool remakes_activation_;
  bool fp8_;
  UpdateSize up_update_, down_update_;
};

}  // namespace megalith::nn
