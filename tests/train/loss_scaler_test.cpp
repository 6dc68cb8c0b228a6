// SPDX-License-Identifier: Apache-2.0
#include "train/loss_scaler.hpp"

#include "core/error.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::training {
namespace {

constexpr run::LossScaling kDynamic = {
    .kind = run::ScalingKind::Dynamic, .initial = 32768.0, .growth_interval = 3};

ScalingState after(const run::LossScaling& scaling, ScalingState state, std::string_view steps) {
  for (const char step : steps) state = after_step(scaling, state, step == 'x');
  return state;
}

TEST(LossScaler, HalvesAndStartsCountingAgain) {
  const ScalingState state = after(kDynamic, first_scaling(kDynamic), "..x");
  EXPECT_EQ(state, (ScalingState{.scale = 16384.0, .skipped = 1, .skipped_in_row = 1}));
  EXPECT_EQ(after(kDynamic, state, ".."),
            (ScalingState{.scale = 16384.0, .good_steps = 2, .skipped = 1}));
}

TEST(LossScaler, DoublesAfterTheIntervalAlone) {
  const ScalingState first = first_scaling(kDynamic);
  EXPECT_EQ(after(kDynamic, first, "..").scale, 32768.0);
  EXPECT_EQ(after(kDynamic, first, "..."), (ScalingState{.scale = 65536.0}));
  EXPECT_EQ(after(kDynamic, first, "......").scale, 131072.0);
  EXPECT_EQ(after(kDynamic, first, "..x..x..x").scale, 4096.0);
}

TEST(LossScaler, StaysBetweenOneAndWhatFloatsHold) {
  const ScalingState low{.scale = 1.5};
  EXPECT_EQ(after(kDynamic, low, "x").scale, 1.0);
  EXPECT_EQ(after(kDynamic, low, "xxx").scale, 1.0);
  // A failed step does not raise an initial scale below one.
  EXPECT_EQ(after(kDynamic, {.scale = 0.5}, "x").scale, 0.5);
  const ScalingState high{.scale = 0x1p127};
  EXPECT_EQ(after(kDynamic, high, "..."), high);
  EXPECT_TRUE(std::isfinite(static_cast<float>(after(kDynamic, high, "......").scale)));
  EXPECT_EQ(after(kDynamic, {.scale = 0x1p126}, "...").scale, 0x1p127);
}

TEST(LossScaler, StaticScalesOnlyCount) {
  const run::LossScaling scaling{.initial = 128.0, .growth_interval = 1};
  EXPECT_EQ(after(scaling, first_scaling(scaling), "x..xx"),
            (ScalingState{.scale = 128.0, .skipped = 3, .skipped_in_row = 2}));
}

TEST(LossScaler, ReadsBackWhatItWrote) {
  const ScalingState state{
      .scale = 0x1.8p-3, .good_steps = 1999, .skipped = 7, .skipped_in_row = 2};
  EXPECT_EQ(parse_scaling(to_json(state), kDynamic), state);
  EXPECT_EQ(parse_scaling("", kDynamic), first_scaling(kDynamic));
  for (const char* text :
       {"{", "{}", "[1]", R"({"scale": "2"})",
        R"({"scale": -1.0, "good_steps": 0, "skipped": 0, "skipped_in_row": 0})",
        R"({"scale": 1.0, "good_steps": -2, "skipped": 0, "skipped_in_row": 0})"}) {
    expect_error(ErrorKind::Checkpoint, {text}, [&] { (void)parse_scaling(text, kDynamic); });
  }
}

}  // namespace
}  // namespace millrace::training
