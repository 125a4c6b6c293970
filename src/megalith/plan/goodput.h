// How much of a long run's time is progress, when GPUs fail and checkpoints cost: a discrete-event simulation.
#pragma once

#include <cstdint>

namespace megalith::plan {

struct FaultModel {
  double gpu_mtbf_hours = 50'000;  // mean time between failures of one GPU that end the run (Llama 3: 419 in 54 days
                                   // of 16,384 GPUs)
  double restart_s = 300;          // until the failure is noticed and ranks run again, without loading
};

struct CheckpointCost {
  double stall_s = 0;  // training stands still for a save
  double write_s = 0;  // until the save can be used, stall included; training goes on meanwhile
  double load_s = 0;   // at a restart
};

struct SimulatedRun {
  int gpus = 1;
  double step_s = 1;
  double interval_s = 3600;  // between saves; rounded to whole steps, at least one
  double days = 30;          // of wall-clock time
  FaultModel faults{};
  CheckpointCost checkpoint{};
};

// Parts of the wall-clock time; they sum up to 1.
struct Goodput {
  double useful = 0;  // steps that count in the end
  double saving = 0;  // standing still for saves
  double lost = 0;    // steps that a failure undid, and unfinished ones
  double restarts = 0;
  double failures = 0;  // of the simulated time
};

// One course of events: steps, saves, the moments from which saves can be used, failures (exponential, independent),
// restarts (which may fail, too). The same seed, the same failures.
Goodput simulate(const SimulatedRun& run, uint64_t seed);
// The mean of so many courses.
Goodput simulate(const SimulatedRun& run, uint64_t seed, int courses);

// Mean time between failures of the whole run.
double run_mtbf_s(const SimulatedRun& run);
// sqrt(2 C M) (Young 1974) and its refinement for intervals that are not small against M (Daly 2006); C is the stall.
double young_interval_s(const SimulatedRun& run);
double daly_interval_s(const SimulatedRun& run);
// The interval with the best mean of `useful` in the simulation.
double best_interval_s(SimulatedRun run, uint64_t seed, int courses);

}  // namespace megalith::plan
