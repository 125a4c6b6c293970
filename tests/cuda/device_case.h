// Training runs of the program as processes, several ranks on one GPU, and what they have to agree in with one rank on
// the CPU.
#pragma once

#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/cuda/device_run.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {

using Words = std::vector<std::string>;

// The device of the runs under test: GPUs, or, with MEGALITH_CUDA_TESTS=cpu, on the CPU, to try the tests themselves.
enum class TestDevice { kCuda, kCpu };
// Empty when there is no GPU and MEGALITH_CUDA_TESTS does not ask for the CPU.
std::optional<TestDevice> test_device();

// One way to train one small model, three steps of 8 samples by SGD.
struct DeviceCase {
  std::string name;
  std::string family = "llama";
  int tp = 1, pp = 1, cp = 1, dp = 1;
  Words layout{};  // beside the sizes: what must not change the numbers
  Words run{};     // additional options: adapters, packing
  bool bf16 = false;

  int ranks() const { return tp * pp * cp * dp; }
  bool adapter() const;
  friend void PrintTo(const DeviceCase& how, std::ostream* out) { *out << how.name; }  // for GoogleTest
};

// A family's small model and its data, in a folder of their own.
class DeviceModel {
 public:
  explicit DeviceModel(const std::string& family);

  // One rank on the CPU.
  DeviceRun reference(const DeviceCase& how) const;
  // All ranks on one GPU, over Gloo.
  DeviceRun run(const DeviceCase& how, TestDevice device) const;

 private:
  Words command(const DeviceCase& how, const std::string& output) const;
  DeviceRun execute(const Words& words, const std::filesystem::path& output) const;

  std::string family_;
  TempFolder folder_;
};

// fp32: losses, gradient norms and exported tensors to 1e-5 of the largest value. bf16: to what 8 bits leave of them.
// Prints the largest differences.
void expect_same_run(const DeviceCase& how, const DeviceRun& actual, const DeviceRun& expected);

}  // namespace megalith::testing
