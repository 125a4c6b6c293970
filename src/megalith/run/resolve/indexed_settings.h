// Converts options to the .bin/.idx files that pre-training reads.
#pragma once

#include "megalith/config/training_arguments.h"
#include "megalith/data/gpt/pretrain_datasets.h"

namespace megalith::run {

// Also reads the files data_args_path and per_split_data_args_path. Throws ConfigError unless there is exactly one
// source, and for a `split` without data_path (mock_data ignores it); DataError when a file is malformed.
data::DataSources data_sources(const config::IndexedDataConfig& indexed);

// Returns the sources and the settings of samples.
data::IndexedSettings indexed_settings(const config::IndexedDataConfig& indexed);

}  // namespace megalith::run
