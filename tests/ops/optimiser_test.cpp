// SPDX-License-Identifier: Apache-2.0
#include "ops/optimiser.hpp"

#include <gtest/gtest.h>

#include "tests/ops/device_values.hpp"

namespace millrace::ops {
namespace {

using Spans = std::vector<ParameterSpan>;

class SpansOnDevice {
 public:
  explicit SpansOnDevice(const Spans& spans)
      : count_(static_cast<std::int64_t>(spans.size())),
        arena_(count_ * static_cast<std::int64_t>(sizeof(ParameterSpan))) {
    device::copy_to_device(arena_.at(0), reinterpret_cast<const std::byte*>(spans.data()),
                           count_ * static_cast<std::int64_t>(sizeof(ParameterSpan)));
  }
  [[nodiscard]] const ParameterSpan* data() const {
    return reinterpret_cast<const ParameterSpan*>(arena_.at(0));
  }
  [[nodiscard]] std::int64_t count() const { return count_; }

 private:
  std::int64_t count_;
  device::Arena arena_;
};

/// The update in double; an empty velocity is plain SGD.
void update_reference(const SgdUpdate& u, const Spans& spans, Values& weights, Values& velocity,
                      const Values& gradients) {
  for (const ParameterSpan& span : spans) {
    for (std::int64_t i = span.offset; i < span.offset + span.elements; ++i) {
      const auto k = static_cast<std::size_t>(i);
      const double decay = span.decays ? static_cast<double>(u.weight_decay) : 0.0;
      double step = gradients[k] * static_cast<double>(u.gradient_scale) + decay * weights[k];
      if (!velocity.empty()) {
        step += static_cast<double>(u.momentum) * velocity[k];
        velocity[k] = step;
      }
      weights[k] -= static_cast<double>(u.rate) * step;
    }
  }
}

// Full, small and odd spans, one that does not decay, and a gap of 100 that belongs to nobody.
const Spans kSpans = {
    {0, kSpanElements, true}, {kSpanElements, 17, false}, {4213, 1, true}, {4214, 786, false}};
constexpr std::int64_t kElements = 5000;
constexpr SgdUpdate kUpdate{0.1f, 0.9f, 0.01f, 0.25f};

TEST(Sgd, PlainStepsAreTheReference) {
  const device::ExecutionSpace space;
  const SpansOnDevice spans(kSpans);
  Values weights = random_as<float>(kElements, 1);
  Values none;
  DeviceValues<float> weights_device(weights);
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Values gradients = random_as<float>(kElements, 10 + step);
    DeviceValues<float> gradients_device(gradients);
    sgd_update(space, kUpdate, weights_device.data(), nullptr, gradients_device.data(),
               spans.data(), spans.count());
    update_reference(kUpdate, kSpans, weights, none, gradients);
  }
  EXPECT_TRUE(close_to(weights_device.values(), weights, 8.0 * kFloatUnit));
}

TEST(Sgd, MomentumIsTheReference) {
  const device::ExecutionSpace space;
  const SpansOnDevice spans(kSpans);
  Values weights = random_as<float>(kElements, 1);
  Values velocity(static_cast<std::size_t>(kElements));
  DeviceValues<float> weights_device(weights), velocity_device(velocity);
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Values gradients = random_as<float>(kElements, 10 + step);
    DeviceValues<float> gradients_device(gradients);
    sgd_update(space, kUpdate, weights_device.data(), velocity_device.data(),
               gradients_device.data(), spans.data(), spans.count());
    update_reference(kUpdate, kSpans, weights, velocity, gradients);
  }
  EXPECT_TRUE(close_to(weights_device.values(), weights, 8.0 * kFloatUnit));
  EXPECT_TRUE(close_to(velocity_device.values(), velocity, 8.0 * kFloatUnit));
}

TEST(Sgd, DecayIsSwitchedBySpan) {
  const device::ExecutionSpace space;
  const SpansOnDevice spans({{0, 2, true}, {2, 2, false}});
  DeviceValues<float> weights(Values(4, 1.0)), gradients(Values(4, 0.0));
  SgdUpdate update;
  update.rate = 0.5f;
  update.weight_decay = 0.5f;
  sgd_update(space, update, weights.data(), nullptr, gradients.data(), spans.data(), spans.count());
  EXPECT_EQ(weights.values(), (Values{0.75, 0.75, 1.0, 1.0}));
}

TEST(Sgd, LeavesWhatIsInNoSpanAlone) {
  const device::ExecutionSpace space;
  const SpansOnDevice spans({{1, 2, true}});
  DeviceValues<float> weights(Values(4, 1.0)), gradients(Values(4, 1.0)), velocity(Values(4, 0.0));
  SgdUpdate update;
  update.rate = 0.5f;
  sgd_update(space, update, weights.data(), velocity.data(), gradients.data(), spans.data(),
             spans.count());
  EXPECT_EQ(weights.values(), (Values{1.0, 0.5, 0.5, 1.0}));
  EXPECT_EQ(velocity.values(), (Values{0.0, 1.0, 1.0, 0.0}));
}

}  // namespace
}  // namespace millrace::ops
