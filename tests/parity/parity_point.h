// The lattice: every way to lay out a training step that the parity tests know.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/reference_config.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {

// One way to train one model. Always 8 samples per step.
struct ParityPoint {
  std::string family = "llama";
  int tp = 1, pp = 1, vpp = 1, cp = 1, dp = 1;
  int ep = 1, etp = 1;  // families with experts
  bool sequence_parallel = false;
  bool tp_overlap = false;  // its collectives travel in slices
  bool packed = false;
  bool recompute = false;
  bool distributed_optimizer = false;
  std::string cp_comm_type = "p2p";
  bool all_gather_experts = false;  // tokens reach the experts by all-gather; otherwise by all-to-all
  bool expert_overlap = false;      // they travel while another micro-batch computes

  int ranks() const { return tp * pp * cp * dp; }
  int microbatches() const { return pp > 1 ? 4 : 2; }  // per data-parallel rank
  std::string layout() const;                          // "tp 2 sp, pp 4, vpp 2, cp 2 (a2a), dp 1"
  std::string name() const;                            // with family and the rest
  TrainerCase trainer_case() const;
};

// A family's name may end with what its points have in addition: _mtp, prediction layers; _grown, a vocabulary that
// grows when the model is loaded (resize_vocab, add_tokens); _smooth, label smoothing.
inline constexpr int64_t kGrownRows = 54;  // 48 are in the files
inline constexpr double kParitySmoothing = 0.1;
bool is_grown(const std::string& family);
double smoothing_of(const std::string& family);  // 0 without

// The families of the lattice, each with the small model that its points train.
std::vector<std::string> parity_families();
bool has_experts(const std::string& family);
// 8 layers; sizes that tp 4 and cp 4 can split.
ReferenceConfig parity_config(const std::string& family);

// Every valid point with at most 16 ranks: TP {1,2,4} × SP × PP {1,2,4} × VPP {1,2} × CP {1,2,4} × EP {1,2,4} × ETP
// {1,2} × DP {1,2} × packed × recompute × distributed optimizer. Families, ways of context parallelism and of
// dispatch to experts take turns.
std::vector<ParityPoint> lattice_points();
// Some of them, by seed, without repetition.
std::vector<ParityPoint> sample_points(uint64_t seed, size_t count);

// Points of models whose vocabulary grows, with tied and untied heads, and of smoothed labels: TP {1,2,4} × SP ×
// PP {1,2} × VPP × CP {1,2} × DP {1,2} × packed × distributed optimizer, with at most 8 ranks.
std::vector<ParityPoint> vocabulary_points();

// Points of models in which tokens outside of attention read others across the borders of slices: multi-token
// prediction (families that end with _mtp) and delta nets. CP {2,4}, EP {1,2}, without ETP and DP; otherwise as above.
std::vector<ParityPoint> border_points();

}  // namespace megalith::testing
