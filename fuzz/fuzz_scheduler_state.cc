#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/optim/schedule/param_scheduler.h"

namespace megalith::fuzz {

void scheduler_state(std::string_view input) {
  try {
    const optim::SchedulerState state = optim::parse_scheduler_state(input, "state.json");
    // A parsed state can be written, and parsing the result gives the same state.
    check(optim::parse_scheduler_state(optim::to_json_text(state), "state.json") == state,
          "another state after writing and reading");
  } catch (const DataError& error) {
    check(std::string_view(error.what()).starts_with("state.json: "), "a message that does not name the file");
  }
}

}  // namespace megalith::fuzz
