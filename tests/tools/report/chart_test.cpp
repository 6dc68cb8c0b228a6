// SPDX-License-Identifier: Apache-2.0
#include "tools/report/chart.hpp"

#include <regex>

#include "pages.hpp"

namespace millrace::report {
namespace {

using test::count;

Chart chart_of(std::vector<Point> points, LineStyle style = LineStyle::Solid) {
  Chart chart;
  chart.title = "a < b";
  chart.lines.push_back(
      {.name = "<one>", .colour = 7, .style = style, .points = std::move(points)});
  return chart;
}

TEST(ChartTest, IsAFigureWithTitleLegendAndLine) {
  const std::string text = figure(chart_of({{0.0, 1.0}, {1.0, 2.0}, {2.0, 4.0}}));
  EXPECT_EQ(test::problem_of_xml(text), "");
  test::expect_in(text, {"a &lt; b", "<span class=\"c1 solid again\">&lt;one&gt;</span>"});
  EXPECT_EQ(count(text, "<circle"), 0u);
  EXPECT_EQ(count(figure(chart_of({{0.0, 1.0}, {1.0, 2.0}}, LineStyle::Dotted)), "<circle"), 2u);
}

// Layouts do not change results, so the curves of two runs are often the same.
TEST(ChartTest, LinesThatFollowOthersLeaveThemVisible) {
  const std::vector<Point> short_points = {{0.0, 1.0}, {1.0, 2.0}};
  const std::vector<Point> long_points = {{0.0, 1.0}, {1.0, 2.0}, {2.0, 4.0}};
  Chart chart;
  for (const auto& [name, points] :
       {std::pair("a", short_points), {"b", long_points}, {"c", long_points}})
    chart.lines.push_back(
        {.name = name, .colour = 0, .style = LineStyle::Dotted, .points = points});
  const std::string text = figure(chart);
  const std::regex lines(
      "(<g class=\"c0 dotted\"><path d=\"[^\"]*\"(?: style=\"stroke-dasharray:([0-9 ]+)\")?/>)");
  std::vector<std::string> dashes;
  for (std::sregex_iterator line(text.begin(), text.end(), lines), end; line != end; ++line)
    dashes.push_back((*line)[2]);
  EXPECT_EQ(dashes, (std::vector<std::string>{"", "8 8", "8 16"})) << "b, c, a\n" << text;
  EXPECT_EQ(count(text, "r=\"3\""), 3u);
  EXPECT_EQ(count(text, "r=\"1.5\""), 3u);
  EXPECT_EQ(count(text, "r=\"1\""), 2u);
  for (const char* part : {">a, on the line of b<", ">b<", ">c, on the line of b<"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
}

TEST(ChartTest, ValuesThatAreNotFiniteAreGaps) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string text =
      figure(chart_of({{0.0, 1.0}, {1.0, 2.0}, {2.0, nan}, {3.0, 2.0}, {4.0, 1.0}}));
  EXPECT_EQ(count(text, "nan"), 0u);
  const std::regex line("<path d=\"M[0-9. ]+L[0-9. ]+M[0-9. ]+L[0-9. ]+\"/>");
  EXPECT_TRUE(std::regex_search(text, line)) << text;
}

TEST(ChartTest, WithoutValuesSaysSo) {
  EXPECT_NE(figure(chart_of({})).find("no values"), std::string::npos);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_NE(figure(chart_of({{1.0, infinity}})).find("no values"), std::string::npos);
}

TEST(ChartTest, EqualAndSingleValuesHaveAnAxis) {
  for (const Scale scale : {Scale::FromZero, Scale::Tight, Scale::Logarithmic})
    for (const std::vector<Point>& points :
         {std::vector<Point>{{0.5, 0.0}}, {{1.0, 3.0}, {2.0, 3.0}}, {{1.0, 1e-9}, {2.0, 1e9}}}) {
      Chart chart = chart_of(points);
      chart.scale = scale;
      const std::string text = figure(chart);
      EXPECT_EQ(test::problem_of_xml(text), "");
      EXPECT_EQ(count(text, "nan") + count(text, "inf\""), 0u) << text;
      EXPECT_LE(count(text, "class=\"grid\""), 120u);
    }
}

// A loss that hardly moves, between the usual numbers of such an axis.
TEST(ChartTest, ALogarithmicAxisHasNumbersAroundAnyValues) {
  for (const auto& [low, high] : {std::pair(2.2, 2.7), {2.30, 2.31}, {0.52, 0.66}, {1.0, 900.0}}) {
    Chart chart = chart_of({{0.0, low}, {1.0, high}});
    chart.scale = Scale::Logarithmic;
    EXPECT_GE(count(figure(chart), "class=\"grid\""), 2u) << low << " to " << high;
  }
}

TEST(ChartTest, LongLinesAreThinnedButKeepTheirExtremes) {
  std::vector<Point> points;
  for (int i = 0; i < 100'000; ++i) points.push_back({0.001 * i, i == 54'321 ? 40.0 : 1.0});
  const std::string text = figure(chart_of(points));
  EXPECT_LT(text.size(), 20'000u);
  // The highest value touches the top of the chart.
  EXPECT_TRUE(std::regex_search(text, std::regex("L[0-9.]+ 10\\.0"))) << text.substr(0, 3000);
}

}  // namespace
}  // namespace millrace::report
