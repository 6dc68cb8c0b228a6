// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/schedule.hpp"

#include <random>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "pipeline/schedule/generators/rules.hpp"
#include "pipeline/schedule/simulate.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::pipeline {
namespace {

Costs equal_costs(std::int32_t stages, double forward, double input, double weight) {
  Costs costs;
  costs.stages.assign(
      static_cast<std::size_t>(stages),
      {.forward = forward, .backward_input = input, .backward_weight = weight, .stash_bytes = 1.0});
  return costs;
}

Schedule complete(const ScheduleRequest& request) {
  const Schedule schedule = generate(request);
  return with_communication(schedule, chain(schedule.stages));
}

TimeLine replay(const Schedule& schedule, const Costs& costs) {
  return simulate(schedule, chain(schedule.stages), costs);
}

ScheduleRequest request(std::string_view kind, std::int32_t devices, std::int32_t micro_batches,
                        std::int32_t chunks = 1) {
  ScheduleRequest r;
  r.name = kind;
  r.devices = devices;
  r.chunks = chunks;
  r.micro_batches = micro_batches;
  return r;
}

// ---- published numbers; forward, input gradient and weight gradient of a device take 1 each

struct Golden {
  std::string_view kind;
  std::int32_t chunks;
  std::int32_t devices;
  std::int32_t micro_batches;
  double makespan;
  double idle;                ///< of the device that idles most
  std::vector<double> peaks;  ///< chunks held, by device; empty: not recorded
};

std::vector<Golden> golden() {
  return {
      {"GPipe", 1, 2, 4, 15, 3, {4, 4}},
      {"1F1B", 1, 2, 4, 15, 3, {2, 1}},
      {"Interleaved", 1, 2, 4, 15, 3, {2, 1}},
      {"Grouped", 1, 2, 4, 15, 3, {4, 2}},
      {"Looped", 2, 2, 4, 13.5, 1.5, {5, 3}},
      {"Looped", 4, 2, 4, 12.75, 0.75, {9, 7}},
      {"ZB-H1", 1, 2, 4, 13, 1, {2, 2}},
      {"ZB-V", 2, 2, 4, 12.5, 0, {4, 4}},
      {"1F1B", 1, 4, 8, 33, 9, {4, 3, 2, 1}},
      {"Grouped", 1, 4, 8, 33, 9, {8, 6, 4, 2}},
      {"GPipe", 1, 4, 8, 33, 9, {8, 8, 8, 8}},
      {"Looped", 2, 4, 8, 28.5, 4.5, {11, 9, 7, 5}},
      {"Looped", 4, 4, 8, 26.25, 2.25, {19, 17, 15, 13}},
      {"ZB-H1", 1, 4, 8, 27, 3, {4, 4, 4, 4}},
      {"ZB-V", 2, 4, 8, 25.5, 0, {8, 8, 8, 8}},
      {"1F1B", 1, 4, 16, 57, 9, {}},
      {"Looped", 2, 4, 16, 52.5, 4.5, {}},
      {"Looped", 4, 4, 16, 50.25, 2.25, {}},
      {"ZB-H1", 1, 4, 16, 51, 3, {}},
      {"ZB-V", 2, 4, 16, 49.5, 0, {}},
      {"1F1B", 1, 8, 16, 69, 21, {8, 7, 6, 5, 4, 3, 2, 1}},
      {"Grouped", 1, 8, 16, 69, 21, {16, 14, 12, 10, 8, 6, 4, 2}},
      {"Looped", 2, 8, 16, 58.5, 10.5, {23, 21, 19, 17, 15, 13, 11, 9}},
      {"Looped", 4, 8, 16, 53.25, 5.25, {39, 37, 35, 33, 31, 29, 27, 25}},
      {"ZB-H1", 1, 8, 16, 55, 7, std::vector<double>(8, 8)},
      {"ZB-V", 2, 8, 16, 51.5, 0, std::vector<double>(8, 16)},
      {"1F1B", 1, 8, 32, 117, 21, {}},
      {"Looped", 2, 8, 32, 106.5, 10.5, {}},
      {"Looped", 4, 8, 32, 101.25, 5.25, {}},
      {"ZB-H1", 1, 8, 32, 103, 7, {}},
      {"ZB-V", 2, 8, 32, 99.5, 0, {}},
      {"Looped-ZB", 2, 4, 8, 25.5, 1.5, std::vector<double>(4, 8)},
      {"Looped-ZB", 4, 4, 8, 24.75, 0.75, std::vector<double>(4, 16)},
      {"Looped-ZB", 2, 8, 32, 99.5, 3.5, std::vector<double>(8, 16)},
      // Half of the published bubble, (p - 1) (F&B + B - 3 W), which takes a pair of a forward and
      // a backward as one action: as three, each hands on its result at once.
      {"DualPipeV", 2, 2, 4, 12.5, 0.5, {5, 5}},
      {"DualPipeV", 2, 4, 8, 25.5, 1.5, std::vector<double>(4, 9)},
      {"DualPipeV", 2, 4, 16, 49.5, 1.5, std::vector<double>(4, 9)},
      {"DualPipeV", 2, 8, 16, 51.5, 3.5, std::vector<double>(8, 17)},
      {"DualPipeV", 2, 8, 32, 99.5, 3.5, std::vector<double>(8, 17)},
      {"V-Min", 2, 2, 4, 12.5, 0, {4, 4}},
      {"V-Min", 2, 4, 8, 29.5, 5.5, std::vector<double>(4, 4)},
      {"V-Min", 2, 8, 32, 107.5, 11.5, std::vector<double>(8, 8)},
      {"V-Half", 2, 2, 4, 12.5, 0, {4, 4}},
      {"V-Half", 2, 4, 8, 26.5, 2.5, std::vector<double>(4, 6)},
      {"V-Half", 2, 8, 32, 104.5, 8.5, std::vector<double>(8, 10)},
      {"V-ZB", 2, 2, 4, 12.5, 0, {4, 4}},
      {"V-ZB", 2, 4, 8, 25.5, 0, std::vector<double>(4, 8)},
      {"V-ZB", 2, 4, 16, 49.5, 0, {}},
      {"V-ZB", 2, 8, 32, 99.5, 0.5, std::vector<double>(8, 16)},
  };
}

TEST(ScheduleTest, GoldenNumbers) {
  for (const Golden& g : golden()) {
    const Schedule schedule = complete(request(g.kind, g.devices, g.micro_batches, g.chunks));
    const double share = 1.0 / g.chunks;
    const TimeLine line = replay(schedule, equal_costs(schedule.stages, share, share, share));
    const std::string what = schedule.name + " of " + std::to_string(g.devices) + ", " +
                             std::to_string(g.micro_batches) + ", " + std::to_string(g.chunks);
    EXPECT_DOUBLE_EQ(line.makespan, g.makespan) << what;
    EXPECT_DOUBLE_EQ(*std::max_element(line.idle.begin(), line.idle.end()), g.idle) << what;
    if (!g.peaks.empty()) {
      EXPECT_EQ(line.stash_bytes, g.peaks) << what;
    }
  }
}

// arXiv 2405.15362: two thirds, a half and none of the bubble of 1F1B, which is 3 (p - 1), with a
// third, a half and all of its activations.
TEST(ScheduleTest, ControllableMemoryKeepsItsPromises) {
  struct Promise {
    const char* name;
    double bubble;  ///< of p - 1
    std::int32_t (*held)(std::int32_t p);
  };
  const Promise promises[] = {
      {"V-Min", 2.0, [](std::int32_t p) { return (p + 4) / 3; }},
      {"V-Half", 1.5, [](std::int32_t p) { return (p + 2) / 2; }},
      {"V-ZB", 0.5, [](std::int32_t p) { return p; }},  // the first micro-batch's way down
  };
  for (const Promise& promise : promises) {
    for (std::int32_t p = 1; p <= 24; ++p) {
      for (const std::int32_t m : {1, p, 2 * p, 3 * p + 1}) {
        const Schedule schedule = complete(request(promise.name, p, m, 2));
        ASSERT_NO_THROW(validate(schedule, chain(schedule.stages)));
        const TimeLine line = replay(schedule, equal_costs(schedule.stages, 0.5, 0.5, 0.5));
        for (const double held : line.stash_bytes)
          ASSERT_LE(held, 2.0 * promise.held(p)) << promise.name << " " << p << " " << m;
        if (m < 2 * p) continue;
        ASSERT_LE(line.makespan - 3.0 * m, promise.bubble * (p - 1) + 1e-9)
            << promise.name << " " << p << " " << m;
      }
    }
  }
}

// ---- links, all-reduces, shared processors

// Two stages, two micro-batches, 1 each for F, B: F0 F1 . B0 B1 on device 0.
TEST(SimulateTest, AReceiverThatCopiesSpendsItsOwnTime) {
  Costs costs = equal_costs(2, 1, 0.5, 0.5);
  const Schedule schedule = complete(request("GPipe", 2, 2));
  EXPECT_DOUBLE_EQ(replay(schedule, costs).makespan, 6.0);
  costs.message_bytes = {1e9};
  costs.link = {.latency = 0.0, .bytes_per_second = 10e9};
  // The messages of other micro-batches travel while the devices compute.
  EXPECT_DOUBLE_EQ(replay(schedule, costs).makespan, 6.2);
  costs.link.receiver_copies = true;
  // Device 1 copies twice before F0 and F1, device 0 twice before B0 and B1.
  const TimeLine line = replay(schedule, costs);
  EXPECT_DOUBLE_EQ(line.makespan, 6.4);
  EXPECT_DOUBLE_EQ(line.busy[0], 4.0) << "a copy is not work";
}

TEST(SimulateTest, AllReducesOfADeviceFollowEachOtherAndDelayTheUpdate) {
  Costs costs = equal_costs(2, 1, 0.5, 0.5);
  costs.link = {.latency = 0.25, .bytes_per_second = 1e9};
  // To each of three others 1 GB, all at once, and then once more.
  EXPECT_DOUBLE_EQ(all_reduce_seconds(costs.link, 4, 4e9), 2 * (0.25 + 3 * 1.0));
  // Four parts of 1 GB are read and one is written.
  EXPECT_DOUBLE_EQ(all_reduce_seconds(costs.link, 4, 4e9, 10e9), 2 * (0.25 + 3 * 1.0) + 0.5);
  EXPECT_EQ(all_reduce_seconds(costs.link, 1, 4e9, 10e9), 0.0);
  const Schedule schedule = complete(request("GPipe", 2, 2));
  const double without = replay(schedule, costs).makespan;
  costs.replicas = 2;
  costs.gradient_bytes = {2e9, 0.0};
  // Device 0 ends last, and then sends and receives halves: 2 (0.25 + 1).
  EXPECT_DOUBLE_EQ(replay(schedule, costs).makespan, without + 2.5);
  costs.gradient_bytes = {0.0, 0.2e9};
  // Device 1 ends one backward, 1 s, and a message earlier.
  EXPECT_DOUBLE_EQ(replay(schedule, costs).makespan, without + 0.5);
  // Half of them are complete in the middle of the last backward, 1 s, and their sum arrives while
  // the other half leaves: 0.5 for these, and then 0.5 + 0.5 + 0.25.
  costs.gradient_bytes = {2e9, 0.0};
  costs.gradient_sums = {{{.bytes = 1e9, .left = 0.5}, {.bytes = 1e9}}, {}};
  EXPECT_DOUBLE_EQ(replay(schedule, costs).makespan, without + 1.75);
}

TEST(WiresTest, MessagesFollowEachOther) {
  const LinkModel link{.latency = 0.25, .bytes_per_second = 1.0, .exchanged_per_second = 0.5};
  Wires wires(link);
  EXPECT_DOUBLE_EQ(wires.arrival(0, 2.0, 0.0), 2.25);
  EXPECT_DOUBLE_EQ(wires.arrival(0, 4.0, 1.0), 6.25) << "behind the first";
  EXPECT_DOUBLE_EQ(wires.arrival(1, 3.0, 3.0), 6.25) << "another sender";
  EXPECT_DOUBLE_EQ(wires.arrival(0, 1.0, 7.0), 8.25);
  // A sum is sent and gathered while all send.
  Costs costs;
  costs.link = link;
  costs.replicas = 2;
  const GradientSum sum{.bytes = 2.0};
  EXPECT_DOUBLE_EQ(Wires(link).reduced(0, {&sum, 1}, 0.0, 1.0, costs),
                   1.0 + all_reduce_seconds(link, 2, 2.0));
  EXPECT_DOUBLE_EQ(all_reduce_seconds(link, 2, 2.0), 2 * (0.25 + 2.0));
}

TEST(SimulateTest, ProcessesAgreeInATree) {
  const LinkModel link{.latency = 0.25};
  EXPECT_EQ(agreement_seconds(link, 1), 0.0);
  EXPECT_DOUBLE_EQ(agreement_seconds(link, 2), 2 * 0.25);
  EXPECT_DOUBLE_EQ(agreement_seconds(link, 4), 4 * 0.25);
  EXPECT_DOUBLE_EQ(agreement_seconds(link, 5), 6 * 0.25);
  Costs costs = equal_costs(2, 1, 0.5, 0.5);
  for (StageCost& stage : costs.stages) stage.update = 1.0;
  costs.link = link;
  const Schedule schedule = complete(request("GPipe", 2, 2));
  const double without = replay(schedule, costs).makespan;
  costs.agreements = 3;
  const TimeLine line = replay(schedule, costs);
  EXPECT_DOUBLE_EQ(line.makespan, without + 3 * 0.5);
  EXPECT_DOUBLE_EQ(line.devices[0].back().begin, without - 1.0 + 0.5) << "one before the update";
  costs.devices_per_process = 2;
  EXPECT_DOUBLE_EQ(replay(schedule, costs).makespan, without) << "one process";
}

TEST(SimulateTest, DevicesThatShareAProcessorTakeTurns) {
  Costs costs = equal_costs(4, 1, 0.5, 0.5);
  for (const auto& rule : schedule_rules()) {
    if (rule.placement != StagePlacement::Free) continue;
    const Schedule schedule = complete(request(rule.name, 4, 8));
    costs.processors = 0.0;
    const TimeLine alone = replay(schedule, costs);
    costs.processors = 4.0;
    EXPECT_EQ(replay(schedule, costs).makespan, alone.makespan) << rule.name;
    costs.processors = 1.0;  // always one of them works: all work, one after the other
    EXPECT_NEAR(replay(schedule, costs).makespan, 4 * 8 * 2.0, 1e-9) << rule.name;
    costs.processors = 0.5;
    EXPECT_NEAR(replay(schedule, costs).makespan, 2 * 4 * 8 * 2.0, 1e-9) << rule.name;
    costs.processors = 2.0;
    const double two = replay(schedule, costs).makespan;
    EXPECT_GE(two, std::max(alone.makespan, 4 * 8 * 2.0 / 2)) << rule.name;
    EXPECT_LE(two, 4 * 8 * 2.0 + 1e-9) << rule.name;
  }
}

TEST(SimulateTest, DevicesOfAProcessFollowEachOther) {
  Costs costs = equal_costs(2, 1, 0.5, 0.5);
  costs.processors = 1.0;
  costs.devices_per_process = 2;
  for (StageCost& stage : costs.stages) stage.update = 3.0;
  const Schedule schedule = complete(request("1F1B", 2, 8));
  const TimeLine line = replay(schedule, costs);
  // Never both: all work, one after the other, and then both updates.
  EXPECT_NEAR(line.makespan, 2 * 8 * 2.0 + 2 * 3.0, 1e-9);
  for (const double busy : line.busy) EXPECT_NEAR(busy, 8 * 2.0 + 3.0, 1e-9);
  EXPECT_NEAR(line.bubble(), 0.5, 1e-9) << "the turn of the other device is not work";
}

TEST(ScheduleTest, GoldenNumbersOfLatency) {
  struct Case {
    std::string_view kind;
    std::int32_t devices;
    double latency;
    double seconds;
  };
  for (const auto& [kind, devices, latency, seconds] :
       {Case{"1F1B", 4, 0.5, 131}, Case{"Grouped", 4, 0.5, 108}, Case{"GPipe", 4, 0.5, 108},
        Case{"1F1B", 4, 0.25, 118}, Case{"Grouped", 4, 0.25, 106.5}, Case{"1F1B", 8, 0.5, 151},
        Case{"Grouped", 8, 0.5, 124}}) {
    Costs costs = equal_costs(devices, 1.0, 1.0, 1.0);
    costs.link.latency = latency;
    EXPECT_DOUBLE_EQ(replay(complete(request(kind, devices, 32)), costs).makespan, seconds);
  }
}

// ---- every schedule of every size

/// Selects all short pipelines and a few long ones; with MILLRACE_LONG_TESTS all.
bool says_something_new(std::int32_t devices, std::int32_t depth) {
  return std::getenv("MILLRACE_LONG_TESTS") != nullptr || depth <= 16 || depth == 31 ||
         depth == 32 || depth == 64 || depth == 2 * devices || depth == 3 * devices;
}

std::vector<ScheduleRequest> all_requests() {
  std::vector<ScheduleRequest> all;
  for (std::int32_t devices = 1; devices <= 16; ++devices) {
    for (std::int32_t depth = 1; depth <= 64; ++depth) {
      if (!says_something_new(devices, depth)) continue;
      for (const ScheduleRule& rule : schedule_rules()) {
        if (rule.placement == StagePlacement::Loop) {
          // Long ones at a few depths: the rest says nothing new.
          for (std::int32_t chunks = 2; chunks <= 4; ++chunks)
            if (depth <= 8 || depth % 8 < 2)
              all.push_back(request(rule.name, devices, depth, chunks));
        } else {
          all.push_back(
              request(rule.name, devices, depth, rule.placement == StagePlacement::V ? 2 : 1));
        }
      }
    }
  }
  return all;
}

/// Idle time of a device in closed form, where there is one; equal stages, no links.
std::optional<double> idle_of(const ScheduleRequest& r) {
  const double p = r.devices - 1;
  if (r.name == "Sequential") return 3.0 * p * r.micro_batches;
  if (r.name == "ZB-V") return 0.0;
  if (r.name.starts_with("V-")) return std::nullopt;
  // (p-1) (F + I - W) by chunk, or (p-1) (F + B)
  return (schedule_rule(r.name).splits_backward ? p : 3.0 * p) / r.chunks;
}

TEST(ScheduleTest, AllSizesAreValidAndIdleTimesMatchTheFormulae) {
  std::size_t cases = 0;
  for (const ScheduleRequest& r : all_requests()) {
    const Schedule schedule = complete(r);
    ASSERT_NO_THROW(validate(schedule, chain(schedule.stages))) << to_csv(schedule);
    ++cases;
    // The formulae apply only if the pipeline fills.
    const bool full = r.micro_batches >= 2 * r.devices && r.micro_batches % r.devices == 0;
    if (!full) continue;
    const double share = 1.0 / r.chunks;
    const TimeLine line = replay(schedule, equal_costs(schedule.stages, share, share, share));
    const std::optional<double> idle = idle_of(r);
    if (!idle) continue;
    ASSERT_NEAR(*std::max_element(line.idle.begin(), line.idle.end()), *idle, 1e-9)
        << schedule.name << " " << r.devices << " " << r.micro_batches << " " << r.chunks;
  }
  EXPECT_GT(cases, 2500u);
  std::printf("%zu schedules\n", cases);
}

TEST(ScheduleTest, StagesMayShareDevices) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    ScheduleRequest r;
    constexpr std::array kKinds = {"Sequential", "Grouped", "GPipe", "1F1B", "ZB-H1"};
    r.name = kKinds[random() % kKinds.size()];
    r.devices = static_cast<std::int32_t>(1 + random() % 4);
    r.micro_batches = static_cast<std::int32_t>(1 + random() % 9);
    const std::size_t stages = 1 + random() % 8;
    for (std::size_t s = 0; s < stages; ++s)
      r.device_of.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(r.devices)));
    const Schedule schedule = complete(r);
    ASSERT_NO_THROW(validate(schedule, chain(schedule.stages))) << to_csv(schedule);
  }
}

