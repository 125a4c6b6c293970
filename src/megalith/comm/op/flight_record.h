// The flight record: the last operations of all NCCL groups of this process as c10d saw them, for tools that compare
// the records of all ranks (torchfrtrace).
#pragma once

namespace megalith::comm {

// Writes the record to the path in TORCH_FR_DUMP_TEMP_FILE (or TORCH_NCCL_DEBUG_INFO_TEMP_FILE) plus the rank, and logs
// the path. Takes at most two seconds and never throws: the process is about to end. Does nothing in a build without
// CUDA, or when no operation was recorded.
void write_flight_record(int rank) noexcept;

}  // namespace megalith::comm
