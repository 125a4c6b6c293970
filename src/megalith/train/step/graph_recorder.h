// GraphRecorder: records passes of a model as device graphs, together with their effects on the host.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "megalith/model/gpt_model.h"
#include "megalith/parallel/recorded_draws.h"
#include "megalith/train/device/device_graph.h"

namespace megalith::train {

// Returns whether `mine` holds on every rank whose collectives the graphs hold. Collective over these ranks.
using AgreeOnGraphs = std::function<bool(bool mine)>;

// A recorded pass. A replay runs its device work; the rest is what its host code did, once, while it was recorded.
struct RecordedGraph {
  std::vector<bool> before, after;            // Parameter::grad.stale of all parameters, before and after the pass
  std::vector<nn::RouterStatistics> routing;  // counts of the pass, by router; each replay writes their tensors
  parallel::RecordedDraws::Counts drawn;      // random numbers of the pass, by stream
  std::unique_ptr<DeviceGraph> device;
};

// The graphs of one rank share memory, which is safe because they run one after another. One thread per rank; the
// chunks outlive it. The caller's current stream must be an OwnStream.
class GraphRecorder {
 public:
  // `make` makes the graphs; tests pass their own. An empty `agree` means that no other rank is involved.
  GraphRecorder(std::vector<model::GptModel*> chunks, AgreeOnGraphs agree, MakeDeviceGraph make);

  // Records `work` without running it. Returns nullptr if that fails on any of the ranks: all of them then say so and
  // record no more (usable()). Throws c10::OutOfMemoryError, which is for the caller to explain.
  std::unique_ptr<RecordedGraph> record(const std::function<void()>& work);
  // Runs a graph, which draws what its pass would draw now. Requires that stale() is graph.before. A graph that draws
  // nothing itself (backward) finds the draws of the graph replayed before it.
  void replay(const RecordedGraph& graph) const;

  bool usable() const { return !broken_; }
  // Returns whether the passes of the next steps are those of this one: in the first step with delayed fp8 scales,
  // casts measure each tensor instead.
  bool settled() const;
  int recorded() const { return recorded_; }

  // The flags of all parameters that say whether backward overwrites a gradient or adds to it.
  std::vector<bool> stale() const;
  void set_stale(const std::vector<bool>& stale) const;

 private:
  using Statistics = std::vector<nn::RouterStatistics>;

  // Replaces the statistics of all routers and returns them.
  Statistics exchange(Statistics statistics) const;

  std::vector<nn::Parameter*> parameters_;
  std::vector<const nn::Router*> routers_;
  parallel::RngTracker& streams_;
  const at::Device device_;
  const AgreeOnGraphs agree_;
  const MakeDeviceGraph make_;
  std::unique_ptr<parallel::RecordedDraws> draws_;  // made before the first recording
  std::unique_ptr<DeviceGraph> pool_;               // never recorded: names the memory that all graphs share
  bool broken_ = false;                             // no more graphs after an error
  int recorded_ = 0;
};

}  // namespace megalith::train
