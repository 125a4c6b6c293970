// Optimizer: applies an update rule (AdamW, SGD, Lion or a user-defined one) to the flat buffers of a rank's model
// chunks, and with Muon another one to its weight matrices, with fp32 main parameters and clipping by the global norm.
// With the distributed optimizer it updates only the shards that this rank owns.
//
// Bytes per parameter with AdamW and fp32 gradients, where d ranks share the state:
//   bf16 model   2 parameter + 4 gradient + 12/d main parameter and moments
//   fp32 model   4 parameter + 4 gradient +  8/d moments; it needs no main parameters
//   fp8 weights  1 parameter + 4 gradient + 12/d main parameter and moments (DdpSettings::fp8_params)
// OptimizerSettings::formats keeps the state in fewer bytes, down to (2 + 1 + 1 + 1/8)/d: a remainder and two moments
// in fp8 with their scales.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "megalith/optim/grad_norm.h"
#include "megalith/optim/grad_scaler.h"
#include "megalith/optim/histograms.h"
#include "megalith/optim/host_update.h"
#include "megalith/optim/matrix_update.h"
#include "megalith/optim/optimizer_state.h"
#include "megalith/optim/overlap/overlapped_update.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/parallel/sharded_tensor.h"

namespace megalith::optim {

// The outcome of Optimizer::step.
struct StepResult {
  bool updated = true;               // false: gradients were not finite and only the loss scale changed
  std::optional<double> grad_norm;   // before clipping; std::nullopt if not updated
  std::optional<int64_t> num_zeros;  // std::nullopt unless counted
};

// Interface to saved state, such as a checkpoint folder.
class StateSource {
 public:
  // A tensor of the saved model space.
  struct Tensor {
    std::string name;
    std::vector<int64_t> global_shape;
  };
  virtual ~StateSource() = default;
  virtual std::string name() const = 0;  // a path, for messages
  // Returns every tensor that can be read.
  virtual std::vector<Tensor> tensors() const = 0;
  // Fills wanted.local.
  virtual void read(const parallel::ShardedTensor& wanted) const = 0;
};

// Differences between saved state and a model that loading accepts.
struct StateTolerance {
  bool may_lack = false;  // state that the source does not have keeps its values
  // Tensors of the model that may have had fewer rows when they were saved: the moments of their new rows stay as they
  // are, zeros in a new optimizer.
  std::set<std::string> grown{};
};

// Used by one thread per rank. The chunks and the context must outlive it.
class Optimizer {
 public:
  // `chunks` are all chunks of this rank, either all with or all without the distributed optimizer. Throws ConfigError
  // for a `gather` that the settings do not allow.
  Optimizer(std::vector<DistributedDataParallel*> chunks, OptimizerSettings settings,
            const parallel::ParallelContext& context, ParamGather gather = ParamGather::kInStep);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // The same groups in the same order on every rank. Set lr and weight_decay of each before a step.
  std::vector<ParamGroup>& groups() { return groups_; }
  const std::vector<ParamGroup>& groups() const { return groups_; }

  // Updates the parameters from final gradients (finalize.h). Collective. Throws a ConfigError for a learning rate or
  // decay that is negative or not finite.
  StepResult step(GradScaler& scaler);

  // ---- The same in parts, for a caller that adds up the norm's terms together with other numbers ----
  //   const at::Tensor terms = optimizer.norm_terms();       // added up over the world
  //   if (optimizer.begins_steps()) optimizer.begin_step(scaler, squares_of(terms));
  //   optimizer.finish_step(scaler, stats_of(…), begun);     // after the host has read the terms
  // Returns this rank's share of the gradient norm (grad_norm.h). Does not wait for a device.
  at::Tensor norm_terms() const;
  // Whether begin_step can work: with a fused rule, without Muon, and with all state on the device.
  bool begins_steps() const;
  // Queues the update on the device before the host knows the gradient norm. `squares` is the sum of all squared
  // gradients, one fp64 number on the device, the same on all ranks; if it is not finite, everything stays as it is. A
  // step that was begun must be completed by finish_step, unless it was not finite.
  void begin_step(const GradScaler& scaler, const at::Tensor& squares);
  // Completes a step whose statistics are `stats`, the same on all ranks. `begun` says that begin_step was called for
  // the same gradients, groups and scale; otherwise the update happens here. Collective.
  StepResult finish_step(GradScaler& scaler, const GradStats& stats, bool begun);

  // ---- Beside the next forward pass (overlap/overlapped_update.h) ----
  // Whether updates can run there: with a rule that can be confined, all state on the device and nothing to gather or
  // to cast when it is complete.
  bool can_overlap() const;
  // Lets updates from the next one on leave later parts of the model to a second stream. The caller that runs the
  // model forward must call wait_for_params; all functions here wait by themselves.
  void overlap_with_forward(std::vector<ForwardPart> parts, const OverlapSettings& settings,
                            std::unique_ptr<SideQueue> queue);
  // Says how many tokens the first micro-batch after the next update has; 0: all of it runs at once. The initial value
  // is 0.
  void expect_tokens(int64_t tokens) { next_tokens_ = tokens; }
  // Waits, on the current stream, until these parameters of a part of the model have been updated; or until everything
  // has. Does nothing unless some of an update is left. Gathers of the distributed optimizer: see
  // DistributedDataParallel.
  void wait_for_params(std::span<nn::Parameter* const> parameters);
  void finish_update() const;
  // Returns nullptr without overlap_with_forward; for tests.
  const OverlappedUpdate* overlapped_update() const { return overlapped_.get(); }

