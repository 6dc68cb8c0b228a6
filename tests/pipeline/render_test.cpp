// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/render.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "tests/support/file_bytes.hpp"
#include "tests/support/test.hpp"
#include "tests/support/xml.hpp"

namespace millrace::pipeline {
namespace {

Schedule make(std::string_view kind, std::int32_t devices, std::int32_t micro_batches,
              std::int32_t chunks = 1) {
  ScheduleRequest r;
  r.name = kind;
  r.devices = devices;
  r.chunks = chunks;
  r.micro_batches = micro_batches;
  return generate(r);
}

/// With messages and updates, on links that take time.
TimeLine full_line(const Schedule& compute) {
  const std::vector<Link> links = chain(compute.stages);
  Costs costs;
  costs.stages.assign(
      static_cast<std::size_t>(compute.stages),
      {.forward = 0.001, .backward_input = 0.0012, .backward_weight = 0.0008, .update = 0.0005});
  costs.link.latency = 0.0002;
  return simulate(with_communication(compute, links), links, costs);
}

/// The time line in which each pass takes a second and the rest no time.
TimeLine unit_line(const Schedule& compute) {
  Costs costs;
  costs.stages.assign(static_cast<std::size_t>(compute.stages),
                      {.forward = 1.0, .backward_input = 1.0, .backward_weight = 1.0});
  return simulate(compute, chain(compute.stages), costs);
}

std::string to_svg(const TimeLine& line, const SvgOptions& options = {}) {
  return pipeline::to_svg(std::array{SvgPanel{"", &line}}, options);
}

using test::lines_of;

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size()))
    ++n;
  return n;
}

// ---- text

TEST(StaircaseTest, ShowsPassesHalvesAndSeveralStagesADevice) {
  EXPECT_EQ(staircase(unit_line(make("1F1B", 3, 4)), 10 + 3 * 18),
            "device 0  F0 F1 F2             B0--- F3 B1---    B2---    B3---\n"
            "device 1     F0 F1       B0--- F2 B1--- F3 B2---    B3---\n"
            "device 2        F0 B0--- F1 B1--- F2 B2--- F3 B3---\n");
  EXPECT_EQ(staircase(unit_line(make("ZB-H1", 2, 3)), 10 + 3 * 10),
            "device 0  F0 F1    I0 W0 F2 I1 W1 I2 W2\n"
            "device 1     F0 I0 F1 I1 W0 F2 I2 W1 W2\n");
  test::expect_in(staircase(unit_line(make("Looped", 2, 2, 2)), 100), {"2F0", "3B1"});
}

TEST(StaircaseTest, StaysWithinItsColumns) {
  for (const std::int32_t devices : {1, 4, 8, 12}) {
    for (const std::int32_t depth : {1, 8, 16, 64}) {
      for (const std::string_view kind : {"1F1B", "ZB-H1"}) {
        const TimeLine line = full_line(make(kind, devices, depth));
        for (const std::string& chart : {staircase(line, 100), staircase(line, 40)}) {
          const std::vector<std::string> rows = lines_of(chart);
          ASSERT_EQ(rows.size(), static_cast<std::size_t>(devices));
          for (const std::string& row : rows) {
            EXPECT_LE(row.size(), 100u) << chart;
            EXPECT_NE(row.back(), ' ');
          }
        }
        for (const std::string& row : lines_of(staircase(line, 40))) EXPECT_LE(row.size(), 40u);
      }
    }
  }
}

TEST(StaircaseTest, ACharacterShowsTheActionThatTakesMostOfIt) {
  TimeLine line;
  line.devices = {{{{ActionKind::Forward, 0, 0}, 0.0, 0.6},
                   {{ActionKind::Forward, 0, 1}, 0.6, 2.0},
                   {{ActionKind::ReceiveGradient, 0, 0, 1}, 2.0, 4.0},
                   {{ActionKind::Backward, 0, 0}, 4.0, 9.0},
                   {{ActionKind::Update, 0}, 9.0, 10.0}}};
  EXPECT_EQ(staircase(line, 20), "device 0  FF  B0-- U\n");
  EXPECT_EQ(staircase(line, 30), "device 0  FF1     B0------- U\n");
  EXPECT_EQ(staircase(TimeLine{}, 30), "");
  EXPECT_THROW((void)staircase(line, 10), Error);
}

