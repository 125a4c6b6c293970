// Formats numbers for people (base/units.h has those with units), and tells the time of day.
#pragma once

#include <cstdint>
#include <string>

#include "megalith/base/units.h"

namespace megalith::observe {

// For files that other machines read; durations inside a run use a monotonic clock.
double seconds_since_1970();          // now, to the millisecond
std::string grouped(int64_t number);  // "1,234,567"
using megalith::bytes_text;
using megalith::duration_text;
using megalith::rate_text;

}  // namespace megalith::observe
