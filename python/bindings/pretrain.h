// pretrain() with what Python provides: datasets, a forward step with its loss, callbacks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/comm/store/heartbeat.h"
#include "megalith/run/pretrain.h"
#include "megalith/run/resolve/run_plan.h"
#include "python_object.h"
#include "session.h"

namespace megalith::python {

// A run of run::pretrain() on one rank, from resolved options on.
class PretrainRun : public Closable {
 public:
  // Parses words as `megalith pretrain` does, reports every problem at once, joins the ranks. `own_datasets` says that
  // Python provides the data, so that the options need not name any.
  PretrainRun(std::shared_ptr<Rank> rank, const std::vector<std::string>& words, bool own_datasets);
  ~PretrainRun() override;
  void close() override { run_.reset(); }

  run::PretrainOutput pretrain(run::PretrainFunctions functions, bool handles_signals);
  const run::RunPlan& plan() const { return plan_; }
  parallel::ParallelContext& context() { return run_->context(); }
  int received_signal() const { return received_signal_; }

 private:
  std::shared_ptr<Rank> rank_;
  run::RunPlan plan_;
  comm::HeartbeatSlot heartbeat_;
  train::StopFlag stop_;
  std::unique_ptr<run::RunContext> run_;
  int received_signal_ = 0;
};

// Adds class PretrainRun to the module.
void bind_pretrain(py::module_& module);

}  // namespace megalith::python
