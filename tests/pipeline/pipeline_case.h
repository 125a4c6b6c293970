// One training step of a small model in some pipeline layout, by rank threads, and the same step of the reference
// model.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/parallel_config.h"
#include "megalith/optim/distributed_data_parallel.h"
#include "megalith/pipeline/forward_backward.h"
#include "tests/model/layout_case.h"
#include "tests/support/reference_config.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {

// Lengths of the sequences of a micro-batch.
using Lengths = std::vector<int64_t>;

struct PipelineCase {
  int tp = 1, pp = 1, dp = 1;
  bool sequence_parallel = false;
  layout::ScheduleKind kind = layout::ScheduleKind::kOneFOneB;
  std::optional<int> group_size;
  config::PipelineConfig pipeline;  // layers to stages; vpp
  pipeline::EngineSettings engine;  // hidden and dtype are filled in
  model::ModelOptions options;      // sequence_parallel is taken from above
  optim::DdpSettings ddp{.per_token_loss = true};
  layout::PipelineSync sync = layout::PipelineSync::kDefault;
  int deferred_heads = 0;     // pipeline::DeferredHead::microbatches
  bool loss_at_once = false;  // the chunked loss (options.loss_chunk) computes its gradients in forward
  bool gloo = false;          // sockets in place of shared memory

  int ranks() const { return tp * pp * dp; }
  int chunks() const { return pipeline.vpp.value_or(1); }
  std::string name() const;
};

// A checkpoint on disk whose tensors the reference model has drawn.
class SmallModel {
 public:
  explicit SmallModel(const ReferenceConfig& config);
  const std::filesystem::path& folder() const { return folder_.path(); }
  const ReferenceConfig& config() const { return config_; }

  struct Step {
    double loss = 0;         // mean over all tokens
    NamedTensors gradients;  // by checkpoint name, whole
  };
  // The reference: all sequences in one row. `microbatches`: of all data-parallel ranks, one after the other.
  Step reference(const std::vector<Lengths>& microbatches) const;
  // The same by ranks: each data-parallel rank takes an equal number of the micro-batches. Every rank checks that it
  // knows the loss.
  Step run(const std::vector<Lengths>& microbatches, const PipelineCase& how) const;

 private:
  ReferenceConfig config_;
  TempFolder folder_;
};

// A rank that can run steps of a model in a layout.
class PipelineRank {
 public:
  PipelineRank(const Rank& rank, const std::filesystem::path& folder, const PipelineCase& how);
  ~PipelineRank();

  // Forward and backward of this rank's micro-batches, finalized; the mean loss over all tokens, on every rank.
  double step(const std::vector<Lengths>& microbatches);
  // Forward only.
  double evaluate(const std::vector<Lengths>& microbatches);

  pipeline::StageWork& work();  // to be changed between steps
  model::VirtualModels& models();
  parallel::ParallelContext& context();
  std::vector<optim::DistributedDataParallel*> ddp() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Token ids of micro-batch `number` of the global batch, as a function of its place alone.
at::Tensor ids_of(const std::vector<Lengths>& microbatches, size_t number, int64_t vocab);

// `count` micro-batches of `sequences` × `length` tokens.
std::vector<Lengths> equal_microbatches(int count, int sequences, int64_t length);
// Sequences of different lengths; every total is a multiple of 4.
std::vector<Lengths> unequal_microbatches(int count, uint64_t seed);

void expect_same_step(const SmallModel::Step& actual, const SmallModel::Step& expected, const std::string& what);

}  // namespace megalith::testing
