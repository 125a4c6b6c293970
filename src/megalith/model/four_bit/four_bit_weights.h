// Weights in 4 bits (nn/parameter/four_bit_value.h) from the files of a model.
#pragma once

#include <string>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/hf/non_finite.h"
#include "megalith/hf/weight_files.h"
#include "megalith/model/families/model_config.h"
#include "megalith/nn/parameter/four_bit_value.h"

namespace megalith::model {

// Fills a parameter that is kept in 4 bits. Files that bitsandbytes has quantized are taken as they are, whatever the
// format of the parameter; other weights are rounded to the dtype of the model and quantized as whole tensors, so that
// every layout has the same numbers. Appends tensors whose values are not all finite to `found`.
void load_four_bit(const nn::Parameter& parameter, const hf::TensorMapping& mapping, const hf::WeightFiles& files,
                   std::vector<hf::NonFiniteValues>& found);

// Returns a sentence about the weights of layers that stay in the dtype of a model whose weights are kept in 4 bits;
// empty if there are none.
std::string not_in_four_bit(const ModelConfig& config);

}  // namespace megalith::model
