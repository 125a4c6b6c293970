// A curve of block characters: each column shows the value in eighths of a character, so ten lines have 80 levels.
#include "megalith/cli/preview/curve.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

namespace megalith::cli {
namespace {

// Room for "1.234e-05" and a blank.
constexpr int kLabelWidth = 10;
constexpr int kEighths = 8;  // levels that one character can show
constexpr std::array<std::string_view, kEighths + 1> kBlocks{" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

// Lines are compared by tests and pasted into documents, where trailing blanks get lost.
std::string without_trailing_blanks(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

// Returns heights in eighths of a character, from 1 for `low` to 8 * height for `high`; a flat curve fills the frame.
std::vector<int> levels(std::span<const double> values, double low, double high, int height) {
  std::vector<int> out;
  for (const double value : values) {
    const double part = high > low ? (value - low) / (high - low) : 1.0;
    out.push_back(1 + static_cast<int>(std::lround(part * (height * kEighths - 1))));
  }
  return out;
}

// Returns the line of letters under the axis; a mark whose column is taken moves to the next free one.
std::string mark_line(std::span<const CurveMark> marks, int columns) {
  std::string line(static_cast<size_t>(columns), ' ');
  char letter = 'a';
  for (const CurveMark& mark : marks) {
    auto column = static_cast<size_t>(std::lround(std::clamp(mark.at, 0.0, 1.0) * (columns - 1)));
    if (line[column] != ' ') {
      const size_t next = line.find(' ', column);
      column = next != std::string::npos ? next : line.rfind(' ', column);
    }
    if (column < line.size()) line[column] = letter;
    ++letter;
  }
  return line;
}

}  // namespace

std::string draw_curve(const std::function<double(double)>& value, std::span<const CurveMark> marks,
                       const CurveFrame& frame) {
  const int columns = std::max(frame.width - kLabelWidth - 1, 10);
  std::vector<double> values;
  for (int i = 0; i < columns; ++i) values.push_back(value(static_cast<double>(i) / (columns - 1)));
  // Evaluate at the marks as well, so that a peak between two columns is not missed.
  for (const CurveMark& mark : marks) {
    const auto column = static_cast<size_t>(std::lround(std::clamp(mark.at, 0.0, 1.0) * (columns - 1)));
    values[column] = std::max(values[column], value(mark.at));
  }
  const double high = *std::ranges::max_element(values);
  const double low = *std::ranges::min_element(values);
  const std::vector<int> level = levels(values, low, high, frame.height);

  std::string text;
  // Rows from top to bottom; a column of level n fills n / 8 rows from below.
  for (int row = frame.height - 1; row >= 0; --row) {
    std::string label;
    if (row == frame.height - 1) label = fmt::format("{:.4g}", high);
    if (row == 0 && high > low) label = fmt::format("{:.4g}", low);
    std::string line = fmt::format("{:>{}}│", label, kLabelWidth);
    for (const int eighths : level)
      line += kBlocks[static_cast<size_t>(std::clamp(eighths - row * kEighths, 0, kEighths))];
    text += without_trailing_blanks(line) + "\n";
  }
  text += std::string(kLabelWidth, ' ') + "└";
  for (int i = 0; i < columns; ++i) text += "─";
  text += "\n";
  if (!marks.empty())
    text += without_trailing_blanks(std::string(kLabelWidth + 1, ' ') + mark_line(marks, columns)) + "\n";
  char letter = 'a';
  for (const CurveMark& mark : marks)
    text += fmt::format("{}{}: {}\n", std::string(kLabelWidth + 1, ' '), letter++, mark.text);
  return text;
}

int terminal_width() {
  constexpr int kUsual = 80;
  // Below this a curve is not readable, so it is allowed to wrap.
  constexpr int kNarrow = 40;
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsual;
  return std::max<int>(size.ws_col, kNarrow);
}

}  // namespace megalith::cli
