// Converts options to the settings of fine-tuning data and of the order of samples.
#pragma once

#include <cstdint>

#include "megalith/config/training_arguments.h"
#include "megalith/data/sampler.h"
#include "megalith/data/sft/sft_settings.h"

namespace megalith::run {

// Samples are documents with stage pt, conversations with sft, preference pairs with dpo. Rows are packed as packing,
// neat_packing and sequence_packing say; by default only documents are packed. All cores tokenize unless
// preprocessing_num_workers is given.
data::SftSettings sft_settings(const config::TrainingArguments& args);

// Follows train_sampling_strategy and disable_shuffling: epochs, incomplete steps dropped.
data::SamplerOptions epoch_sampler(const config::SamplerConfig& sampler, int64_t size, uint64_t seed);
// Follows Megatron's dataloader_type. single: in order, once. cyclic: another order each epoch; unlike in Megatron, no
// sample is left out at the end of an epoch, so that the number of consumed samples alone is the position, for any
// number of ranks.
data::SamplerOptions megatron_sampler(const config::SamplerConfig& sampler, int64_t size, uint64_t seed);

}  // namespace megalith::run
