// The environment variables that Megalith itself defines, and the one place that reads any.
//
// MEGALITH_* variables describe a machine or a way of looking at a run, never the run: whatever changes the result of
// training is an option and ends up in args.yaml.
//
//   MEGALITH_LOG_LEVEL     trace, debug, info (default), warn, error: how much is said on stderr
//   MEGALITH_COMM_DEBUG    1: compare operation, shape and dtype on all ranks of a group before every collective
//   MEGALITH_GOLDEN_DIR    tests only: reference data to use in place of tests/data/golden
//   MEGALITH_UPDATE_DOCS   tests only: rewrite the pages that are made from code instead of comparing them
//   MEGALITH_SOCKET_IFNAME network interface for Gloo (else GLOO_SOCKET_IFNAME) and NCCL (else NCCL_SOCKET_IFNAME)
//   MEGALITH_NUMA_BIND     0: ranks are not bound to the cores beside their GPU (parallel/cpu_share.h)
//   MEGALITH_DEVICE_DIR    tests only: where the device files of GPUs are looked for in place of /dev
//   MEGALITH_LAUNCHER      set by `--nproc` for its ranks: the launcher serves the store and reports the first failure
//
// NCCL_HOSTID may hold %r: `--nproc` then gives each rank a host id of its own (comm/launch/launcher.h).
// FT_SIM_FAULT_DESC breaks a run on purpose (train/simulated_fault.h); SLURM_JOBID names it in the tracker of rejected
// results; MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ are glibc's, and stay in force (allocator.h).
//
// Variables of launchers (RANK, WORLD_SIZE, TORCHELASTIC_*, SLURM_*, OMPI_*) are read in comm/store/rendezvous.cc
// through these functions, and those that say where downloaded models lie (HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE,
// HF_HOME, XDG_CACHE_HOME, MODELSCOPE_CACHE) in hf/hub_cache.cc. run/inputs.cc keeps tokens in XDG_CACHE_HOME, or
// in ~/.cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace megalith {

// The value, or nothing when the variable is unset or empty.
std::optional<std::string> env_string(const char* name);
// The value, also an empty one, or std::nullopt when the variable is unset: CUDA_VISIBLE_DEVICES= hides every GPU.
std::optional<std::string> env_exact(const char* name);
// The value as a whole number; throws ConfigError naming the variable when it is set to something else.
std::optional<int64_t> env_int(const char* name);
// True for 1, true, yes, on (any case); false for 0, false, no, off and unset; ConfigError otherwise.
bool env_flag(const char* name);

}  // namespace megalith