// ---- SVG

std::size_t boxes(std::string_view svg, std::string_view kind) {
  return count(svg, "<rect class=\"" + std::string(kind) + "\"");
}

TEST(SvgTest, HasABoxForEveryActionAndARowForEveryDevice) {
  for (const std::string_view kind : {"1F1B", "ZB-H1"}) {
    const std::string svg = to_svg(full_line(make(kind, 3, 5)));
    EXPECT_EQ(test::problem_of_xml(svg), "") << svg;
    const bool split = kind == "ZB-H1";
    EXPECT_EQ(count(svg, "<g class=\"device\">"), 3u);
    EXPECT_EQ(boxes(svg, "F"), 15u);
    EXPECT_EQ(boxes(svg, "B"), split ? 0u : 15u);
    EXPECT_EQ(boxes(svg, "I"), split ? 15u : 0u);
    EXPECT_EQ(boxes(svg, "W"), split ? 15u : 0u);
    EXPECT_EQ(boxes(svg, "U"), 3u);
    EXPECT_EQ(count(svg, "<rect class="), split ? 48u : 33u) << "nothing else is drawn";
    EXPECT_EQ(count(svg, "class=\"arrows\""), 0u);
    test::expect_in(svg, {">milliseconds</text>", "0F0: 1 ms, from 0 ms to 1 ms"});
  }
}

TEST(SvgTest, ArrowsFollowMessages) {
  const std::string svg = to_svg(full_line(make("1F1B", 3, 5)), {.arrows = true});
  EXPECT_EQ(test::problem_of_xml(svg), "");
  EXPECT_EQ(count(svg, "url(#millrace-arrow)"), 2u * 2u * 5u);
}

TEST(SvgTest, NumbersStandWhereTheyFit) {
  const TimeLine line = full_line(make("1F1B", 3, 5));
  EXPECT_EQ(count(to_svg(line, {.width = 1200.0}), ">F4</text>"), 3u);
  EXPECT_EQ(count(to_svg(line, {.width = 300.0}), ">F4</text>"), 0u);
  EXPECT_EQ(count(to_svg(line, {.width = 330.0}), ">4</text>"), 3u) << "without the letter";
  const TimeLine many = full_line(make("1F1B", 3, 100));
  EXPECT_EQ(count(to_svg(many, {.width = 300.0}), ">4</text>"), 0u);
  EXPECT_THROW((void)to_svg(line, {.width = 20.0}), Error);
}

TEST(SvgTest, TwoTimeLinesShareOneAxis) {
  const TimeLine slow = full_line(make("Sequential", 3, 4));
  const TimeLine fast = full_line(make("1F1B", 3, 4));
  const std::array panels = {SvgPanel{"measured, <b> & co.", &slow}, SvgPanel{"simulated", &fast}};
  const std::string svg = pipeline::to_svg(panels);
  EXPECT_EQ(test::problem_of_xml(svg), "");
  EXPECT_EQ(count(svg, "<g class=\"panel\">"), 2u);
  EXPECT_EQ(count(svg, "<g class=\"device\">"), 6u);
  EXPECT_EQ(count(svg, "<g class=\"axis\""), 1u);
  EXPECT_EQ(boxes(svg, "F"), 24u);
  test::expect_in(svg, {">measured, &lt;b&gt; &amp; co.</text>"});
  EXPECT_LT(svg.find("measured"), svg.find(">simulated</text>"));
  // The first forward is equally wide in both.
  const auto first_box = [](std::string_view text) {
    const std::size_t at = text.find("width=", text.find("<rect class=\"F\""));
    return text.substr(at, text.find(' ', at) - at);
  };
  const std::string_view second = std::string_view(svg).substr(svg.rfind("class=\"panel\""));
  EXPECT_EQ(first_box(svg), first_box(second));
}

TEST(SvgTest, EmptyTimeLinesAreDrawn) {
  EXPECT_EQ(test::problem_of_xml(to_svg(TimeLine{})), "");
  EXPECT_EQ(test::problem_of_xml(pipeline::to_svg(std::span<const SvgPanel>{})), "");
}

}  // namespace
}  // namespace millrace::pipeline
