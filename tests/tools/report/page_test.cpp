// SPDX-License-Identifier: Apache-2.0
#include "tools/report/page.hpp"

#include "pages.hpp"

namespace millrace::report {
namespace {

using test::count;

/// A run with every kind of text that comes from files.
ReportedRun hostile_run() {
  const std::string hostile = "<b>&\"x\"</b>";
  ReportedRun run;
  run.record.name = hostile;
  run.record.directory = "/runs/" + hostile;
  run.record.training = {{.iteration = 10, .epoch = 1.0, .loss = 2.0, .top1 = 25.0, .rate = 0.1},
                         {.iteration = 20,
                          .epoch = 2.0,
                          .loss = 1.5,
                          .top1 = 50.0,
                          .rate = 0.1,
                          .images_per_second = 10.0,
                          .loss_scale = 64.0,
                          .skipped = 3}};
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  run.record.validations = {{10, 1.0, kNone, 40.0, kNone, ""}, {20, 2.0, 1.0, 60.0, 90.0, hostile}};
  run.record.events = {
      {.iteration = 10, .what = "restored", .seconds = {}, .images_per_second = {}},
      {20, hostile, 65.0, 123.4}};
  run.record.supervised = {
      {.time = 10.0,
       .event = "start",
       .ranks = 2,
       .hosts = {hostile},
       .checkpoint = hostile,
       .what = hostile},
      {.time = 15.0, .event = "lost", .hosts = {}, .checkpoint = hostile, .what = hostile}};
  run.record.machine = {hostile};
  run.record.notes = {hostile};
  run.chosen = {{hostile, hostile, hostile}};
  run.others = {{hostile, hostile, ""}};
  TracedStep traced;
  traced.devices = {{.name = hostile}};
  traced.line.devices = {{{{pipeline::ActionKind::Forward, 0, 0}, 0.0, 1.0}}};
  traced.line.busy = {1.0};
  traced.line.makespan = 1.0;
  run.traced = traced;
  return run;
}

TEST(PageTest, EscapesEverythingFromFiles) {
  const std::vector<ReportedRun> runs = {hostile_run(), hostile_run()};
  for (const std::size_t number : {1u, 2u}) {
    const std::string page = html_page(std::span(runs).first(number), "<b>&\"x\"</b>");
    test::expect_sound(page);
    EXPECT_EQ(count(page, "<b>&"), 0u);
    EXPECT_EQ(count(page, "nan"), 0u);
    EXPECT_GE(count(page, "&lt;b&gt;&amp;&quot;x&quot;&lt;/b&gt;"), 13u * number);
  }
}

TEST(PageTest, SaysWhatHappened) {
  const std::vector<ReportedRun> runs = {hostile_run()};
  const std::string page = html_page(runs, "1");
  EXPECT_EQ(test::tile(page, "best top-1, epoch 1<"), "40.00 %");
  EXPECT_EQ(test::tile(page, "img/s while training"), "123.4");
  EXPECT_EQ(test::tile(page, "updates"), "20");
  test::expect_in(page, {"3 skipped since update 10 (not finite); loss scale now 64"});
  EXPECT_NE(page.find("class=\"mark\""), std::string::npos) << "the restart";
  test::expect_in(page, {"Measured: 1000.00 ms, bubble 0.0 %"});
}

std::vector<SupervisorEvent> supervised() {
  const auto event = [](double time, const char* what, std::vector<std::string> hosts) {
    return SupervisorEvent{.time = time,
                           .event = what,
                           .ranks = 0,
                           .hosts = std::move(hosts),
                           .checkpoint = "",
                           .what = what};
  };
  return {event(100.0, "start", {"a", "b"}),
          event(110.0, "lost", {}),
          event(112.0, "start", {"a"}),
          event(113.0, "snapshot", {}),
          event(130.0, "host back", {}),
          event(132.0, "start", {"a", "b"}),
          event(200.0, "end", {})};
}

// Each host has a bar from each start to its end, also where it began with a snapshot in memory,
// and while the ranks save for a host that is back.
TEST(PageTest, DrawsWhichHostsHadRanks) {
  const svg::Drawing drawing = draw_hosts(supervised());
  EXPECT_EQ(count(drawing.body, "<rect"), 5u);
  EXPECT_EQ(count(drawing.body, ">lost<"), 1u);
  EXPECT_EQ(count(drawing.body, ">back<"), 1u);
  // 730 pixels are 100 s: 10 s, and 20 s of the host that stayed alone.
  test::expect_in(drawing.body, {"width=\"72.00\"", "width=\"145.00\"", "width=\"495.40\""});
  EXPECT_EQ(count(draw_hosts({}).body, "<"), 0u);
}

// Of how many images an accuracy is decides what it is compared with.
TEST(PageTest, ValidationsOfOtherNumbersOfImagesAreApart) {
  std::vector<ReportedRun> runs(1);
  const auto validated = [](std::int64_t at, double top1, std::int64_t images) {
    return ValidationPoint{.iteration = at,
                           .epoch = static_cast<double>(at),
                           .loss = 1.0,
                           .top1 = top1,
                           .name = {},
                           .images = images};
  };
  runs[0].record.validations = {validated(1, 90.0, 32), validated(2, 80.0, 32),
                                validated(3, 40.0, 64), validated(4, 70.0, 64),
                                validated(5, 60.0, 64)};
  const std::string page = html_page(runs, "1");
  EXPECT_EQ(test::tile(page, "best top-1 of 64 images, epoch 4<"), "70.00 %");
  EXPECT_EQ(test::tile(page, "last top-1 of 64 images, epoch 5<"), "60.00 %");
  EXPECT_EQ(count(page, ">validation of 32 images<"), 2u) << "loss and accuracy";
  EXPECT_EQ(count(page, ">validation of 64 images<"), 2u);
  EXPECT_EQ(count(page, "<td class=\"n\">32</td>"), 2u) << "the table";
  runs[0].record.validations = {validated(1, 90.0, 32), validated(2, 40.0, 0)};
  const std::string whole = html_page(runs, "1");
  EXPECT_EQ(test::tile(whole, "best top-1, epoch 2<"), "40.00 %");
  EXPECT_EQ(count(whole, ">validation<"), 2u);
}

/// A plan of one forward pass for each device, of stages in order.
pipeline::TimeLine planned_passes(std::int32_t devices) {
  pipeline::TimeLine line;
  for (std::int32_t device = 0; device < devices; ++device)
    line.devices.push_back({{{pipeline::ActionKind::Forward, device, 0}, 0.0, 1.0}});
  return line;
}

TEST(PageTest, SaysThatATraceIsOfAnotherLayout) {
  std::vector<ReportedRun> runs = {hostile_run()};
  const auto differs = [&](const pipeline::TimeLine& planned) {
    return !has_layout_of(planned, *runs[0].traced);
  };
  EXPECT_FALSE(differs(planned_passes(1)));
  EXPECT_FALSE(differs({})) << "a single stage";
  EXPECT_TRUE(differs(planned_passes(2)));
  pipeline::TimeLine other = planned_passes(1);
  other.devices[0][0].action.stage = 1;
  EXPECT_TRUE(differs(other));
  pipeline::TimeLine more = planned_passes(1);
  more.devices[0].push_back({{pipeline::ActionKind::Forward, 0, 1}, 1.0, 2.0});
  EXPECT_TRUE(differs(more)) << "two micro-batches";
  more.devices[0].back().action = {pipeline::ActionKind::Backward, 0, 0};
  EXPECT_FALSE(differs(more)) << "too short to be in the trace";
  const std::string warning = "The trace is of another layout than the plan";
  runs[0].planned.emplace();
  test::expect_not_in(schedule_section(runs[0]), {warning});
  runs[0].planned->step = planned_passes(2);
  test::expect_in(schedule_section(runs[0]), {warning});
}

// What is wider than a phone scrolls by itself; otherwise the page does, or the rest is cut off.
TEST(PageTest, TablesAndSchedulesScroll) {
  const std::vector<ReportedRun> runs = {hostile_run(), hostile_run()};
  for (const std::size_t number : {1u, 2u}) {
    const std::string page = html_page(std::span(runs).first(number), "1");
    const std::regex table("(<[^<]*>)\\s*<table>");
    std::size_t tables = 0;
    for (std::sregex_iterator at(page.begin(), page.end(), table), end; at != end; ++at, ++tables)
      EXPECT_EQ((*at)[1].str().rfind("<div class=\"card scroll", 0), 0u) << (*at)[0];
    EXPECT_EQ(tables, count(page, "<table>"));
    EXPECT_GT(tables, 3u);
    const std::regex schedule(
        "<figure class=\"card scroll\"><figcaption>Measured: [^<]*</figcaption>\\s*<svg");
    EXPECT_TRUE(std::regex_search(page, schedule));
  }
}

TEST(PageTest, SharesOfADeviceAddUp) {
  std::vector<ReportedRun> runs = {hostile_run()};
  runs[0].traced->devices = {{.name = "replica 0 device 0 (rank 0)",
                              .forward = 0.057,
                              .backward = 0.1,
                              .update = 0.001,
                              .messages = 0.02,
                              .wait = 0.797}};
  const std::string page = html_page(runs, "1");
  const std::regex pattern("replica 0 device 0 \\(rank 0\\)</td>(.*)</tr>");
  std::smatch row;
  ASSERT_TRUE(std::regex_search(page, row, pattern)) << page;
  const std::string cells = row[1];
  const std::regex number("([0-9.]+) %");
  double sum = 0.0;
  for (std::sregex_iterator share(cells.begin(), cells.end(), number), end; share != end; ++share)
    sum += std::stod((*share)[1]);
  EXPECT_NEAR(sum, 100.0, 0.5) << cells;
}

TEST(PageTest, TheLegendNamesOnlyWhatIsDrawn) {
  std::vector<ReportedRun> runs = {hostile_run()};
  EXPECT_GT(count(html_page(runs, "1"), ">validation</span>"), 0u);
  runs[0].record.validations.clear();
  const std::string page = html_page(runs, "1");
  EXPECT_EQ(count(page, ">validation</span>"), 0u);
  EXPECT_GT(count(page, ">training</span>"), 0u);
}

TEST(PageTest, SaysWhatIsMissing) {
  std::vector<ReportedRun> runs(1);
  const std::string page = html_page(runs, "1");
  test::expect_in(page, {"no validation", "no values", "the run has no trace",
                         "log.txt says nothing about it"});
}

}  // namespace
}  // namespace millrace::report
