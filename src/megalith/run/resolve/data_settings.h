// From options to fine-tuning data and to the order of samples.
#pragma once

#include <cstdint>

#include "megalith/config/training_arguments.h"
#include "megalith/data/sampler.h"
#include "megalith/data/sft/sft_settings.h"

namespace megalith::run {

// Documents with stage pt, conversations with sft, preference pairs with dpo. Rows are packed as packing, neat_packing
// and sequence_packing say, where they say nothing only those of documents; all cores tokenize unless
// preprocessing_num_workers says otherwise.
data::SftSettings sft_settings(const config::TrainingArguments& args);

// As train_sampling_strategy and disable_shuffling say: epochs, incomplete steps dropped.
data::SamplerOptions epoch_sampler(const config::SamplerConfig& sampler, int64_t size, uint64_t seed);
// Megatron's dataloader_type. single: in order, once. cyclic: another order each epoch; unlike there no sample is left
// out at an epoch's end, so that the number of consumed samples alone is the position, for any number of ranks.
data::SamplerOptions megatron_sampler(const config::SamplerConfig& sampler, int64_t size, uint64_t seed);

}  // namespace megalith::run
