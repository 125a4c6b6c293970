#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/observe/dashboard/trace_view.h"

void megalith::fuzz::trace_view(std::string_view input) try {
  const auto view = observe::TraceView::parse(input);
  view.summary_json();
  for (size_t step = 0; step < view.steps().size(); ++step) view.step_json(step);
} catch (const DataError&) {
}
