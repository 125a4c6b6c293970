// One layout saves, another continues.
#pragma once

#include <cstdint>

namespace megalith::testing {

// A random pair of layouts (tp, pp, vpp, cp, ep, etp, dp, distributed optimizer, padding of the vocabulary, …) of a
// random golden model, trained with AdamW or Muon: what the second loads of the first's checkpoint it would save again
// with the same bits, and its next loss is the first's.
void try_pair_of_layouts(uint64_t seed);

}  // namespace megalith::testing
