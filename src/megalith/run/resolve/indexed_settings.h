// From options to the .bin/.idx files that pre-training reads.
#pragma once

#include "megalith/config/training_arguments.h"
#include "megalith/data/gpt/pretrain_datasets.h"

namespace megalith::run {

// Reads data_args_path and per_split_data_args_path, too. Throws ConfigError when there is not exactly one source, or a
// split that cuts none (with mock_data, which has parts of its own, it is without effect); DataError when a file is not
// what it should be.
data::DataSources data_sources(const config::IndexedDataConfig& indexed);

// That, and what samples look like.
data::IndexedSettings indexed_settings(const config::IndexedDataConfig& indexed);

}  // namespace megalith::run
