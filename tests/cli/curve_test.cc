#include "megalith/cli/preview/curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>
#include <vector>

namespace megalith::cli {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Characters, not bytes.
size_t width_of(const std::string& line) {
  size_t width = 0;
  for (const char c : line)
    if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) ++width;
  return width;
}

// Twelve columns of a line from 1 to 16 eighths.
TEST(Curve, a_rising_line) {
  const std::vector<CurveMark> marks{{0.5, "half way"}, {1.0, "the end"}};
  EXPECT_EQ(draw_curve([](double x) { return 3 * x; }, marks, {.width = 23, .height = 2}),
            "         3│      ▁▃▄▅▇█\n"
            "         0│▁▂▄▅▆███████\n"
            "          └────────────\n"
            "                 a    b\n"
            "           a: half way\n"
            "           b: the end\n");
}

TEST(Curve, a_flat_line_has_one_label) {
  EXPECT_EQ(draw_curve([](double) { return 0.1; }, {}, {.width = 21, .height = 1}),
            "       0.1│██████████\n"
            "          └──────────\n");
}

TEST(Curve, no_line_is_wider_than_asked_and_every_value_shows) {
  for (const int width : {40, 80, 133}) {
    const std::string text = draw_curve([](double x) { return std::sin(20 * x); }, {}, {.width = width, .height = 7});
    const std::vector<std::string> lines = lines_of(text);
    ASSERT_EQ(lines.size(), 8U);
    for (const std::string& line : lines) EXPECT_LE(width_of(line), static_cast<size_t>(width));
    EXPECT_EQ(width_of(lines[6]), static_cast<size_t>(width)) << "the smallest value still has a mark";
  }
}

TEST(Curve, a_peak_between_two_columns_counts) {
  const auto spike = [](double x) { return x == 0.123 ? 9.0 : 1.0; };
  const std::vector<CurveMark> marks{{0.123, "spike"}};
  EXPECT_NE(draw_curve(spike, marks, {.width = 40, .height = 3}).find("         9│"), std::string::npos);
}

TEST(Curve, marks_at_one_place_stand_side_by_side) {
  const std::vector<CurveMark> marks{{1, "one"}, {1, "two"}};
  const std::string text = draw_curve([](double x) { return x; }, marks, {.width = 21, .height = 1});
  EXPECT_EQ(lines_of(text)[2], "                   ba");
}

TEST(Curve, width_without_a_terminal) { EXPECT_GE(terminal_width(), 40); }

}  // namespace
}  // namespace megalith::cli
