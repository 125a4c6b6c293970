// Operators and allocations are seen through libtorch's hooks, messages through the trace of rank 0's world. Everything
// is counted, never timed, so that a run repeated gives the same record.
#include "tests/effects/watched_run.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "tests/support/memory_meter.h"
#include "tests/support/reference_model.h"
#include "tests/support/temp_folder.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {

namespace {

using Counts = std::map<std::string, int>;

// The work of the thread's watched run; nullptr where nobody watches. A callback of libtorch has no other way to it.
struct CountedWork {
  const TraceRecorder& clock;
  Counts operators{};
  std::vector<int64_t> products{};  // when each began
};
thread_local CountedWork* counted_work = nullptr;

std::unique_ptr<at::ObserverContext> count_operator(const at::RecordFunction& call) {
  if (counted_work == nullptr) return nullptr;
  const std::string name = call.name();
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (!has("mm") && !has("attention") && !has("topk")) return nullptr;
  std::string shape;
  if (!call.inputs().empty() && call.inputs()[0].isTensor())
    shape = fmt::format(" [{}]", fmt::join(call.inputs()[0].toTensor().sizes(), ", "));
  ++counted_work->operators[name.substr(name.rfind(':') + 1) + shape];
  if (has("mm")) counted_work->products.push_back(counted_work->clock.now_ns());
  return nullptr;
}

// Counts the work of its thread while it lives. (Backward on CPU runs in the calling thread.)
class WorkCounter {
 public:
  explicit WorkCounter(const TraceRecorder& clock)
      : work_{clock},
        handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(count_operator).needsInputs(true))) {
    counted_work = &work_;
  }
  ~WorkCounter() {
    counted_work = nullptr;
    at::removeCallback(handle_);
  }
  WorkCounter(const WorkCounter&) = delete;
  WorkCounter& operator=(const WorkCounter&) = delete;
  const CountedWork& work() const { return work_; }

 private:
  CountedWork work_;
  const at::CallbackHandle handle_;
};

std::string text_of_counts(const Counts& counts) {
  std::string text;
  for (const auto& [name, count] : counts) text += fmt::format("{} {}\n", name, count);
  return text;
}

std::filesystem::path folder_of(const std::string& model) {
  if (model != "deep") return golden_folder(model);
  static const TempFolder folder;
  if (!std::filesystem::exists(folder / "config.json")) {
    ReferenceConfig config = ReferenceConfig::of_family("llama");
    config.num_layers = 8;
    ReferenceModel::random(config, 1).save(folder.path());
  }
  return folder.path();
}

// Trains on the watched rank and writes down what happens.
void train_watched(const TrainerRank& r, WatchedRun& run) {
  TraceRecorder trace;
  trace.start_timeline();
  r.rank.world.set_trace(&trace);
  Recorder::Heard heard;
  train::TrainerSetup setup = r.setup(dataset_of(random_sequences(16, 50, 1)));
  setup.callbacks.push_back(std::make_unique<Recorder>(heard));
  setup.trace = &trace;
  const WorkCounter counter(trace);
  const MemoryMeter memory([&](int64_t bytes) { run.allocated_bytes += bytes; });
  std::string error;
  try {
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    trainer.train();
  } catch (const Error& thrown) {
    error = thrown.what();
  }
  run.operators = text_of_counts(counter.work().operators);
  r.rank.world.set_trace(nullptr);
  Counts messages, products, updates;
  const std::vector<TraceSpan> spans = trace.take_spans();
  const auto in_update = [&spans](int64_t at) {
    return std::ranges::any_of(spans, [at](const TraceSpan& span) {
      return span.label.name == std::string_view("optimizer") && span.begin_ns < at && at < span.end_ns;
    });
  };
  for (const TraceSpan& span : spans) {
    if (span.label.lane != TraceLane::kCommunication || *span.label.group == '\0') continue;
    const std::string name = fmt::format("{} {}", span.label.group, span.label.name);
    ++messages[name];
    if (in_update(span.begin_ns)) ++updates[name];
    for (const int64_t at : counter.work().products)
      if (span.begin_ns < at && at < span.end_ns) ++products[name];
  }
  run.messages = text_of_counts(messages);
  run.products_meanwhile = text_of_counts(products);
  run.messages_in_update = text_of_counts(updates);
  for (const train::MetricList& line : heard.lines)
    for (const char* name : {"loss", "grad_norm"})
      if (const auto value = line.find(name)) run.numbers += fmt::format("{} {}\n", name, *value);
  run.numbers += error;
}

}  // namespace

WatchedRun watch_run(const config::TrainingArguments& args, const WatchedCase& how) {
  TrainerCase trainer{.dp = how.dp};
  trainer.args = args;
  trainer.tp = args.parallel.tp.value_or(1);
  trainer.pp = args.parallel.pp.value_or(1);
  trainer.cp = args.parallel.cp.value_or(1);
  trainer.vpp = args.pipeline.vpp;
  trainer.args.save.output_dir.reset();
  WatchedRun run;
  ::testing::internal::CaptureStderr();
  run_trainer_ranks(folder_of(how.model), trainer, [&](const TrainerRank& r) {
    if (r.rank.rank == how.rank) return train_watched(r, run);
    try {
      train::Trainer(r.models, r.settings(), r.setup(dataset_of(random_sequences(16, 50, 1)))).train();
    } catch (const Error&) {  // the watched rank tells
    }
  });
  run.said = ::testing::internal::GetCapturedStderr();
  return run;
}

std::vector<std::string> small_run(const std::vector<std::string>& more) {
  std::vector<std::string> words{"--finetuning_type=full",
                                 "--max_steps=2",
                                 "--per_device_train_batch_size=2",
                                 "--gradient_accumulation_steps=2",
                                 "--logging_steps=1",
                                 "--learning_rate=1e-3",
                                 "--save_strategy=no",
                                 "--lr_scheduler_type=constant"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace megalith::testing
