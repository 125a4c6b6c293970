// Optimizer: an update rule (AdamW, SGD, one's own) over the flat buffers of a rank's model chunks, with fp32 main
// parameters, clipping by the global norm and, with the distributed optimizer, on this rank's shards only.
//
// Elements of the model's parameters and what they cost in bytes (bf16 model, AdamW, fp32 gradients; d ranks share the
// state): 2 parameter + 4 gradient + 12/d main parameter and moments. An fp32 model needs no main parameters: 4 + 4 +
// 8/d.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megalith/optim/grad_norm.h"
#include "megalith/optim/grad_scaler.h"
#include "megalith/optim/host_update.h"
#include "megalith/optim/optimizer_state.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/parallel/sharded_tensor.h"

namespace megalith::optim {

struct StepResult {
  bool updated = true;               // false: gradients were not finite and nothing but the loss scale changed
  std::optional<double> grad_norm;   // before clipping; where updated
  std::optional<int64_t> num_zeros;  // where counted
};

// An update that has been handed to the device before the host knows the gradients' norm. It takes place only if they
// are finite: what is not, leaves everything as it was.
struct BegunStep {
  std::optional<GradStats> stats;  // where they are known already
};

// Where saved state is read from.
class StateSource {
 public:
  struct Tensor {
    std::string name;
    std::vector<int64_t> global_shape;
  };
  virtual ~StateSource() = default;
  virtual std::string name() const = 0;  // a path, for messages
  virtual std::vector<Tensor> tensors() const = 0;
  // Fills wanted.local.
  virtual void read(const parallel::ShardedTensor& wanted) const = 0;
};

// One thread a rank. The chunks and the context outlive it.
class Optimizer {
 public:
  // All chunks of this rank; all with or all without the distributed optimizer. Gathering of parameters after a step is
  // waited for unless `overlap_param_gather`: then whoever runs the model calls wait_for_params of the chunks.
  Optimizer(std::vector<DistributedDataParallel*> chunks, OptimizerSettings settings,
            const parallel::ParallelContext& context, bool overlap_param_gather = false);

  // Same groups in the same order on every rank. Set lr and weight_decay of each before a step.
  std::vector<ParamGroup>& groups() { return groups_; }
  const std::vector<ParamGroup>& groups() const { return groups_; }

  // Gradients are final (finalize.h). Collective. Throws ConfigError for a learning rate or decay that is no number.
  // `begun`: what begin_step gave for the same gradients, groups and scale.
  StepResult step(GradScaler& scaler, const std::optional<BegunStep>& begun = std::nullopt);
  // Starts the update without waiting for the norm: for a rank that is alone, with a fused rule, its state on the
  // device and no zeros to count. Nothing where that cannot be, also when the norm would have to be computed first. A
  // step that is begun has to be ended by step(), unless gradients were not finite.
  bool begins_steps() const;
  std::optional<BegunStep> begin_step(const GradScaler& scaler);

  // The L2 norm of the whole model's parameters. Collective.
  double parameter_norm() const;

  // Parameters changed behind its back (weights were loaded): takes them over as main parameters.
  void reload_main_params();

  // ---- State ----
  // In model space: "optimizer.exp_avg.layers.3.attention.q.weight" with the global shape of that tensor and the
  // rectangles that this rank owns, and so for the rule's other states and main. fp32 models have no main: the
  // parameters are it.
  // Views: writing into them changes the state.
  std::vector<parallel::ShardedTensor> sharded_state() const;
  // What those names begin with, one for each kind of state, the same on all ranks: every tensor that is trained in
  // numbers of the type `parameter` has each. No main for fp32 ones, also where offloaded state has copies.
  std::vector<std::string> state_prefixes(at::ScalarType parameter) const;
  // Steps and the rule's name as one JSON object: what is no tensor.
  std::string progress_json() const;

  // Takes over state saved in any layout. `progress` is what progress_json gave. Throws DataError that lists every
  // tensor that is missing or has another shape, and ConfigError when it belongs to another update rule; nothing is
  // changed then. Main parameters that the source has none of are taken from the model. Collective.
  void load_state(const StateSource& source, const std::string& progress);

  int64_t steps() const { return steps_; }
  // Bytes of state that this rank holds, on the device and on the host.
  int64_t state_bytes(bool on_host) const;

 private:
  // What the gradients of one step are multiplied with: known to the host, or to the device alone.
  struct Factor {
    double grad_scale = 1;
    at::Tensor gate{};  // FlatElements::gate
  };
  const UpdateRule& rule() const { return *settings_.rule; }
  // The tensors of a block that are state of their own, under the prefixes of their names.
  std::vector<std::pair<std::string, at::Tensor>> state_of(const StateBlock& block) const;
  ops::UpdateScalars scalars_of(size_t group, double grad_scale) const;
  std::vector<ops::UpdateRun> runs_of(const StateBlock& block, double grad_scale) const;
  void update(const Factor& factor);
  void gather_params();
  void check_groups() const;
  int64_t read_progress(const std::string& progress, const std::string& origin) const;  // -> steps
  void check_tensors(const StateSource& source) const;

  std::vector<DistributedDataParallel*> chunks_;
  OptimizerSettings settings_;
  const parallel::ParallelContext& context_;
  const bool overlap_param_gather_;
  bool sharded_ = false;
  std::vector<ParamGroup> groups_;
  std::vector<StateBlock> blocks_;
  HostUpdate host_update_;
  int64_t steps_ = 0;
};

}  // namespace megalith::optim
