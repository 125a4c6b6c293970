// Reads pickles without executing anything.
//
// A pickle is a program for a small machine with a stack; Python's own reader imports and calls whatever the program
// names. This one has no way to call: instructions that make objects build descriptions (PickleValue), and only names
// that checkpoints need are accepted at all.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "megalith/hf/foreign/pickle_value.h"

namespace megalith::hf {

// Reads one pickle of protocol 2 to 5 as torch.save and torch.distributed.checkpoint write them. `name` is that of the
// file in messages. Throws one DataError that begins with `name`: for a program that is cut off or malformed, for
// sizes beyond its end, for more than kMostPickleValues values, and for a class or function of a module that is not
// among those of checkpoints, by its name ("os.system").
std::unique_ptr<const Pickle> read_pickle(std::string_view bytes, const std::string& name);

constexpr size_t kMostPickleValues = size_t{1} << 25;
constexpr size_t kDeepestPickle = 1000;  // marks on the stack

// Returns whether values made by a class or function may be in a checkpoint. They stay descriptions in any case.
bool is_known_to_checkpoints(std::string_view module, std::string_view name);

}  // namespace megalith::hf
