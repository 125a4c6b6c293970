// Writes numbers with units for people. Texts are ASCII, so that columns can be counted in bytes, and have the same
// width for neighboring values as far as possible.
#pragma once

#include <string>

namespace megalith {

std::string bytes_text(double bytes);      // "980 B", "1.5 MiB", "12.3 GiB": powers of 1024, at most one decimal
std::string rate_text(double per_second);  // "987", "12.3k", "4.56M"
// "0:00:07", "1:23:45", "2d 03:04:05"; "?" for values that are not finite or negative. Rounded to whole seconds; used
// for past and remaining times alike.
std::string duration_text(double seconds);

}  // namespace megalith
