// Three training steps of a point, and of the reference model, and the numbers that both have to agree in.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/model/layout_case.h"
#include "tests/parity/parity_point.h"
#include "tests/support/reference_model.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {

// The numbers of three steps.
struct ParityNumbers {
  std::vector<double> losses, grad_norms;  // one per step
  std::vector<at::Tensor> token_losses;    // in the first step, one tensor per sample
  NamedTensors gradients;                  // in the first step, by checkpoint name
  NamedTensors parameters;                 // at the end
};

// The differences of a point from the reference, relative to the largest value of each tensor.
struct ParityErrors {
  double loss = 0, token_losses = 0, grad_norm = 0, gradients = 0, parameters = 0;
  double worst() const;
  void raise_to(const ParityErrors& other);  // each becomes the larger of the two
};

// A family's model on disk, its data, and the numbers of the plain-ATen model in fp64. The plain model of a vocabulary
// that grows has the rows that one rank adds; every layout adds its own.
class ParityModel {
 public:
  explicit ParityModel(const std::string& family);
  const ParityNumbers& expected() const { return expected_; }
  ParityNumbers run(const ParityPoint& point) const;

 private:
  double compute_expected(uint64_t seed);  // the smallest margin of a choice of experts
  // The model on disk as the plain model, in fp64 and with the rows that a run adds.
  ReferenceModel plain_model() const;
  model::ModelConfig run_config() const;  // the configuration that a run trains

  const std::string family_;
  ReferenceConfig config_;
  TempFolder folder_;
  std::vector<data::Sequence> samples_;
  ParityNumbers expected_;
};

// Compares; fails the test with the layout, the parameter and the first layer that differs.
ParityErrors expect_parity(const ParityPoint& point, const ParityNumbers& actual, const ParityNumbers& expected);

// Runs points, and reports how many there were and the largest differences by layout.
class ParityReport {
 public:
  // Runs points, `at_once` of them at the same time, until one fails.
  void run(const std::vector<ParityPoint>& points, int at_once = 1);

  // Returns one line: the number of points, of how many valid ones, and the largest differences of all of them.
  std::string summary(size_t valid) const;

  // Returns the file docs/parity.csv: a header, then a row per layout, e.g. `"tp 2, pp 1, cp 1, dp 1",8,1.0e-07,…`.
  std::string csv() const;

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
