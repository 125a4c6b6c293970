// The kernels of some steps as a callback (--profile).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "megalith/base/trace.h"
#include "megalith/observe/profile/profiler.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// Profiles the given steps on this rank and writes, after the last of them or at the end of the run, if that comes
// first:
//   rank-N.json   Chrome's trace: kernels, copies and operators, under the names of the trace's spans
//   rank-N.txt    on a GPU the share of each kind of work, idle time, exposed communication, the costliest kernels and
//                 the products by shape; the costliest operators
// Not collective: only the ranks to be profiled have one.
class ProfileCallback : public train::TrainerCallback {
 public:
  using Say = std::function<void(const std::string&)>;
  struct Settings {
    int64_t first_step = 1, last_step = 1;  // counted from 1, both included
    std::filesystem::path folder;           // created if needed
    int rank = 0;
    c10::Device device{c10::kCPU};
  };
  // `say` shows the tables; may be empty. The trace outlives the callback.
  ProfileCallback(TraceRecorder& trace, Settings settings, Say say)
      : trace_(trace), settings_(std::move(settings)), say_(std::move(say)) {
    Profiler::prepare(settings_.device);
  }
  ~ProfileCallback() override;

  void on_step_begin(train::TrainerEvent& event) override;
  void on_step_end(train::TrainerEvent& event) override;
  void on_train_end(train::TrainerEvent& event) override;

 private:
  void write();

  TraceRecorder& trace_;
  const Settings settings_;
  const Say say_;
  std::unique_ptr<Profiler> profiler_;  // while steps are profiled
  int64_t steps_ = 0;                   // ended while it lives
};

}  // namespace megalith::observe
