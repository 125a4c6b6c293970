#include "megalith/run/exit_code.h"

#include "megalith/train/faults/rerun_guard.h"

namespace megalith::run {

int exit_code_of(const std::exception& error) {
  if (const auto* rejected = dynamic_cast<const train::RerunExit*>(&error)) return rejected->facts().exit_code;
  if (dynamic_cast<const NotSaved*>(&error) != nullptr) return kNotSaved;
  const bool bad_input =
      dynamic_cast<const ConfigError*>(&error) != nullptr || dynamic_cast<const DataError*>(&error) != nullptr;
  return bad_input ? kBadInput : kFailed;
}

}  // namespace megalith::run