TEST(ScheduleTest, LinksMaySkipStages) {
  // Stage 0 makes values for 1 and 2, and one for 1 and 3 whose gradient comes back via 1.
  const std::vector<Link> links = {{0, 1}, {0, 2, true, false}, {1, 2},
                                   {2, 3}, {0, 3, true, false}, {1, 3, false, true}};
  for (const std::string_view kind : {"Sequential", "Grouped", "1F1B", "ZB-H1"}) {
    const Schedule schedule = with_communication(generate(request(kind, 4, 8)), links);
    EXPECT_NO_THROW(validate(schedule, links));
    EXPECT_THROW(validate(schedule, chain(4)), Error) << "messages without a link";
  }
}

TEST(ScheduleTest, WarmUpTradesMemoryForLatency) {
  for (std::int32_t extra = 0; extra <= 5; ++extra) {
    ScheduleRequest r = request("1F1B", 4, 16);
    r.extra_warmup = extra;
    const Schedule schedule = complete(r);
    EXPECT_NO_THROW(validate(schedule, chain(4)));
    const std::vector<std::int32_t> expected = {4 + std::min(extra, 4), 3 + std::min(extra, 3),
                                                2 + std::min(extra, 2), 1 + std::min(extra, 1)};
    EXPECT_EQ(stash_peaks(schedule), expected);
  }
}

