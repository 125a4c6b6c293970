// Values of Arrow arrays as JSON text. Part of libmegalith_arrow.so only.
#pragma once

#include <cstdint>
#include <string>

namespace arrow {
class Array;
class Schema;
}  // namespace arrow

namespace megalith::data {

// Throws std::runtime_error, naming the column, if a column has a type that has no form in JSON.
void check_types(const arrow::Schema& schema);

// Appends a value; requires a type that check_types accepts.
//
//   null                       null
//   bool, integers             true, 17
//   floats                     the shortest text that gives the same double; NaN and infinities are null
//   decimals                   their digits
//   string, large, view        a string; bytes that are not UTF-8 are kept, and refused by the parser
//   dates, times, durations    a string, as Arrow prints them: "2024-01-31 10:00:00"
//   lists                      a list
//   map                        a list of pairs
//   struct                     an object, its fields in their order
//   dictionary, extension      as the values that they stand for
//   binary                     {"binary_bytes": 17}: the record can be read, and a message can show why it is refused
//   binary `bytes` of a struct with `path` (images of the package `datasets`)   {"base64": "…"}
void append_value(const arrow::Array& array, int64_t index, std::string& out);

}  // namespace megalith::data
