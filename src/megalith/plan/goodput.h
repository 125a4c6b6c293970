// Estimates which part of a long run's time is progress when GPUs fail and checkpoints take time, by discrete-event
// simulation.
//
//   SimulatedRun run{.gpus = 16384, .step_s = 20, .checkpoint = {.stall_s = 5, .write_s = 60, .load_s = 120}};
//   run.interval_s = best_interval_s(run, /*seed=*/1, /*courses=*/20);
//   simulate(run, 1, 20).useful                     // about 0.93: 7 % of the time is lost to failures and saves
//
// Results depend on the arguments and the seed alone.
#pragma once

#include <cstdint>

namespace megalith::plan {

// The failure rate of GPUs, and the cost of a failure besides loading.
struct FaultModel {
  double gpu_mtbf_hours = 50'000;  // mean time between failures of one GPU that end the run (Llama 3: 419 in 54 days
                                   // of 16,384 GPUs)
  double restart_s = 300;          // until the failure is noticed and ranks run again, without loading
};

// Seconds that checkpoints cost.
struct CheckpointCost {
  double stall_s = 0;  // a save stops training for this long
  double write_s = 0;  // until the save is usable, stall included; training continues meanwhile
  double load_s = 0;   // loading at a restart
};

// The run to simulate.
struct SimulatedRun {
  int gpus = 1;
  double step_s = 1;
  double interval_s = 3600;  // between saves; rounded to whole steps, at least one
  double days = 30;          // wall-clock time
  FaultModel faults{};
  CheckpointCost checkpoint{};
};

// Shares of the wall-clock time; the first four sum to 1.
struct Goodput {
  double useful = 0;    // steps that count in the end
  double saving = 0;    // training stopped for saves
  double lost = 0;      // steps that a failure undid, and unfinished ones
  double restarts = 0;  // noticing a failure, starting ranks, loading
  double failures = 0;  // number of failures, not a share
};

// Simulates one course of events: steps, saves, the moments when saves become usable, failures (exponential,
// independent) and restarts (which may fail, too). The same seed gives the same failures. Throws ConfigError for times
// that are negative or zero where they must not be.
Goodput simulate(const SimulatedRun& run, uint64_t seed);
// Returns the mean of `courses` simulations.
Goodput simulate(const SimulatedRun& run, uint64_t seed, int courses);

// Returns the mean time between failures of the whole run.
double run_mtbf_s(const SimulatedRun& run);
// Return the interval between saves by Young (1974), sqrt(2 C M), and by Daly's refinement (2006) for intervals that
// are not small against M. C is the stall of a save, M the mean time between failures.
double young_interval_s(const SimulatedRun& run);
double daly_interval_s(const SimulatedRun& run);
// Returns the interval with the best mean of `useful` in the simulation.
double best_interval_s(SimulatedRun run, uint64_t seed, int courses);

}  // namespace megalith::plan
