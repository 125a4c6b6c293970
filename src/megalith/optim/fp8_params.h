// Parameters that are kept in fp8 between updates (DdpSettings::fp8_params, nn/parameter/fp8_value.h): the way from the
// main parameters that a rank owns to the bytes and scales that every rank multiplies with.
//
//   main (own shard, fp32)  ->  rounded to the model's dtype  ->  largest magnitude of each scale's numbers
//                                                                 maximum over the ranks that share the buffer
//   scale = reach / largest  ->  bytes of the own shard  ->  gathered by ParamBuffer, one byte per number
//
// Rounding to the model's dtype first gives the bytes to which a product would cast a parameter in that dtype, so that
// a run has the same numbers with and without fp8_params. With the delayed recipe the scale is that of the weight's
// history (nn/tensor_parallel/fp8_history.h), and the largest magnitude enters the history instead.
#pragma once

#include <vector>

#include "megalith/optim/optimizer_state.h"

namespace megalith::optim {

// Copies weights that were loaded (nn::Fp8Value::loaded) into the main parameters of a block in fp8. Parameters for
// which nothing was loaded keep theirs.
void main_from_loaded(const StateBlock& block);

// Overwrites scales, and the bytes in this rank's shards, of all blocks in fp8, and forgets what was loaded. The gather
// of ParamBuffer brings the bytes to the other ranks. Collective over the ranks that share a buffer.
void cast_fp8_params(const std::vector<StateBlock>& blocks);

}  // namespace megalith::optim
