// Draws curves in block characters for a terminal.
//
//   3e-04│▁▃▅▇█▇▆▅▄▃▂▁
//        └────────────
//          a              a: warm-up ends
#pragma once

#include <functional>
#include <span>
#include <string>

namespace megalith::cli {

// A marked point of a curve.
struct CurveMark {
  double at;         // 0 (left end) to 1 (right end)
  std::string text;  // its label
};

// The size of a drawing.
struct CurveFrame {
  int width = 80;   // characters of a line, labels included
  int height = 10;  // lines of the curve itself
};

// Draws value(x) for x from 0 to 1. Its largest and smallest values are printed at the left, the marks below as a, b, c
// with their texts. Values must be finite.
std::string draw_curve(const std::function<double(double)>& value, std::span<const CurveMark> marks,
                       const CurveFrame& frame);

// Returns the width of the terminal; 80 when stdout is not a terminal.
int terminal_width();

}  // namespace megalith::cli
