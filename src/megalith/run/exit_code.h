// Exit codes of a run, and the words of the error that ended it.
#pragma once

#include <exception>
#include <string>

#include "megalith/base/error.h"

namespace megalith::run {

// Errors are thrown; the top of a program turns them into one of these.
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;    // at run time: CommError, InternalError, anything else
inline constexpr int kBadInput = 2;  // ConfigError, DataError: one message, before any work is spent
inline constexpr int kNotSaved = 3;  // NotSaved: the run has ended well, but without its last checkpoint

// Thrown at the end of a run whose last checkpoint could not be written.
class NotSaved : public Error {
 public:
  using Error::Error;
};

// Returns the exit code for an error that ended a run or a command, including 16 and 17 of train::RerunExit.
int exit_code_of(const std::exception& error);

// Returns what to print about an error: its own words. libtorch appends some sixty lines of its call stack to each of
// its errors, which push the words out of sight; they belong into the log.
std::string error_text(const std::exception& error);

}  // namespace megalith::run