// ---- unequal stages

// AutoScheduleTest compares the generators with bounds.
TEST(ScheduleTest, GPipeOfUnequalStagesWaitsForTheLongest) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> seconds(0.5, 1.5);
  for (int trial = 0; trial < 200; ++trial) {
    const auto p = static_cast<std::int32_t>(2 + random() % 7);
    const auto m = p + static_cast<std::int32_t>(random() % 25);
    Costs costs;
    double sum = 0.0;
    double forward = 0.0;
    double backward = 0.0;
    for (std::int32_t s = 0; s < p; ++s) {
      const StageCost cost{
          .forward = seconds(random), .backward_input = seconds(random), .backward_weight = 0.5};
      sum += cost.work();
      forward = std::max(forward, cost.forward);
      backward = std::max(backward, cost.backward_input + cost.backward_weight);
      costs.stages.push_back(cost);
    }
    EXPECT_NEAR(replay(complete(request("GPipe", p, m)), costs).makespan,
                sum + (m - 1) * (forward + backward), 1e-9);
  }
}

// ---- validation

template <class Mutate>
void expect_rejected(Mutate&& mutate, const std::string& part) {
  Schedule schedule = complete(request("1F1B", 3, 5));
  ASSERT_NO_THROW(validate(schedule, chain(3)));
  mutate(schedule);
  expect_error(ErrorKind::Config, {part}, [&] { validate(schedule, chain(3)); });
}

