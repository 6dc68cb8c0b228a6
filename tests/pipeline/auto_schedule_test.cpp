// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/list_schedule.hpp"

#include <random>

#include "core/error.hpp"
#include "tests/support/test.hpp"

namespace millrace::pipeline {
namespace {

double uniform(std::mt19937& random, double low, double high) {
  return low + (high - low) * static_cast<double>(random()) / 4294967296.0;
}

std::int32_t integer(std::mt19937& random, std::int32_t low, std::int32_t high) {
  return low + static_cast<std::int32_t>(random() % static_cast<unsigned>(high - low + 1));
}

std::vector<Link> links_of(const AutoRequest& r) {
  return r.links.empty() ? chain(static_cast<std::int32_t>(r.costs.stages.size())) : r.links;
}

TimeLine replay(const Schedule& compute, const AutoRequest& r) {
  const std::vector<Link> links = links_of(r);
  return simulate(with_communication(compute, links), links, r.costs);
}

AutoRequest random_request(std::mt19937& random) {
  AutoRequest r;
  const std::int32_t stages = integer(random, 2, 6);
  const double spread = uniform(random, 0.0, 0.8);
  for (std::int32_t s = 0; s < stages; ++s) {
    const double size = uniform(random, 1.0 - spread, 1.0 + spread);
    r.costs.stages.push_back({.forward = size,
                              .backward_input = size * uniform(random, 0.7, 1.3),
                              .backward_weight = size * uniform(random, 0.4, 1.2),
                              .update = uniform(random, 0.0, 0.1),
                              .stash_bytes = integer(random, 1, 50) * 1e6});
  }
  r.micro_batches = integer(random, 1, 32);
  r.split_backward = random() % 2 == 0;
  if (random() % 2 == 0) {
    r.costs.link = {.latency = uniform(random, 0.0, 0.3), .bytes_per_second = 1e9};
    for (std::int32_t s = 0; s + 1 < stages; ++s)
      r.costs.message_bytes.push_back(uniform(random, 0.0, 1e8));
  }
  if (random() % 4 == 0) {
    // Every device has a stage, so that device numbers have no gaps.
    const std::int32_t devices = integer(random, 1, stages);
    for (std::int32_t s = 0; s < stages; ++s)
      r.device_of.push_back(s < devices ? s : integer(random, 0, devices - 1));
    std::shuffle(r.device_of.begin(), r.device_of.end(), random);
  }
  return r;
}

std::int32_t devices_of(const AutoRequest& r) {
  if (r.device_of.empty()) return static_cast<std::int32_t>(r.costs.stages.size());
  return 1 + *std::max_element(r.device_of.begin(), r.device_of.end());
}

void limit_stash(std::mt19937& random, AutoRequest& r) {
  for (std::size_t s = 0; s < r.costs.stages.size(); ++s)
    r.stash_limit.push_back(integer(random, 1, 8));
}

void limit_bytes(std::mt19937& random, AutoRequest& r) {
  r.byte_limit.assign(static_cast<std::size_t>(devices_of(r)), 0.0);
  for (std::size_t s = 0; s < r.costs.stages.size(); ++s) {
    const auto device = r.device_of.empty() ? s : static_cast<std::size_t>(r.device_of[s]);
    r.byte_limit[device] += r.costs.stages[s].stash_bytes;
  }
  // At least the bytes of one micro-batch.
  for (double& limit : r.byte_limit) limit *= random() % 3 == 0 ? 1.0 : uniform(random, 1.0, 6.0);
}

bool keeps_limits(const Schedule& compute, const AutoRequest& r) {
  const std::vector<std::int32_t> peaks = stash_peaks(compute);
  for (std::size_t s = 0; s < r.stash_limit.size(); ++s)
    if (peaks[s] > r.stash_limit[s]) return false;
  const std::vector<double> bytes = replay(compute, r).stash_bytes;
  for (std::size_t d = 0; d < r.byte_limit.size(); ++d)
    if (bytes[d] > r.byte_limit[d]) return false;
  return true;
}

/// The shortest of the generators' schedules within the limits.
double best_generated(const AutoRequest& r) {
  double best = std::numeric_limits<double>::infinity();
  for (const std::string_view kind : {"1F1B", "Grouped", "GPipe", "Sequential", "ZB-H1"}) {
    if (kind == "ZB-H1" && !r.split_backward) continue;
    ScheduleRequest request;
    request.name = kind;
    request.devices = devices_of(r);
    request.device_of = r.device_of;
    request.micro_batches = r.micro_batches;
    const Schedule schedule = generate(request);
    if (keeps_limits(schedule, r)) best = std::min(best, replay(schedule, r).makespan);
  }
  return best;
}

/// Whether the bound from costs alone applies: it assumes a joined backward and one stage per
/// device.
bool has_simple_bound(const AutoRequest& r) { return r.device_of.empty() && !r.split_backward; }

/// Earliest time at which the first micro-batch can reach each stage.
std::vector<double> first_arrivals(const ScheduleProblem& problem) {
  std::vector<double> arrival(problem.costs.stages.size());
  for (std::int32_t s = 0; s < problem.stages; ++s) {
    double& time = arrival[static_cast<std::size_t>(s)];
    for (const Link& l : problem.links)
      if (l.activations && l.to == s)
        time = std::max(time, arrival[static_cast<std::size_t>(l.from)] +
                                  problem.cost(l.from).forward + problem.latency(l));
  }
  return arrival;
}

/// Lower bound on the seconds of any schedule for the request, with or without limits. Equal to the
/// bound from costs alone if there is one stage per device, joined backward and no link latency.
double lower_bound_seconds(const AutoRequest& request) {
  const ScheduleProblem problem(request);
  const Paths paths(problem);
  const std::vector<double> arrivals = first_arrivals(problem);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  double bound = 0.0;
  for (const std::vector<std::int32_t>& stages : problem.stages_on) {
    if (stages.empty()) continue;
    double head = kNever;
    double tail = kNever;        // after the device's last input gradient
    double before_weight = 0.0;  // work before the end of that gradient
    double all = 0.0;
    for (const std::int32_t s : stages) {
      const double backward = problem.cost(s).seconds(problem.backward());
      head = std::min(head, arrivals[static_cast<std::size_t>(s)]);
      tail = std::min(tail, paths.backward(s) - backward);
      before_weight += problem.cost(s).forward + backward;
      all += problem.cost(s).work();
    }
    const double m = problem.micro_batches;
    bound = std::max({bound, head + m * before_weight + tail, head + m * all});
  }
  return bound;
}

void check_sound(const AutoRequest& r, const Schedule& schedule) {
  const std::vector<Link> links = links_of(r);
  ASSERT_NO_THROW(validate(schedule, links)) << to_csv(schedule);
  ASSERT_NO_THROW(validate(with_communication(schedule, links), links)) << to_csv(schedule);
  ASSERT_TRUE(keeps_limits(schedule, r)) << to_csv(schedule);
}

TEST(AutoScheduleTest, IsValidWithinItsLimitsAndNoWorseThanGenerators) {
  std::mt19937 random(3);
  int simple = 0;
  double above = 0.0;  ///< the bound, of simple ones
  for (int trial = 0; trial < 400; ++trial) {
    AutoRequest r = random_request(random);
    const bool few = trial % 4 == 1;
    const bool bytes = trial % 4 == 3;
    if (few) limit_stash(random, r);
    if (bytes) limit_bytes(random, r);
    const Schedule schedule = generate_auto(r);
    check_sound(r, schedule);
    if (HasFatalFailure()) return;
    const double seconds = replay(schedule, r).makespan;
    const double generated = best_generated(r);
    const double bound = lower_bound_seconds(r);
    ASSERT_LE(seconds, generated * (1.0 + 1e-12));
    ASSERT_GE(seconds, bound * (1.0 - 1e-12));
    if (has_simple_bound(r)) {
      const double simple_bound = lower_bound_seconds(r.costs.stages, r.micro_batches, false);
      ASSERT_GE(bound, simple_bound * (1.0 - 1e-12));
      if (r.costs.message_bytes.empty()) {
        ASSERT_NEAR(bound, simple_bound, 1e-9 * bound);
      }
    }
    if (few || bytes || !has_simple_bound(r)) continue;
    ++simple;
    above += seconds / bound - 1.0;
  }
  EXPECT_LE(above / simple, 0.03);
}

AutoRequest equal_request(std::int32_t stages, std::int32_t micro_batches) {
  AutoRequest r;
  r.costs.stages.assign(
      static_cast<std::size_t>(stages),
      {.forward = 1.0, .backward_input = 1.0, .backward_weight = 1.0, .stash_bytes = 1.0});
  r.micro_batches = micro_batches;
  return r;
}

TEST(AutoScheduleTest, EqualStagesMatchTheFormulaeWithTheSmallestStash) {
  AutoRequest r = equal_request(4, 8);
  EXPECT_DOUBLE_EQ(replay(generate_auto(r), r).makespan, 33.0);
  EXPECT_EQ(stash_peaks(generate_auto(r)), (std::vector<std::int32_t>{4, 3, 2, 1}));
  r.split_backward = true;
  EXPECT_DOUBLE_EQ(replay(generate_auto(r), r).makespan, 27.0);
}

TEST(AutoScheduleTest, BeatsGeneratorsWhereStagesDiffer) {
  AutoRequest r = equal_request(3, 12);
  r.costs.stages[1].forward = 2.0;
  r.costs.stages[1].backward_input = 0.5;
  r.costs.stages[2].backward_weight = 0.2;
  r.split_backward = true;
  r.stash_limit = {4, 4, 4};
  EXPECT_LT(replay(generate_auto(r), r).makespan, best_generated(r));
  EXPECT_EQ(generate_auto(r), generate_auto(r));
}

TEST(AutoScheduleTest, RunsWithMemoryForOneMicroBatchPerDevice) {
  // If a device began a second micro-batch on its first stage, it would have no memory for the
  // first one on its last stage.
  for (const bool split : {false, true}) {
    AutoRequest r = equal_request(4, 6);
    r.device_of = {0, 1, 0, 1};
    r.split_backward = split;
    r.byte_limit = {2.0, 2.0};
    const Schedule tight = generate_auto(r);
    check_sound(r, tight);
    r.byte_limit = {3.0, 2.0};
    const Schedule wider = generate_auto(r);
    check_sound(r, wider);
    EXPECT_LE(replay(wider, r).makespan, replay(tight, r).makespan);
  }
}

TEST(AutoScheduleTest, LinksMaySkipStages) {
  AutoRequest r = equal_request(4, 8);
  r.links = {{0, 1}, {0, 2, true, false}, {1, 2}, {2, 3}, {0, 3, true, false}, {1, 3, false, true}};
  r.costs.stages[2].forward = 1.7;
  r.costs.link.latency = 0.2;
  for (const bool split : {false, true}) {
    r.split_backward = split;
    const Schedule schedule = generate_auto(r);
    check_sound(r, schedule);
    EXPECT_GE(replay(schedule, r).makespan, lower_bound_seconds(r) * (1.0 - 1e-12));
  }
}

TEST(AutoScheduleTest, OneStageNeverIdles) {
  AutoRequest r = equal_request(1, 5);
  EXPECT_DOUBLE_EQ(replay(generate_auto(r), r).makespan, 15.0);
  EXPECT_DOUBLE_EQ(lower_bound_seconds(r), 15.0);
}

TEST(AutoScheduleTest, ImpossibleRequestsSayWhatIsWrong) {
  const auto message = [](auto&& change) {
    AutoRequest r = equal_request(3, 4);
    change(r);
    try {
      (void)generate_auto(r);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::Config ? std::string(error.what()) : "another kind";
    }
    return std::string("accepted");
  };
  const auto expect = [&](auto&& change, const std::string& part) {
    test::expect_in(message(change), {part});
  };
  expect([](AutoRequest& r) { r.costs.stages.clear(); }, "at least 1 stage");
  expect([](AutoRequest& r) { r.micro_batches = 0; }, "0 micro-batches");
  expect(
      [](AutoRequest& r) {
        r.device_of = {0, 1};
      },
      "2 entries in the device mapping, expected 3");
  expect([](AutoRequest& r) { r.device_of = {0, -1, 1}; }, "device -1");
  expect([](AutoRequest& r) { r.stash_limit = {2, 0, 2}; }, "stage 1 may hold 0 micro-batches");
  expect([](AutoRequest& r) { r.byte_limit = {1.0, 0.5, 1.0}; }, "device 1 may hold");
  expect([](AutoRequest& r) { r.byte_limit = {9.0}; }, "1 byte limits, expected 3");
  expect([](AutoRequest& r) { r.links = {{1, 0}}; }, "from stage 1 to 0");
  expect([](AutoRequest& r) { r.costs.message_bytes = {1.0}; }, "1 message sizes, expected 2");
}

}  // namespace
}  // namespace millrace::pipeline
