// Fault injection for tests. A thread waits for the time of the fault. Faults of the whole process (killed, stopped) it
// commits itself; for all others it only sets a flag, and wrappers around the objective, the loader and the callbacks,
// which run on the training thread, act on it at their next call. Without FT_SIM_FAULT_DESC nothing of this is in a
// run.
#include "megalith/train/simulated_fault.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <random>
#include <thread>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/train/device/device_waits.h"

namespace megalith::train {

namespace {

using std::chrono::milliseconds;

constexpr const char* kVariable = "FT_SIM_FAULT_DESC";
constexpr auto kKinds =
    std::to_array<std::pair<std::string_view, FaultKind>>({{"rank_killed", FaultKind::kRankKilled},
                                                           {"rank_hung", FaultKind::kRankHung},
                                                           {"random", FaultKind::kRandom},
                                                           {"exception", FaultKind::kException},
                                                           {"out_of_memory", FaultKind::kOutOfMemory},
                                                           {"data_stuck", FaultKind::kDataStuck},
                                                           {"collective_stuck", FaultKind::kCollectiveStuck},
                                                           {"kernel_stuck", FaultKind::kKernelStuck},
                                                           {"save_stuck", FaultKind::kSaveStuck},
                                                           {"nan_loss", FaultKind::kNanLoss},
                                                           {"gradient_bit", FaultKind::kGradientBit},
                                                           {"slow", FaultKind::kSlow}});

// Sleeps instead of spinning, so that the other ranks of a test keep their cores.
[[noreturn]] void hang() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

// State shared by the waiting thread and the wrappers in the run. Set once by the waiting thread, and read by the
// training thread at its next opportunity.
struct Armed {
  std::atomic<bool> up{false};  // the time has come
  // Returns true once, for faults that happen once.
  bool take() { return up.exchange(false); }
};

// Passes everything on to the real objective, and misbehaves in the middle of a step.
class FaultyObjective : public Objective {
 public:
  FaultyObjective(std::unique_ptr<Objective> inner, FaultKind kind, std::shared_ptr<Armed> armed,
                  parallel::ParallelContext& context)
      : inner_(std::move(inner)), kind_(kind), armed_(std::move(armed)), context_(context) {}

  std::vector<std::string> metrics_keys(Phase phase) const override { return inner_->metrics_keys(phase); }
  std::vector<std::string> extra_keys() const override { return inner_->extra_keys(); }
  bool wants_correct(Phase phase) const override { return inner_->wants_correct(phase); }
  bool has_perplexity() const override { return inner_->has_perplexity(); }
  void begin(std::span<const data::MicroBatch> batches, Phase phase) override {
    inner_->begin(batches, phase);
    if (phase != Phase::kTraining) return;
    if (kind_ == FaultKind::kException && armed_->take()) throw InternalError("simulated: an uncaught exception");
    if (kind_ == FaultKind::kOutOfMemory)
      TORCH_CHECK_WITH(OutOfMemoryError, !armed_->take(), "simulated: an allocation of the device failed");
    if (kind_ == FaultKind::kCollectiveStuck && armed_->take())
      context_.world().world().barrier("simulated: nobody else comes");
    if (kind_ == FaultKind::kKernelStuck && armed_->take()) stall_device(context_.device());
    if (kind_ == FaultKind::kSlow && armed_->up) std::this_thread::sleep_for(milliseconds(200));
  }
  model::ModelInput inputs(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                           Phase phase) const override {
    return inner_->inputs(batch, chunk, std::move(hidden), phase);
  }
  at::Tensor run_stage(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden, int microbatch,
                       Phase phase) const override {
    at::Tensor output = inner_->run_stage(batch, chunk, std::move(hidden), microbatch, phase);
    if (phase == Phase::kTraining) spoil(output);
    return output;
  }
  MicrobatchLoss run_head(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                          int microbatch, Phase phase) const override {
    MicrobatchLoss loss = inner_->run_head(batch, chunk, std::move(hidden), microbatch, phase);
    if (phase == Phase::kTraining) spoil(loss.sum);
    return loss;
  }
  MicrobatchLoss loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                      Phase phase) const override {
    return inner_->loss(output, batch, microbatch, phase);
  }

 private:
  // A NaN comes again in each rerun, as if the program were at fault; a bit flips only once, as if the device were.
  void spoil(at::Tensor& value) const {
    if (kind_ == FaultKind::kNanLoss && armed_->up) value = value * std::nan("");
    if (kind_ == FaultKind::kGradientBit && armed_->take())
      value.register_hook([](const at::Tensor& gradient) {
        at::Tensor flipped = gradient.to(at::kFloat).clone();
        auto* first = flipped.mutable_data_ptr<float>();
        // The top bit of the exponent: the value becomes huge or tiny.
        *first = std::bit_cast<float>(std::bit_cast<uint32_t>(*first) ^ (uint32_t{1} << 30));
        return flipped.to(gradient.scalar_type());
      });
  }

  std::unique_ptr<Objective> inner_;
  const FaultKind kind_;
  std::shared_ptr<Armed> armed_;
  parallel::ParallelContext& context_;
};

// A loader that hangs: kDataStuck.
class FaultyLoader : public data::BatchLoader {
 public:
  FaultyLoader(std::unique_ptr<data::BatchLoader> inner, std::shared_ptr<Armed> armed)
      : inner_(std::move(inner)), armed_(std::move(armed)) {}
  std::optional<data::StepBatch> next() override {
    if (armed_->take()) hang();
    return inner_->next();
  }