std::size_t index_of(const Schedule& schedule, std::size_t device, const std::string& action) {
  const std::vector<Action>& list = schedule.lists[device];
  const auto found = std::find(list.begin(), list.end(), parse_action(action, "test"));
  EXPECT_NE(found, list.end()) << action;
  return static_cast<std::size_t>(found - list.begin());
}

void swap_actions(Schedule& schedule, std::size_t device, const std::string& a,
                  const std::string& b) {
  std::swap(schedule.lists[device][index_of(schedule, device, a)],
            schedule.lists[device][index_of(schedule, device, b)]);
}

void remove_action(Schedule& schedule, std::size_t device, const std::string& action) {
  std::vector<Action>& list = schedule.lists[device];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(index_of(schedule, device, action)));
}

TEST(ScheduleValidateTest, RejectsInvalidSchedules) {
  expect_rejected([](Schedule& s) { swap_actions(s, 1, "1F0", "1F1"); }, "1F0");
  expect_rejected([](Schedule& s) { swap_actions(s, 2, "2F0", "2B0"); }, "can never run");
  expect_rejected([](Schedule& s) { swap_actions(s, 0, "0F0", "0SEND_F0>1"); }, "can never run");
  expect_rejected([](Schedule& s) { swap_actions(s, 1, "1RECV_B0<2", "1B0"); }, "can never run");
  expect_rejected([](Schedule& s) { remove_action(s, 1, "1RECV_F3<0"); }, "1RECV_F3<0 is missing");
  expect_rejected([](Schedule& s) { remove_action(s, 2, "2F4"); }, "2F4 is missing");
  expect_rejected([](Schedule& s) { remove_action(s, 0, "0REDUCE"); }, "0UPDATE");
  expect_rejected([](Schedule& s) { s.lists[1].push_back(parse_action("1F1", "")); }, "twice");
  expect_rejected([](Schedule& s) { s.lists[1].push_back(parse_action("0F1", "")); },
                  "stage 0 is on device 0");
  expect_rejected([](Schedule& s) { s.lists[1].push_back(parse_action("7F1", "")); },
                  "stages are 0 to 2");
  expect_rejected([](Schedule& s) { swap_actions(s, 0, "0REDUCE", "0B4"); }, "reduced");
}

