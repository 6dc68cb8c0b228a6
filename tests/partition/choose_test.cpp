// SPDX-License-Identifier: Apache-2.0
//
// Layouts within memory, for processes that need whatever a test says besides their stages.
#include "partition/choose.hpp"

#include "core/text.hpp"
#include "partition/process_memory.hpp"
#include "tests/partition/nets.hpp"
#include "tests/support/test.hpp"

namespace millrace::partition {
namespace {

using Fields = std::vector<std::pair<const char*, run::Value>>;
using namespace std::string_literals;  // NOLINT(google-build-using-namespace): values of fields
using Bytes = std::int64_t;

const Graph& network() {
  static const Graph graph = cifar_resnet("20");
  return graph;
}

/// A training with these fields, before its layout is chosen.
Run asked(const Fields& fields) {
  run::Patch patch;
  for (const auto& [name, value] : Fields{{"dataset", "cifar-10"s},
                                          {"model-size", "20"s},
                                          {"precision", "32.32"s},
                                          {"batch-size", Bytes{16}},
                                          {"synthetic-data", true}})
    run::impose(patch, name, value);
  for (const auto& [name, value] : fields) run::impose(patch, name, value);
  const run::DatasetFacts data{.train_size = 50'000,
                               .validation_size = 10'000,
                               .classes = 10,
                               .image = {32, 32, 3},
                               .directory = {}};
  return run::complete(patch, data, {.cores = 2}).run;
}

Plan plan_of(const Run& run) {
  const PlanRequest request = plan_request(run, {});
  return make_plan(network(), costs_of(network(), request), run.pipeline.ranges, request,
                   without_communication(run.pipeline.schedule));
}

/// A machine whose processes need `rest` besides their stages, far from what is assumed at first.
Sizer sizer_with(Bytes rest) {
  const auto stages = [](const Run& run) -> StageSizer {
    return [update = plan_request(run, {}).update](OpRange range, const auto& options,
                                                   pipeline::Slots slots) {
      return stage_bytes(network(), range, options, slots, update);
    };
  };
  const auto measure = [rest](const Run& run) -> DeviceUse {
    return {.need = largest_device(plan_of(run)) + rest, .rest = rest};
  };
  return {.search = stages,
          .exact = stages,
          .rest = [](const Run&) { return Bytes{60'000'000}; },
          .measure = measure,
          .varies = 1'500'000};
}

struct Chosen {
  Choice choice;
  double seconds = 0.0;
  bool fits = false;
};

Chosen chosen(const Fields& fields, Bytes rest) {
  const Sizer sizer = sizer_with(rest);
  Chosen result{.choice = choose(network(), asked(fields), {.machine = {.cores = 2}}, sizer)};
  const Run& run = result.choice.run;
  result.seconds = plan_of(run).seconds;
  result.fits = sizer.measure(run).need + sizer.varies <= run.device_memory;
  return result;
}

Fields with(Fields fields, const Fields& more) {
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

const Fields kPipeline = {
    {"shards", Bytes{2}}, {"pipeline-depth", Bytes{8}}, {"pipeline-splits", "auto"s}};

Fields within(Bytes bytes, const Fields& fields) {
  return with(fields, {{"device-memory", std::to_string(bytes)}});
}

// In windows of a few megabytes, too: between what one schedule needs and the next.
TEST(ChooseTest, AutoFitsAndIsNeverWorseThanANamedSchedule) {
  for (const auto& [more, rest] : {std::pair{Fields{}, Bytes{5'000'000}},
                                   {Fields{}, Bytes{90'000'000}},
                                   {Fields{{"recompute", "auto"s}}, Bytes{40'000'000}}}) {
    int compared = 0;
    for (const Bytes stages : {20'000'000, 32'000'000}) {
      const Fields fields = within(stages + rest, with(kPipeline, more));
      const Chosen automatic = chosen(with(fields, {{"pipeline-schedule", "auto"s}}), rest);
      for (const char* name : {"Sequential", "1F1B", "GPipe", "ZB-V"}) {
        const Chosen named = chosen(with(fields, {{"pipeline-schedule", std::string(name)}}), rest);
        if (!named.fits) continue;
        ++compared;
        ASSERT_TRUE(automatic.fits) << stages << name;
        EXPECT_LE(automatic.seconds, 1.0011 * named.seconds) << stages << name;
      }
    }
    EXPECT_GE(compared, 2);
  }
}

// Where ranks cannot have equally many devices, and nothing is given that holds for devices.
TEST(ChooseTest, RanksHaveEqualPartsWhereTheyMay) {
  const Fields four = with(kPipeline, {{"replicas", Bytes{2}}, {"ranks", Bytes{3}}});
  const auto spreads = [](const Fields& fields, Bytes ranks_started = 0) {
    const run::MachineFacts machine{.cores = 8, .ranks = static_cast<int>(ranks_started)};
    const Choice choice = choose(network(), asked(fields), {.machine = machine}, sizer_with(0));
    const auto& run = choice.run;
    EXPECT_EQ(run.layout.splits.size() + 1, static_cast<std::size_t>(*run.layout.shards));
    EXPECT_EQ(run.layout.spread, run.pipeline.is_joint()) << "it is recorded";
    EXPECT_EQ(std::ranges::any_of(choice.layout.notices,
                                  [](const auto& n) { return n.starts_with("Spread over "); }),
              run.pipeline.is_joint());
    return run.pipeline.is_joint();
  };
  EXPECT_TRUE(spreads(four));
  EXPECT_TRUE(spreads({{"replicas", Bytes{4}}, {"ranks", Bytes{3}}})) << "of one stage";
  EXPECT_FALSE(spreads(with(four, {{"ranks", Bytes{2}}}))) << "two for each";
  EXPECT_FALSE(spreads(with(four, {{"pipeline-schedule", "Sequential"s}})));
  EXPECT_FALSE(spreads(with(four, {{"devices-of-ranks", "2 1 1"s}})));
  EXPECT_FALSE(spreads(with(four, {{"device-memory", "8GiB"s}})));
  EXPECT_TRUE(spreads(with(four, {{"ranks", Bytes{4}}, {"speeds-of-ranks", "1 1 0.2 1"s}})));
  EXPECT_FALSE(spreads(with(four, {{"ranks", Bytes{4}}, {"speeds-of-ranks", "1 1 1 1"s}})));
  for (const char* slow : {"1 0.1 1 1", "1 1 1 0.01", "0.02 1 1 1"}) {
    const Choice choice = choose(
        network(), asked(with(four, {{"ranks", Bytes{4}}, {"speeds-of-ranks", std::string(slow)}})),
        {.machine = {.cores = 8}}, sizer_with(0));
    EXPECT_GE(std::ranges::min(choice.run.pipeline.ranks.shares), 1) << slow;
  }
  const Fields given = with(four, {{"pipeline-splits", "b2/0"s}});
  EXPECT_FALSE(spreads(given));
  EXPECT_TRUE(spreads(with(given, {{"spread", true}})));
  EXPECT_TRUE(spreads(with(given, {{"elastic", true}}), 3)) << "two of five ranks are lost";
  EXPECT_FALSE(spreads(with(given, {{"elastic", true}}))) << "before a loss";
}

TEST(ChooseTest, CutsUseWhatTheProcessLeaves) {
  const Fields fields = within(70'000'000, with(kPipeline, {{"pipeline-schedule", "1F1B"s}}));
  const Chosen measured = chosen(fields, 20'000'000);
  EXPECT_TRUE(measured.fits);
  Sizer assumes = sizer_with(20'000'000);  // more than that, so that only smaller stages would fit
  assumes.measure = nullptr;
  const Choice assumed = choose(network(), asked(fields), {.machine = {.cores = 2}}, assumes);
  EXPECT_LT(measured.seconds, 0.99 * plan_of(assumed.run).seconds);
}

TEST(ChooseTest, RecomputesNoMoreThanNeeded) {
  const Fields fields = within(70'000'000, {{"recompute", "auto"s}});
  const double without = chosen({}, 0).seconds;
  const Chosen loose = chosen(fields, 20'000'000);
  EXPECT_TRUE(loose.fits);
  EXPECT_DOUBLE_EQ(loose.seconds, without);
  const Chosen tight = chosen(fields, 48'000'000);
  EXPECT_TRUE(tight.fits);
  EXPECT_GT(tight.seconds, 1.005 * without);
}

TEST(ChooseTest, WhatIsChosenIsSaidAndRecorded) {
  const Choice choice =
      chosen(within(80'000'000, with(kPipeline, {{"pipeline-schedule", "auto"s}})), 30'000'000)
          .choice;
  ASSERT_FALSE(choice.layout.notices.empty());
  EXPECT_EQ(choice.layout.notices.front(),
            schedule_notice(choice.run.layout.schedule.value_or(""), choice.run.splits));
  EXPECT_EQ(choice.run.layout.splits, choice.run.splits);
}

TEST(ChooseTest, WhatIsGivenStays) {
  const Chosen given = chosen(within(1'000'000, {{"shards", Bytes{2}},
                                                 {"pipeline-depth", Bytes{8}},
                                                 {"pipeline-splits", "b3/0"s},
                                                 {"pipeline-schedule", "1F1B"s}}),
                              30'000'000);
  EXPECT_FALSE(given.fits);
  EXPECT_EQ(given.choice.run.splits, std::vector<std::string>{"b3/0"});
}

// ---- the nearest layout that fits

struct Advice {
  const char* name;
  Fields fields;
  double share;  ///< of what they need
  const char* words;
};

Fields pipeline(const char* schedule, const char* splits, const Fields& more = {}) {
  return with({{"shards", Bytes{2}},
               {"pipeline-depth", Bytes{4}},
               {"pipeline-schedule", std::string(schedule)},
               {"pipeline-splits", std::string(splits)}},
              more);
}

class NearestFitTest : public testing::TestWithParam<Advice> {};

TEST_P(NearestFitTest, ChangesWhatCostsTheLeast) {
  const auto& [name, fields, share, words] = GetParam();
  const Sizer sizer = sizer_with(20'000'000);
  run::Run run = choose(network(), asked(fields), {.machine = {.cores = 2}}, sizer).run;
  run.device_memory = static_cast<Bytes>(share * static_cast<double>(sizer.measure(run).need));
  run.layout.device_memory = run.asked_layout.device_memory = std::to_string(run.device_memory);
  const std::string advice = nearest_fit(network(), run, sizer);
  EXPECT_TRUE(advice.starts_with(words)) << advice;
}

TEST(NearestFitOfRestoreTest, KeepsTheBatchOfARunThatContinues) {
  const Sizer sizer = sizer_with(20'000'000);
  run::Run run =
      choose(network(), asked({{"recompute", "segments"s}}), {.machine = {.cores = 2}}, sizer).run;
  run.device_memory = sizer.measure(run).need / 2;
  EXPECT_NE(nearest_fit(network(), run, sizer).find("`batch-size`"), std::string::npos);
  const std::string kept = nearest_fit(network(), run, sizer, Batch::Fixed);
  EXPECT_EQ(kept.find("`batch-size`"), std::string::npos) << kept;
  EXPECT_NE(kept.find("raise `device-memory`"), std::string::npos) << kept;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, NearestFitTest,
    testing::Values(
        Advice{"Recomputation", {}, 0.8, "`recompute` segments fits with "},
        Advice{"Batch", {{"recompute", "segments"s}}, 0.8, "`batch-size` 4 fits with "},
        Advice{"Cuts", pipeline("1F1B", "b3/2"), 0.8, "`pipeline-splits` 'b2/0' fits with "},
        Advice{"Layers",
               {{"recompute-layers", "b1"s}},
               0.95,
               "`recompute` segments instead of `recompute-layers` fits with "},
        Advice{"Schedule", pipeline("GPipe", "auto"), 0.8,
               "`pipeline-schedule` 1F1B `pipeline-splits` 'b2/0/relu' fits with "},
        Advice{"Chunks", pipeline("Looped", "auto", {{"chunks", Bytes{2}}}), 0.7,
               "`shards` 2 `pipeline-schedule` 1F1B `pipeline-splits` 'b2/0' instead of `chunks` "
               "fits with "},
        Advice{"Mapping",
               {{"pipeline-depth", Bytes{4}},
                {"device-mapping", "0 1 1 0"s},
                {"pipeline-splits", "b1/1 b2/0 b3/0"s}},
               0.55,
               "`shards` 2 `pipeline-schedule` 1F1B `pipeline-splits` 'b2/0' `recompute` segments "
               "instead of `device-mapping` fits with "},
        Advice{"V", pipeline("ZB-V", "auto"), 0.55,
               "`pipeline-schedule` 1F1B `pipeline-splits` 'b2/0' `recompute` segments fits with "},
        Advice{"Nothing", pipeline("1F1B", "auto"), 0.3,
               "even `pipeline-schedule` Sequential `pipeline-splits` 'b2/0/relu' `recompute` "
               "segments "
               "`batch-size` 1 needs "}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace millrace::partition
