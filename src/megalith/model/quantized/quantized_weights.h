// Weights in 4 or 8 bits (nn/parameter/quantized_value.h) from the files of a model.
#pragma once

#include <string>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/hf/non_finite.h"
#include "megalith/hf/weight_files.h"
#include "megalith/model/families/model_config.h"
#include "megalith/nn/parameter/quantized_value.h"

namespace megalith::model {

// Fills a parameter that is kept in 4 or 8 bits. Files that bitsandbytes has quantized to as many bits are taken as
// they are, whatever else the format of the parameter says; ConfigError for another number of bits. Other weights are
// rounded to the dtype of the model and quantized as whole tensors, so that every layout has the same numbers. Appends
// tensors whose values are not all finite to `found`.
void load_quantized(const nn::Parameter& parameter, const hf::TensorMapping& mapping, const hf::WeightFiles& files,
                    std::vector<hf::NonFiniteValues>& found);

// Returns a sentence about the weights of layers that stay in the dtype of a model whose weights are kept in so many
// bits; empty if there are none.
std::string not_quantized(const ModelConfig& config, int bits);

}  // namespace megalith::model
