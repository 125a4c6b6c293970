#include "megalith/run/exit_code.h"

#include <c10/util/Exception.h>

#include "megalith/train/faults/rerun_guard.h"

namespace megalith::run {

int exit_code_of(const std::exception& error) {
  if (const auto* rejected = dynamic_cast<const train::RerunExit*>(&error)) return rejected->facts().exit_code;
  if (dynamic_cast<const NotSaved*>(&error) != nullptr) return kNotSaved;
  const bool bad_input =
      dynamic_cast<const ConfigError*>(&error) != nullptr || dynamic_cast<const DataError*>(&error) != nullptr;
  return bad_input ? kBadInput : kFailed;
}

std::string error_text(const std::exception& error) {
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
  return of_libtorch != nullptr ? of_libtorch->what_without_backtrace() : error.what();
}

}  // namespace megalith::run
