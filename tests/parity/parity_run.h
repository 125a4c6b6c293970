// Three training steps of a point, and of the reference model; what they have to agree in.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/model/layout_case.h"
#include "tests/parity/parity_point.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {

struct ParityNumbers {
  std::vector<double> losses, grad_norms;  // of each step
  std::vector<at::Tensor> token_losses;    // of the first step, a sample each
  NamedTensors gradients;                  // of the first step, by checkpoint name
  NamedTensors parameters;                 // at the end
};

// How far a point is from the reference, as part of the largest value of each tensor.
struct ParityErrors {
  double loss = 0, token_losses = 0, grad_norm = 0, gradients = 0, parameters = 0;
  double worst() const;
};

// A family's model on disk, its data, and the numbers of the plain-ATen model in fp64.
class ParityModel {
 public:
  explicit ParityModel(const std::string& family);
  const ParityNumbers& expected() const { return expected_; }
  ParityNumbers run(const ParityPoint& point) const;

 private:
  double compute_expected(uint64_t seed);  // the smallest margin of a choice of experts

  ReferenceConfig config_;
  TempFolder folder_;
  std::vector<data::Sequence> samples_;
  ParityNumbers expected_;
};

// Compares; fails the test with the layout, the parameter and the first layer that differs.
ParityErrors expect_parity(const ParityPoint& point, const ParityNumbers& actual, const ParityNumbers& expected);

// Runs points and tells of them: how many, and a table of the largest differences, a row a layout.
class ParityReport {
 public:
  // Up to the first that fails. `at_once`: so many points run at the same time.
  void run(const std::vector<ParityPoint>& points, int at_once = 1);
  std::string table() const;  // Markdown

 private:
  struct Row {
    int points = 0;
    ParityErrors errors;
  };
  void add(const ParityPoint& point, const ParityErrors& errors);

  std::map<std::string, std::unique_ptr<ParityModel>> models_;
  std::mutex mutex_;
  std::map<std::string, Row> rows_;  // by layout; guarded by mutex_
  size_t run_ = 0;                   // guarded by mutex_
};

}  // namespace megalith::testing