  // Returns the L2 norm of the whole model's parameters. Collective.
  double parameter_norm() const;
  // Returns what counts the model's parameters and gradients; the optimizer outlives it. Collective over all ranks. It
  // counts before an update, when nothing of the one before is left.
  HistogramCounter histogram_counter() const { return {blocks_, sharded_, context_}; }

  // Call after loading weights into the model (nn::loadable): refreshes the fp32 main parameters from them, and from
  // these the parameters in fp8. Collective.
  void reload_main_params();

  // ---- State ----
  // Returns the state in model space, such as "optimizer.exp_avg.layers.3.attention.q.weight" with the global shape of
  // that tensor and the rectangles that this rank owns; likewise the rule's other states and the main parameters,
  // except for fp32 models, whose parameters are their main parameters. State in fp32 and bf16 is given as views:
  // writing into them changes the state. State in other formats is converted to fp32 when it is asked for
  // (ShardedTensor::load), one rectangle at a time.
  std::vector<parallel::ShardedTensor> sharded_state() const;
  // Returns the prefixes of those names, one per kind of state, the same on all ranks. Every tensor trained in the
  // dtype `parameter` has all of them; `matrix` says whether it is one (nn::is_matrix). fp32 has no main
  // prefix, even where offloaded state keeps copies.
  std::vector<std::string> state_prefixes(at::ScalarType parameter, bool matrix) const;
  // Returns whether such a name is that of a main parameter.
  static bool is_main(const std::string& name);
  // Returns the state that is not a tensor, the number of steps and the rule's name, as one JSON object.
  std::string progress_json() const;
  // Returns the steps in such a text. Throws ConfigError if it belongs to another update rule, naming `origin`.
  int64_t read_progress(const std::string& progress, const std::string& origin) const;

  // Loads state saved in any layout and in any format; `progress` comes from progress_json. Main parameters that the
  // source lacks are taken from the model. Collective. Throws a DataError that lists every tensor that is missing or
  // has another shape, or a ConfigError if the state belongs to another update rule; nothing has changed then.
  void load_state(const StateSource& source, const std::string& progress, const StateTolerance& tolerance = {});
  // Loads only the main parameters, as far as the source has them, and rounds the model's from them; moments and steps
  // stay as they are. Collective. Throws a DataError for tensors of another shape; nothing has changed then.
  void load_main_params(const StateSource& source, const std::set<std::string>& grown = {});

  int64_t steps() const { return steps_; }
  // Returns the bytes of state that this rank holds, either on the host or on the device.
  int64_t state_bytes(bool on_host) const;

 private:
  // The factor that scales the gradients of one step: known to the host, or to the device alone.
  struct Factor {
    double grad_scale = 1;
    at::Tensor gate{};  // FlatElements::gate
  };
  const UpdateRule& rule() const { return *settings_.rule; }
  // Returns the state tensors of a block with the prefixes of their names. `main` is left out where it is only a view
  // of the parameters.
  std::vector<std::pair<std::string, ops::StoredValues>> state_of(const StateBlock& block) const;
  // Returns the parameters of `piece` in `stored`, which belongs to `block`, in model space.
  static std::vector<parallel::ShardedTensor> shards_of(const StateBlock& block, const StatePiece& piece,
                                                        const std::string& prefix, const ops::StoredValues& stored);
  static std::vector<parallel::ShardedTensor> rectangles_of(const StateBlock& block, const StatePiece& piece,
                                                            const std::string& prefix, const at::Tensor& flat);
  // Shapes by name, of the tensors of a source.
  using Shapes = std::map<std::string, std::vector<int64_t>>;
  static void read_state(const StateBlock& block, const std::string& prefix, const ops::StoredValues& stored,
                         const StateSource& source, const Shapes& saved);
  ops::UpdateScalars scalars_of(size_t group, double grad_scale) const;
  std::vector<ops::UpdateRun> runs_of(const StateBlock& block, double grad_scale) const;
  void update(const Factor& factor);
  void update_matrices(const DistributedDataParallel& chunk, double grad_scale);
  void make_matrix_updates();
  void update_overlapped(const Factor& factor);
  void check_gather() const;
  // Casts parameters in fp8 and gathers all.
  void gather_params();
  // Main parameters from those of the model, or from weights that were loaded.
  void main_from_model();
  // Whether parameters are in fp8; and the functions through which those are saved.
  bool has_fp8() const;
  void offer_main_params();
  void check_groups() const;
  // Throws for tensors of `source` that do not fit; returns the shapes of all of them.
  Shapes check_tensors(const StateSource& source, bool only_main, const StateTolerance& tolerance) const;

  std::vector<DistributedDataParallel*> chunks_;
  OptimizerSettings settings_;
  const parallel::ParallelContext& context_;
  const ParamGather gather_;
  bool sharded_ = false;
  std::vector<ParamGroup> groups_;
  std::vector<StateBlock> blocks_;
  HostUpdate host_update_;
  std::vector<std::pair<const ParamBuffer*, MatrixUpdate>> matrix_updates_;  // with Muon: one per buffer of matrices
  int64_t steps_ = 0;
  int64_t next_tokens_ = 0;                       // expect_tokens
  std::unique_ptr<OverlappedUpdate> overlapped_;  // updates blocks_
};

}  // namespace megalith::optim
