// What Experts and the dispatchers that bring them their rows keep and move (experts.cc, all_to_all_dispatch.cc,
// all_gather_dispatch.cc), when all experts are equally busy.
#pragma once

#include "megalith/nn/footprint/part_footprint.h"
#include "megalith/nn/moe/moe_shape.h"

namespace megalith::nn {

class ExpertsFootprint : public PartFootprint {
 public:
  // Records the parameters. The RankSizes of `scope` outlive it.
  ExpertsFootprint(const FootprintScope& scope, const MoeShape& shape, const MoeOptions& options);

  void forward(LayerWalk& walk, bool keep) const override;
  void backward(LayerWalk& walk, bool wanted) const override;
  void work(WorkMeter& meter) const override;

 private:
  // Bytes of the lists that say where each row comes from.
  double map_bytes() const { return 8 * rows_ * (!gathers_ && travels_ && sorted_ ? 4 : 2); }
  double row_bytes() const { return rows_ * rank_.h * rank_.bytes; }
  double gathered_bytes() const { return members_ * rank_.stream(); }

  const RankSizes& rank_;
  double experts_;     // of this rank
  double chosen_;      // tokens' copies by the router's choice alone
  double rows_;        // the same with what a capacity pads and drops: sent, and received
  double width_, up_;  // columns of an expert on this rank, after and before its activation
  double members_;     // ranks that share the experts
  bool travels_;       // rows go to other ranks
  bool sorted_;        // rows come for several experts
  bool gathers_;       // all tokens come, in place of those that are needed
  bool local_;         // rows are made again in backward, and weighed before the projection down (LocalRows)
  bool remakes_activation_;
  UpdateSize up_update_, down_update_;
};

}  // namespace megalith::nn
