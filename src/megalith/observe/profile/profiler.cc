#include "megalith/observe/profile/profiler.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <kineto/ActivityType.h>

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <vector>

#include "megalith/base/error.h"

namespace megalith::observe {

namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

bool is_activity(const kineto::KinetoEvent& event, libkineto::ActivityType type) {
  return event.activityType() == static_cast<uint8_t>(type);
}

ProfileRecord record_of(const std::vector<kineto::KinetoEvent>& events) {
  using Type = libkineto::ActivityType;
  ProfileRecord record;
  for (const kineto::KinetoEvent& event : events) {
    const auto begin = static_cast<int64_t>(event.startNs()), end = static_cast<int64_t>(event.endNs());
    if (is_activity(event, Type::CONCURRENT_KERNEL) || is_activity(event, Type::GPU_MEMCPY) ||
        is_activity(event, Type::GPU_MEMSET))
      record.device.push_back({event.name(), begin, end, event.linkedCorrelationId()});
    else if (is_activity(event, Type::CPU_OP))
      record.host.push_back(
          {event.name(), event.startThreadId(), begin, end, event.correlationId(), event.shapes().vec()});
  }
  return record;
}

}  // namespace

// Without a GPU, Kineto complains on stderr that there is none.
void Profiler::prepare(c10::Device device) {
  if (!device.is_cuda()) setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
}

Profiler::Profiler(c10::Device device) : device_(device) {
  check(!torch::profiler::impl::profilerEnabled(), "two profilers at a time");
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO,
                                                     /*report_input_shapes=*/true);
  kineto::prepareProfiler(config, activities);
  kineto::enableProfiler(config, activities);
}

Profiler::~Profiler() {
  if (!running_) return;
  try {
    kineto::disableProfiler();
  } catch (const std::exception&) {
    // The run is ending with another error.
  }
}

ProfileRecord Profiler::stop(const std::filesystem::path& file) {
  if (device_.is_cuda()) at::accelerator::synchronizeDevice(device_.index());
  running_ = false;
  const std::unique_ptr<kineto::ProfilerResult> result = kineto::disableProfiler();
  result->save(file.string());
  check<DataError>(std::filesystem::exists(file), "the profile {} could not be written", file.string());
  return record_of(result->events());
}

std::shared_ptr<void> Profiler::annotate(const TraceLabel& label) {
  auto span = std::make_shared<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (label.microbatch < 0)
    span->before(label.name);
  else
    span->before(fmt::format("{} {}.{}", label.name, label.microbatch, std::max(label.chunk, 0)));
  return span;
}

}  // namespace megalith::observe
