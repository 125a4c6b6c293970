// From the user's options to the settings with which a rank joins a run.
#pragma once

#include "megalith/comm/store/rendezvous.h"
#include "megalith/config/training_arguments.h"
#include "megalith/parallel/runtime_settings.h"
#include "megalith/run/resolve/run_settings.h"

namespace megalith::run {

// use_cpu and ddp_backend alone: all that counting GPUs needs, before ranks exist.
parallel::DeviceSettings device_settings(const config::CommConfig& comm);

// Every setting of a rank, each default decided: sizes that are not given count as 1, `train` seeds by the adapter's
// formula and `pretrain` by Megatron's, distributed_timeout_minutes wins over ddp_timeout, and several machines get
// more time to find each other than one. Throws ConfigError for a group in high_priority_stream_groups that does not
// exist.
parallel::RuntimeSettings runtime_settings(const config::TrainingArguments& args, const RunWorld& world);

// The ranks among which a launcher has put this one.
RunWorld world_of(const comm::Rendezvous& place);

}  // namespace megalith::run
