// Curves in block characters, for a terminal.
#pragma once

#include <functional>
#include <span>
#include <string>

namespace megalith::cli {

// A place that a curve is marked at.
struct CurveMark {
  double at;         // 0 (left end) to 1 (right end)
  std::string text;  // what is there
};

struct CurveFrame {
  int width = 80;   // characters of a line, labels included
  int height = 10;  // lines of the curve itself
};

// Draws value(x) for x from 0 to 1: its largest and smallest value stand at the left, the marks below as a, b, c with
// their texts. Values are finite.
std::string draw_curve(const std::function<double(double)>& value, std::span<const CurveMark> marks,
                       const CurveFrame& frame);

// The width of the terminal that stdout is; 80 when it is none.
int terminal_width();

}  // namespace megalith::cli
