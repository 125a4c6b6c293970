// Adapters: attaches low-rank updates (nn/parameter/low_rank.h) to the weights of a model chunk and freezes the rest.
//
//   Adapters adapters(config, names, tp, context);
//   adapters.add(ParameterScope(set), parameters_of_a_part);    // as the model makes its parts
//
// From then on the layers add the updates to their weights. Only A and B (fp32), the modules to save and the biases
// that the adapter trains need gradients.
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
#include "megalith/peft/frozen_rows.h"
#include "megalith/peft/principal_start.h"

namespace megalith::peft {

// Used by one thread per rank. Parameters and `context` must outlive it; weights refer to it while it lives.
class Adapters {
 public:
  // `config` has gone through with_targets. `names` is the name map of the family.
  Adapters(AdapterConfig config, hf::NameMap names, nn::TensorParallel tp, parallel::ParallelContext& context);
  // Restores the parameters to their state before add().
  ~Adapters();
  Adapters(const Adapters&) = delete;
  Adapters& operator=(const Adapters&) = delete;

  // Creates A and B of every target among `parameters` in `scope` (without values: initialization or files fill them)
  // and freezes the rest, apart from modules to save and trained biases.
  // Throws ConfigError when only some of the tensors that are fused into one weight are to be saved, and for targets
  // that cannot have magnitudes (use_dora) or principal parts (pissa).
  void add(const nn::ParameterScope& scope, std::span<nn::Parameter* const> parameters);

  const AdapterConfig& config() const { return config_; }
  nn::LowRankState& state() { return state_; }  // whether updates and their dropout are active
  // Returns the parameters of the modules to save and the trained biases.
  const std::vector<nn::Parameter*>& saved() const { return saved_; }

  // Creates the start of an adapter with AdapterConfig::pissa, whose from_weights() or from_files() has to be called
  // once the weights are loaded.
  PrincipalStarts& make_start();
  // Returns the factors with which such an adapter started; empty for others.
  std::vector<PrincipalStarts::Factor> started_with() const;
  // Sets the magnitudes of use_dora to the norms of W + s·B·A, so that a new adapter changes nothing. Collective over
  // tp, like merge() with use_dora; without it, both work alone, and this does nothing.
  void start_magnitudes() const;
  // Adds the updates to the weights, in fp32 and rounded once.
  void merge() const;
  // Returns the weights that merge() changes.
  std::vector<nn::Parameter*> merged_weights() const;

  // Copies the modules to save and the biases as they are now; Off restores these copies. Without this call Off leaves
  // them trained.
  void keep_originals();

  // While an object lives, the model computes as the base model: no updates, and modules to save and biases as they
  // were at keep_originals(). For passes without gradients.
  class [[nodiscard]] Off {
   public:
    // Nests: only the outermost object switches off and on again.
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
  // A weight and its update.
  struct Attached {
    nn::Parameter* weight;
    std::unique_ptr<nn::LowRank> update;
  };
  // State of a parameter before add().
  struct Before {
    nn::Parameter* parameter;
    bool requires_grad;
    nn::LowRank* update;
  };

  // Whether some tensors of a parameter are trained as a whole. Throws ConfigError if they are not all of it, unless it
  // is a bias.
  bool saves(const nn::Parameter& parameter) const;
  // Trains a parameter that saves() is true for.
  void train_whole(nn::Parameter& parameter);
  // Create A and B of a linear layer or of the embedding, if it is a target.
  void attach(const nn::ParameterScope& scope, nn::Parameter& weight);
  void attach_lookup(const nn::ParameterScope& scope, nn::Parameter& weight);
  void finish(nn::Parameter& weight, std::unique_ptr<nn::LowRank> update);

  const AdapterConfig config_;
  const hf::NameMap names_;
  const nn::TensorParallel tp_;
  parallel::ParallelContext& context_;
  // Switches that all updates read: active, and training (dropout).
  nn::LowRankState state_;
  std::vector<Before> before_;
  std::vector<Attached> attached_;
  std::vector<nn::Parameter*> saved_;
  std::vector<FrozenRows> frozen_rows_;     // keep the parts of fused biases in saved_ that are not trained
  std::unique_ptr<PrincipalStarts> start_;  // nullptr without pissa
  std::vector<at::Tensor> originals_;       // copies of saved_; empty before keep_originals()
};

}  // namespace megalith::peft
