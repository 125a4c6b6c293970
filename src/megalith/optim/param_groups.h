// Parameter groups: parameters that are updated with the same learning rate and weight decay.
#pragma once

#include <string>
#include <vector>

#include "megalith/nn/parameter/parameter.h"

namespace megalith::optim {

// One group, with its current learning rate and weight decay.
struct ParamGroup {
  // The identity of the group: the same on every rank and in every layout.
  bool decays = true;         // weight decay applies; false for biases and norm weights
  bool decoupled_lr = false;  // embedding and head, with their own learning rate
  bool expert = false;
  int multiplier = -1;  // index into GroupOptions::multipliers; -1 means none
  double lr_mult = 1;

  // Set by the schedule before each step. The update uses lr · lr_mult, and weight_decay only if the group decays.
  double lr = 0;
  double weight_decay = 0;

  // The values that the update uses.
  double applied_lr() const { return lr * lr_mult; }
  double applied_decay() const { return decays ? weight_decay : 0; }
  // Returns a description for messages, such as "with decay, decoupled lr".
  std::string name() const;
};

// Parameters whose name contains `part` get `factor` times the learning rate. The first match wins.
struct LrMultiplier {
  std::string part;
  double factor = 1;
};

// How parameters are divided into groups.
struct GroupOptions {
  bool decoupled_lr = false;    // embedding and head form separate groups
  bool decay_qk_norms = false;  // weight decay also applies to query and key norms
  std::vector<LrMultiplier> multipliers;
};

// Returns every group that the options allow, in a fixed order, even those without parameters on this rank: all ranks
// and all layouts agree on the list without communication.
std::vector<ParamGroup> all_groups(const GroupOptions& options);

// Returns the index of the parameter's group in all_groups(options).
size_t group_of(const nn::Parameter& parameter, const GroupOptions& options);

}  // namespace megalith::optim
