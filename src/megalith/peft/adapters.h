// Adapters: the updates of low rank (nn/parameter/low_rank.h) of a model chunk, and which of its parameters are
// trained.
//
//   Adapters adapters(config, names, tp, context);
//   adapters.add(ParameterScope(set), parameters_of_a_part);    // as the model makes its parts
//
// From then on the layers add the updates to their weights. Only A's and B's (fp32) and modules to save need gradients.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/peft/adapter_config.h"

namespace megalith::peft {

// One thread a rank. Parameters and `context` outlive it; while it lives, weights refer to it.
class Adapters {
 public:
  // `config` after with_targets. `names`: of the family.
  Adapters(AdapterConfig config, hf::NameMap names, nn::TensorParallel tp, parallel::ParallelContext& context);
  // Leaves the parameters as they were before add().
  ~Adapters();
  Adapters(const Adapters&) = delete;
  Adapters& operator=(const Adapters&) = delete;

  // Makes A and B of every target among `parameters` in `scope` (without values: initialize() or files fill them) and
  // freezes the rest, apart from modules to save. Multi-token-prediction layers are frozen. Throws ConfigError when
  // only some of the tensors that a parameter fuses are to be saved.
  void add(const nn::ParameterScope& scope, std::span<nn::Parameter* const> parameters);

  const AdapterConfig& config() const { return config_; }
  nn::LowRankState& state() { return state_; }
  // Parameters that are modules to save.
  const std::vector<nn::Parameter*>& saved() const { return saved_; }

  // Adds the updates to the weights, in fp32 and rounded once. Nothing is communicated.
  void merge() const;
  // The weights that merge() changes.
  std::vector<nn::Parameter*> merged_weights() const;

  // Remembers the modules to save as they are now: what Off brings back. Without it Off leaves them.
  void keep_originals();

  // While one lives the model is the one below the adapter: no updates, and modules to save as they were at
  // keep_originals. For passes without gradients.
  class [[nodiscard]] Off {
   public:
    explicit Off(Adapters& adapters);
    ~Off();
    Off(const Off&) = delete;
    Off& operator=(const Off&) = delete;

   private:
    void exchange();
    Adapters& adapters_;
    const bool before_;
  };

 private:
  struct Attached {
    nn::Parameter* weight;
    std::unique_ptr<nn::LowRank> update;
  };
  // How a parameter was before.
  struct Before {
    nn::Parameter* parameter;
    bool requires_grad;
    nn::LowRank* update;
  };

  bool saves(const nn::Parameter& parameter) const;
  void attach(const nn::ParameterScope& scope, nn::Parameter& weight);
  void attach_lookup(const nn::ParameterScope& scope, nn::Parameter& weight);
  void finish(nn::Parameter& weight, std::unique_ptr<nn::LowRank> update);

  const AdapterConfig config_;
  const hf::NameMap names_;
  const nn::TensorParallel tp_;
  parallel::ParallelContext& context_;
  nn::LowRankState state_;
  std::vector<Before> before_;
  std::vector<Attached> attached_;
  std::vector<nn::Parameter*> saved_;
  std::vector<at::Tensor> originals_;  // of saved_; empty: not kept
};

}  // namespace megalith::peft
