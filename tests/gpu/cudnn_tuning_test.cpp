// SPDX-License-Identifier: Apache-2.0
//
// Tables of cuDNN's kernels: that a kernel is made again from a file, and which one is the fastest
// by a clock of the test. Needs no GPU.
#include "ops/cudnn/tuning.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <vector>

#include "../support/expect_error.hpp"
#include "devices.hpp"
#include "shapes.hpp"

namespace millrace::ops::cudnn {
namespace {

Descriptor h200() { return properties_from_text(millrace::testing::kH200); }

std::vector<PassShape> real_passes() {
  std::vector<PassShape> passes;
  for (const ConvShape& shape : {testing::strided(), testing::stem(), testing::grouped()})
    for (const DType type : {DType::F32, DType::BF16, DType::F16})
      for (const Pass pass : {Pass::Forward, Pass::BackwardInput, Pass::BackwardWeight})
        passes.push_back({shape, type, pass});
  return passes;
}

/// A table in which this kernel is the fastest for the pass, after it was in a file.
KernelTable from_file(const PassShape& pass, const EngineChoice& choice) {
  const MeasuredKernel kernel{
      .choice = choice, .scratch = 0, .deterministic = true, .microseconds = 1.0};
  KernelTable table{.device = "d", .library = "l", .rows = {}};
  table.rows[{describe(pass.shape), pass.type, pass.pass}] = {.best = kernel, .usual = kernel};
  return parse_kernel_table(to_text(table), "t.json");
}

EngineChoice read_back(const PassShape& pass, const EngineChoice& choice) {
  return from_file(pass, choice).find({describe(pass.shape), pass.type, pass.pass})->choice;
}

std::string words(const PassShape& pass, const EngineChoice& choice) {
  return fmt::format("{} {} of {}, engine {}", name_of(pass.type), name_of(pass.pass),
                     describe(pass.shape), choice.engine);
}

TEST(CudnnTuningTest, EveryCandidateIsMadeAgainFromAFile) {
  const Descriptor device = h200();
  std::size_t several = 0;
  std::size_t with_settings = 0;
  for (const PassShape& pass : real_passes()) {
    const std::vector<Plan> plans = all_plans(device, pass, {});
    if (plans.size() > 1) ++several;
    for (const Plan& plan : plans) {
      if (!plan.choice.knobs.empty()) ++with_settings;
      const std::optional<Plan> again =
          plan_of_choice(device, pass, {}, read_back(pass, plan.choice));
      ASSERT_TRUE(again) << words(pass, plan.choice);
      EXPECT_EQ(again->choice, plan.choice) << words(pass, plan.choice);
      EXPECT_EQ(again->scratch, plan.scratch) << words(pass, plan.choice);
      EXPECT_EQ(again->deterministic, plan.deterministic);
      EXPECT_EQ(again->tensor_cores, plan.tensor_cores);
    }
  }
  EXPECT_GE(several, 20u) << "of 27 passes";
  EXPECT_GE(with_settings, 20u);
}

TEST(CudnnTuningTest, CandidatesKeepToTheRules) {
  const Descriptor device = h200();
  for (const PassShape& pass : real_passes()) {
    const std::vector<Plan> plans = all_plans(device, pass, {.cap = kDefaultCap});
    ASSERT_FALSE(plans.empty());
    EXPECT_EQ(plans.front().choice, find_plan(device, pass, {.cap = kDefaultCap})->choice);
    for (const Plan& plan : plans) {
      EXPECT_TRUE(plan.deterministic) << words(pass, plan.choice);
      EXPECT_LE(plan.scratch, kDefaultCap) << words(pass, plan.choice);
      if (pass.type == DType::F32) {
        EXPECT_FALSE(plan.tensor_cores) << words(pass, plan.choice);
      }
      const auto same = [&](const Plan& other) { return other.choice == plan.choice; };
      EXPECT_EQ(std::ranges::count_if(plans, same), 1) << words(pass, plan.choice);
    }
  }
}

/// A pass with a kernel whose sums vary, and that kernel.
struct Varying {
  PassShape pass;
  EngineChoice choice;
};
Varying varying() {
  for (const PassShape& pass : real_passes())
    for (const Plan& plan : all_plans(h200(), pass, {.allow_nondeterministic = true}))
      if (!plan.deterministic) return {pass, plan.choice};
  ADD_FAILURE() << "no kernel has varying sums";
  return {};
}

TEST(CudnnTuningTest, VaryingSumsNeedPermissionInTablesToo) {
  const auto [pass, choice] = varying();
  const Descriptor device = h200();
  const KernelTable table = from_file(pass, choice);
  EXPECT_FALSE(plan_of_choice(device, pass, {}, choice));
  const std::optional<Plan> refused = choose_plan(device, pass, {}, &table);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->choice, find_plan(device, pass, {})->choice);
  const std::optional<Plan> allowed =
      choose_plan(device, pass, {.allow_nondeterministic = true}, &table);
  ASSERT_TRUE(allowed);
  EXPECT_EQ(allowed->choice, choice);
  EXPECT_FALSE(allowed->deterministic);
}

TEST(CudnnTuningTest, TablesGoBeforeTheLibraryWithinTheCap) {
  const Descriptor device = h200();
  const PassShape pass{testing::strided(), DType::F32, Pass::Forward};
  const std::vector<Plan> plans = all_plans(device, pass, {});
  const auto large = std::ranges::find_if(plans, [](const Plan& p) { return p.scratch > 0; });
  ASSERT_NE(large, plans.end());
  const KernelTable small = from_file(pass, plans.back().choice);
  EXPECT_EQ(choose_plan(device, pass, {}, &small)->choice, plans.back().choice);
  ASSERT_NE(plans.back().choice, plans.front().choice) << "the test needs another kernel";
  // Too much scratch, and a pass that the table lacks.
  const KernelTable capped = from_file(pass, large->choice);
  EXPECT_EQ(choose_plan(device, pass, {.cap = 0}, &capped)->choice,
            find_plan(device, pass, {.cap = 0})->choice);
  const PassShape other{testing::strided(), DType::F32, Pass::BackwardInput};
  EXPECT_EQ(choose_plan(device, other, {}, &small)->choice, find_plan(device, other, {})->choice);
}

TEST(CudnnTuningTest, WhatTheLibraryDoesNotHaveIsLeftToItsChoice) {
  const Descriptor device = h200();
  const PassShape pass{testing::strided(), DType::BF16, Pass::Forward};
  const EngineChoice proposed = find_plan(device, pass, {})->choice;
  ASSERT_FALSE(proposed.knobs.empty());
  EngineChoice no_engine = proposed;
  no_engine.engine = 100'000;
  EngineChoice no_knob = proposed;
  no_knob.knobs.push_back({.type = 1'000'000, .value = 0});
  EngineChoice no_value = proposed;
  no_value.knobs.front().value = std::numeric_limits<std::int64_t>::max();
  for (const EngineChoice& choice : {no_engine, no_knob, no_value}) {
    EXPECT_FALSE(plan_of_choice(device, pass, {}, choice));
    const KernelTable table = from_file(pass, choice);
    EXPECT_EQ(choose_plan(device, pass, {}, &table)->choice, proposed);
  }
}

TEST(CudnnTuningTest, TheFastestThatRunsIsTheBest) {
  const Descriptor device = h200();
  const PassShape pass{testing::stem(), DType::BF16, Pass::BackwardWeight};
  const std::vector<Plan> plans = all_plans(device, pass, {});
  ASSERT_GE(plans.size(), 4u);
  // The first does not run, the third and the fourth are equally fast.
  std::vector<EngineChoice> asked;
  const std::optional<TableRow> row =
      tune_pass(device, pass, {}, [&](const Plan& plan) -> std::optional<double> {
        asked.push_back(plan.choice);
        if (asked.size() == 1) return std::nullopt;
        return asked.size() == 3 || asked.size() == 4 ? 10.0 : 20.0;
      });
  ASSERT_EQ(asked.size(), plans.size());
  for (std::size_t i = 0; i < plans.size(); ++i) EXPECT_EQ(asked[i], plans[i].choice);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->usual.choice, plans[1].choice);
  EXPECT_EQ(row->usual.microseconds, 20.0);
  EXPECT_EQ(row->best.choice, plans[2].choice);
  EXPECT_EQ(row->best.microseconds, 10.0);
  EXPECT_EQ(row->best.scratch, plans[2].scratch);
  EXPECT_FALSE(tune_pass(device, pass, {}, [](const Plan&) { return std::nullopt; }));
}

TEST(CudnnTuningTest, DevicesAndVersionsHaveNames) {
  EXPECT_EQ(device_name(h200()), "NVIDIA H200, 132 multiprocessors");
  EXPECT_TRUE(library_name().starts_with("cuDNN 9.")) << library_name();
}

}  // namespace
}  // namespace millrace::ops::cudnn