TEST(ScheduleValidateTest, RejectsSendsThatWaitForEachOther) {
  // Each device sends before it receives, which works only with buffered sends.
  const Schedule crossed = parse_schedule(
      "0F0,0SEND_F0>1,0F1,0SEND_F1>1,0RECV_B0<1,0B0,0RECV_B1<1,0B1,0REDUCE,0UPDATE\n"
      "1RECV_F0<0,1F0,1B0,1SEND_B0>0,1RECV_F1<0,1F1,1B1,1SEND_B1>0,1REDUCE,1UPDATE\n",
      "crossed");
  expect_error(ErrorKind::Config, {"wait at 0SEND_F1>1 1SEND_B0>0"},
               [&] { validate(crossed, chain(2)); });
}

TEST(ScheduleValidateTest, ManyDevicesTakeNoLonger) {
  const Schedule schedule = complete(request("1F1B", 512, 16));
  const Timer timer;
  validate(schedule, chain(512));
  EXPECT_LT(timer.seconds(), 5.0);
}

TEST(ScheduleTextTest, FilesComeBackAsTheyWere) {
  for (const ScheduleRule& rule : schedule_rules()) {
    const std::int32_t chunks = rule.placement == StagePlacement::V ? 2 : 1;
    const Schedule compute = generate(request(rule.name, 3, 4, chunks));
    for (const Schedule& schedule : {compute, with_communication(compute, chain(compute.stages))}) {
      Schedule read = parse_schedule(to_csv(schedule), "file");
      read.name = schedule.name;
      EXPECT_EQ(read, schedule);
    }
    EXPECT_EQ(schedule_rule(to_lower(rule.name)).name, rule.name);
    if (!rule.torch_name.empty()) {
      EXPECT_EQ(schedule_rule(rule.torch_name).name, rule.name);
    }
  }
}

