// The flight record: the last operations of all NCCL groups of this process as c10d has seen them, for tools that
// compare those of all ranks (torchfrtrace).
#pragma once

namespace megalith::comm {

// Writes it where TORCH_FR_DUMP_TEMP_FILE (or TORCH_NCCL_DEBUG_INFO_TEMP_FILE) says, with the rank at the end of the
// name, and logs where that is. Takes two seconds at most and never throws: the process is about to end. Does nothing
// in a build without CUDA, or when no operation was recorded.
void write_flight_record(int rank) noexcept;

}  // namespace megalith::comm
