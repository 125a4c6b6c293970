#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/optim/grad_scaler.h"

namespace megalith::fuzz {

namespace {

// Checks that a scaler accepts the state it has read, or says why not, and can be stepped.
void step_from(const optim::GradScalerState& state) {
  auto scaler = optim::GradScaler::dynamic({});
  try {
    scaler.load(state);
  } catch (const DataError&) {
    return;
  }
  for (const bool overflow : {false, true, true}) scaler.update(overflow);
  check(scaler.scale() > 0, "a scale of {}", scaler.scale());
}

}  // namespace

void grad_scaler_state(std::string_view input) {
  try {
    const optim::GradScalerState state = optim::parse_grad_scaler_state(input, "state.json");
    check(optim::parse_grad_scaler_state(optim::to_json_text(state), "state.json") == state,
          "another state after writing and reading");
    step_from(state);
  } catch (const DataError& error) {
    check(std::string_view(error.what()).starts_with("state.json: "), "a message that does not name the file");
  }
}

}  // namespace megalith::fuzz
