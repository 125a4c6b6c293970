// Compiled only with MEGALITH_CUDA.
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>

#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "megalith/base/env.h"
#include "megalith/base/log.h"
#include "megalith/comm/op/flight_record.h"

namespace c10d {
// Declared in ProcessGroupNCCL.hpp, which needs the headers of CUDA and NCCL.
TORCH_API std::string dump_nccl_trace(bool include_collectives, bool include_stack_traces, bool only_active);
}  // namespace c10d

namespace megalith::comm {

namespace {

std::string write_nccl_trace(int rank) {
  c10d::DebugInfoWriter& writer = c10d::DebugInfoWriter::getWriter(rank);
  writer.write(c10d::dump_nccl_trace(/*include_collectives=*/true, /*include_stack_traces=*/false,
                                     /*only_active=*/false));
  return writer.getWriterTarget();
}

}  // namespace

void write_flight_record(int rank) noexcept {
  if (env_string("TORCH_FR_BUFFER_SIZE") == "0") return;  // switched off
  try {
    // On a separate thread: a lock of c10d that the stuck operation holds must not keep the process from ending.
    auto target = std::make_shared<std::promise<std::string>>();
    auto written = target->get_future();
    std::thread([target, rank] {
      try {
        target->set_value(write_nccl_trace(rank));
      } catch (const std::exception&) {
        target->set_value("");
      }
    }).detach();
    if (written.wait_for(std::chrono::seconds(2)) != std::future_status::ready) return;
    if (const std::string path = written.get(); !path.empty())
      log_info("rank {}: the last operations of NCCL's groups are in {}", rank, path);
  } catch (const std::exception&) {
    // The process ends anyway; the record would only have helped to explain why.
  }
}

}  // namespace megalith::comm
