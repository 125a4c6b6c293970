#include "fuzz/entries.h"
#include "megalith/observe/dashboard/metrics_line.h"

void megalith::fuzz::metrics_line(std::string_view input) { observe::MetricsLine().parse(input); }
