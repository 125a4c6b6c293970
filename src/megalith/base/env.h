// The environment variables that Megalith defines itself, and the only functions that read any.
//
// MEGALITH_* variables describe a machine or how a run is observed, never the run itself: anything that changes the
// result of training is an option and is recorded in args.yaml.
//
//   MEGALITH_LOG_LEVEL     trace, debug, info (default), warn, error: how much is logged to stderr
//   MEGALITH_COMM_DEBUG    1: compare operation, shape and dtype on all ranks of a group before every collective
//   MEGALITH_GOLDEN_DIR    tests only: reference data to use in place of tests/data/golden
//   MEGALITH_UPDATE_DOCS   tests only: rewrite the pages that are made from code instead of comparing them
//   MEGALITH_SOCKET_IFNAME network interface for Gloo (else GLOO_SOCKET_IFNAME) and NCCL (else NCCL_SOCKET_IFNAME)
//   MEGALITH_NUMA_BIND     0: ranks are not bound to the cores beside their GPU (parallel/cpu_share.h)
//   MEGALITH_DEVICE_DIR    tests only: folder that is searched for the device files of GPUs instead of /dev
//   MEGALITH_LAUNCHER      set by `--nproc` for its ranks: the launcher serves the store and reports the first failure
//
// NCCL_HOSTID may contain %r: `--nproc` then gives each rank its own host id (comm/launch/launcher.h).
// FT_SIM_FAULT_DESC breaks a run on purpose (train/simulated_fault.h); SLURM_JOBID names the run in the tracker of
// rejected results, SLURM_JOB_ID in progress.txt; MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ belong to glibc and
// stay in force (allocator.h).
//
// Through these functions, comm/store/rendezvous.cc reads the variables of launchers (RANK, WORLD_SIZE,
// TORCHELASTIC_*, SLURM_*, OMPI_*), and hf/hub_cache.cc those that locate downloaded models (HF_HUB_CACHE,
// HUGGINGFACE_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, MODELSCOPE_CACHE). run/resolve/inputs.cc caches tokens in
// XDG_CACHE_HOME, or in ~/.cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace megalith {

// Returns the value, or std::nullopt when the variable is unset or empty.
std::optional<std::string> env_string(const char* name);
// Returns the value, possibly empty (CUDA_VISIBLE_DEVICES= hides every GPU); std::nullopt when the variable is unset.
std::optional<std::string> env_exact(const char* name);
// Returns the value as an integer, std::nullopt when unset or empty; throws ConfigError for anything else.
std::optional<int64_t> env_int(const char* name);
// Returns true for 1, true, yes, on (any case), false for 0, false, no, off and unset; throws ConfigError otherwise.
bool env_flag(const char* name);

}  // namespace megalith
