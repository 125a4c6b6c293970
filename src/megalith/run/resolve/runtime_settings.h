// Converts the user's options to the settings with which a rank joins a run.
#pragma once

#include "megalith/comm/store/rendezvous.h"
#include "megalith/config/training_arguments.h"
#include "megalith/parallel/runtime_settings.h"
#include "megalith/run/resolve/run_settings.h"

namespace megalith::run {

// Returns only use_cpu and ddp_backend: all that is needed to count GPUs before ranks exist.
parallel::DeviceSettings device_settings(const config::CommConfig& comm);

// Returns every setting of a rank with each default decided: sizes that are not given are 1, `train` seeds by the
// adapter's formula and `pretrain` by Megatron's, distributed_timeout_minutes takes precedence over ddp_timeout, and
// several machines get more time to connect than one. Throws ConfigError for an unknown group in
// high_priority_stream_groups.
parallel::RuntimeSettings runtime_settings(const config::TrainingArguments& args, const RunWorld& world);

// Returns the world in which a launcher has started this rank.
RunWorld world_of(const comm::Rendezvous& place);

}  // namespace megalith::run
