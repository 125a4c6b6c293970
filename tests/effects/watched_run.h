// A short run through the Trainer, watched from outside: its numbers, the messages between its ranks, the work and
// the memory of one rank, and what the run says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megalith/config/training_arguments.h"

namespace megalith::testing {

// The record of a run, the same whenever the run is repeated.
struct WatchedRun {
  std::string numbers;  // losses and gradient norms to the last digit, and the error that ended the run
  // How many matrix products, attentions and top-k choices the rank computed, by operator and shape of the first input.
  std::string operators;
  std::string messages;  // how many operations between ranks the rank took part in, by group and kind
  // How many matrix products the rank began between the start of a message and the end of waiting for it, by group and
  // kind. The order on a thread is fixed, however long a message takes.
  std::string products_meanwhile;
  std::string messages_in_update;  // how many of those operations began in the part of a step that completes its update
  // All the tensor memory that the rank asked for while it trained. Only a run of one rank repeats it: of several, the
  // last to arrive allocates the result of a reduction. (When memory is freed depends on other threads, too.)
  int64_t allocated_bytes = 0;
  std::string said;  // on stderr
};

// The model and the layout beyond the arguments, whose tp, pp, vpp and cp are those of the run.
struct WatchedCase {
  std::string model = "llama";  // golden, or "deep" for a llama of 8 layers
  int dp = 1;
  int rank = 0;  // the rank that is watched; only rank 0 has numbers
};

// Trains on 16 short samples as the arguments say; the words of small_run() make that short.
WatchedRun watch_run(const config::TrainingArguments& args, const WatchedCase& how = {});

// Two steps of full training of two micro-batches each, every step logged and nothing saved; then `more`.
std::vector<std::string> small_run(const std::vector<std::string>& more = {});

}  // namespace megalith::testing
