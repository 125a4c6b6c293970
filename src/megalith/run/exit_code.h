// Exit codes of a run.
#pragma once

#include <exception>

namespace megalith::run {

// Errors are thrown; the top of a program turns them into one of these.
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;    // at run time: CommError, InternalError, anything else
inline constexpr int kBadInput = 2;  // ConfigError, DataError: one message, before any work is spent

// Returns the exit code for an error that ended a run or a command, including 16 and 17 of train::RerunExit.
int exit_code_of(const std::exception& error);

}  // namespace megalith::run