TEST(ScheduleTextTest, ErrorsNameTheirPlace) {
  const auto refuses = [](const std::string& csv, const std::string& part) {
    expect_error(ErrorKind::Config, {part}, [&] { (void)parse_schedule(csv, "a.csv"); });
  };
  refuses("0F0,0X1\n", "a.csv: row 1, column 2: '0X1'");
  refuses("0F0\n0F1\n", "a.csv: row 2, column 1");
  refuses("1F0\n", "no actions for stage 0");
  refuses("", "contains no actions");
  // The number of micro-batches is the largest micro-batch plus one, which must not overflow.
  for (const char* const text : {"0F2147483647", "2147483647SA0", "0F99999999999"})
    EXPECT_THROW((void)parse_schedule(text, "x"), Error) << text;
  EXPECT_THROW((void)schedule_rule("2F2B"), Error);
  EXPECT_EQ(parse_schedule("0F0\n\n, ,\n1F0\n", "x").devices(), 2) << "rows without actions";
}

// What PyTorch 2.15's schedule classes write (tests/golden/record_schedules.py): proved, and as
// fast and as modest as ours of the same name.
TEST(ScheduleTextTest, ReadsWhatPyTorchWrites) {
  const fs::path folder = fs::path(MILLRACE_SOURCE_DIR) / "tests/golden/pytorch/schedules";
  int files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    std::ifstream stream(entry.path());
    const std::string csv{std::istreambuf_iterator<char>(stream), {}};
    Schedule schedule = parse_schedule(csv, file);
    for (std::vector<Action>& list : schedule.lists)
      std::erase_if(list, [](const Action& a) { return !is_compute(a.kind); });
    const bool other_order = file.starts_with("LoopedBFS") || file.starts_with("1F1B");
    EXPECT_EQ(number_in_order(schedule), other_order) << file;
    const std::vector<Link> links = chain(schedule.stages);
    const Schedule whole = with_communication(schedule, links);
    ASSERT_NO_THROW(validate(whole, links)) << file;
    ++files;
    const std::string torch_name = "Schedule" + file.substr(0, file.find('-'));
    if (torch_name == "ScheduleLoopedBFS") continue;
    const std::int32_t chunks = schedule.stages / schedule.devices();
    const Schedule ours =
        complete(request(torch_name, schedule.devices(), schedule.micro_batches, chunks));
    EXPECT_EQ(ours.device_of, schedule.device_of) << file;
    const double share = 1.0 / chunks;
    const Costs costs = equal_costs(schedule.stages, share, share, share);
    const TimeLine theirs = replay(whole, costs);
    const TimeLine line = replay(ours, costs);
    EXPECT_LE(line.makespan, theirs.makespan + 1e-9) << file;
    EXPECT_LE(*std::max_element(line.stash_bytes.begin(), line.stash_bytes.end()),
              *std::max_element(theirs.stash_bytes.begin(), theirs.stash_bytes.end()))
        << file;
  }
  EXPECT_GE(files, 41);
}

TEST(ScheduleRequestTest, RefusesImpossibleRequests) {
  ScheduleRequest mapped = request("Looped", 2, 4, 2);
  mapped.device_of = {0, 1, 1, 0};
  ScheduleRequest far = request("GPipe", 2, 4);
  far.device_of = {0, 2};
  for (const ScheduleRequest& r : {request("1F1B", 0, 4), request("1F1B", 2, 0),
                                   request("1F1B", 2, 4, 2), request("ZB-V", 2, 4, 3), mapped, far})
    EXPECT_NE(message_of(ErrorKind::Config, [&] { (void)generate(r); }), "") << r.name;
}

TEST(ScheduleRequestTest, MayNameTheDevicesThatTheScheduleHasAnyway) {
  ScheduleRequest r = request("ZB-V", 2, 4, 2);
  const Schedule usual = generate(r);
  r.device_of = usual.device_of;
  EXPECT_EQ(generate(r), usual);
}

}  // namespace
}  // namespace millrace::pipeline
