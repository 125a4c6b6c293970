// One way to train one small model on several ranks, held against one rank on the same device.
#pragma once

#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "tests/cuda/device_run.h"
#include "tests/nccl/rank_job.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {

constexpr int kRankSteps = 4;    // steps of every run
constexpr int kStepSamples = 8;  // samples of every step, in any layout

// How exactly runs can agree.
enum class Precision {
  kFp32,
  kBf16,  // sums over ranks are rounded to 8 bits in between
  kFp8,   // products in fp8, the rest in bf16
  kAdam,  // fp32; Adam makes steps of full size of gradients that are rounding alone
};

// The data of a case, and the loss that goes with it.
enum class CaseData {
  kFullRows,  // rows of equal length; the loss is the mean over samples
  kSamples,   // samples of different lengths; the loss is the mean over tokens (calculate_per_token_loss)
  kPairs,     // preferences
};

// A layout that must give the numbers of one rank.
struct RankCase {
  std::string name;  // letters, digits and underscores: a part of CTest's name
  std::string family = "llama";
  int tp = 1, pp = 1, cp = 1, dp = 1;
  CaseData data = CaseData::kFullRows;
  Precision precision = Precision::kFp32;
  Words layout{};  // beside the sizes: what must not change the numbers
  Words run{};     // additional options: adapters, packing, recipes
  StartedBy starter = StartedBy::kVariables;

  int ranks() const { return tp * pp * cp * dp; }
  bool adapter() const;
  friend void PrintTo(const RankCase& how, std::ostream* out) { *out << how.name; }  // for GoogleTest
};

// The folder of the family's model.
std::filesystem::path case_model(const std::string& family);
std::filesystem::path case_data(const RankCase& how);
// The whole command that trains the case in its layout.
Words case_command(const RankCase& how, Transport transport, const std::filesystem::path& output);
// The output_dir of the same run on one rank; made once for all cases that have it in common.
std::filesystem::path case_reference(const RankCase& how, Transport transport);

// Prints one line: nccl-case NAME TRANSPORT RANKS PRECISION LOSS NORM WEIGHTS SECONDS FIRST_STEP.
// Checks the differences against what the precision allows.
void expect_agreement(const RankCase& how, Transport transport, const RunDifference& found, const JobEnd& end);
// Why the case cannot run here (fp8 on a GPU that lacks it, images in a build that cannot read them); empty if it can.
std::string obstacle_of(const RankCase& how, Transport transport);
// Trains the case and compares losses, gradient norms and exported tensors with one rank.
void expect_equal_to_one_rank(const RankCase& how, Transport transport);

}  // namespace megalith::testing