 private:
  std::unique_ptr<data::BatchLoader> inner_;
  std::shared_ptr<Armed> armed_;
};

// A callback that hangs after a save: kSaveStuck.
class FaultySave : public TrainerCallback {
 public:
  explicit FaultySave(std::shared_ptr<Armed> armed) : armed_(std::move(armed)) {}
  void on_save(TrainerEvent&) override {
    if (armed_->take()) hang();
  }

 private:
  std::shared_ptr<Armed> armed_;
};

// Waits on its own thread, then acts or sets the flag.
class Waiting : public SimulatedFault {
 public:
  Waiting(const FaultDescription& what, std::shared_ptr<Armed> armed, int rank)
      : what_(what), armed_(std::move(armed)), thread_([this, rank] { wait(rank); }) {}
  ~Waiting() override {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }

 private:
  // Polls every 20 ms, since a trigger file cannot be waited for.
  void wait(int rank) {
    std::random_device random;
    // Up to a fifth longer, so that repeated runs do not always fail at the same place of a step.
    const double longer = 0.2 * static_cast<double>(random() % 1000) / 1000;
    const auto due =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(what_.delay_seconds * (1 + longer));
    std::unique_lock lock(mutex_);
    const auto has_come = [&] {
      std::error_code ignored;
      if (!what_.trigger.empty()) return std::filesystem::remove(what_.trigger, ignored);
      return std::chrono::steady_clock::now() >= due;
    };
    while (!has_come())
      if (ended_.wait_for(lock, milliseconds(20), [&] { return over_; })) return;
    log_warning("rank {}: simulated fault", rank);
    const FaultKind kind = what_.kind != FaultKind::kRandom ? what_.kind
                           : random() % 2 == 0              ? FaultKind::kRankKilled
                                                            : FaultKind::kRankHung;
    if (kind == FaultKind::kRankKilled) ::kill(::getpid(), SIGKILL);
    if (kind == FaultKind::kRankHung) ::kill(::getpid(), SIGSTOP);
    armed_->up = true;
  }

  const FaultDescription what_;
  const std::shared_ptr<Armed> armed_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;  // guarded by mutex_
  std::thread thread_;
};

// Rank 0 draws a rank for all.
int drawn_rank(const parallel::ParallelContext& context) {
  std::random_device random;
  const std::string own = std::to_string(random() % static_cast<unsigned>(context.world().size()));
  return std::stoi(context.world().world().broadcast_bytes(own, 0, "simulated fault"));
}

}  // namespace

// Each part has its own message, since the variable is typed by hand.
FaultDescription FaultDescription::parse(const std::string& text) {
  const std::vector<std::string> parts = split(text, ';');
  check<ConfigError>(parts.size() == 3, "{} is \"{}\"; write kind;rank;delay, where the rank may be empty", kVariable,
                     text);
  const auto kind = std::ranges::find(kKinds, parts[0], &std::pair<std::string_view, FaultKind>::first);
  std::vector<std::string> names;
  for (const auto& [name, value] : kKinds) names.emplace_back(name);
  check<ConfigError>(kind != kKinds.end(), "{}: \"{}\" is not a kind of fault; choose {}", kVariable, parts[0],
                     list_in_words(names));
  FaultDescription what{.kind = kind->second, .rank = {}, .delay_seconds = 0, .trigger = {}};
  if (!parts[1].empty()) {
    const auto rank = parse_int(parts[1]);
    check<ConfigError>(rank && *rank >= 0, "{}: \"{}\" is not a rank", kVariable, parts[1]);
    what.rank = static_cast<int>(*rank);
  }
  if (parts[2].starts_with('@')) {
    what.trigger = parts[2].substr(1);
  } else {
    char* end = nullptr;
    what.delay_seconds = std::strtod(parts[2].c_str(), &end);
    check<ConfigError>(!parts[2].empty() && *end == '\0' && what.delay_seconds >= 0,
                       "{}: \"{}\" is neither a delay in seconds nor @file", kVariable, parts[2]);
  }
  return what;
}

std::unique_ptr<SimulatedFault> simulate_fault(const FaultDescription& what, parallel::ParallelContext& context,
                                               int restarts, TrainerSetup& setup) {
  const int rank = what.rank ? *what.rank : drawn_rank(context);
  check<ConfigError>(rank < context.world().size(), "{}: rank {} of {}", kVariable, rank, context.world().size());
  // A delay counts only in the first start of a job; a trigger file works in any.
  if (rank != context.rank() || (restarts > 0 && what.trigger.empty())) return nullptr;
  auto armed = std::make_shared<Armed>();
  // The wrappers add no collective, so the failing rank stays in step with the others until its fault.
  if (!setup.objective) setup.objective = std::make_unique<Objective>();
  setup.objective = std::make_unique<FaultyObjective>(std::move(setup.objective), what.kind, armed, context);
  if (what.kind == FaultKind::kDataStuck && setup.train_data)
    setup.train_data->open = [inner = setup.train_data->open, armed](data::ShapeOfStep shape, data::LoaderStart start,
                                                                     data::CollateParts parts) {
      return std::make_unique<FaultyLoader>(inner(std::move(shape), start, parts), armed);
    };
  if (what.kind == FaultKind::kSaveStuck) setup.callbacks.push_back(std::make_unique<FaultySave>(armed));
  return std::make_unique<Waiting>(what, armed, rank);
}

std::unique_ptr<SimulatedFault> simulate_fault_from_env(parallel::ParallelContext& context, int restarts,
                                                        TrainerSetup& setup) {
  const auto text = env_string(kVariable);
  return text ? simulate_fault(FaultDescription::parse(*text), context, restarts, setup) : nullptr;
}

}  // namespace megalith::train
