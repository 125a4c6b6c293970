// Parameter groups: parameters that are updated with the same learning rate and weight decay.
#pragma once

#include <string>
#include <vector>

#include "megalith/nn/parameter/parameter.h"

namespace megalith::optim {

struct ParamGroup {
  // What makes it this group; the same on every rank and in every layout.
  bool decays = true;         // weight decay applies: not to biases and norm weights
  bool decoupled_lr = false;  // embedding and head with a learning rate of their own
  bool expert = false;
  int multiplier = -1;  // index of the lr multiplier; -1: none
  double lr_mult = 1;

  // Set before each step (by the schedule): what is applied is lr · lr_mult, and weight_decay where the group decays.
  double lr = 0;
  double weight_decay = 0;

  double applied_lr() const { return lr * lr_mult; }
  double applied_decay() const { return decays ? weight_decay : 0; }
  // "decay, decoupled lr": for messages.
  std::string name() const;
};

// Parameters whose name contains `part` learn `factor` times as fast; the first that fits counts.
struct LrMultiplier {
  std::string part;
  double factor = 1;
};

struct GroupOptions {
  bool decoupled_lr = false;    // embedding and head form groups of their own
  bool decay_qk_norms = false;  // decay the norms of queries and keys, too
  std::vector<LrMultiplier> multipliers;
};

// Every group that the options allow, in one order, empty ones included: so that all ranks and all layouts agree
// without asking each other.
std::vector<ParamGroup> all_groups(const GroupOptions& options);

// Index of the parameter's group in all_groups(options).
size_t group_of(const nn::Parameter& parameter, const GroupOptions& options);

}  // namespace megalith::optim
